//go:build !race

package browser_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// A tongue is a language with texts that the console must show in it.
type tongue struct{ tag, region, dir, begin, hold, live string }

var tongues = []tongue{
	{"de", "de-AT", "ltr", "Neue Sitzung", "Zum Erlauben eine Sekunde halten.", "Live"},
	{"ja", "ja-JP", "ltr", "新しいセッション", "1 秒間押し続けると許可されます。", "接続中"},
	{"ar", "ar-EG", "rtl", "جلسة جديدة", "اضغط مطولًا ثانية واحدة للسماح.", "متصل"},
	{"en", "en-GB", "ltr", "New session", "Hold for a second to allow.", "Live"},
}

// foreign is a script that lists the page's texts without a letter of the language's
// script. It leaves out texts of agents, people and hosts.
const foreign = `(() => {
	const own = ['button', 'h2', 'h3', 'label', 'summary', 'legend', 'dt', 'th', '.dim', '.notice', '.badge', '.empty', '.looking', '#status-text', '[role=status]', 'option'];
	const said = '.answers, .question, .md, .text, .prompt, .says, .activity, .where, .by, .name, .file, pre, code, #chat-title, #chat-sub, [data-session], .chip, .options-list, .where, .time, #about, #beside';
	const all = [...document.querySelectorAll(own.join(','))].filter((e) => e.checkVisibility() && !e.closest(said) && !e.querySelector(said)).map((e) => e.textContent.trim());
	for (const e of document.querySelectorAll('[aria-label], [placeholder], [title]'))
		if (!e.closest('.md, .question, #beside, [data-session]') && e.checkVisibility()) for (const a of ['aria-label', 'placeholder', 'title']) if (e.getAttribute(a)) all.push(e.getAttribute(a));
	return [...new Set(all.filter((s) => !s.startsWith('/path/') && !s.startsWith('Demo Agent') && /[A-Za-z]{3}/.test(s) && !/[\u0600-\u06ff\u3040-\u30ff\u4e00-\u9fff]/.test(s)))];
})()`

// TestConsoleSpeaksFourLanguages opens the console on a phone in each language, with
// the browser's preferred language as the default. Each state is translated and
// accessible, and is not wider than the screen.
func TestConsoleSpeaksFourLanguages(t *testing.T) {
	t.Parallel()
	for _, l := range tongues {
		t.Run(l.tag, func(t *testing.T) {
			t.Parallel()
			p := newPage(t)
			s := startStackWith(t, stackConfig{still: true})
			agent := emulation.SetUserAgentOverrideParams{UserAgent: eval[string](p, "navigator.userAgent"), AcceptLanguage: l.region}
			p.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
				return cdp.Call(ctx, target, emulation.SetUserAgentOverride, agent)
			})
			p.do(forms[2].size, colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
			p.wants("#sessions", "Fix the flaky login test")
			if got := eval[string](p, "document.documentElement.lang + ' ' + document.documentElement.dir"); got != l.tag+" "+l.dir {
				t.Errorf("the document's language and direction are %s; want %s", got, l.tag+" "+l.dir)
			}
			p.wants("#status-text", l.live)
			p.inTongue(l, "inbox")
			s.proxy.cut()
			p.await("#retry")
			p.fits(l.tag + " without a connection")
			p.holds("the button that tries again is as wide as its text", "((e) => e && e.scrollWidth <= e.clientWidth)(document.querySelector('#retry'))") // absent during an attempt
			s.proxy.restore()
			p.wants("#status-text", l.live)
			p.wants("#new-session", l.begin)
			p.click("#new-session")
			p.await("#create")
			p.inTongue(l, "new-session")
			p.click("#create")
			p.await("#prompt")
			p.inTongue(l, "session")
			p.say("danger")
			p.wants(lastTurn+" .question", l.hold)
			if strings.Contains(eval[string](p, "document.querySelector("+js(lastTurn+" .question .dim")+").innerText"), "keyboard") { // the text that is shown
				t.Error("a phone explains a keyboard's dialog")
			}
			p.inTongue(l, "danger")
			if got := eval[string](p, `["#chat-title", ".prompt .text", "#sessions .name"].filter((s) => getComputedStyle(document.querySelector(s)).unicodeBidi !== "plaintext").join()`); got != "" {
				t.Errorf("%s has the direction of the page, not that of its text", got)
			}
			if !eval[bool](p, `((input) => { const text = document.createRange(); text.selectNodeContents(input.querySelector('pre'));
				return [...text.getClientRects()].every((r) => r.right <= input.querySelector('button').getBoundingClientRect().left); })(document.querySelector('.approval .input'))`) {
				t.Error("the copy button covers the command; want them side by side")
			}
			if !eval[bool](p, `(h => { const text = document.createRange(); text.selectNodeContents(h); const [box] = text.getClientRects();
				return getComputedStyle(h).direction === "rtl" ? h.getBoundingClientRect().right - box.right < 2 : box.left - h.getBoundingClientRect().left < 2; })(document.querySelector("#chat-title"))`) {
				t.Error("the title is not at the start of its line")
			}
			p.press(lastTurn+" .answers button", "Skip") // the host's own label, which is not translated
			p.say("show everything")
			p.wants(lastTurn+" .parts", "That is everything.")
			p.inTongue(l, "everything")
			p.click("#back")
			for _, name := range []string{"status", "bell"} {
				id := map[string]string{"status": "#status-open", "bell": "#bell"}[name]
				p.click(id)
				p.await("dialog[open]")
				p.inTongue(l, name)
				p.click("dialog[open] header button")
			}
		})
	}
}

// inTongue checks a state of the page in a language: accessible, not too wide, and
// without untranslated texts.
func (p *page) inTongue(l tongue, state string) {
	p.t.Helper()
	p.settles()
	name := state + "-" + l.tag
	p.accessible(name)
	p.shot("language-" + name)
	if wide := eval[int](p, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		p.t.Errorf("%s is %d pixels wider than the screen; want 0", name, wide)
	}
	if l.dir == "rtl" || l.tag == "ja" { // these languages do not use Latin letters
		if found := eval[[]string](p, foreign); len(found) > 0 {
			p.t.Errorf("%s has the untranslated texts %q; want none", name, found)
		}
	}
}

// TestLanguageIsChosen selects a language in the page's status. The page has it after
// the next load, and notifications have it, too.
func TestLanguageIsChosen(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#new-session", "New session")
	p.click("#status-open")
	p.click("#language")
	p.press("#language-list [role=option]", "Deutsch")
	p.wants("#new-session", "Neue Sitzung")
	if got := eval[string](p, "document.documentElement.lang"); got != "de" {
		t.Errorf("the document's language is %s; want de", got)
	}
	if got := p.later("caches.open('language').then((c) => c.match('/language')).then((r) => r.text())"); got != "de" {
		t.Errorf("the service worker has the language %q; want de", got)
	}
}
