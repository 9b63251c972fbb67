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

// TestUserWalksThroughTheDemo does with the demo what a new user would do.
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

	// The demo's live session goes on without a user.
	p.openSession("demo:/live")
	p.wants("#turns", "I report here as it goes on.")
	p.grows()
	p.shot("live")

	// The user begins a new session.
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
	// Markup in a host's text is shown as plain text.
	p.say("<b id=markup>bold</b>")
	p.wants(lastTurn+" .parts", "You said: <b id=markup>bold</b>")
	if eval[bool](p, "document.querySelector('#markup') !== null") {
		t.Error("the user's text became markup; want text")
	}
	p.shot("chat")
	p.do(phone())
	p.click("#back")
	p.shot("list")
	p.do(desktop())
	p.hasNoToken(token)
}

// grows waits until the live session's current answer has become longer.
func (p *page) grows() {
	p.t.Helper()
	p.holds("a prompt", "document.querySelector('.turn.live .prompt .text').textContent !== ''")
	said := func() string { return p.text(".turn.live .parts") }
	first := "" // start of the current answer, which may end while the test looks
	p.until("more words", patience, func() bool {
		now := said()
		grown := first != "" && len(now) > len(first) && strings.HasPrefix(now, first)
		if first == "" || !strings.HasPrefix(now, first) {
			first = now
		}
		return grown
	})
}

// readsAsOnce shows a long answer that arrives word by word, and shows it again after a
// reload. Both must look the same.
func (p *page) readsAsOnce() {
	p.t.Helper()
	const written = `[...document.querySelectorAll('.turn:last-child .run > div')].flatMap((b) => [...b.childNodes]).map((n) => n.outerHTML ?? n.data.trim()).filter(Boolean).join('\n').replace(/<span class="hl-[^>]*>|<\/span>/g, '')`
	// The answer grows for a second. An observer notes this, because a busy machine may
	// look too late.
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
		p.t.Errorf("word by word, the answer is shown as\n%s\nand at once as\n%s\nwant the same", grown, at)
	}
}

// hasNoToken fails the test if the page or its address contains the token.
func (p *page) hasNoToken(token string) {
	p.t.Helper()
	if strings.Contains(eval[string](p, "location.href + document.documentElement.outerHTML"), token) {
		p.t.Error("the token is in the page or its address; want it hidden")
	}
}

// TestConsoleReturnsWithItsHost kills and restarts the host while the page is open. The
// page shows this, and then works again.
func TestConsoleReturnsWithItsHost(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.await("#send") // shown when the turn has ended

	s.host.kill()
	p.wants("#status-text", "offline")
	p.wants("#status-text", "waiting for the host")
	p.hostIs(hostName, "offline")
	if eval[bool](p, "!document.querySelector('#send').disabled") {
		t.Error("the send button works without a host; want it disabled")
	}
	p.shot("offline")
	p.do(forms[2].size)
	p.holds("the whole state in a low bar on a phone", "document.querySelector('#status .then')?.checkVisibility() && document.querySelector('.bar').offsetHeight < 56")
	p.do(desktop())

	s.host.start()
	p.wants("#status-text", "Live")
	p.wants("#turns", "Done. 500 runs")
	p.until("what the old host alone knew to go", patience, func() bool { return !strings.Contains(p.text("#turns"), "Hello, world!") })
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.hostIs(hostName, "online")

	// The page is opened while the host does not run. It works once the host runs.
	s.host.kill()
	p.wants("#status-text", "waiting for the host")
	p.do(chromedp.Reload())
	p.wants("#status-text", "offline")
	p.wants("#chat-note", "opens when the host is online")
	s.host.start()
	p.wants("#status-text", "Live")
	p.wants("#turns", "Done. 500 runs")
}

// TestDroppedConsoleLosesNothing cuts the page's connection during an answer. The page
// then shows the whole answer, without loss or repetition.
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

// TestLostMessageWaitsForAConnection loses the connection with a message that is on its way, and
// then the next connection. The page offers to send the message again only while it is
// connected: a press without a connection would do nothing.
func TestLostMessageWaitsForAConnection(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	eval[any](p, `(() => {
		const send = WebSocket.prototype.send;
		WebSocket.prototype.send = function (message) {
			if (!message.includes('chat/turnStarted')) return send.call(this, message);
			WebSocket.prototype.send = send;
			this.close();
		};
	})(), null`)
	p.say("hello")
	p.wants("#turns .pending .error", "The connection was lost before the host accepted this.")
	const again = "document.querySelector('#turns .pending .outcome button')"
	p.drop(s, func() { p.holds("no way to send it again", again+".disabled") })
	p.holds("the way to send it again", "!"+again+".disabled")
	p.click("#turns .pending .outcome button")
	p.wants(lastTurn+" .parts", "Hello, world!")
}

// TestNewSessionKeepsItsFormOverADrop cuts the page's connection while a person fills the
// form for a new session. The form must keep what was entered, and begin the session.
func TestNewSessionKeepsItsFormOverADrop(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.click("#new-session")
	p.enter("#new-folder", "/tmp/entered")
	p.drop(s, func() {
		p.wants("#new-note", "Not connected.")
		p.holds("no way to begin", `document.querySelector("#create").disabled`)
	})
	p.await("#create:not(:disabled)")
	if got := eval[string](p, "document.querySelector('#new-folder').value"); got != "/tmp/entered" {
		t.Errorf("after a drop, the form has the folder %q; want the entered one", got)
	}
	p.click("#create")
	p.wants("#chat-note", "No messages yet.")
}

// TestNewSessionIsMadeOnce loses the connection after the request for a new session, and the
// host's answer with it. The page must not make a second session when the user tries again, also if
// it has got the host's options meanwhile.
func TestNewSessionIsMadeOnce(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#sessions", "Fix the flaky login test")
	const listed = "document.querySelectorAll('#sessions [data-session]').length"
	before := eval[int](p, listed)
	eval[any](p, `(() => {
		const send = WebSocket.prototype.send;
		WebSocket.prototype.send = function (message) {
			send.call(this, message.replace('"resolveSessionConfig"', '"none"')); // the first try knows no options
			if (!message.includes('"createSession"')) return;
			WebSocket.prototype.send = send;
			this.close();
		};
	})(), null`)
	p.click("#new-session")
	p.await("#create:not(:disabled)")
	p.click("#create")
	p.wants("#new-note", "The connection was lost.")
	p.holds("the new session in the list", fmt.Sprintf("%s === %d", listed, before+1))
	p.await("#create:not(:disabled)")
	p.click("#create")
	p.wants("#chat-note", "No messages yet.")
	if got := eval[int](p, listed); got != before+1 {
		t.Errorf("%d sessions after a lost answer and another try; want %d", got, before+1)
	}
}

// TestFilesThatAreNotAttachedAreReported drops three files on the page. The page cannot
// read the second, as with a phone's file in a cloud. Then it drops too many files. The page
// attaches the readable files up to its limit, and reports both faults until the message is
// sent.
func TestFilesThatAreNotAttachedAreReported(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.await("#prompt")
	eval[any](p, `window.drops = (...names) => {
		const data = new DataTransfer();
		for (const name of names) data.items.add(new File(['x'], name));
		document.querySelector('#composer').dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: data }));
	}; (() => {
		const read = Blob.prototype.arrayBuffer;
		Blob.prototype.arrayBuffer = function () { return this.name === 'cloud' ? Promise.reject(new DOMException('no network', 'NotReadableError')) : read.call(this); };
	})(); null`)
	eval[any](p, `drops('one', 'cloud', 'two'), null`)
	attached := `[...document.querySelectorAll("#composer .chip")].map((e) => e.textContent).join()`
	p.holds("the readable files", attached+` === "one,two"`)
	p.wants("#composer-note", "cloud: It could not be read: no network")
	eval[any](p, `drops('3', '4', '5', '6', '7', '8', '9'), null`)
	p.holds("eight files", attached+` === "one,two,3,4,5,6,7,8"`)
	p.wants("#composer-note", "A message takes 8 files at most.")
	eval[any](p, `drops('cloud'), null`)
	p.wants("#composer-note", "cloud: It could not be read")
	p.say("hello")
	p.holds("no report about an earlier message", "document.querySelector('#composer-note').textContent === ''")
}

// TestWaitingPictureHasAName sends a picture without words while the agent works. Its row among the waiting messages must name it.
func TestWaitingPictureHasAName(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("ask text")
	p.await("#stop")
	eval[any](p, `(() => {
		const data = new DataTransfer();
		data.items.add(new File(['x'], 'shot.png', { type: 'image/png' }));
		document.querySelector('#composer').dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: data }));
	})(), null`)
	p.click("#send")
	p.wants(".waiting .text", "shot.png")
}

// streamText is the demo host's answer to the prompt "stream N MS SIZE".
func streamText(n, size int) string {
	var b strings.Builder
	for i := range n {
		text := fmt.Sprintf("%d ", i)
		b.WriteString(text + strings.Repeat("x", size-len(text)))
	}
	return b.String()
}

// TestRefusedActionsAreUndone uses a token with fewer rights than the page expects. The
// page shows each refusal and undoes the refused action.
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
	p.click(lastTurn + " .outcome button:last-child") // discards the prompt
	p.until("the prompt to go", patience, func() bool { return !strings.Contains(p.text("#turns"), "Refused") })
	p.click("#new-session")
	p.click("#create")
	p.wants("#new-note", "No session was made")
	p.click("#new [aria-label=Close]")
	p.openSession("demo:/live")
	p.click("#stop")
	p.wants("#composer-note", "Refused: ")

	// A token at the level talk permits messages. The page offers no other action.
	eval[any](p, "sessionStorage.clear()")
	talker := s.tokenWith(func(c *auth.Client) { c.Access = auth.AccessTalk })
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(s.console(talker)))
	p.openSession("demo:/login")
	p.say("permission")
	p.wants(lastTurn+" .approval", "Waits for a user with the right to answer.")
	p.await("#stop")
	if got := p.text(".chat-head .menu-items") + p.text(".side-head"); strings.Contains(got, "Rename") || strings.Contains(got, "Delete") || strings.Contains(got, "Archive") || strings.Contains(got, "New session") {
		t.Errorf("a person with the level talk is offered %q; want neither Rename, Delete nor Archive", got)
	}
}

// TestConsoleAsksForAToken enters invalid, expiring and valid tokens in the form for a
// token.
func TestConsoleAsksForAToken(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate("http://"+s.proxy.Addr().String()+"/"))
	p.wants("#gate", "Client token")
	if !eval[bool](p, `!!(document.querySelector("#gate a.primary[href='/device']").compareDocumentPosition(document.querySelector("#token")) & Node.DOCUMENT_POSITION_FOLLOWING)`) {
		t.Error("the way to sign in does not come before the field for a token")
	}
	p.shot("token")
	p.giveToken("not a token")
	p.wants("#token-why", "does not look like a token")
	p.giveToken("not.a.token")
	p.wants("#token-why", "no longer accepts")

	// The page selects the token's only host without a question. It reports when the token
	// has expired.
	p.giveToken(s.token(30 * time.Second))
	p.wants("#status-text", "Live")
	p.wants("#token-why", "oken")
	p.shot("token-expired")

	// The form also accepts the console's whole address with a token in it.
	p.giveToken(s.console(s.token(time.Hour)))
	p.wants("#status-text", "Live")
	p.click("#status-open")
	p.click("#forget")
	p.wants("#gate", "Client token")
}

// TestNewTokenKeepsTheConnection follows addresses with new tokens while the page is
// connected, and accepts each. With a token for the same rights, the connection stays.
// With other rights, the page opens a new connection.
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

// TestPageWorksWithoutStorage opens the console in a browser that denies it all storage, such as the
// view of an app. The page must connect, and show a conversation.
func TestPageWorksWithoutStorage(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.before(`for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, {configurable: true, get() { throw new DOMException('denied', 'SecurityError'); }});`)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	p.say("hello")
	p.wants(lastTurn, "hello")
}

// TestLargeFileIsShownWhole opens a file of which the page shows the start. The page must offer the rest.
func TestLargeFileIsShownWhole(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	eval[any](p, `location.hash += "&side=file&of=demo-blob:/600000"; null`)
	p.await("#beside pre.file")
	p.press("#beside button", "Show all 600 KB")
	p.holds("the whole file", `document.querySelector("#beside pre.file").textContent.length === 600000`)
}
