//go:build !race

package browser_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/test/procs"
)

// startOwnRelay starts a relay for this site alone, with the flags, and a host behind
// it.
func startOwnRelay(t *testing.T, flags ...string) *site {
	t.Helper()
	s := startRelayAlone(t, flags...)
	s.host = s.addHost(hostName)
	s.startAgent(s.host)
	return s
}

// startRelayAlone starts a relay for this site alone, with the flags, and no host.
func startRelayAlone(t *testing.T, flags ...string) *site {
	t.Helper()
	s := newSite(t)
	s.cfg.still = true
	data := s.file("data")
	must(t, os.Mkdir(data, 0o700))
	keys, err := auth.LoadKeys(data)
	must(t, err)
	s.keys = keys
	relay := s.bench.Process("", "relay", procs.RelayProgram, append([]string{"serve", "--data-dir", data, "--listen", "127.0.0.1:0", "--admin-listen", gateway.NoListener, "--drain", "1s"}, flags...)...)
	must(t, relay.Launch(t.Context(), func() error {
		match := relayReady.FindStringSubmatch(relay.Log())
		if match == nil {
			return errors.New("the relay's log has no line with its address")
		}
		s.url = match[1]
		return nil
	}))
	t.Cleanup(func() { s.end(relay) })
	return s
}

// asksIn opens a session of the site's host in a new page, and sends a prompt after which the
// session's agent asks for a permission. It returns the new page.
func (s *site) asksIn(session string) *page {
	s.t.Helper()
	p := newPage(s.t)
	p.do(desktop(), chromedp.Navigate(s.url+"/#host="+hostName+"&token="+s.token(time.Hour)))
	p.wants("#sessions", "Fix the flaky login test")
	p.openSession(session)
	p.await("#prompt")
	p.say("permission")
	p.wants(lastTurn+" .question", "Allow")
	return p
}

// answersIn clicks an answer of a host's question in the inbox. It clicks until the
// question is gone, because a row that has just moved ignores a click.
func (p *page) answersIn(host, label string) {
	p.t.Helper()
	button := "[...document.querySelectorAll(" + js(`[data-group=needs] [data-host-of="`+host+`"] .answers button`) + ")].find((b) => b.textContent === " + js(label) + ")"
	p.holds(label+" for "+host, button+" !== undefined")
	p.until(label+" to be taken", patience, func() bool { return eval[bool](p, "(b => { b?.click(); return !b; })("+button+")") })
}

// addsByDevice adds an account at another relay to the page. A signed-in device of that
// relay's owner approves the account by a code. addsByDevice calls shown while the page
// shows the code. It returns the owner's page, and leaves the sheet of hosts open.
func (p *page) addsByDevice(other *site, shown func()) (owner *page) {
	p.t.Helper()
	owner = newPage(p.t)
	owner.do(desktop(), chromedp.Navigate(other.invite()))
	owner.click("#form button")
	owner.until("the page of devices", patience, func() bool { return eval[string](owner, "location.pathname") == "/device" })
	p.click("#add-account")
	p.enter("#account-relay", other.url)
	p.click("#account .primary")
	p.await("#account-code svg.qr") // the page has loaded again, with a policy that admits the relay
	shown()
	owner.click("#to-add-device")
	owner.enter("#code-device", p.text("#account-code code"))
	owner.click("#lookup-device button[type=submit]")
	owner.wants("#what", p.text("#account-code p b + b, #account-code p.dim b"))
	owner.click("#decide button[type=submit]")
	p.wants(`[data-account="127.0.0.1"]`, "owner at "+strings.TrimPrefix(other.url, "http://"))
	return owner
}

// addsByToken adds an account by a tenant's token, under a name. It leaves the sheet of
// hosts open.
func (p *page) addsByToken(tenant *site, name string) {
	p.t.Helper()
	p.click("#add-account")
	p.enter("#account-relay", tenant.url)
	p.click("#account .paste summary")
	p.enter("#account-token", tenant.token(time.Hour))
	p.enter("#account-name", name)
	p.click("#account .primary")
	p.wants("#accounts [data-account]", "browser at")
}

// TestAccountsShareOneInbox adds two accounts to a page: another tenant of its relay by
// a token, and another relay by a signed-in device. The page shows one list and one
// inbox for all accounts, and sends each answer to the relay of its question. The
// page's policy admits a relay only while there is an account at it.
func TestAccountsShareOneInbox(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})      // the page's first account
	tenant := startStackWith(t, stackConfig{still: true}) // a different tenant of the same relay
	other := startOwnRelay(t, "--console-origin", s.url)  // a different relay, which admits the page
	const atTenant, atOther = hostName + "@at-work", hostName + "@127.0.0.1"
	p.do(forms[2].size, colours("light"), chromedp.Navigate(s.url+"/#host="+hostName+"&token="+s.token(time.Hour)))
	p.wants("#sessions", "Fix the flaky login test")
	reaches := func() bool {
		return p.later("fetch("+js(other.url+"/api/hosts")+", {headers: {Authorization: 'Bearer x'}}).then((r) => 'answered ' + r.status, () => 'blocked')") != "blocked"
	}
	p.expects = "Content Security Policy"
	if reaches() {
		t.Error("the page reaches a relay that was not added; want it blocked")
	}
	p.expects = ""

	// The page adds another tenant of its own relay. A token is enough.
	p.click("#status-open")
	p.click("#add-account")
	p.await("#account-relay")
	p.accessible("the sheet for an account")
	p.shot("accounts-add")
	p.click("#account .paste summary")
	p.enter("#account-token", "not a token!")
	p.click("#account .primary")
	p.wants("#account-why", "That does not look like a token.")
	p.enter("#account-token", tenant.token(time.Hour))
	p.enter("#account-name", "At Work!")
	p.click("#account .primary")
	p.wants("#accounts [data-account]", "browser at")
	p.wants(`#hosts [data-host="`+atTenant+`"] .badge`, "online")

	// The page adds an account at another relay. A signed-in device approves it.
	owner := p.addsByDevice(other, func() {
		p.accessible("the code for an account")
		p.shot("accounts-code")
	})
	p.wants(`#hosts [data-host="`+atOther+`"] .badge`, "online")
	p.accessible("accounts")
	p.shot("accounts-status")
	p.click("#status-sheet [aria-label=Close]")
	if !reaches() {
		t.Error("the page does not reach the added relay; want an answer")
	}
	if got := p.later(`(async () => { const db = await new Promise((r) => { const o = indexedDB.open('ahp-device', 1); o.onsuccess = () => r(o.result); });
		const all = await new Promise((r) => { const q = db.transaction('device').objectStore('device').getAll(); q.onsuccess = () => r(q.result); }); db.close();
		return (await Promise.all(all.map((a) => crypto.subtle.exportKey('jwk', a.keys.privateKey).then(() => 'readable', () => 'sealed')))).join(); })()`); got != "sealed" {
		t.Errorf("the account's key is %s; want one that cannot be read", got)
	}

	// The inbox shows a question for each account. The page answers each at its own relay.
	asked := []*page{s.asksIn("demo:/login"), tenant.asksIn("demo:/notes"), other.asksIn("demo:/login")}
	hosts := []string{hostName, atTenant, atOther}
	for _, host := range hosts {
		p.await(`[data-group=needs] [data-host-of="` + host + `"] .answers button`)
	}
	p.accessible("one inbox")
	p.shot("accounts-inbox")
	for i, host := range hosts {
		p.answersIn(host, "Allow Once")
		asked[i].wants(lastTurn+" .parts", "Allowed.")
	}
	p.holds("nothing to need the person", "!document.querySelector('[data-group=needs]')")

	// The page opens a session of an added account like any other session. After a reload,
	// all accounts are still there.
	open := func(host, session string) {
		p.holds("the session of "+host, "(b => { b.click(); return true; })(document.querySelector("+js(`[data-host-of="`+host+`"][data-session="`+session+`"] button`)+"))")
	}
	p.do(chromedp.Reload())
	open(atOther, "demo:/login")
	p.wants("#turns", "Allowed.")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	asked[2].wants(lastTurn+" .parts", "Hello, world!")
	if asked[0].text(lastTurn+" .parts") == "Hello, world!" {
		t.Error("the message went to a host at the page's own relay; want the chosen account's relay")
	}
	p.click(".chat-head .menu summary")
	p.press(".chat-head .menu button", "Usage")
	p.click("#usage-hosts")
	p.holds("the use at all accounts", `["|Hosts|", "|`+hostName+`|", "|`+atTenant+`|", "|`+atOther+`|"].every((part) => [...document.querySelectorAll('#usage tbody tr')].map((r) => r.firstChild.textContent).join('|').includes(part))`)
	p.click("#usage [aria-label=Close]")
	p.click("#back")
	p.enter("#search", "login")
	for _, host := range hosts {
		p.await(`[data-session="demo:/login"][data-host-of="` + host + `"]`)
	}
	if got := p.count(`#sessions [data-session]:not([data-session="demo:/login"])`); got != 0 {
		t.Errorf("the search shows %d sessions besides the expected one; want 0", got)
	}
	p.enter("#search", " ")

	keepsWorker := func() {
		t.Helper()
		if got := p.later("navigator.serviceWorker.getRegistration('/').then((r) => r?.active?.state ?? 'none')"); got != "activated" {
			t.Errorf("after an account without notifications was removed, the page's service worker is %s; want activated", got)
		}
	}

	// A relay does not admit this page's origin. The message names the remedy.
	p.click("#status-open")
	p.click("#add-account")
	p.enter("#account-relay", "http://"+tenant.proxy.Addr().String())
	p.click("#account .paste summary")
	p.enter("#account-token", tenant.token(time.Hour))
	p.expects = "CORS"
	p.click("#account .primary")
	p.wants("#account-why", "--console-origin "+s.url)
	keepsWorker()
	p.expects = ""
	p.click("#account [aria-label=Close]")

	// The page removes the account at the other relay. Nothing of the account stays: no
	// host in the list, no key, no right at the relay, no entry in the policy.
	devices := func() int { return eval[int](owner, "document.querySelectorAll('#devices li').length") }
	owner.until("the account's device", patience, func() bool { return devices() == 2 })
	p.click("#status-open")
	p.press(`[data-account="127.0.0.1"] button`, "Remove")
	p.click("#confirm-yes")
	p.holds("its sessions to leave", "!document.querySelector("+js(`[data-host-of="`+atOther+`"]`)+")")
	p.await(`[data-host-of="` + atTenant + `"]`)
	owner.until("its device to be removed", patience, func() bool { return devices() == 1 })
	keepsWorker()
	p.do(chromedp.Reload())
	p.await(`[data-host-of="` + atTenant + `"]`)
	p.expects = "Content Security Policy"
	if reaches() {
		t.Error("the page's requests reach a relay whose account was removed; want them blocked")
	}
	if got := p.text("#sessions"); strings.Contains(got, atOther) || slices.Contains(eval[[]string](p, "Object.values(localStorage)"), other.url) {
		t.Errorf("the page keeps parts of the removed account: %s; want none", got)
	}
}
