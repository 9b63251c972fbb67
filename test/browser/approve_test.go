//go:build !race

package browser_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Tests for approvals: what the page shows about a request, and when the request may be
// allowed. The tests look at the answers that the page sends, because the host alone
// cannot show that an answer was never sent.

const (
	approval = lastTurn + " .approval"
	allows   = approval + " .question button.primary"
	holds    = approval + " .question button.hold"
)

// records makes the page record its answers to approvals in window.answers. While
// window.slow is true, the page's requests for files wait; while window.holding is, its
// answers do.
func (p *page) records() {
	p.t.Helper()
	eval[any](p, `Object.assign(window, { answers: [], slow: false, slowReads: [], holding: false, held: [] }); (() => {
		const send = WebSocket.prototype.send;
		WebSocket.prototype.send = function (data) {
			const answer = String(data).includes('"chat/toolCallConfirmed"');
			const waits = answer && holding ? held : slow && String(data).includes('"resourceRead"') ? slowReads : null;
			if (answer) answers.push(data);
			if (waits) waits.push(() => send.call(this, data));
			else send.call(this, data);
		};
	})(); null`)
}

// stopsTimers makes the page's timers with ms milliseconds wait until the test calls
// window.timersEnd().
func (p *page) stopsTimers(ms int) {
	p.t.Helper()
	eval[any](p, fmt.Sprintf(`window.timers = new Map(); (() => {
		const set = window.setTimeout, clear = window.clearTimeout;
		let next = -1;
		window.setTimeout = (act, ms, ...rest) => {
			if (ms !== %d || !document.querySelector('.approval')) return set(act, ms, ...rest);
			timers.set(--next, act);
			return next;
		};
		window.clearTimeout = (id) => { if (!timers.delete(id)) clear(id); };
		window.timersEnd = () => { for (const [id, act] of timers) { timers.delete(id); act(); } };
	})(); null`, ms))
}

// sentAnswers returns the number of answers that the page has sent since records.
func (p *page) sentAnswers() int { return eval[int](p, "window.answers.length") }

// mayNot waits until the page shows why as the reason against allowing the request. It
// fails the test if the page offers to allow it, or not the buttons presses.
func (p *page) mayNot(why string, presses ...string) {
	p.t.Helper()
	p.wants(approval+" .why", why)
	buttons := "[...document.querySelectorAll(" + js(approval+" .question button") + ")].map((b) => b.textContent).join()"
	p.holds(why+" with the buttons that help", buttons+" === "+js(strings.Join(append(presses, "Skip"), ",")))
	if eval[bool](p, fmt.Sprintf("[...document.querySelectorAll(%s)].some((b) => b.textContent.includes('Allow') || b.matches('.primary, .hold'))", js(approval+" button"))) {
		p.t.Errorf("the page offers to allow a request that has %s; want only refusals", why)
	}
}

// meets opens the console at the session demo:/notes, and records the answers that the page
// sends.
func (p *page) meets(s *site) {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(1440, 900), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.records()
	p.openSession("demo:/notes")
	p.wants("#turns", "Search understands")
}

// TestUnreadRequestIsNotAllowed shows requests with an input or edits that the page
// cannot read, or not yet. The user can skip such a request or read it first, and can
// allow it only after the page has loaded all of it.
func TestUnreadRequestIsNotAllowed(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.meets(s)

	// The host refuses to return the file with the command.
	p.say(`approve {"toolInput":{"uri":"file:///demo/none.sh"}}`)
	p.mayNot("The input could not be read", "Try again")
	if got := p.text(approval + " pre"); got != "" {
		t.Errorf("a tool input that the host has not sent is shown as %q; want no text", got)
	}
	p.seen("approve-unread")
	p.press(approval+" .question button", "Try again")
	p.mayNot("The input could not be read", "Try again")
	p.press(approval+" .question button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")

	// The host's answer with the file takes long.
	eval[any](p, "window.slow = true; null")
	p.say(`approve {"toolInput":{"uri":"file:///demo/shop/session.go"}}`)
	p.mayNot("still loading", "Try again")
	eval[any](p, "window.slow = false; slowReads.forEach((read) => read()); null")
	p.wants(approval+" pre", "newSession")
	p.click(allows)
	p.wants(lastTurn+" .parts", "Done, as you allowed.")

	// The file with the command is empty.
	p.say(`approve {"toolInput":{"uri":"demo-blob:/0"}}`)
	p.mayNot("It is empty.", "Try again")
	p.press(approval+" .question button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")

	// The request has no description.
	p.say(`approve {"confirmationTitle":"Run it?"}`)
	p.mayNot("does not say what this does")
	p.press(approval+" .question button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")

	// The change is too large for a comparison. The page shows the new text alone.
	p.say(`approve {"invocationMessage":"Write","edits":{"items":[{"after":{"uri":"file:///demo/big","content":{"uri":"demo-blob:/1000001"}}}]}}`)
	p.mayNot("too large to compare", "Show it without comparing")
	p.seen("approve-large")
	p.press(approval+" .question button", "Show it without comparing")
	p.wants(approval+" .edit", "more lines")
	p.click(allows)
	p.wants(lastTurn+" .parts", "Done, as you allowed.")

	// A request has more edits than the page reads by itself. The user must ask for the
	// rest. The page reads folded edits, too.
	many := ""
	for i := range 21 {
		many += fmt.Sprintf(`,{"after":{"uri":"file:///demo/f%d","content":{"uri":"demo-blob:/70"}}}`, i)
	}
	p.say(`approve {"invocationMessage":"Write","edits":{"items":[` + many[1:] + `]}}`)
	p.mayNot("Some of it has not loaded.", "Read it first")
	p.press(approval+" .question button", "Read it first")
	p.click(allows)
	p.wants(lastTurn+" .parts", "Done, as you allowed.")

	// The input has more members than the command, and invisible characters. The page
	// shows both.
	p.say(`approve {"confirmationTitle":"Run \u202eit?","invocationMessage":"Run **ls \u200b**","toolInput":"{\"command\":\"ls \u202e\",\"cwd\":\"/etc\"}"}`)
	p.wants(approval+" .name", "Run ⟨U+202E⟩it?")
	p.wants(approval+" .what", "Run ls ⟨U+200B⟩")
	p.wants(approval+" pre.command", "ls ⟨U+202E⟩")
	p.wants(approval+" .more pre", `"cwd": "/etc"`)
	p.press(approval+" .question button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")
}

// TestLateRiskStopsAPress lets the host report a risk, or change the request, while the
// user presses the button. That press allows nothing. A request that is now dangerous
// needs a button that is held.
func TestLateRiskStopsAPress(t *testing.T) {
	t.Parallel()
	p, q := newPage(t), newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.meets(s)
	q.meets(s)
	const danger = `approve {"riskAssessment":{"kind":"judge","status":"complete","reason":"It deletes all.","safety":0}}`
	steer := func(text string) {
		t.Helper()
		q.enter("#prompt", text)
		q.click("#steer")
	}

	p.say(`approve {"toolInput":"make clean","riskAssessment":{"kind":"judge","status":"loading"}}`)
	p.mayNot("still assessing the risk", "Decide without it")
	p.seen("approve-assessing")
	steer(danger)
	p.await(holds)
	p.wants(approval+" .risk.danger", "It deletes all.")
	p.press(approval+" .question button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")

	p.say(`approve {"toolInput":"make clean"}`)
	q.await("#stop")
	p.whilePressed(allows, func() {
		steer(danger)
		p.await(holds)
	})
	p.settles()
	if n := p.sentAnswers(); n != 1 { // the answer Skip from above
		t.Errorf("%d answers were sent; want 1, because the press began before the risk was known", n)
	}

	// During a press, the host replaces the command. The press allows nothing.
	p.press(approval+" .question button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")
	p.say(`approve {"toolInput":"make test"}`)
	q.await("#stop")
	p.whilePressed(allows, func() {
		steer(`approve {"toolInput":"rm -rf /"}`)
		p.wants(approval+" pre", "rm -rf /")
	})
	p.settles()
	if n := p.sentAnswers(); n != 2 {
		t.Errorf("%d answers were sent; want 2, because the press began on a different command", n)
	}
	p.click(allows)
	p.wants(lastTurn+" .parts", "Done, as you allowed.")
}

// TestAnswerOfAnotherEndsAPress shows a request to two pages. While one page presses
// its button, the other answers the request or stops the turn. The press then sends
// nothing.
func TestAnswerOfAnotherEndsAPress(t *testing.T) {
	t.Parallel()
	p, q := newPage(t), newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.meets(s)
	q.meets(s)
	p.stopsTimers(1000)

	p.say(`approve {"toolInput":"make test"}`)
	p.await(allows)
	q.await(allows)
	p.whilePressed(allows, func() {
		q.click(allows)
		p.wants(lastTurn+" .parts", "Done, as you allowed.")
	})
	p.settles()
	if n := p.sentAnswers(); n != 0 {
		t.Errorf("%d answers were sent to an answered question; want 0", n)
	}
	p.wants(lastTurn+" .tool", "Answered: Allow Once")
	p.wants(lastTurn+" .given", "Allowed by browser")
	p.do(chromedp.Reload()) // the host-agent remembers the person, whom the host's state does not name
	p.wants(lastTurn+" .given", "Allowed by browser")
	p.stopsTimers(1000)
	p.records()

	// The other page stops the turn during a press, so the request disappears.
	p.say("danger")
	q.await("#stop")
	p.whilePressed(holds, func() {
		p.holds("a hold", "timers.size === 1")
		q.click("#stop")
		p.wants(lastTurn+" .outcome", "Stopped.")
		eval[any](p, "timersEnd(); null")
	})
	p.settles()
	if n := p.sentAnswers(); n != 0 {
		t.Errorf("%d answers were sent to a withdrawn question; want 0", n)
	}

	// Both pages answer at once. The host accepts one answer, and both pages show it.
	p.say(`approve {"toolInput":"make test"}`)
	p.await(allows)
	q.await(allows)
	both := []*page{p, q}
	for _, one := range both {
		eval[any](one, fmt.Sprintf("window.holding = true; document.querySelector(%s).click(); null", js(allows)))
		one.holds("an answer that waits", "held.length === 1")
	}
	for _, one := range both {
		eval[any](one, "window.holding = false; held.forEach((send) => send()); null")
	}
	for _, one := range both {
		one.wants(lastTurn+" .parts", "Done, as you allowed.")
		one.wants(lastTurn+" .tool", "Answered: Allow Once")
	}
}

// TestNewButtonsAllowNothingAtOnce clicks a button that has just appeared, as the
// second tap of a double tap would. The click allows nothing.
func TestNewButtonsAllowNothingAtOnce(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.meets(s)
	p.stopsTimers(500)
	p.say(`approve {"toolInput":"make test"}`)
	p.holds("the button", fmt.Sprintf("document.querySelector(%s).disabled && timers.size > 0", js(allows)))
	at := eval[struct{ X, Y float64 }](p, fmt.Sprintf("(b => ({ x: b.x + b.width / 2, y: b.y + b.height / 2 }))(document.querySelector(%s).getBoundingClientRect())", js(allows)))
	p.do(chromedp.MouseClickXY(at.X, at.Y))
	if n := p.sentAnswers(); n != 0 {
		t.Errorf("a press on a new button sent %d answers; want 0", n)
	}
	eval[any](p, "timersEnd(); null")
	p.click(allows)
	p.wants(lastTurn+" .parts", "Done, as you allowed.")
}

// TestNewQuestionsAreNotAnsweredAtOnce presses an answer of a question or a plan as soon as it
// appears, as the second tap of a double tap would. The press sends no answer.
func TestNewQuestionsAreNotAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.meets(s)
	eval[any](p, `(() => {
		Object.assign(window, { presses: 0, replies: 0, last: null });
		const send = WebSocket.prototype.send;
		WebSocket.prototype.send = function (data) {
			if (String(data).includes('"chat/inputCompleted"')) replies++;
			send.call(this, data);
		};
		new MutationObserver(() => {
			const answer = document.querySelector('.ask:not(.answered) .option, .ask:not(.answered) .answers .primary');
			if (!answer || answer === last) return;
			last = answer;
			answer.click();
			presses++;
		}).observe(document.body, { childList: true, subtree: true });
	})(); null`)
	for i, asks := range []string{"ask choice", "plan", "ask url"} {
		p.say(asks)
		p.holds("a press on the new question", fmt.Sprintf("presses === %d", i+1))
		if n := eval[int](p, "replies"); n != i {
			t.Fatalf("%s: %d answers were sent; want %d, because the question was new", asks, n, i)
		}
		p.click(lastTurn + " .ask .primary")
		p.wants(lastTurn+" .parts", "You answered: accept")
	}
}

// TestDangerTakesAHold taps the button of a dangerous request twice, and nothing
// happens. Holding the button allows the request. With a keyboard or a screen reader, a
// confirmation dialog does.
func TestDangerTakesAHold(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.meets(s)
	p.stopsTimers(1000)

	p.say("danger")
	p.wants(approval+" .risk.danger", "The host marks this as dangerous.")
	if n := p.count(approval + " button.primary"); n != 0 {
		t.Errorf("%d primary buttons allow a dangerous request; want 0", n)
	}
	p.await(holds)
	at := eval[struct{ X, Y float64 }](p, fmt.Sprintf("(b => ({ x: b.x + b.width / 2, y: b.y + b.height / 2 }))(document.querySelector(%s).getBoundingClientRect())", js(holds)))
	p.do(chromedp.MouseClickXY(at.X, at.Y), chromedp.MouseClickXY(at.X, at.Y))
	eval[any](p, "timersEnd(); null")
	p.settles()
	if n := p.sentAnswers(); n != 0 || p.shows("dialog[open]") {
		t.Errorf("two taps on a dangerous request: %d answers, a dialog: %v; want 0 and false", n, p.shows("dialog[open]"))
	}
	p.whilePressed(holds, func() {
		p.wants(holds, "Keep holding")
		p.do(chromedp.MouseEvent(chromedp.MouseMoved, at.X, 5, chromedp.ButtonLeft)) // the pointer leaves the button, which ends the hold
		p.wants(holds, "Allow Once")
	})
	eval[any](p, "timersEnd(); null")
	if n := p.sentAnswers(); n != 0 {
		t.Errorf("a finger that left the button sent %d answers; want 0", n)
	}
	p.whilePressed(holds, func() {
		p.wants(holds, "Keep holding")
		eval[any](p, "timersEnd(); null")
		p.wants(lastTurn+" .parts", "Done, as you allowed.")
	})
	if n := p.sentAnswers(); n != 1 {
		t.Errorf("a hold sent %d answers; want 1", n)
	}

	p.say("danger")
	p.keys(holds, "\r")
	p.wants("dialog[open]", "Run in the terminal?")
	if got := p.text("dialog[open] :focus"); got != "Cancel" {
		t.Errorf("in the dialog %q has the focus; want Cancel", got)
	}
	p.seen("approve-danger-dialog")
	p.do(chromedp.KeyEvent("\r"))
	p.holds("the dialog to be closed", "document.querySelector('dialog[open]') === null")
	if n := p.sentAnswers(); n != 1 {
		t.Errorf("Cancel sent %d answers; want 0", n-1)
	}
	p.keys(approval+" button.till-focus", " ")
	p.click("dialog[open] button.danger")
	p.wants(lastTurn+" .parts", "Done, as you allowed.")
}

// TestLongCommandIsFoldedInTheList asks for a command that is higher than a phone. The list must show its
// start, and must not offer to allow it unread. The session shows all of it.
func TestLongCommandIsFoldedInTheList(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(phone(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	command := strings.Repeat("echo a line\n", 60) + "echo the end"
	p.say(`approve {"toolInput":` + js(js(map[string]string{"command": command})) + `,"confirmationTitle":"Run it?","invocationMessage":"Run it"}`)
	p.wants(lastTurn+" .approval pre", "echo the end")
	p.click("#back")
	const row = "#sessions [data-group=needs] li:has(.asked)"
	p.wants(row+" .asked pre", "echo a line")
	p.await(row + " .answers button")
	if high := eval[int](p, "document.querySelector("+js(row)+").offsetHeight"); high > 500 {
		t.Errorf("the question is %d px high in the list; want at most 500", high)
	}
	if got := eval[string](p, "[...document.querySelectorAll("+js(row+" .answers button")+")].map((b) => b.textContent).join()"); got != "Read it first,Skip" {
		t.Errorf("the list offers %q; want a way to read it, and to refuse it", got)
	}
	p.shot("long-command")
	p.press(row+" .answers button", "Read it first")
	p.wants(lastTurn+" .approval pre", "echo the end")
	p.wants(lastTurn+" .answers button", "Allow Once")
}

// TestInputIsReadableInTheList asks for permission with an input in JSON. The list, and the first pane of a
// wide screen, must show it as the session does: in lines, or a command alone.
func TestInputIsReadableInTheList(t *testing.T) {
	t.Parallel()
	const row = "#sessions [data-group=needs] li:has(.asked)"
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(phone(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	for input, want := range map[string]string{
		`{"path":"/srv","recursive":true}`: "{\n  \"path\": \"/srv\",\n  \"recursive\": true\n}",
		`{"command":"make test"}`:          "make test",
		`{"command":"create","path":"/x"}`: "{\n  \"command\": \"create\",\n  \"path\": \"/x\"\n}", // not only a part of what is approved
	} {
		p.do(phone())
		p.say(`approve {"toolInput":` + js(input) + `,"confirmationTitle":"May I?","invocationMessage":"May I?"}`)
		p.await(lastTurn + " .answers button")
		p.click("#back")
		p.await(row + " .asked pre")
		if got := p.text(row + " .asked pre"); got != want {
			t.Errorf("the list shows the input %s as %q; want %q", input, got, want)
		}
		p.shot("asked-json")
		p.do(desktop())
		p.await(".first .asked pre")
		if got := p.text(".first .asked pre"); got != want {
			t.Errorf("the first pane shows the input %s as %q; want %q", input, got, want)
		}
		p.click(".first .item")
		p.press(lastTurn+" .answers button", "Skip")
		p.wants(lastTurn+" .parts", "Then not.")
	}
}
