//go:build !race

package browser_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ahprelay/broker/remember"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/test/refclient"
)

// startAgentThatTakes starts a host-agent with a state directory. Such a host-agent
// accepts the items that wait at the relay for its host.
func (s *site) startAgentThatTakes(flags ...string) {
	s.t.Helper()
	s.startAgentWith(hostName, append([]string{"--upstream", "ws://" + s.host.address, "--state-dir", s.file("state")}, flags...)...)
}

// signIn signs a page's browser in as a device of the owner, and then opens the
// console.
func (s *site) signIn(p *page) {
	s.t.Helper()
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), colours("light"), chromedp.Navigate(s.invite()))
	p.click("#form button")
	p.until("the page of devices", patience, func() bool { return eval[string](p, "location.pathname") == "/device" })
	p.do(chromedp.Navigate(s.url + "/"))
	p.wants("#status-text", "Live")
}

// knowsDevices waits until the page has the keys of n devices of the person.
func (p *page) knowsDevices(n int) {
	p.t.Helper()
	p.until("the keys of the devices", patience, func() bool { return p.devices() == n })
}

// devices returns for how many devices of the person the page has keys.
func (p *page) devices() (n int) {
	p.t.Helper()
	must(p.t, json.Unmarshal([]byte(p.later(`(async () => {
			const db = await new Promise((r) => { const o = indexedDB.open('ahp-waiting', 1); o.onupgradeneeded = () => o.result.createObjectStore('kept'); o.onsuccess = () => r(o.result); });
			const kept = await new Promise((r) => { const q = db.transaction('kept').objectStore('kept').get('keys'); q.onsuccess = () => r(q.result); });
			db.close();
			return String(kept?.hosts?.[0]?.[1].devices.length ?? 0);
		})()`)), &n))
	return n
}

// leaves leaves a message for the host, which is absent, and waits until the editor is
// empty.
func (p *page) leaves(text string) {
	p.t.Helper()
	p.enter("#prompt", text)
	p.click("#leave")
	p.holds("an empty editor", "document.querySelector('#prompt')?.value === ''")
}

// TestMessagesWaitForAHost leaves messages at the relay for an absent host. A second
// device sees them and changes one; the first device sees the conflict before it
// replaces the change. A message is cancelled. When the host returns, it runs each
// message once, and confirms that it does not run the cancelled message.
func TestMessagesWaitForAHost(t *testing.T) {
	t.Parallel()
	p, second := newPage(t), newPage(t)
	s := startRelayFor(t, stackConfig{still: true})
	s.host = s.addHost(hostName)
	s.startAgentThatTakes()
	s.signIn(p)
	p.knowsDevices(1)
	s.signIn(second)
	second.knowsDevices(2)
	p.do(chromedp.Reload())
	p.knowsDevices(2)
	p.openSession("demo:/login")
	p.await("#prompt")
	if p.count("#leave") != 0 {
		t.Error("the page offers to leave a message for an online host; want only sending")
	}

	must(t, s.agent.End(syscall.SIGTERM))
	p.wants("#leave", "Send when back")
	p.accessible("leaving")
	p.leaves("hello there")
	p.wants(".log .left", "hello there")
	p.wants(".log .left .state", "left at the relay")
	p.leaves("hello never")
	p.wants(".log .left li:nth-child(2)", "hello never")
	p.accessible("left")
	p.shot("left-waiting")

	second.wants("#left-all summary", "2 items wait for a host")
	second.click("#left-all summary")
	second.wants("#left-all li:first-child .text", "hello there")
	second.accessible("left list")
	second.shot("left-list")

	// Both devices edit the first message. The device that sends its edit later first sees
	// the edit of the other.
	p.click(".log .left li:first-child [data-do=edit]")
	p.await(".log .left textarea")
	second.click("#left-all li:first-child [data-do=edit]")
	second.enter("#left-all textarea", "hello from the second device")
	second.click("#left-all form button[type=submit]")
	second.wants("#left-all li:first-child .text", "hello from the second device")
	p.enter(".log .left textarea", "hello")
	p.click(".log .left form button[type=submit]")
	p.wants(".log .left .error", "changed on a different device")
	p.wants(".log .left .other", "hello from the second device")
	p.accessible("left conflict")
	p.shot("left-conflict")
	p.click(".log .left form button[type=submit]")
	p.holds("the new version", "document.querySelector('.log .left li:first-child .text')?.textContent === 'hello'")

	p.click(".log .left li:nth-child(2) [data-do=cancel]")
	p.wants(".log .left li:nth-child(2) .state", "cancelled at the relay")
	p.shot("left-cancelled")

	// The host takes the first message while the user edits it. The edit came too late, and
	// stays until the user has seen that.
	p.click(".log .left li:first-child [data-do=edit]")
	p.enter(".log .left textarea", "hello at length")
	s.startAgentThatTakes()
	p.wants("#status-text", "Live")
	p.wants(".log .left li:first-child .state", "The host has it.")
	p.holds("the edit", "document.querySelector('.log .left textarea')?.value === 'hello at length'")
	p.holds("no way to save it", "document.querySelector('.log .left [type=submit]').disabled")
	p.click(".log .left form .row button[type=button]")
	p.wants(".log .left li:nth-child(2) .state", "has confirmed that it does not deliver it")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.accessible("left done")
	p.shot("left-done")
	if got := eval[int](p, "[...document.querySelectorAll('#turns > *')].filter((t) => t.textContent.includes('Hello, world!')).length"); got != 1 {
		t.Errorf("the message is in %d turns; want 1", got)
	}
	if turns := p.text("#turns"); strings.Contains(turns, "hello never") || strings.Contains(turns, "second device") || strings.Contains(turns, "hello there") {
		t.Errorf("a cancelled message, or an earlier version, has run: %s; want neither", tail(turns, 300))
	}
	second.wants("#left-all li:first-child .state", "The host has it.")
	p.click(".log .left li:first-child [data-do=remove]")
	p.holds("the item to be removed", "document.querySelectorAll('.log .left li').length === 1")

	// The host returns while a message is on its way to the relay. The page must not offer to
	// send that message to the host, too.
	must(t, s.agent.End(syscall.SIGTERM))
	p.wants("#leave", "Send when back")
	eval[any](p, `(() => {
		const send = fetch;
		window.fetch = (to, how) => (how?.method === 'PUT' ? new Promise((answer) => { window.put = () => answer(send(to, how)); }) : send(to, how));
	})(), null`)
	p.enter("#prompt", "hello once")
	p.click("#leave")
	p.holds("the request", "Boolean(window.put)")
	s.startAgentThatTakes()
	p.wants("#status-text", "Live")
	p.holds("no second way to send it", "document.querySelector('#send')?.disabled === true")
	eval[any](p, "window.put(), null")
	p.wants(".log .left li:last-child .state", "The host has it.")
	p.holds("an empty editor", "document.querySelector('#prompt').value === ''")
}

// TestMessagesWaitForASealedHost leaves a message for a sealed host that is away. The relay
// stores it, and has neither its text nor the session's name. The host runs it once when it
// returns.
func TestMessagesWaitForASealedHost(t *testing.T) {
	t.Parallel()
	p, s := newPage(t), startSealed(t)
	p.do(phone(), colours("light"), chromedp.Navigate(s.invite()))
	p.click("#form button")
	p.until("the page of devices", patience, func() bool { return eval[string](p, "location.pathname") == "/device" })
	p.do(chromedp.Navigate(s.url + "/#host=" + hostName))
	p.click("[data-pair]")
	s.pairs(p)
	p.knowsDevices(1)
	p.openSession("demo:/login")
	p.await("#prompt")

	must(t, s.agent.End(syscall.SIGTERM))
	p.wants("#leave", "Send when back")
	p.leaves("hello")
	p.wants(".log .left", "hello")
	p.wants(".log .left .state", "left at the relay")
	items := p.later("import('/pages/keys.js').then((k) => k.call('GET', 'api/waiting')).then(JSON.stringify)")
	if strings.Contains(items, "hello") || strings.Contains(items, remember.IDOf("demo:/login")) || !strings.Contains(items, `"letter"`) {
		t.Errorf("the relay has %s", items)
	}

	s.startSealedAgent()
	p.wants("#status-text", "Live")
	p.wants(".log .left li:first-child .state", "The host has it.")
	p.wants(lastTurn+" .parts", "Hello, world!")
}

// starts begins a session with a prompt and waits until its turn contains a text. It
// returns the session's URI.
func (p *page) starts(prompt, until string) string {
	p.t.Helper()
	p.list()
	p.begin()
	p.say(prompt)
	p.wants(lastTurn, until)
	return eval[string](p, "new URLSearchParams(location.hash.slice(1)).get('session')")
}

// list returns a phone's page to the list of sessions, because a hidden list draws no
// new rows.
func (p *page) list() {
	p.t.Helper()
	if p.count("#back") > 0 {
		p.click("#back")
		p.await("#new-session")
	}
}

// visits opens a session from the list on a phone, and waits until it is shown.
func (p *page) visits(session string) {
	p.t.Helper()
	p.list()
	p.openSession(session)
	p.await("#back")
}

// sets enters a local time in a field: the current time plus from.
func (p *page) sets(selector string, from time.Duration) {
	p.t.Helper()
	p.await(selector)
	eval[any](p, fmt.Sprintf(`((e) => {
		const at = new Date(Date.now() + %d);
		e.value = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
		e.dispatchEvent(new Event('input', { bubbles: true }));
		return null;
	})(document.querySelector(%s))`, from.Milliseconds(), js(selector)))
}

// TestEachKindWaitsForAHost leaves an approval, an answer, a stop, a new session, and a
// message with a wake time for an absent host. At the wake time, the relay runs the
// command that wakes the host. The host returns and gets each item.
func TestEachKindWaitsForAHost(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s, link, mark := startWaker(t)
	s.startAgentThatTakes("--remember=off") // the relay remembers no session, so the page shows its own copy
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), colours("light"), chromedp.Navigate(link))
	p.click("#form button")
	p.wants("#who", "owner. You may do everything")
	p.do(chromedp.Navigate(s.url + "/"))
	p.wants("#status-text", "Live")
	p.knowsDevices(1)
	asks := p.starts(`approve {"toolInput":"go test ./...","confirmationTitle":"Run the tests?","invocationMessage":"Run the tests"}`, "waits for you")
	edits := p.starts("edit", "Change 2 files?")
	chooses := p.starts("ask choice", "How shall I go on?")
	streams := p.starts("stream 7000 100", "working")
	p.starts(`approve {"toolInput":"rm -r build","editable":true,"confirmationTitle":"Delete it?","invocationMessage":"Delete it","riskAssessment":{"kind":"judge","status":"complete","reason":"It deletes all.","safety":0}}`, "waits for you")
	p.press(lastTurn+" .answers button", "Edit first")
	p.enter(lastTurn+" .approval textarea", "rm -r build/old")
	p.keys(lastTurn+" .approval button.till-focus", " ")
	p.await("dialog button.danger")
	must(t, s.agent.End(syscall.SIGTERM))

	// An item has no edited input, so the host would run the command as it was.
	p.wants(lastTurn+" .approval", "Your change cannot wait at the relay.")
	p.holds("no way to confirm it", "!document.querySelector('dialog button.danger')")
	p.holds("only the refusal", "[...document.querySelectorAll("+js(lastTurn+" .answers button:not(:disabled)")+")].map((b) => b.textContent).join() === 'Skip'")
	p.accessible("left edited approval")
	p.shot("left-edited")
	p.enter(lastTurn+" .approval textarea", "rm -r build") // as it was: then the host runs what the page shows
	p.await(lastTurn + " .answers .hold")

	p.visits(streams)
	p.click("#leave-stop")
	p.wants(".log .left li .text", "Stop the agent: stream 7000 100")
	p.holds("no second stop", "!document.querySelector('#leave-stop')")
	p.accessible("left stop")
	p.shot("left-stop")

	// The user replaces a left approval by a different answer, which is possible until the
	// host has it.
	p.visits(asks)
	p.press(lastTurn+" .answers button", "Skip")
	p.wants(lastTurn+" .question", "left at the relay: Skip: Shell go test ./...")
	p.press(lastTurn+" .answers button", "Allow Once")
	p.wants(lastTurn+" .question", "left at the relay: Allow Once: Shell go test ./...")
	p.wants(".log .left li:only-child .text", "Allow Once: Shell go test ./...")
	p.accessible("left approval")
	p.shot("left-approval")

	// The page has only a part of this request, so the user cannot answer it before the
	// host returns.
	p.visits(edits)
	p.wants(lastTurn+" .approval", "can be answered when the host is back")
	if enabled := p.count(lastTurn + " .answers button:not(:disabled)"); enabled > 0 {
		t.Errorf("%d answers to an incomplete request are offered; want 0", enabled)
	}

	p.visits(chooses)
	p.click(lastTurn + " .options button:nth-child(2)") // the option "Step by step"
	p.wants(".log .left li .text", "The plan is ready. → Step by step")
	p.accessible("left answer")
	p.shot("left-answer")

	p.list()
	p.click("#new-session")
	p.enter("#new-text", "hello")
	p.do(chromedp.KeyEvent(kb.Escape)) // as a press beside the dialog, or on a notification
	p.holds("the dialog to close", "!document.querySelector('#new')")
	p.click("#new-session")
	p.holds("the first message", "document.querySelector('#new-text')?.value === 'hello'")
	p.await("#create")
	p.accessible("left new session")
	p.shot("left-new")
	p.click("#create")
	p.wants(".log .left li .text", "New session: Demo Agent")
	created := eval[string](p, "new URLSearchParams(location.hash.slice(1)).get('session')")

	// The user leaves a message with a wake time, and then changes the time to the past.
	p.visits(chooses)
	p.await("#prompt")
	p.sets("#leave-wake", 2*time.Hour)
	p.leaves("tool")
	p.wants(".log .left li:nth-child(2) .state", "It is woken at")
	p.shot("left-wake")
	p.click(".log .left li:nth-child(2) [data-do=edit]")
	p.sets(".log .left .wake-at input", -time.Minute)
	p.accessible("left wake edit")
	p.click(".log .left form button[type=submit]")
	p.until("the relay to wake the host", patience, func() bool { _, err := os.Stat(mark); return err == nil })

	s.startAgentThatTakes()
	p.wants("#status-text", "Live")
	p.wants(".log .left li:first-child .state", "The host has it.")
	p.wants(".log .left li:nth-child(2) .state", "The host has it.")
	p.wants("#turns > :first-child .parts", "step")
	p.visits(asks)
	p.wants(lastTurn+" .parts", "Done, as you allowed.")
	p.wants(lastTurn+" .given", "Allowed by owner")
	p.visits(streams)
	p.wants(lastTurn+" .outcome", "Stopped.")
	p.visits(created)
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.shot("left-created")
	p.visits(edits) // this question was not answered, so it is open again
	p.holds("the answers", "document.querySelectorAll("+js(lastTurn+" .answers button:not(:disabled)")+").length > 0")
}

// near connects a client to the site's host directly, without the relay.
func (s *site) near() *refclient.Client {
	s.t.Helper()
	c, err := refclient.Dial(s.t.Context(), "ws://"+s.host.address, refclient.Options{})
	must(s.t, err)
	s.t.Cleanup(func() { _ = c.Abort() })
	_, err = c.Initialize(s.t.Context(), refclient.InitializeParams{ClientID: "near"})
	must(s.t, err)
	return c
}

// chatAt returns the channel of a session's chat, the ID of its running turn or "", and
// the chat's state at the host.
func (s *site) chatAt(c *refclient.Client, session string) (chat, turn, state string) {
	s.t.Helper()
	var of struct{ DefaultChat string }
	at, err := c.Subscribe(s.t.Context(), session)
	must(s.t, err)
	must(s.t, json.Unmarshal(at.State, &of))
	var in struct{ ActiveTurn struct{ ID string } }
	at, err = c.Subscribe(s.t.Context(), of.DefaultChat)
	must(s.t, err)
	must(s.t, json.Unmarshal(at.State, &in))
	return of.DefaultChat, in.ActiveTurn.ID, string(at.State)
}

// TestConsoleReportsWhatWasNotDelivered leaves items for an absent host that can no
// longer be delivered. A question was answered at the host, a tool call has a different
// input, and the host-agent crashed while it delivered a message. The page shows the
// reason for each.
func TestConsoleReportsWhatWasNotDelivered(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{still: true})
	s.host = s.addHost(hostName)
	s.startAgentThatTakes("--remember=off") // the relay remembers no session, so the page shows its own copy
	s.signIn(p)
	p.knowsDevices(1)
	const ask = `approve {"toolInput":"go test ./...","confirmationTitle":"Run the tests?","invocationMessage":"Run the tests"}`
	answered, changed := p.starts(ask, "waits for you"), p.starts(ask, "waits for you")
	must(t, s.agent.End(syscall.SIGTERM))
	for _, session := range []string{answered, changed} {
		p.visits(session)
		p.press(lastTurn+" .answers button", "Allow Once")
		p.wants(".log .left .state", "left at the relay")
	}
	p.leaves("hello")
	p.wants(".log .left li:nth-child(2) .state", "left at the relay")
	item := eval[string](p, "document.querySelector('.log .left li:nth-child(2)').dataset.left")

	near := s.near()
	chat, turn, _ := s.chatAt(near, answered)
	_, err := near.Dispatch(chat, map[string]any{"type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": "tc-asked", "approved": false, "reason": "denied"})
	must(t, err)
	p.until("the answer at the host", patience, func() bool { _, turn, _ := s.chatAt(near, answered); return turn == "" })
	chat, _, _ = s.chatAt(near, changed)
	other := strings.Replace(ask, "go test ./...", "rm -rf /", 1)
	_, err = near.Dispatch(chat, map[string]any{"type": "chat/pendingMessageSet", "kind": "steering", "id": "other", "message": map[string]any{"text": other, "origin": map[string]string{"kind": "user"}}})
	must(t, err)
	p.until("the other tool call", patience, func() bool { _, _, state := s.chatAt(near, changed); return strings.Contains(state, "rm -rf /") })
	book, err := waitbook.Open(s.file("state"), s.tenant, hostName, false) // the host-agent's record after a crash during the delivery
	must(t, err)
	must(t, book.Write(item, waitbook.Entry{Stage: waitbook.Sending, Version: 1, Expires: time.Now().Add(24 * time.Hour).UnixMilli()}, time.Now()))

	s.startAgentThatTakes("--remember=off")
	p.wants(".log .left li:first-child .state", "the tool call is not the one that you saw")
	p.wants(".log .left li:nth-child(2) .state", "may have been delivered")
	p.wants(lastTurn, "rm -rf /")
	p.accessible("left refused")
	p.shot("left-refused")
	p.visits(answered)
	p.wants(".log .left .state", "the question no longer exists")
	p.accessible("left late")
	p.shot("left-late")
	p.click(".log .left [data-do=remove]")
	p.holds("the item to be removed", "!document.querySelector('.log .left li')")
}

// TestLostMessageLeavesTheEditorWhenItIsFound leaves a message at a relay, loses the answer, and makes
// the list unreadable, as when a phone changes its network. When the list has the message, the editor
// must lose the text: a person would send it again.
func TestLostMessageLeavesTheEditorWhenItIsFound(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{still: true})
	s.host = s.addHost(hostName)
	s.startAgentThatTakes()
	s.signIn(p)
	p.knowsDevices(1)
	p.openSession("demo:/login")
	must(t, s.agent.End(syscall.SIGTERM))
	p.wants("#leave", "Send when back")
	eval[any](p, `(() => {
		const plain = window.fetch;
		window.lost = true;
		window.fetch = async (address, options) => {
			const answer = await plain(address, options);
			if (window.lost && String(address?.url ?? address).includes('waiting')) throw new TypeError('Failed to fetch');
			return answer;
		};
	})(), null`)
	p.enter("#prompt", "hello there")
	p.click("#leave")
	p.wants("#composer-note", "Not left")
	eval[any](p, "window.lost = false, null")
	p.holds("the text in the list alone", "document.querySelector('#prompt').value === '' && document.querySelector('.log .left')?.textContent.includes('hello there')")
	p.wants("#composer-note", "Your message waits")
}
