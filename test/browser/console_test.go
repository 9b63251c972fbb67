//go:build !race

package browser_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/auth"
)

const lastTurn = "#turns > :last-child"

// TestUserWalksThroughTheDemo walks through the demo as a user.
func TestUserWalksThroughTheDemo(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	token := s.token(time.Hour)
	p.do(desktop(), colours("light"), chromedp.Navigate(s.console(token)))

	p.hostIs(hostName, "online")
	p.wants("#status-text", "Live")
	for _, title := range []string{"Watching the build", "Fix the flaky login test", "Release notes for 2.4"} {
		p.wants("#sessions", title)
	}
	p.hasNoToken(token)

	// The demo's live session continues by itself.
	p.openSession("demo:/live")
	p.wants("#turns", "I report here as it goes on.")
	p.grows()
	p.shot("live")

	// A new session.
	p.begin()
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.wants("#chat-title", "hello")
	p.say("permission")
	p.wants(lastTurn+" .question button.primary", "Allow")
	p.shot("permission")
	p.click(lastTurn + " .question button.primary")
	p.wants(lastTurn+" .parts", "Allowed.")
	p.say("permission")
	p.click(lastTurn + " .question button:not(.primary)")
	p.wants(lastTurn+" .parts", "Denied.")
	p.say("tool")
	p.wants(lastTurn+" .tool pre", "echoed")
	p.say("error")
	p.wants(lastTurn, "Something went wrong")
	p.say("stream 100000 20")
	p.click("#stop")
	p.wants(lastTurn, "Stopped.")
	p.readsAsOnce()
	// Markup from a host is plain text.
	p.say("<b id=markup>bold</b>")
	p.wants(lastTurn+" .parts", "You said: <b id=markup>bold</b>")
	if eval[bool](p, "document.querySelector('#markup') !== null") {
		t.Error("text from the host became markup")
	}
	p.shot("chat")
	p.do(phone())
	p.click("#back")
	p.shot("list")
	p.do(desktop())
	p.hasNoToken(token)
}

// grows waits for the live agent's answer to grow.
func (p *page) grows() {
	p.t.Helper()
	p.holds("a prompt", "document.querySelector('.turn.live .prompt .text').textContent !== ''")
	said := func() string { return p.text(".turn.live .parts") }
	first := "" // the current answer, which may end at any time
	p.until("more words", patience, func() bool {
		now := said()
		grown := first != "" && len(now) > len(first) && strings.HasPrefix(now, first)
		if first == "" || !strings.HasPrefix(now, first) {
			first = now
		}
		return grown
	})
}

// readsAsOnce compares a long answer drawn word by word with the same answer drawn at
// once.
func (p *page) readsAsOnce() {
	p.t.Helper()
	const written = `[...document.querySelectorAll('.turn:last-child .run > div')].flatMap((b) => [...b.childNodes]).map((n) => n.outerHTML ?? n.data.trim()).filter(Boolean).join('\n').replace(/<span class="hl-[^>]*>|<\/span>/g, '')`
	// It grows for a second; a busy machine may miss that.
	eval[any](p, fmt.Sprintf(`window.grew = false
new MutationObserver(() => { window.grew ||= document.querySelector('%s.live .run') !== null }).observe(document.body, { subtree: true, childList: true })
true`, lastTurn))
	p.say("talk 150")
	p.holds("an answer that grows", "window.grew")
	p.await(lastTurn + " .foot")
	grown := eval[string](p, written)
	p.do(chromedp.Reload())
	p.await(lastTurn + " .foot")
	if at := eval[string](p, written); at != grown {
		p.t.Errorf("what came word by word is shown as\n%s\nand at once as\n%s", grown, at)
	}
}

// hasNoToken checks that neither the page nor its address contains the token.
func (p *page) hasNoToken(token string) {
	p.t.Helper()
	if strings.Contains(eval[string](p, "location.href + document.documentElement.outerHTML"), token) {
		p.t.Error("the token is in the page or its address")
	}
}

// TestConsoleReturnsWithItsHost kills and restarts the host under the page.
func TestConsoleReturnsWithItsHost(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.await("#send") // the turn has ended

	s.host.kill()
	p.wants("#status-text", "offline")
	p.wants("#status-text", "waiting for the host")
	p.hostIs(hostName, "offline")
	if eval[bool](p, "!document.querySelector('#send').disabled") {
		t.Error("prompts can be sent without a host")
	}
	p.shot("offline")

	s.host.start()
	p.wants("#status-text", "Live")
	p.wants("#turns", "Done. 500 runs")
	p.until("what the old host alone knew to go", patience, func() bool { return !strings.Contains(p.text("#turns"), "Hello, world!") })
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.hostIs(hostName, "online")

	// The same for a page opened without a host.
	s.host.kill()
	p.wants("#status-text", "waiting for the host")
	p.do(chromedp.Reload())
	p.wants("#status-text", "offline")
	p.wants("#chat-note", "opens when the host is online")
	s.host.start()
	p.wants("#status-text", "Live")
	p.wants("#turns", "Done. 500 runs")
}

// TestDroppedConsoleLosesNothing cuts the connection during an answer: nothing is lost or
// repeated.
func TestDroppedConsoleLosesNothing(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	const deltas = 150
	p.say(fmt.Sprintf("stream %d 20 8", deltas))
	p.wants(lastTurn+" .parts", "10 xxxxx")
	p.drop(s, func() {})
	p.until("the end of the answer", patience, func() bool { return p.text("#turns .live") == "" })
	if got := p.text(lastTurn + " .parts"); got != streamText(deltas, 8) {
		t.Errorf("after the cut, the answer is %q; want %q", got, streamText(deltas, 8))
	}
}

// streamText is the demo host's answer to "stream N MS SIZE".
func streamText(n, size int) string {
	var b strings.Builder
	for i := range n {
		text := fmt.Sprintf("%d ", i)
		b.WriteString(text + strings.Repeat("x", size-len(text)))
	}
	return b.String()
}

// TestRefusedActionsAreUndone uses a token with fewer rights than the page expects: refusals
// are shown and undone.
func TestRefusedActionsAreUndone(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	token := s.tokenWith(func(c *auth.Client) { c.Methods = []string{"listSessions", "fetchTurns"} })
	p.do(desktop(), chromedp.Navigate(s.console(token)))
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .outcome", "Refused: ")
	p.shot("refused")
	p.click(lastTurn + " .outcome button:last-child") // discard
	p.until("the prompt to go", patience, func() bool { return !strings.Contains(p.text("#turns"), "Refused") })
	p.click("#new-session")
	p.click("#create")
	p.wants("#new-note", "No session was made")
	p.click("#new [aria-label=Close]")
	p.openSession("demo:/live")
	p.click("#stop")
	p.wants("#composer-note", "Refused: ")

	// A talk token offers nothing else.
	eval[any](p, "sessionStorage.clear()")
	talker := s.tokenWith(func(c *auth.Client) { c.Access = auth.AccessTalk })
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(s.console(talker)))
	p.openSession("demo:/login")
	p.say("permission")
	p.wants(lastTurn+" .approval", "Waits for a user with the right to answer.")
	p.await("#stop")
	if got := p.text(".chat-head .menu-items") + p.text(".side-head"); strings.Contains(got, "Rename") || strings.Contains(got, "Delete") || strings.Contains(got, "Archive") || strings.Contains(got, "New session") {
		t.Errorf("who may only talk is offered %q", got)
	}
}

// TestConsoleAsksForAToken covers the token form.
func TestConsoleAsksForAToken(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate("http://"+s.proxy.Addr().String()+"/"))
	p.wants("#gate", "Client token")
	p.shot("token")
	p.giveToken("not a token")
	p.wants("#token-why", "does not look like a token")
	p.giveToken("not.a.token")
	p.wants("#token-why", "no longer accepts")

	// A token's only host is selected without asking. The page reports the token's
	// expiry.
	p.giveToken(s.token(30 * time.Second))
	p.wants("#status-text", "Live")
	p.wants("#token-why", "oken")
	p.shot("token-expired")

	// The full address works, too.
	p.giveToken(s.console(s.token(time.Hour)))
	p.wants("#status-text", "Live")
	p.click("#status-open")
	p.click("#forget")
	p.wants("#gate", "Client token")
}

// TestNewTokenKeepsTheConnection follows an address with a new token while a host is live, with
// the user's consent. The connection continues, unless the new token has different
// rights.
func TestNewTokenKeepsTheConnection(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#status-text", "Live")
	eval[bool](p, `(() => {
		const Real = WebSocket;
		window.opened = 0;
		window.WebSocket = class extends Real { constructor(...args) { super(...args); window.opened++; } };
		return true;
	})()`)
	for want, access := range []auth.Access{auth.AccessWrite, auth.AccessAdmin} {
		token := s.tokenWith(func(c *auth.Client) { c.Access = access })
		_, fragment, _ := strings.Cut(s.console(token), "#")
		eval[bool](p, fmt.Sprintf("(location.hash = %q, true)", fragment))
		p.click("#swap-take")
		p.until("the token to be taken", patience, func() bool {
			return eval[bool](p, fmt.Sprintf("sessionStorage.getItem('ahp-relay-token') === %q && window.opened === %d", token, want))
		})
		p.wants("#status-text", "Live")
		p.openSession("demo:/login")
		p.wants("#turns", "Done. 500 runs")
	}
	if got := eval[int](p, "window.opened"); got != 1 {
		t.Errorf("%d more connections for two tokens; want 1", got)
	}
}

func (p *page) giveToken(token string) {
	p.t.Helper()
	p.enter("#token", token)
	p.click("#token-form button")
}
