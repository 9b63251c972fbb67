//go:build !race

package browser_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/auth"
	web "ahprelay/console/site"
	"ahprelay/hostagent"
	"ahprelay/test/procs"
)

// A sealedSite is a site with a sealed host. A static site at another origin than the
// relay's serves the console.
type sealedSite struct {
	*site
	console string // origin of the console
	control hostagent.Control
	state   string // state directory of the host-agent
}

// startSealed starts a sealed host, a relay with these flags, and a static site with
// the console. No device is paired.
func startSealed(t *testing.T, flags ...string) *sealedSite {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := startSealedFor(t, "http://"+l.Addr().String(), flags...)
	servesConsole(t, l, s.url)
	return s
}

// startSealedFor starts a sealed host, and a relay that admits the console at an
// origin.
func startSealedFor(t *testing.T, console string, flags ...string) *sealedSite {
	t.Helper()
	s := &sealedSite{site: newSite(t), console: console}
	s.cfg.still = true // the host's only pushes are about what a test does
	s.firstRelay(append([]string{"--console-origin", s.console, "--notify-private", "127.0.0.0/8"}, flags...)...)
	keys, err := auth.LoadKeys(s.file("data"))
	must(t, err)
	s.keys = keys
	dir, err := os.MkdirTemp("", "ahp") // short, because a socket's path has a limit
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.control, s.state = hostagent.Control{Path: filepath.Join(dir, "control.sock")}, s.file("state")
	s.host = s.addHost(hostName)
	s.startSealedAgent()
	return s
}

// servesConsole serves the console as a static site that may connect to these relays.
func servesConsole(t *testing.T, l net.Listener, relays ...string) *httptest.Server {
	t.Helper()
	files, err := web.Of(relays...)
	must(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		if name == "" {
			name = "index.html"
		}
		content, ok := files[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		kind := map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[filepath.Ext(name)]
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(content)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return server
}

func (s *sealedSite) startSealedAgent() {
	s.t.Helper()
	s.startAgentWith(hostName, "--upstream", "ws://"+s.host.address, "--sealed", "--console", s.console+"/", "--control", s.control.Path, "--state-dir", s.state)
}

// address returns the console's address with values in its fragment.
func (s *sealedSite) address(values url.Values) string { return s.console + "/#" + values.Encode() }

// code orders a pairing code for the owner at the host.
func (s *sealedSite) code() hostagent.PairingCode {
	s.t.Helper()
	code, err := s.control.OrderDevices(s.t.Context(), hostagent.DeviceOrder{Do: "pair", Subject: "owner", Level: auth.AccessAdmin})
	must(s.t, err)
	return code
}

// confirms waits until the page shows words, compares them with the host's words, and
// confirms the device at the host.
func (s *sealedSite) confirms(p *page) {
	s.t.Helper()
	p.holds("both ends' words", "!['', '…'].includes(document.querySelector('#host-words')?.textContent ?? '')")
	list, err := s.control.Devices(s.t.Context())
	must(s.t, err)
	if len(list.Waiting) != 1 || list.Waiting[0].Words != p.text("#own-words") || list.Words != p.text("#host-words") {
		s.t.Fatalf("the host shows %+v, and the device the words %q and %q; want the same words", list, p.text("#own-words"), p.text("#host-words"))
	}
	_, err = s.control.OrderDevices(s.t.Context(), hostagent.DeviceOrder{Do: "confirm", Device: list.Waiting[0].Fingerprint})
	must(s.t, err)
}

// opensSealed opens the page about the sealed host, from the sheet with the status.
func (p *page) opensSealed() {
	p.t.Helper()
	p.click("#back")
	p.click("#status-open")
	p.click("[data-do=sealed]")
	p.await("#sealed")
}

// TestPhoneWorksAtASealedHost pairs a phone with a sealed host, in a console that the
// relay does not serve. The phone works there, admits a second device and removes it.
// Then a host with a different key takes the name, and the page stops.
func TestPhoneWorksAtASealedHost(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startSealed(t)
	p.do(phone(), colours("light"), chromedp.Navigate(s.address(url.Values{"host": {hostName}, "token": {s.token(time.Hour)}})))
	p.wants("[data-pair]", "pair this device")
	p.shot("sealed-unpaired")

	// The page refuses a wrong code. For a code in a wrong form, it explains the form.
	p.click("[data-pair]")
	p.await("#pair-code")
	p.wants("#served-by", "does not come from the relay")
	p.enter("#pair-code", "0000")
	p.click("#pair button[type=submit]")
	p.wants("#pair-said", "26 letters and digits")
	code := s.code()
	p.enter("#pair-code", strings.Repeat("0", 26))
	p.click("#pair button[type=submit]")
	p.wants("#pair-said", "does not take this code")
	p.accessible("pair")
	p.shot("sealed-pair")

	p.enter("#pair-code", strings.ToLower(strings.ReplaceAll(code.Code, "-", " ")))
	p.click("#pair button[type=submit]")
	s.confirmsShot(p)
	p.wants("#status-text", "Live")
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.shot("sealed-chat")

	// After a reload, the page connects with its stored keys. A script cannot read these
	// keys.
	p.do(chromedp.Reload())
	p.wants("#status-text", "Live")
	if got := p.later(`(async () => {
		const db = await new Promise((r) => { const o = indexedDB.open('ahp-sealed', 1); o.onsuccess = () => r(o.result); });
		const device = await new Promise((r) => { const q = db.transaction('kept').objectStore('kept').get('device'); q.onsuccess = () => r(q.result); });
		db.close();
		return (await Promise.all([device.secret.private, device.signer].map((k) => crypto.subtle.exportKey('pkcs8', k).then(() => 'readable', () => 'unreadable')))).join();
	})()`); got != "unreadable,unreadable" {
		t.Errorf("the device's keys are %s; want both unreadable", got)
	}

	served := s.servedByRelay()
	second := s.secondDevice(p)
	s.removes(p, second)
	s.pairs(served)
	s.changesKey(p)
	s.forgetsKey(served)
	s.staysSealed(p)
	s.staysMarked(served)
}

func (s *sealedSite) confirmsShot(p *page) {
	s.t.Helper()
	p.holds("both ends' words", "!['', '…'].includes(document.querySelector('#host-words')?.textContent ?? '')")
	p.shot("sealed-words")
	s.confirms(p)
}

// servedByRelay opens the console that the relay itself serves. The page explains why
// it should not pair there.
func (s *sealedSite) servedByRelay() *page {
	p := newPage(s.t)
	p.do(phone(), chromedp.Navigate(s.url+"/#"+url.Values{"host": {hostName}, "token": {s.token(time.Hour)}}.Encode()))
	p.wants("[data-pair]", "pair this device")
	p.wants("#status-text", "Not paired")
	if p.count("#retry, #new-session") > 0 {
		s.t.Error("the page offers what only a paired device can do")
	}
	p.click("[data-pair]")
	p.wants("#served-by", "everything but a relay that changes this page")
	p.shot("sealed-served")
	return p
}

// pairs pairs a page on which the dialog for pairing is open.
func (s *sealedSite) pairs(p *page) {
	s.t.Helper()
	p.enter("#pair-code", s.code().Code)
	p.click("#pair button[type=submit]")
	s.confirms(p)
	p.holds("the end of the pairing", "document.querySelector('#pair') === null") // a page with a second host may show Live before that
	p.wants("#status-text", "Live")
}

// forgetsKey lets the user delete the stored key of a host whose key has changed.
func (s *sealedSite) forgetsKey(p *page) {
	s.t.Helper()
	p.await("#changed")
	p.click("#changed-sure")
	p.click("[data-do=forget]")
	p.await("#pair-code")
}

// staysMarked opens a host whose key the page has deleted. The page still knows that
// the host was sealed. It opens the host unsealed only after the user agrees.
func (s *sealedSite) staysMarked(p *page) {
	s.t.Helper()
	p.do(chromedp.Reload())
	p.wants("[data-pair]", "pair this device")
	if text := p.text("#status-text"); strings.Contains(text, "Live") {
		s.t.Errorf("a page without the host's key opens the sealed host unsealed: %s; want no connection", text)
	}
	p.click("[data-pair]")
	p.await("#pair-marked summary")
	p.click("#pair-marked summary")
	p.shot("sealed-marked")
	p.click("[data-do=unmark]")
	p.wants("[data-do=unmark].armed", "Yes")
	if p.text("#status-text") == "Live" {
		s.t.Error("the first press opens the host unsealed; want a second press")
	}
	p.click("[data-do=unmark]")
	p.wants("#status-text", "Live")
}

// secondDevice lets the first device admit a second device. It returns the second
// device's page.
func (s *sealedSite) secondDevice(p *page) *page {
	t := s.t
	t.Helper()
	second := newPage(t)
	second.do(phone(), chromedp.Navigate(s.address(url.Values{"host": {hostName}, "token": {s.token(time.Hour)}})))
	second.click("[data-pair]")
	second.await("#pair-code")
	second.press("#pair button", "Ask a paired device")
	second.await("#pair-request")
	own := second.text("#own-words")
	p.do(chromedp.Navigate(second.text("#pair-request")))
	p.await("#admit-words")
	p.holds("the new device's words", "document.querySelector('#admit-words').textContent === "+js(own))
	p.shot("sealed-admit")
	p.press("#admit button", "Yes, admit it")
	p.await("#admit-link")
	link := p.text("#admit-link")
	p.click("#sealed [aria-label=Close]")
	second.press("#pair button", "I have the answer")
	second.enter("#pair-code", link)
	second.click("#pair button[type=submit]")
	second.await("#offered")
	second.shot("sealed-offered")
	second.click("[data-do=accept]")
	second.wants("#status-text", "Live")
	second.openSession("demo:/login")
	second.wants("#turns", "Hello, world!")
	second.click("#back")
	return second
}

// removes lets the first device remove the second device.
func (s *sealedSite) removes(p, second *page) {
	t := s.t
	t.Helper()
	p.opensSealed()
	p.wants("#devices", "this one")
	p.accessible("sealed")
	p.shot("sealed-devices")
	p.press("#devices button", "Remove")
	p.press("#devices button.armed", "Yes, remove it")
	second.wants("#status-text", "removed")
	p.holds("one device to be left", "document.querySelectorAll('#devices [data-device]').length === 1")
	p.click("#sealed [aria-label=Close]")
}

// staysSealed replaces the sealed host-agent by an unsealed host-agent. The page, which
// has the host's key, must not open it.
func (s *sealedSite) staysSealed(p *page) {
	t := s.t
	t.Helper()
	s.end(s.agent)
	eval[any](p, `(() => {
		const Real = WebSocket;
		window.opened = [];
		window.WebSocket = class extends Real { constructor(url, protocols) { super(url, protocols); window.opened.push(protocols[0]); } };
		return null;
	})()`)
	s.startAgentWith(hostName, "--upstream", "ws://"+s.host.address)
	p.wants("#status-text", "not sealed")
	p.click("#retry")
	p.holds("an attempt", "window.opened.length > 0")
	p.wants("#status-text", "not sealed")
	if got := eval[string](p, "[...new Set(window.opened)].join()"); got != "ahp.sealed.1" {
		t.Errorf("the page offers the protocols %s; want ahp.sealed.1 alone", got)
	}
}

// changesKey gives the host a new key. The page stops until the user deletes the old
// key and pairs again.
func (s *sealedSite) changesKey(p *page) {
	t := s.t
	t.Helper()
	s.end(s.agent)
	must(t, os.RemoveAll(s.state))
	s.startSealedAgent()
	p.wants("#changed", "shows a different key")
	list, err := s.control.Devices(t.Context())
	must(t, err)
	p.wants("#new-words", list.Words)
	p.accessible("changed")
	p.shot("sealed-changed")
	p.do(chromedp.Reload()) // a reload must not accept the new key
	s.forgetsKey(p)
	p.do(chromedp.Navigate(s.code().Link)) // like a phone's camera
	p.wants("#pair", "With "+hostName)
	if at := eval[string](p, "location.href"); strings.Contains(at, "code") {
		t.Errorf("the address %s contains the code; want it removed", at)
	}
	p.click("#pair button[type=submit]")
	s.confirms(p)
	p.wants("#status-text", "Live")
}

// TestSealedHostIsReadWhileAway stops a sealed host's host-agent. The page still shows
// the list and the conversations, even a conversation that it has never opened. The
// relay's address for a record names no session.
func TestSealedHostIsReadWhileAway(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startSealed(t)
	p.do(phone(), colours("light"), chromedp.Navigate(s.address(url.Values{"host": {hostName}, "token": {s.token(time.Hour)}})))
	p.click("[data-pair]")
	s.pairs(p)
	p.openSession("demo:/notes")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.click("#back")
	sessions, token := p.count("#sessions [data-session]"), s.token(patience)
	p.until("the relay to have the last state", patience, func() bool {
		kept, err := procs.GetJSON[struct{ Sessions []struct{ ID string } }](t.Context(), s.url+"/api/hosts/"+hostName+"/remembered", token)
		return err == nil && sessions > 1 && len(kept.Sessions) > sessions
	})

	must(t, s.agent.End(syscall.SIGTERM))
	p.wants("#sessions-note", "host offline")
	p.wants("#sessions", "Release notes")
	p.openSession("demo:/login") // this page has not opened this session before
	p.wants("#turns", "Done. 500 runs")
	p.wants("#past", "As of")
	p.wants("#past", "host offline")
	p.wants(".looking", "answer when the host is online")
	p.shot("sealed-away")
	if asked := eval[string](p, `performance.getEntriesByType('resource').map((e) => e.name).filter((n) => n.includes('/remembered/session')).join(' ')`); !strings.Contains(asked, "?id=") || strings.Contains(asked, "uri=") {
		t.Errorf("the page asks the relay for %s; want the session by its blind ID", asked)
	}
	for _, control := range []string{"#prompt", "#send", "#stop", ".question button:not(:disabled)"} {
		if p.count(control) > 0 {
			t.Errorf("%s works while the host is unreachable; want it hidden", control)
		}
	}

	s.startSealedAgent()
	p.wants("#status-text", "Live")
	p.await("#prompt")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
}
