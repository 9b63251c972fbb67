//go:build !race

package browser_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/auth"
)

// types types at the cursor.
func (p *page) types(text string) {
	p.t.Helper()
	p.do(inserted(text))
}

// TestTextStaysWhileItsChatArrives writes to an absent host before the relay's copy of the
// conversation is there, then while a message is on its way, then while the host returns.
// The editor keeps all text and the focus. A second absent host's session with the same URI
// begins with an empty editor.
func TestTextStaysWhileItsChatArrives(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{still: true})
	const desk = "desk"
	second := s.addHost(desk)
	s.host = s.addHost(hostName)
	s.startAgentThatTakes()
	laptopAgent := s.agent
	s.signIn(p)
	s.startAgentWith(desk, "--upstream", "ws://"+second.address, "--state-dir", s.file("state-desk"))
	p.do(desktop())
	p.knowsHosts("keys", 2)
	p.until("the keys for the last states", patience, func() bool { return strings.Count(p.keptText(), `"verifier"`) == 2 })
	for _, host := range []string{hostName, desk} {
		p.isRememberedOf(s, host, "demo:/login", 0)
	}
	eval[any](p, `(() => {
		const plain = window.fetch;
		const until = (name) => new Promise((go) => { window[name] = go; });
		window.fetch = async (address, options) => {
			const path = String(address?.url ?? address);
			if (path.includes('/remembered/session')) await (window.copy ??= until('letCopyIn'));
			if (path.includes('/waiting/') && options?.method === 'PUT') await (window.put ??= until('letPutOut'));
			return plain(address, options);
		};
		return null;
	})()`)
	must(t, s.agent.End(syscall.SIGTERM))
	must(t, laptopAgent.End(syscall.SIGTERM))

	p.openSessionOf(hostName, "demo:/login")
	p.wants("#leave", "Send when back")
	p.holds("the copy to be asked for", "!!window.letCopyIn")
	p.enter("#prompt", "hello")
	eval[any](p, "window.editor = document.querySelector('#prompt'), null")
	eval[any](p, "window.letCopyIn(), null")
	p.wants("#turns", "Done. 500 runs")
	p.types(" there")
	keeps := func(text string) {
		t.Helper()
		p.holds("the text "+text, "document.querySelector('#prompt')?.value === "+js(text))
		if !eval[bool](p, "window.editor.isConnected && document.activeElement === window.editor") {
			t.Error("the arriving chat has replaced the editor, or its focus; want both kept")
		}
	}
	keeps("hello there")

	p.openSessionOf(desk, "demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.wants("#leave", "Send when back")
	p.holds("an empty editor for a different host", "document.querySelector('#prompt')?.value === ''")
	p.openSessionOf(hostName, "demo:/login")
	p.holds("the draft", "document.querySelector('#prompt')?.value === 'hello there'")
	p.focus("#prompt")
	eval[any](p, "window.editor = document.querySelector('#prompt'), window.editor.setSelectionRange(99, 99), null")

	p.keys("#prompt", "\r")
	p.holds("the message to be on its way", "!!window.letPutOut")
	p.types(" more")
	eval[any](p, "window.letPutOut(), null")
	p.wants(".log .left", "hello there")
	keeps("more")

	s.startAgentThatTakes()
	p.wants(lastTurn+" .parts", "You said: hello there")
	p.types(" words")
	keeps("more words")
	p.await("#send:not(:disabled)")
}

// TestAnswerStaysWhileItsQuestionIsLeft goes back to the list while an answer, a change of a
// plan or of a command is half written, as a person who looks something up in a different
// session, and returns to the question.
func TestAnswerStaysWhileItsQuestionIsLeft(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	for _, test := range []struct{ prompt, begins, field, sends, end string }{
		{"ask text", "", " form.question textarea", " form.question [type=submit]", "fix/clock"},
		{"plan", "", " [data-ask] textarea", " .answers button:first-child", "fix/clock"},
		{`approve {"toolInput":"make","editable":true,"confirmationTitle":"Run it?","invocationMessage":"Run it"}`, "Edit first", " .approval textarea", " .answers .primary", "Done, as you allowed."},
	} {
		p.openSession("demo:/login")
		p.say(test.prompt)
		if test.begins != "" {
			p.press(lastTurn+" .answers button", test.begins)
		}
		field := lastTurn + test.field
		p.enter(field, "fix/clock")
		p.openSession("demo:/notes")
		p.holds("a different session", "!document.querySelector("+js(field)+")")
		p.openSession("demo:/login")
		p.holds("what was written", "document.querySelector("+js(field)+")?.value === 'fix/clock'")
		p.click(lastTurn + test.sends)
		p.wants(lastTurn+" .parts", test.end)
	}
}

// TestWrittenAnswerBelongsToItsToken writes an answer, and then gives the page the token of another person, as on a shared
// computer. That person must not see what was written.
func TestWrittenAnswerBelongsToItsToken(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("ask text")
	const field = lastTurn + " form.question textarea"
	p.enter(field, "a secret")
	p.openSession("demo:/notes")
	p.holds("a different session", "!document.querySelector("+js(field)+")")
	_, fragment, _ := strings.Cut(s.console(s.tokenWith(func(c *auth.Client) { c.Subject = "grace" })), "#")
	eval[bool](p, fmt.Sprintf("(location.hash = %q, true)", fragment))
	p.click("#swap-take")
	p.wants("#status-text", "Live")
	p.openSession("demo:/login")
	p.holds("an empty answer", "document.querySelector("+js(field)+")?.value === ''")
}

// TestOpenSessionIsReadAfterItsNotification marks a session as unread while it is open, and presses its notification. The
// session must then be read.
func TestOpenSessionIsReadAfterItsNotification(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	row := func(unread bool) string {
		return fmt.Sprintf("document.querySelector('[data-session=\"demo:/login\"]')?.dataset.unread === %s", map[bool]string{true: "''", false: "undefined"}[unread])
	}
	p.holds("a session that is read", row(false))
	_, err := s.near().Dispatch("demo:/login", map[string]any{"type": "session/isReadChanged", "isRead": false})
	must(t, err)
	p.holds("a session that is unread", row(true))
	eval[any](p, fmt.Sprintf("navigator.serviceWorker.dispatchEvent(new MessageEvent('message', {data: {open: {host: %q, session: 'demo:/login'}}})), null", hostName))
	p.holds("a session that is read", row(false))
}

// TestSessionIsReadWhereItIsSeen lets an agent answer in the session in view, and then while the user is at a different tab. The session
// is unread only until the user returns.
func TestSessionIsReadWhereItIsSeen(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	read := func(want string) {
		t.Helper()
		p.holds("a session that is "+want, fmt.Sprintf("(document.querySelector('[data-session=\"demo:/login\"]')?.dataset.unread === undefined) === %t", want == "read"))
	}
	read("read")
	eval[any](p, "window.unread = 0, new MutationObserver(() => { if (document.querySelector('[data-session=\"demo:/login\"][data-unread]')) window.unread++; }).observe(document.body, {subtree: true, childList: true, attributes: true}), null")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.holds("the turn's end to be listed", "window.unread > 0")
	read("read")
	visible := func(hidden bool) {
		eval[any](p, fmt.Sprintf("Object.defineProperty(document, 'hidden', {value: %t, configurable: true}), document.dispatchEvent(new Event('visibilitychange')), null", hidden))
	}
	visible(true)
	p.say("hello again")
	p.wants(lastTurn+" .parts", "hello again")
	read("unread")
	visible(false)
	read("read")
}

// TestSessionThatTheHostHasIsOpened loses the answer to a new session. When the user tries again, the host answers that it has
// the session. The page must open it, so that the user does not create a second one.
func TestSessionThatTheHostHasIsOpened(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#status-text", "Live")
	eval[any](p, `(() => {
		const send = WebSocket.prototype.send;
		window.created = 0;
		WebSocket.prototype.send = function (message) {
			if (!message.includes('"createSession"')) return send.call(this, message);
			window.created++;
			const asked = JSON.parse(message);
			send.call(this, JSON.stringify({ ...asked, id: 'lost' }));
			this.dispatchEvent(new MessageEvent('message', { data: JSON.stringify({ jsonrpc: '2.0', id: asked.id, error: { code: -32003, message: 'Session already exists' } }) }));
		};
	})(), null`)
	p.click("#new-session")
	p.click("#create")
	p.wants("#chat-note", "No messages yet.")
	if n := eval[int](p, "window.created"); n != 1 {
		t.Errorf("the page has created %d sessions; want 1", n)
	}
}

// TestLostAnswerKeepsWhatWasWritten loses the connection with an answer that is on its way, and
// leaves the question. The host asks it still, and what was written must be there.
func TestLostAnswerKeepsWhatWasWritten(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("ask text")
	const field = lastTurn + " form.question textarea"
	p.enter(field, "fix/clock")
	eval[any](p, `(() => {
		const send = WebSocket.prototype.send;
		WebSocket.prototype.send = function (message) {
			if (!message.includes('chat/inputCompleted')) return send.call(this, message);
			WebSocket.prototype.send = send;
			this.close();
		};
	})(), null`)
	p.click(lastTurn + " form.question [type=submit]")
	p.openSession("demo:/notes")
	p.holds("a different session", "!document.querySelector("+js(field)+")")
	p.openSession("demo:/login")
	p.holds("what was written", "document.querySelector("+js(field)+")?.value === 'fix/clock'")
	p.click(lastTurn + " form.question [type=submit]")
	p.wants(lastTurn+" .parts", "fix/clock")
}

// TestChangeOfPlanGoesWithItsOption writes a change of a plan, and presses one of the host's options. The agent must get both.
func TestChangeOfPlanGoesWithItsOption(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("plan")
	p.enter(lastTurn+" [data-ask] textarea", "Only 100 runs")
	p.click(lastTurn + " [data-ask] .option")
	p.wants(lastTurn+" .parts", `"freeformValues":["Only 100 runs"],"kind":"selected","value":"autopilot"`)
}

// TestAnsweredQuestionShowsItsMarkdown skips a question with Markdown in its text. It must stay formatted.
func TestAnsweredQuestionShowsItsMarkdown(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("ask")
	p.press(lastTurn+" .answers button", "Skip")
	p.wants(lastTurn+" .ask.answered strong", "a few things")
}

// TestRefusedPlanKeepsTheChange writes a change of a plan, and refuses the plan. A host takes no words
// with a refusal, so they must be in the editor, below what was written there before.
func TestRefusedPlanKeepsTheChange(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("plan")
	p.enter(lastTurn+" [data-ask] textarea", "Only 100 runs")
	p.enter("#prompt", "Then look at the log")
	p.press(lastTurn+" .answers button", "Do not go on")
	p.wants(lastTurn+" .parts", "You answered: decline")
	p.holds("the change in the editor", `document.querySelector("#prompt").value === "Then look at the log\nOnly 100 runs"`)
	p.do(phone())
	p.enter("#prompt", "")
	p.say("plan")
	p.enter(lastTurn+" [data-ask] textarea", "Only 50 runs")
	p.press(lastTurn+" .answers button", "Do not go on")
	p.holds("the change in the editor of a phone", `document.querySelector("#prompt")?.value === "Only 50 runs"`)
}
