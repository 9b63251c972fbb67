//go:build !race

package browser_test

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// keptRecords returns the keys of all records in a store of a database in this browser,
// or "none".
func (p *page) keptRecords(database, store string) string {
	p.t.Helper()
	return p.later(`(async () => {
		const db = await new Promise((r) => { const o = indexedDB.open(` + js(database) + `, 1); o.onupgradeneeded = () => o.result.createObjectStore(` + js(store) + `); o.onsuccess = () => r(o.result); });
		const keys = await new Promise((r) => { const q = db.transaction(` + js(store) + `).objectStore(` + js(store) + `).getAllKeys(); q.onsuccess = () => r(q.result); });
		db.close();
		return keys.join() || 'none';
	})()`)
}

// keptText returns the content that this browser keeps for reading without a network.
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

// knowsHosts waits until the page has the keys of n hosts of an account, with which it
// seals items for absent hosts. record names the database's record.
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

// TestHostsOfAllAccountsMayBeAway leaves messages for absent hosts at two relays. Both
// are in one list, and each waits at its own relay. Then one relay goes away: its
// sessions can still be read, also after a reload. The account at this relay is
// removed: its keys and conversations go, and those of the page's first account stay.
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
	p.shot("accounts-left")

	// The host at the other relay returns. It takes the item for it, and the other item
	// still waits.
	other.startAgentThatTakes()
	p.wants("#left-all summary", "1 item waits for a host")
	p.wants(`#left-all [data-state=done]`, "hello elsewhere")
	p.openSessionOf(atOther, "demo:/login")
	p.wants(lastTurn+" .parts", "You said: hello elsewhere")
	p.click("#back")

	// The other relay goes away.
	p.until("the conversation to be kept", patience, func() bool { return strings.Contains(p.keptText(), "You said: hello elsewhere") })
	must(t, other.agent.End(syscall.SIGTERM))
	other.bench.Kill()
	p.expects = "ERR_CONNECTION_REFUSED"
	p.do(chromedp.Reload())
	p.openSessionOf(atOther, "demo:/login")
	p.wants("#turns", "You said: hello elsewhere")
	p.wants("#past", "As of ")
	p.click("#back")
	p.do(chromedp.Reload()) // a reload without the relay keeps the stored conversation
	p.openSessionOf(atOther, "demo:/login")
	p.wants("#turns", "You said: hello elsewhere")
	p.click("#back")

	// The page removes the account while its relay does not answer. All records of the
	// account go.
	p.click("#status-open")
	p.press(`[data-account="127.0.0.1"] button`, "Remove")
	p.click("#confirm-yes")
	p.holds("its sessions to leave", "!document.querySelector("+js(`[data-host-of="`+atOther+`"]`)+")")
	p.until("its keys to go", patience, func() bool {
		return p.keptRecords("ahp-device", "device") == "self" && p.keptRecords("ahp-waiting", "kept") == "keys"
	})
	p.until("what is kept of it to go", patience, func() bool { return !strings.Contains(p.keptText(), "127.0.0.1") })
	if got := p.keptText(); !strings.Contains(got, "Done. 500 runs") {
		t.Errorf("the cache lacks the conversation of the page's own account: %.300s; want its text", got)
	}
	p.do(chromedp.Reload())
	p.wants("#left-all summary", "1 item waits for a host")
	p.await(`[data-host-of="` + hostName + `"]`)
	if p.count(`[data-host-of="`+atOther+`"]`) != 0 {
		t.Error("sessions of the removed account are kept; want none")
	}
	p.openSessionOf(hostName, "demo:/login")
	p.wants("#turns", "Done. 500 runs")
}

// holdsOpens is a script. window.opens maps a database's name to the number of openings
// that pass. Each later opening waits until letOpen is called. letOpen returns when the
// delayed openings have finished.
const holdsOpens = `
	window.opens = JSON.parse(sessionStorage.getItem('opens') ?? '{}');
	window.heldOpens = [];
	const open = IDBFactory.prototype.open;
	IDBFactory.prototype.open = function (name, version) {
		if (!(name in opens) || opens[name]-- > 0) return open.call(this, name, version);
		const later = {};
		heldOpens.push((done) => {
			const real = open.call(this, name, version);
			real.onupgradeneeded = () => { later.result = real.result; later.onupgradeneeded(); };
			real.onsuccess = () => { later.result = real.result; later.onsuccess(); setTimeout(done); };
		});
		return later;
	};
	window.letOpen = async () => { opens = {}; for (const go of heldOpens.splice(0)) await new Promise(go); return 'open'; };
`

// removesAccount removes the page's account at the other relay.
func (p *page) removesAccount() {
	p.t.Helper()
	p.click("#status-open")
	p.press(`[data-account="127.0.0.1"] button`, "Remove")
	p.click("#confirm-yes")
	p.holds("the account to leave the list", "!document.querySelector('#accounts [data-account]')")
}

// TestRemovedAccountIsNotWrittenAgain removes an account while its relay does not
// answer, and while two tabs are about to write the account's keys. The account's keys
// go at once, and the delayed writes bring no record back. A tab that writes a record
// before it learns of the removal erases the record itself.
func TestRemovedAccountIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	other := startOwnRelay(t, "--console-origin", s.url)
	p.do(forms[2].size, colours("light"), chromedp.Navigate(s.url+"/#host="+hostName+"&token="+s.token(time.Hour)))
	p.wants("#status-text", "Live")
	p.click("#status-open")
	p.addsByDevice(other, func() {})
	p.until("the keys for items", patience, func() bool { return p.keptRecords("ahp-waiting", "kept") == "keys @127.0.0.1" })

	// Both tabs have read the account's keys. Their writes are held back.
	ctx, cancel := chromedp.NewContext(p.ctx)
	t.Cleanup(cancel)
	second := pageOf(t, ctx)
	second.do(desktop(), chromedp.Navigate(s.url+"/#host="+hostName+"&token="+s.token(time.Hour)))
	second.wants("#status-text", "Live")
	for _, tab := range []*page{p, second} {
		eval[any](tab, `sessionStorage.setItem('opens', '{"ahp-waiting": 1}'), null`)
		tab.before(holdsOpens)
		tab.do(chromedp.Reload())
		tab.holds("a write that is held back", "window.heldOpens?.length === 1")
		eval[any](tab, "opens = {}, null")
	}

	// The relay answers no request, and the page's time limit for the removal does not run
	// out.
	eval[any](p, `window.fetch = () => new Promise(() => {}), (wait => { window.setTimeout = (act, ms, ...more) => ms === 5000 ? 0 : wait(act, ms, ...more); })(setTimeout), null`)
	p.removesAccount()
	p.until("its device key to go", patience, func() bool { return p.keptRecords("ahp-device", "device") == "none" })
	p.until("its keys for items to go", patience, func() bool { return p.keptRecords("ahp-waiting", "kept") == "none" })
	second.holds("the removal to be known", "localStorage.getItem('ahp-accounts') === '[]'")
	for _, tab := range []*page{p, second} {
		tab.later("letOpen()")
		if got := p.keptRecords("ahp-waiting", "kept"); got != "none" {
			t.Fatalf("a late write has stored %s for the removed account; want nothing", got)
		}
	}

	second.later(`(async () => {
		const db = await new Promise((r) => { const o = indexedDB.open('ahp-waiting', 1); o.onsuccess = () => r(o.result); });
		await new Promise((r) => { const t = db.transaction('kept', 'readwrite'); t.objectStore('kept').put({}, 'keys @127.0.0.1'); t.oncomplete = r; });
		db.close();
	})()`)
	eval[any](second, "dispatchEvent(new StorageEvent('storage', { key: 'ahp-accounts' })), null")
	p.until("the late record to go", patience, func() bool { return p.keptRecords("ahp-waiting", "kept") == "none" })
	if got := p.later("(async () => { const all = []; for (const name of await caches.keys()) all.push(...await (await caches.open(name)).keys()); return all.map((r) => r.url).filter((u) => u.includes('127.0.0.1%') || u.includes('account=')).join() || 'none'; })()"); got != "none" {
		t.Errorf("the cache has %s; want nothing from the removed account", got)
	}
}
