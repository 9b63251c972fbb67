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

	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/test/refclient"
)

// startAgentThatTakes starts the site's host-agent with a state directory, so it accepts
// items for the host.
func (s *site) startAgentThatTakes(flags ...string) {
	s.t.Helper()
	s.startAgentWith(hostName, append([]string{"--upstream", "ws://" + s.host.address, "--state-dir", s.file("state")}, flags...)...)
}

// signIn signs a page's browser in as a device of the owner, and opens the console.
func (s *site) signIn(p *page) {
	s.t.Helper()
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), colours("light"), chromedp.Navigate(s.invite()))
	p.click("#form button")
	p.until("the page of devices", patience, func() bool { return eval[string](p, "location.pathname") == "/device" })
	p.do(chromedp.Navigate(s.url + "/"))
	p.wants("#status-text", "Live")
}

// knowsDevices waits until the page has the keys of a number of the person's devices.
func (p *page) knowsDevices(n int) {
	p.t.Helper()
	p.until("the keys of the devices", patience, func() bool { return p.devices() == n })
}

// devices returns the number of the person's devices whose keys the page has.
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

// leaves writes a message for the host, which is away.
func (p *page) leaves(text string) {
	p.t.Helper()
	p.enter("#prompt", text)
	p.click("#leave")
	p.holds("an empty editor", "document.querySelector('#prompt')?.value === ''")
}

// TestMessagesWaitForAHost leaves messages for an absent host. A second device sees and
// changes them, and a conflicting change is shown. After the host's return, each message
// has run once, or is confirmed as cancelled.
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
		t.Error("a message can be left for a host that is online")
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

	// Both devices edit the first message. The later one sees the change before it replaces it.
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

	s.startAgentThatTakes()
	p.wants("#status-text", "Live")
	p.wants(".log .left li:first-child .state", "The host has it.")
	p.wants(".log .left li:nth-child(2) .state", "has confirmed that it does not deliver it")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.accessible("left done")
	p.shot("left-done")
	if got := eval[int](p, "[...document.querySelectorAll('#turns > *')].filter((t) => t.textContent.includes('Hello, world!')).length"); got != 1 {
		t.Errorf("the message is in %d turns; want 1", got)
	}
	if turns := p.text("#turns"); strings.Contains(turns, "hello never") || strings.Contains(turns, "second device") || strings.Contains(turns, "hello there") {
		t.Errorf("a cancelled message, or an earlier version, has run: %s", tail(turns, 300))
	}
	second.wants("#left-all li:first-child .state", "The host has it.")
	p.click(".log .left li:first-child [data-do=remove]")
	p.holds("the item to be removed", "document.querySelectorAll('.log .left li').length === 1")
}

// starts begins a session with a prompt, waits for a text in its turn, and returns the
// session's URI.
func (p *page) starts(prompt, until string) string {
	p.t.Helper()
	p.list()
	p.begin()
	p.say(prompt)
	p.wants(lastTurn, until)
	return eval[string](p, "new URLSearchParams(location.hash.slice(1)).get('session')")
}

// list goes to the list of sessions on a phone. A hidden list draws no new rows.
func (p *page) list() {
	p.t.Helper()
	if p.count("#back") > 0 {
		p.click("#back")
		p.await("#new-session")
	}
}

// visits opens a session from the list on a phone.
func (p *page) visits(session string) {
	p.t.Helper()
	p.list()
	p.openSession(session)
	p.await("#back")
}

// sets fills in a local time, given as its distance from now.
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

// TestEachKindWaitsForAHost leaves an approval, an answer, a stop, a new session and a
// message with a wake time for an absent host. The relay wakes the host at the time, and
// the host gets each item.
func TestEachKindWaitsForAHost(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s, link, mark := startWaker(t)
	s.startAgentThatTakes("--remember=off") // the page has its own copies only
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), colours("light"), chromedp.Navigate(link))
	p.click("#form button")
	p.wants("#who", "owner, level own")
	p.do(chromedp.Navigate(s.url + "/"))
	p.wants("#status-text", "Live")
	p.knowsDevices(1)
	asks := p.starts(`approve {"toolInput":"go test ./...","confirmationTitle":"Run the tests?","invocationMessage":"Run the tests"}`, "waits for you")
	edits := p.starts("edit", "Change 2 files?")
	chooses := p.starts("ask choice", "How shall I go on?")
	streams := p.starts("stream 7000 100", "working")
	must(t, s.agent.End(syscall.SIGTERM))

	p.click("#leave-stop")
	p.wants(".log .left li .text", "Stop the agent: stream 7000 100")
	p.holds("no second stop", "!document.querySelector('#leave-stop')")
	p.accessible("left stop")
	p.shot("left-stop")

	// The approval can be changed until the host has it.
	p.visits(asks)
	p.press(lastTurn+" .answers button", "Skip")
	p.wants(lastTurn+" .question", "left at the relay: Skip: Shell go test ./...")
	p.press(lastTurn+" .answers button", "Allow Once")
	p.wants(lastTurn+" .question", "left at the relay: Allow Once: Shell go test ./...")
	p.wants(".log .left li:only-child .text", "Allow Once: Shell go test ./...")
	p.accessible("left approval")
	p.shot("left-approval")

	// A part of this request is only at the host.
	p.visits(edits)
	p.wants(lastTurn+" .approval", "can be answered when the host is back")
	if enabled := p.count(lastTurn + " .answers button:not(:disabled)"); enabled > 0 {
		t.Errorf("%d answers to a request that is not whole", enabled)
	}

	p.visits(chooses)
	p.click(lastTurn + " .options button:nth-child(2)") // step by step
	p.wants(".log .left li .text", "The plan is ready. → Step by step")
	p.accessible("left answer")
	p.shot("left-answer")

	p.list()
	p.click("#new-session")
	p.enter("#new-text", "hello")
	p.await("#create")
	p.accessible("left new session")
	p.shot("left-new")
	p.click("#create")
	p.wants(".log .left li .text", "New session: Demo Agent")
	created := eval[string](p, "new URLSearchParams(location.hash.slice(1)).get('session')")

	// A message has a wake time, which can be changed.
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
	p.visits(edits) // a question at the host is open again
	p.holds("the answers", "document.querySelectorAll("+js(lastTurn+" .answers button:not(:disabled)")+").length > 0")
}

// near connects to the site's host, past the relay.
func (s *site) near() *refclient.Client {
	s.t.Helper()
	c, err := refclient.Dial(s.t.Context(), "ws://"+s.host.address, refclient.Options{})
	must(s.t, err)
	s.t.Cleanup(func() { _ = c.Abort() })
	_, err = c.Initialize(s.t.Context(), refclient.InitializeParams{ClientID: "near"})
	must(s.t, err)
	return c
}

// chatAt returns a session's chat at the host, its running turn, and its state.
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

// TestConsoleReportsWhatWasNotDelivered shows the host's reasons: the question was answered meanwhile, the tool call has a
// different input, and a message may have arrived before a crash.
func TestConsoleReportsWhatWasNotDelivered(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{still: true})
	s.host = s.addHost(hostName)
	s.startAgentThatTakes("--remember=off") // the page has its own copies only
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
	book, err := waitbook.Open(s.file("state"), s.tenant, hostName) // as after a crash
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
