//go:build !race

package browser_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ahprelay/auth"
)

// before makes the browser run a script at the start of each document that it loads
// from now on.
func (p *page) before(script string) {
	p.t.Helper()
	p.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return chromedp.Void{}, err
	})
}

// reduced returns a step that sets whether the user prefers less motion.
func reduced(value string) step {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		return cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: value}}})
	}
}

// watchesPage is a script that records what the page sends and counts its transitions.
// It holds back the page's requests for the list of sessions until letGo is called.
const watchesPage = `
	window.sent = []; window.held = []; window.moves = 0;
	const send = WebSocket.prototype.send;
	WebSocket.prototype.send = function (text) {
		sent.push(String(text));
		if (held && String(text).includes('"listSessions"')) held.push(() => send.call(this, text));
		else send.call(this, text);
	};
	window.letGo = () => { const all = held; held = null; for (const f of all ?? []) f(); };
	const start = document.startViewTransition;
	document.startViewTransition = function (draw) { moves++; return start.call(this, draw); };
	navigator.clipboard.readText = async () => 'git status';
	window.spoken = [];
	window.SpeechRecognition = window.webkitSpeechRecognition = class { start() { window.hearing = this; } stop() { this.onend(); } };
	Object.defineProperty(window, 'speechSynthesis', {value: {
		speaking: false,
		speak(said) { spoken.push(said.text); this.speaking = true; },
		cancel() { spoken.push('(silence)'); this.speaking = false; },
	}});
`

// TestPhoneShowsTheNextStep uses the console on a phone. It covers grey rows until the
// sessions are known, transitions unless the user prefers less motion, motion that ends,
// folded work and prompts, a header that shrinks, the bar with the answers, and the keys
// below a terminal.
func TestPhoneShowsTheNextStep(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.before(watchesPage)
	p.do(forms[2].size, colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.await("#sessions .skeleton")
	p.accessible("skeletons")
	p.shot("skeletons")
	eval[any](p, "letGo(), null")
	p.wants("#sessions", "Fix the flaky login test")
	if p.count(".skeleton") > 0 {
		t.Error("placeholder rows are shown beside the sessions; want none")
	}

	// A session slides over the list, unless the user prefers less motion.
	p.do(reduced("no-preference"))
	p.openSession("demo:/notes")
	p.wants("#turns", "Search understands")
	p.click("#back")
	p.until("transitions", patience, func() bool { return eval[int](p, "moves") >= 2 })
	p.do(reduced("reduce"))
	before := eval[int](p, "moves")
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.click("#back")
	p.settles()
	if after := eval[int](p, "moves"); after != before {
		t.Errorf("%d transitions ran with reduced motion; want 0", after-before)
	}

	p.begin()
	p.do(reduced("no-preference"))
	p.movesBriefly(".dot", s.proxy.cut)
	p.wants("#status-text", "Connection lost")
	p.do(reduced("reduce"))
	s.proxy.restore()
	p.wants("#status-text", "Live")
	p.opensSheets()
	p.foldsWork()
	p.hearsAndSpeaks()
	p.headerGivesWay()
	p.answersStayInView()
	p.typesWithKeys()
}

// opensSheets opens a session's menu, each sheet that the menu offers, and the status.
// Each must be accessible.
func (p *page) opensSheets() {
	p.t.Helper()
	sheet := func(name string, open func()) {
		p.t.Helper()
		open()
		p.await("dialog[open]")
		p.accessible(name)
		p.do(chromedp.KeyEvent(kb.Escape))
		p.holds(name+" to close", "document.querySelector('dialog[open]') === null")
	}
	p.click(".chat-head .menu summary")
	p.accessible("a session's menu")
	p.click(".chat-head .menu summary")
	for _, name := range []string{"Model and settings", "Rename", "Host’s ports", "Find", "Usage"} {
		sheet(name, func() { p.press(".chat-head .menu button", name) })
	}
	// Escape closes a sheet, and its event follows later. A sheet opened in between must stay.
	p.press(".chat-head .menu button", "Rename")
	p.await("dialog[open]")
	eval[any](p, `(d => { d.dispatchEvent(new Event("cancel", { cancelable: true })); d.close();
		[...document.querySelectorAll(".chat-head .menu button")].find((b) => b.textContent.includes("Find")).click(); return null })(document.querySelector("dialog[open]"))`)
	p.await("#find[open]")
	p.settles()
	if p.count("#find[open]") == 0 {
		p.t.Error("the late event of a closed sheet has closed the next one")
	}
	p.do(chromedp.KeyEvent(kb.Escape))
	p.holds("Find to close", "document.querySelector('dialog[open]') === null")
	p.click("#back")
	sheet("Status", func() { p.click("#status-open") })
	p.holds("the new session", `(b => b && (b.click(), true))([...document.querySelectorAll("#sessions button.item")].find((b) => b.textContent.includes("New session")))`)
	p.wants("#chat-note", "No messages yet.")
}

// foldsWork shows a turn with many finished tools, which the page folds into a line,
// and a long prompt, of which it shows the start.
func (p *page) foldsWork() {
	p.t.Helper()
	p.say("show everything")
	p.wants(lastTurn+" .steps", "4 steps · 3 s") // the sum of the times in the script
	p.wants(lastTurn+" .steps", "Search, Fetch, Screenshot, Edit")
	if p.shows(lastTurn + " [data-call=tc-search]") {
		p.t.Error("a finished tool is shown outside its line; want it folded")
	}
	if !p.shows(lastTurn + " [data-call=tc-failed]") {
		p.t.Error("a failed tool is folded; want it shown")
	}
	p.wants(lastTurn+" .by", "Demo Agent")
	if p.shows(lastTurn + " .facts span") {
		p.t.Error("a turn's figures are shown before a press")
	}
	p.click(lastTurn + " .facts summary")
	p.await(lastTurn + " .facts span")
	p.wants(lastTurn+" .facts span", "tokens")
	p.click(lastTurn + " .steps")
	p.await(lastTurn + " [data-call=tc-search]")
	p.accessible("open steps")
	p.say("terminal slow") // the page reads a command's output while the command runs
	p.wants(lastTurn+" .tool[data-status=running] .says", "hello from the terminal")
	if moving := eval[int](p, "document.getAnimations().length"); moving != 0 {
		p.t.Errorf("%d animations run with reduced motion while the agent works; want 0", moving)
	}
	p.movesBriefly(".progress", func() { p.do(reduced("no-preference")) })
	p.do(reduced("reduce"))
	eval[any](p, "sent = [], null")
	p.click("#stop")
	p.until("the end of the terminal's messages", patience, func() bool {
		return eval[bool](p, `sent.some((s) => s.includes('"unsubscribe"') && s.includes('agenthost-terminal:'))`)
	})
	p.say(strings.Repeat("A long story. ", 90))
	p.await(lastTurn + " .prompt .text.folded")
	p.wants(lastTurn+" .prompt button", "Show all")
	high := func() int {
		return eval[int](p, "document.querySelector("+js(lastTurn+" .prompt .text")+").offsetHeight")
	}
	folded := high()
	p.click(lastTurn + " .prompt button")
	p.until("the whole prompt", patience, func() bool { return high() > folded })
}

// movesBriefly waits until an element moves after begins. All motion must end within 5 s
// (WCAG 2.2.2), because a page that moves makes the browser draw 60 times a second.
func (p *page) movesBriefly(selector string, begins func()) {
	p.t.Helper()
	eval[any](p, `window.endless = null; addEventListener('animationstart', (e) => {
		if (e.target.matches(`+js(selector)+`)) endless = document.getAnimations().filter((a) => a.effect.getComputedTiming().endTime > 5000).map((a) => a.animationName).join();
	}); null`)
	begins()
	p.holds(selector+" to move", "endless !== null")
	if endless := eval[string](p, "endless"); endless != "" {
		p.t.Errorf("%s moves for more than 5 s by %s; want an end", selector, endless)
	}
}

// hearsAndSpeaks dictates a message. It then lets the page read an answer aloud, from
// the turn's menu. The menu must stay below the header.
func (p *page) hearsAndSpeaks() {
	p.t.Helper()
	hears := func(said string) {
		eval[any](p, `hearing.onresult({resultIndex: 0, results: [{0: {transcript: `+js(said)+`}, isFinal: true}, {0: {transcript: 'not yet said'}, isFinal: false}]}), null`)
	}
	p.click("#dictate")
	p.holds("the microphone in use", "document.querySelector('#dictate').ariaPressed === 'true'")
	hears(" hello ")
	p.holds("the phrase in the editor", "document.querySelector('#prompt').value === 'hello'")
	hears("again")
	p.holds("two phrases in the editor", "document.querySelector('#prompt').value === 'hello again'")
	p.click("#dictate")
	p.holds("the microphone not in use", "document.querySelector('#dictate').ariaPressed === 'false'")
	p.click("#send")
	p.wants(lastTurn+" .parts", "You said: hello again")
	p.await(lastTurn + " .foot .menu")

	// At the end of the chat the menu opens upward, and below the header it opens
	// downward.
	const menu = "document.querySelector('#turns > article:nth-child(2) .foot .menu')"
	fits := "(m => m.querySelector('.menu-items').getBoundingClientRect().top >= document.querySelector('.chat-head').getBoundingClientRect().bottom - 1)(" + menu + ")"
	eval[any](p, "(m => { const log = document.querySelector('#log'); log.scrollTop += m.getBoundingClientRect().top - log.getBoundingClientRect().top - 4; })("+menu+"), null")
	p.settles()
	eval[any](p, menu+".open = true, null")
	p.holds("the whole menu in view", menu+".open && "+fits)
	eval[any](p, menu+".open = false, document.querySelector('#to-end')?.click(), null")

	aloud := func() {
		p.click(lastTurn + " .foot .menu summary")
		p.press(lastTurn+" .menu-items button", "Read aloud, or stop")
	}
	aloud()
	p.holds("the answer to be read", "spoken.join() === 'You said: hello again'")
	aloud()
	p.holds("the reading to end", "spoken.join() === 'You said: hello again,(silence)'")
}

// headerGivesWay scrolls a chat down, which makes the header lower, and up again, which
// restores it.
func (p *page) headerGivesWay() {
	p.t.Helper()
	p.say("history 40")
	p.until("the history", patience, func() bool { return p.count("#turns > article") > 10 })
	head := func() int { return eval[int](p, "document.querySelector('.chat-head').offsetHeight") }
	scroll := func(by int) { eval[any](p, fmt.Sprintf("document.querySelector('#log').scrollBy(0, %d), null", by)) }
	scroll(-2000)
	p.settles()
	whole := head()
	p.until("a smaller header", patience, func() bool {
		if eval[bool](p, "(l => l.scrollHeight - l.scrollTop - l.clientHeight < 200)(document.querySelector('#log'))") {
			scroll(-2000) // on a slow machine, the scrolling may have ended before the first frame
		}
		scroll(40)
		return head() < whole
	})
	p.until("the whole header", patience, func() bool { scroll(-40); return head() == whole })
	p.click("#to-end")
}

// answersStayInView shows an edit that is higher than the screen. The buttons with the
// answers must be visible at once, and the editor is hidden.
func (p *page) answersStayInView() {
	p.t.Helper()
	p.say("edit")
	p.await(lastTurn + " .answers button")
	p.settles()
	p.holds("the answers in view", "(b => b.top >= 0 && b.bottom <= innerHeight)(document.querySelector("+js(lastTurn+" .question")+").getBoundingClientRect())")
	if p.shows("#prompt") {
		p.t.Error("the editor is shown beside a question; want it hidden")
	}
	p.click("#write-instead")
	p.await("#prompt")

	// In the list, a swipe over the row gives no answer. A press on it opens the changes, from
	// their start, and the buttons stay in view.
	const row = "#sessions [data-group=needs] li:has(.asked)"
	p.click("#back")
	p.wants(row+" .asked", "session.go +2 −2, session_test.go +3")
	p.swipes(row + " .answers button")
	p.swipes(row + " .item")
	p.press(row+" .answers button", "Read it first") // the question can only be refused there
	fromStart := `(a => a.querySelector(".edit:first-child summary") === document.activeElement && a.querySelectorAll(".diff").length === 2 &&
		a.getBoundingClientRect().top >= document.querySelector("#log").getBoundingClientRect().top - 1)(document.querySelector(` + js(lastTurn+" .approval") + `))`
	p.holds("the changes from their start", fromStart)
	p.settles()
	eval[any](p, "document.querySelector('.composer').style.marginTop = '20px', dispatchEvent(new Event('resize')), null")
	p.settles()
	if !eval[bool](p, fromStart) {
		p.t.Error("a lower chat and a redraw hide the start; want it in view")
	}
	p.holds("the answers in view", "(b => b.top >= 0 && b.bottom <= innerHeight)(document.querySelector("+js(lastTurn+" .question")+").getBoundingClientRect())")
	if got := eval[string](p, "location.hash"); strings.Contains(got, "turn=") {
		p.t.Errorf("the address stays %s", got)
	}
	p.press(lastTurn+" .answers button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")
}

// typesWithKeys types into a terminal by the keys that the page shows below it.
func (p *page) typesWithKeys() {
	p.t.Helper()
	p.say("terminal")
	p.wants(lastTurn+" .parts", "Terminal done.")
	p.press(lastTurn+" .tool .chip", "Terminal")
	p.await("#beside .keys")
	key := func(label string) { p.press("#beside .keys button", label) }
	types := func(label, want string) {
		p.t.Helper()
		eval[any](p, "sent = [], null")
		key(label)
		p.until(label+" to be typed", patience, func() bool {
			return eval[string](p, "sent.map((s) => JSON.parse(s)?.params?.action).filter((a) => a?.type === 'terminal/input').map((a) => a.data).join()") == want
		})
	}
	for label, want := range map[string]string{"Esc": "\x1b", "Tab": "\t", "↑": "\x1b[A", "↓": "\x1b[B", "←": "\x1b[D", "→": "\x1b[C", "/": "/", "|": "|", "-": "-", "~": "~", "Paste": "git status"} {
		types(label, want)
	}
	// A press on Ctrl counts for the next letter.
	p.press("#beside .keys button", "Ctrl")
	p.holds("Ctrl to be held", "document.querySelector('#beside .keys button').getAttribute('aria-pressed') === 'true'")
	f := p.newFrame("/terminal.html", "document.body.dataset.printed > 0")
	eval[any](p, "sent = [], null")
	f.focus("textarea")
	f.do(chromedp.KeyEvent("d"))
	p.until("Ctrl D", patience, func() bool { return eval[bool](p, `sent.some((s) => s.includes('"data":"\\u0004"'))`) })
	p.holds("Ctrl to be released", "document.querySelector('#beside .keys button').getAttribute('aria-pressed') === 'false'")
}

// TestHeaderFitsANarrowScreen shows the list on screens of 320 and 360 px, as at a zoom of 200 %, in German,
// whose words are long. All buttons of the header must be in view, with and without a connection.
func TestHeaderFitsANarrowScreen(t *testing.T) {
	t.Parallel()
	s := startStackWith(t, stackConfig{still: true})
	for _, access := range []auth.Access{auth.AccessWrite, auth.AccessRead} {
		p := newPage(t)
		p.before("localStorage.setItem('language', 'de')")
		p.do(phone(), chromedp.Navigate(s.console(s.tokenWith(func(c *auth.Client) { c.Access = access }))))
		fits := func(state string) {
			t.Helper()
			for _, wide := range []int64{320, 360} {
				p.do(chromedp.EmulateViewport(wide, 568, chromedp.EmulateScale(2), chromedp.EmulateMobile))
				p.settles()
				p.fits(fmt.Sprintf("%s, %s, %d px", access, state, wide))
			}
		}
		p.wants("#status-text", "Live")
		fits("live")
		s.proxy.cut()
		p.await("#retry")
		fits("without a connection")
		s.proxy.restore()
		p.wants("#status-text", "Live")
	}
}

// TestLongOutputBeginsAtItsEnd opens a tool call with 120 KB of output. The page must show the end of the
// output, on request the whole from its start, and then the end again.
func TestLongOutputBeginsAtItsEnd(t *testing.T) {
	t.Parallel()
	const output = lastTurn + " .tool pre[aria-label=Output]"
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.before(`((parse) => { JSON.parse = (text, ...more) => parse(String(text).replace('"echoed"', JSON.stringify('the first line\n' + 'between them\n'.repeat(9_000) + 'the last line')), ...more); })(JSON.parse);`)
	p.do(phone(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	p.say("tool")
	p.wants(lastTurn+" .parts", "Tool done.")
	p.click(lastTurn + " .tool summary")
	// inView waits until a part of the output, counted from its start or end, is visible.
	inView := func(words string) {
		t.Helper()
		p.holds(words+" in view", fmt.Sprintf(`((pre, words) => {
			const text = pre.firstChild, range = document.createRange();
			range.setStart(text, text.data.indexOf(words));
			range.setEnd(text, text.data.indexOf(words) + words.length);
			const is = range.getBoundingClientRect(), view = pre.getBoundingClientRect();
			return is.height > 0 && is.top >= view.top && is.bottom <= view.bottom;
		})(document.querySelector(%s), %s)`, js(output), js(words)))
	}
	inView("the last line")
	p.shot("long-output")
	p.press(lastTurn+" .tool button", "Show all 117 KB")
	inView("the first line")
	p.press(lastTurn+" .tool button", "Show the end")
	inView("the last line")
}
