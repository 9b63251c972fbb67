//go:build !race

package browser_test

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/pushsite"
)

// admitsThere lets the second page ask for a sealed host, and lets the first page,
// which is paired with this host, admit it. The two pages use different names for the
// account. It returns the second page's request.
func (p *page) admitsThere(second *page, host string) (request string) {
	p.t.Helper()
	second.click(`[data-pair="` + host + `"]`)
	second.press("#pair button", "Ask a paired device")
	second.holds("the request", "document.querySelector('#pair-request')?.textContent.includes('#admit=')")
	request = second.text("#pair-request")
	eval[any](p, "location.href = "+js(request)+", null")
	p.wants("#admit-words", second.text("#own-words"))
	p.press("#admit button", "Yes, admit it")
	p.holds("the answer", "document.querySelector('#admit-link')?.textContent.includes('grants=')")
	second.press("#pair button", "I have the answer")
	second.enter("#pair-code", p.text("#admit-link"))
	second.click("#pair button[type=submit]")
	second.wants("#offered", host)
	second.click("[data-do=accept]")
	second.holds("the sessions of "+host, "document.querySelector("+js(`[data-host-of="`+host+`"][data-session="demo:/login"]`)+") !== null")
	p.click("#sealed [aria-label=Close]")
	return request
}

// TestSealedHostOfAFurtherAccount pairs a page with a sealed host at another relay,
// works there, admits a second device, and answers a sealed notification. The host at
// the page's own relay has the same name and is not sealed: each relay's statements
// count for its own host only. Then the account is removed while a write of the host's
// key is held back. The key goes and does not return, and only the mark that the host
// was sealed stays.
func TestSealedHostOfAFurtherAccount(t *testing.T) {
	t.Parallel()
	p := newBrowser(t, nil)
	own := startStackWith(t, stackConfig{still: true})
	s := startSealed(t, "--console-origin", own.url)
	worker := p.workersOf(own.url)
	const host, scope = hostName + "@127.0.0.1", "/accounts/127.0.0.1/"
	p.do(desktop(), chromedp.Navigate(own.url+"/#host="+hostName+"&token="+own.token(time.Hour)))
	p.wants("#status-text", "Live")
	p.holds("the page to be kept", "navigator.serviceWorker.controller !== null")
	p.click("#status-open")
	p.addsByDevice(s.site, func() {})
	p.click("#status-sheet [aria-label=Close]")
	p.click(`#sessions [data-pair="` + host + `"]`)
	p.wants("#served-by", "This host’s own relay can neither read nor change")
	p.accessible("pairing at an account")
	s.pairs(p)
	p.openSessionOf(host, "demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.do(chromedp.Reload())
	p.wants("#turns", "Hello, world!")

	second := newPage(t)
	second.do(desktop(), chromedp.Navigate(own.url+"/#host="+hostName+"&token="+own.token(time.Hour)))
	second.wants("#status-text", "Live")
	second.click("#status-open")
	second.addsByToken(s.site, "far")
	second.click("#status-sheet [aria-label=Close]")
	request := p.admitsThere(second, hostName+"@far")

	a := &accountPush{lockScreen: &lockScreen{page: p}, service: pushsite.New(t), scope: scope}
	p.fakesPush(map[string]*pushsite.Service{scope: a.service})
	a.toldOn(p, "@127.0.0.1")
	a.push = func(message string) { p.do(pushed(own.url, worker(scope), message)) }
	p.until("the keys at the host", patience, func() bool {
		return p.later(`(async () => {
			const db = await new Promise((r) => { const o = indexedDB.open('ahp-sealed', 1); o.onsuccess = () => r(o.result); });
			const pin = await new Promise((r) => { const q = db.transaction('kept').objectStore('kept').get('host `+host+`'); q.onsuccess = () => r(q.result); });
			db.close();
			return String(Boolean(pin?.push?.way));
		})()`) == "true"
	})
	p.say("permission")
	a.attaches(p, "/sw.js?account=127.0.0.1&"+url.Values{"relay": {s.url + "/"}}.Encode(), fromHost(a.service))
	if got := a.shown(); !strings.Contains(got, "echo test") || !strings.Contains(got, `"host":"`+host+`"`) {
		t.Errorf("the lock screen shows %s; want the command echo test, and the host", got)
	}
	a.lockScreen.press("0", "")
	p.wants(lastTurn+" .parts", "Allowed.")
	if got := eval[string](a.worker, "sent.filter((s) => s.includes('/api/letters/')).join()"); !strings.HasPrefix(got, s.url+"/api/letters/") {
		t.Errorf("the answer was sent to %q; want /api/letters/ at the account's relay", got)
	}

	// Both relays push the same unsealed text about a host with this name. The page shows
	// it for the unsealed host, and hides it for the sealed host.
	words := func(id string) string {
		return fmt.Sprintf(`{"id":%q,"kind":"approval","at":"2126-11-23T12:00:00Z","host":%q,"session":"demo:/x","title":"The title","says":"The words"}`, id, hostName)
	}
	p.until("the own relay's notification", patience, func() bool {
		p.do(pushed(own.url, worker("/"), words("own")))
		return strings.Contains(p.notifications(), "The title")
	})
	var last time.Time
	a.worker.until("the further relay's notification", patience, func() bool {
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			a.push(words("further"))
		}
		return strings.Contains(a.shown(), `"host":"`+host+`"`)
	})
	if got := a.shown(); strings.Contains(got, "The title") {
		t.Errorf("the page shows an unsealed title for a sealed host: %s; want none", got)
	}

	eval[any](p, "location.href = "+js(request)+", null")
	p.await("#admit-words")
	eval[any](p, "(() => {"+holdsOpens+"})(), opens = {'ahp-sealed': 1}, null") // the first opening reads the device's keys, the second is held back
	p.press("#admit button", "Yes, admit it")
	p.holds("a write that is held back", "heldOpens.length > 0")
	eval[any](p, "opens = {}, null")
	p.click("#sealed [aria-label=Close]")
	p.removesAccount()
	gone := func() bool { return p.keptRecords("ahp-sealed", "kept") == "device,sealed "+host }
	p.until("the host's key to go", patience, gone)
	p.later("letOpen()")
	if !gone() {
		t.Errorf("a late write has stored %s for the removed account; want nothing", p.keptRecords("ahp-sealed", "kept"))
	}
}

// TestSiteServesTwoRelays opens a static site that serves the console for two relays,
// each with a sealed host. The page shows one list and one inbox, and has an account
// with its own key at the second relay. The site's policy blocks a third relay, and the
// page explains this.
func TestSiteServesTwoRelays(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	console := "http://" + l.Addr().String()
	first, second := startSealedFor(t, console), startSealedFor(t, console)
	third := startRelayFor(t, stackConfig{still: true})
	server := servesConsole(t, l, first.url, second.url)
	const further = hostName + "@127.0.0.1"
	p := newPage(t)
	p.do(phone(), colours("light"), chromedp.Navigate(first.address(url.Values{"host": {hostName}, "token": {first.token(time.Hour)}})))
	p.click("[data-pair]")
	p.await("#pair-code")
	first.pairs(p)

	p.click("#status-open")
	p.click("#add-account")
	p.enter("#account-relay", third.url)
	p.click("#account .primary")
	p.wants("#account-why", "This site is made for "+strings.TrimPrefix(first.url, "http://")+", "+strings.TrimPrefix(second.url, "http://")+" only.")
	p.click("#account [aria-label=Close]")
	p.click("#status-open")
	p.addsByDevice(second.site, func() {})
	p.click("#status-sheet [aria-label=Close]")
	p.click(`#sessions [data-pair="` + further + `"]`)
	p.wants("#served-by", "does not come from the relay")
	second.pairs(p)
	p.click("#only-host") // limits the list to the host that was just paired
	for _, host := range []string{hostName, further} {
		p.openSessionOf(host, "demo:/login")
		p.wants("#turns", "Done. 500 runs")
		p.say("permission")
		p.wants(lastTurn+" .question", "Allow")
		p.click("#back")
	}
	p.await(`[data-group=needs] [data-host-of="` + hostName + `"]`)
	p.await(`[data-group=needs] [data-host-of="` + further + `"]`)
	p.accessible("one inbox on a site")
	p.shot("accounts-site")

	p.do(chromedp.Reload())
	p.click(`[data-host-of="` + further + `"][data-session="demo:/login"] button`) // a real click, because an answer makes a phone vibrate only after one
	p.press(lastTurn+" .question button", "Allow Once")
	p.wants(lastTurn+" .parts", "Allowed.")
	p.click("#back")
	p.holds("the first host's question only", "document.querySelectorAll('[data-group=needs] [data-session]').length === 1")
	p.await(`[data-group=needs] [data-host-of="` + hostName + `"]`)
	p.expects = "Content Security Policy"
	if got := p.later("fetch(" + js(third.url+"/api/hosts") + ").then((r) => 'answered ' + r.status, () => 'blocked')"); got != "blocked" {
		t.Errorf("a request to a third relay: %s; want blocked", got)
	}

	// The site's server is gone. The page still opens from the browser's cache, and the
	// account at the second relay works.
	p.holds("the page to be kept", "navigator.serviceWorker.controller !== null")
	must(t, server.Listener.Close())
	server.CloseClientConnections()
	p.expects = "ERR_CONNECTION_REFUSED"
	p.do(chromedp.Reload())
	p.openSessionOf(further, "demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
}
