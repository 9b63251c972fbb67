//go:build !race

package browser_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
)

// startAgentThatTakes starts the site's host-agent with a state directory, so that it takes
// what people leave for the host.
func (s *site) startAgentThatTakes() {
	s.t.Helper()
	s.startAgentWith(hostName, "--upstream", "ws://"+s.host.address, "--state-dir", s.file("state"))
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
	p.until("the keys of the devices", patience, func() bool {
		return p.later(`(async () => {
			const db = await new Promise((r) => { const o = indexedDB.open('ahp-waiting', 1); o.onupgradeneeded = () => o.result.createObjectStore('kept'); o.onsuccess = () => r(o.result); });
			const kept = await new Promise((r) => { const q = db.transaction('kept').objectStore('kept').get('keys'); q.onsuccess = () => r(q.result); });
			db.close();
			return String(kept?.hosts?.[0]?.[1].devices.length ?? 0);
		})()`) == js(n)
	})
}

// leaves writes a message for the host, which is away.
func (p *page) leaves(text string) {
	p.t.Helper()
	p.enter("#prompt", text)
	p.click("#leave")
	p.holds("an empty editor", "document.querySelector('#prompt')?.value === ''")
}

// TestMessagesWaitForAHost leaves messages for a host that is away. A second device
// sees and changes them, a change that crosses is shown, and after the host's return each
// message has run once, or is confirmed as cancelled.
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
	p.shot("left-waiting-phone")

	second.wants("#left-all summary", "2 items wait for a host")
	second.click("#left-all summary")
	second.wants("#left-all li:first-child .text", "hello there")
	second.accessible("left list")
	second.shot("left-list-phone")

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
	p.shot("left-conflict-phone")
	p.click(".log .left form button[type=submit]")
	p.holds("the new version", "document.querySelector('.log .left li:first-child .text')?.textContent === 'hello'")

	p.click(".log .left li:nth-child(2) [data-do=cancel]")
	p.wants(".log .left li:nth-child(2) .state", "cancelled at the relay")
	p.shot("left-cancelled-phone")

	s.startAgentThatTakes()
	p.wants("#status-text", "Live")
	p.wants(".log .left li:first-child .state", "The host has it.")
	p.wants(".log .left li:nth-child(2) .state", "has confirmed that it does not deliver it")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.accessible("left done")
	p.shot("left-done-phone")
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
