//go:build !race

package browser_test

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
)

// keptRecords returns the keys in a database in this browser.
func (p *page) keptRecords(database, store string) string {
	p.t.Helper()
	return p.later(`(async () => {
		const db = await new Promise((r) => { const o = indexedDB.open(` + js(database) + `, 1); o.onupgradeneeded = () => o.result.createObjectStore(` + js(store) + `); o.onsuccess = () => r(o.result); });
		const keys = await new Promise((r) => { const q = db.transaction(` + js(store) + `).objectStore(` + js(store) + `).getAllKeys(); q.onsuccess = () => r(q.result); });
		db.close();
		return keys.join() || 'none';
	})()`)
}

// keptText returns what this browser keeps for reading without a network.
func (p *page) keptText() string {
	p.t.Helper()
	return p.later(`(async () => {
		const db = await new Promise((r) => { const o = indexedDB.open('ahp-offline', 1); o.onupgradeneeded = () => o.result.createObjectStore('kept'); o.onsuccess = () => r(o.result); });
		const get = (key) => new Promise((r) => { const q = db.transaction('kept').objectStore('kept').get(key); q.onsuccess = () => r(q.result); });
		const [key, sealed] = [await get('key'), await get('page')];
		db.close();
		return sealed ? new TextDecoder().decode(await crypto.subtle.decrypt({ name: 'AES-GCM', iv: sealed.iv }, key, sealed.data)) : 'none';
	})()`)
}

// knowsHosts waits until the page has the keys of a number of an account's hosts for items.
func (p *page) knowsHosts(record string, n int) {
	p.t.Helper()
	p.until("the keys of "+record, patience, func() bool {
		return p.later(`(async () => {
			const db = await new Promise((r) => { const o = indexedDB.open('ahp-waiting', 1); o.onupgradeneeded = () => o.result.createObjectStore('kept'); o.onsuccess = () => r(o.result); });
			const kept = await new Promise((r) => { const q = db.transaction('kept').objectStore('kept').get(`+js(record)+`); q.onsuccess = () => r(q.result); });
			db.close();
			return String(kept?.hosts?.length ?? 0);
		})()`) == strconv.Itoa(n)
	})
}

// TestHostsOfAllAccountsMayBeAway leaves messages for absent hosts at two relays, in one list:
// each waits at its own relay. While the further relay is gone, its sessions are still there to read,
// also after a load. Removed meanwhile, the account leaves no keys and no conversations, and the page's
// own keep theirs.
func TestHostsOfAllAccountsMayBeAway(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{still: true})
	s.host = s.addHost(hostName)
	s.startAgentThatTakes()
	other := startRelayAlone(t, "--console-origin", s.url)
	other.host = other.addHost(hostName)
	other.startAgentThatTakes()
	const atOther = hostName + "@127.0.0.1"
	s.signIn(p)
	p.click("#status-open")
	p.addsByDevice(other, func() {})
	p.click("#status-sheet [aria-label=Close]")
	p.knowsHosts("keys", 1)
	p.knowsHosts("keys @127.0.0.1", 1)
	p.openSessionOf(atOther, "demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.click("#back")

	must(t, s.agent.End(syscall.SIGTERM))
	must(t, other.agent.End(syscall.SIGTERM))
	p.openSessionOf(hostName, "demo:/login")
	p.wants("#leave", "Send when back")
	p.leaves("hello to my own")
	p.click("#back")
	p.openSessionOf(atOther, "demo:/login")
	p.wants("#leave", "Send when back")
	p.leaves("hello elsewhere")
	p.wants(".log .left", "hello elsewhere")
	p.accessible("an item of an account")
	p.click("#back")
	p.wants("#left-all summary", "2 items wait for a host")
	p.click("#left-all summary")
	p.wants("#left-all", "Waits for "+atOther+" until")
	p.shot("accounts-left-390")

	// The further host takes its item only.
	other.startAgentThatTakes()
	p.wants("#left-all summary", "1 item waits for a host")
	p.wants(`#left-all [data-state=done]`, "hello elsewhere")
	p.openSessionOf(atOther, "demo:/login")
	p.wants(lastTurn+" .parts", "You said: hello elsewhere")
	p.click("#back")

	// The further relay goes away.
	p.until("the conversation to be kept", patience, func() bool { return strings.Contains(p.keptText(), "You said: hello elsewhere") })
	must(t, other.agent.End(syscall.SIGTERM))
	other.bench.Kill()
	p.expects = "ERR_CONNECTION_REFUSED"
	p.do(chromedp.Reload())
	p.openSessionOf(atOther, "demo:/login")
	p.wants("#turns", "You said: hello elsewhere")
	p.wants("#past", "As of ")
	p.click("#back")
	p.do(chromedp.Reload()) // what is kept is not lost by a load without the relay
	p.openSessionOf(atOther, "demo:/login")
	p.wants("#turns", "You said: hello elsewhere")
	p.click("#back")

	// Removed, the account leaves nothing, although its relay does not answer.
	p.click("#status-open")
	p.press(`[data-account="127.0.0.1"] button`, "Remove")
	p.click("#confirm-yes")
	p.holds("its sessions to leave", "!document.querySelector("+js(`[data-host-of="`+atOther+`"]`)+")")
	p.until("its keys to go", patience, func() bool {
		return p.keptRecords("ahp-device", "device") == "self" && p.keptRecords("ahp-waiting", "kept") == "keys"
	})
	p.until("what is kept of it to go", patience, func() bool { return !strings.Contains(p.keptText(), "127.0.0.1") })
	if got := p.keptText(); !strings.Contains(got, "Done. 500 runs") {
		t.Errorf("the own account's conversation went, too: %.300s", got)
	}
	p.do(chromedp.Reload())
	p.wants("#left-all summary", "1 item waits for a host")
	p.await(`[data-host-of="` + hostName + `"]`)
	if p.count(`[data-host-of="`+atOther+`"]`) != 0 {
		t.Error("the sessions of the removed account are still kept")
	}
	p.openSessionOf(hostName, "demo:/login")
	p.wants("#turns", "Done. 500 runs")
}
