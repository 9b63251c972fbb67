//go:build !race

package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// invite creates an invitation for the owner's first device, and returns its link.
func (s *site) invite() string {
	s.t.Helper()
	operator, err := s.keys.Tokens().IssueOperator("test")
	must(s.t, err)
	body, err := json.Marshal(map[string]string{"tenant": s.tenant, "subject": "owner"})
	must(s.t, err)
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/operator/invites", bytes.NewReader(body))
	must(s.t, err)
	r.Header.Set("Authorization", "Bearer "+operator)
	response, err := http.DefaultClient.Do(r)
	must(s.t, err)
	defer response.Body.Close()
	var made struct{ Link string }
	must(s.t, json.NewDecoder(response.Body).Decode(&made))
	return made.Link
}

// shares shares the device's session by a link. A guest opens the link and sees the
// session. After the link is revoked, the guest's page closes the session.
func (s *site) shares(p *page) {
	s.t.Helper()
	p.press(".chat-head details button", "Share")
	p.click("#share-level")
	p.await("#share-level-list")
	if got := p.count("#share-level-list [role=option]"); got != 4 {
		s.t.Errorf("who owns the host may give away %d levels; want 4", got)
	}
	p.click("#share-level")
	p.shot("share-sheet")
	p.click("#share button[type=submit]")
	p.await("#share-made svg.qr")
	link := p.text("#share-made code")
	if len(link) > len(s.url)+len("/s#")+26 {
		s.t.Errorf("the link %s is too long for its QR code; want at most 26 characters after /s#", link)
	}
	guest := newPage(s.t)
	guest.do(phone(), chromedp.Navigate(link))
	guest.wants("#status-text", "Live")
	guest.wants("#turns", "Hello, world!")
	if at := eval[string](guest, "location.href"); strings.Contains(at, "token") {
		s.t.Errorf("the address %s contains the token; want it removed", at)
	}
	guest.click("[data-kind=servers]")
	guest.await("[data-server=mcp-tasks]")
	if n := guest.count("#beside [role=switch], #beside [data-do]"); n != 0 {
		s.t.Errorf("a person with the level look is offered %d switches for servers; want 0", n)
	}
	p.wants("#share-links", "1 of 64 there now")
	p.do(phone())
	p.shot("share-link")
	p.click("#share-links .danger")
	guest.wants("#gate", "no longer shared with you")
	p.holds("no link to be shown", "!document.querySelector('#share-links')")
	guest.do(chromedp.Navigate(link))
	guest.wants("#said", "taken back")
	p.do(desktop())
	eval[any](p, "document.querySelector('#share [aria-label=Close]').click(), 0")
}

// findsAndCounts searches a conversation for a text, jumps to the turn that contains
// it, and opens the page about the use of tokens.
func (p *page) findsAndCounts() {
	p.t.Helper()
	from := func(name string) {
		p.click(".chat-head .menu summary")
		p.press(".chat-head .menu button", name)
	}
	from("Find")
	p.enter("#find input", "500 RUNS")
	p.wants("#find mark", "500 runs")
	p.accessible("find")
	turn := eval[string](p, "document.querySelector('#find [data-found]').dataset.found")
	p.click("#find [data-found]")
	p.holds("the turn in focus", "document.activeElement.dataset.turn === "+js(turn))
	from("Usage")
	p.wants("#usage tbody", "All")
	p.accessible("usage")
	p.click("#usage [aria-label=Close]")
}

// keptOffline describes this browser's copy for reading without a network: whether it
// has the answer "Hello, world!", and whether a script could read its key.
func (p *page) keptOffline() string {
	p.t.Helper()
	return p.later(`(async () => {
		const db = await new Promise((r) => { const o = indexedDB.open('ahp-offline', 1); o.onupgradeneeded = () => o.result.createObjectStore('kept'); o.onsuccess = () => r(o.result); });
		const get = (k) => new Promise((r) => { const q = db.transaction('kept').objectStore('kept').get(k); q.onsuccess = () => r(q.result); });
		const [key, page] = [await get('key'), await get('page')];
		db.close();
		if (!page) return 'none';
		const text = new TextDecoder().decode(await crypto.subtle.decrypt({name: 'AES-GCM', iv: page.iv}, key, page.data));
		return (text.includes('Hello, world!') ? 'hello ' : 'something ') + await crypto.subtle.exportKey('raw', key).then(() => 'readable', () => 'sealed');
	})()`)
}

// readsOffline cuts the network and reloads the page. The page shows the last state,
// marked with its time. When the network returns, the mark goes.
func (p *page) readsOffline(s *site) {
	p.t.Helper()
	p.holds("the page to be kept", "navigator.serviceWorker.controller !== null")
	eval[any](p, "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true}), document.dispatchEvent(new Event('visibilitychange')), null")
	p.until("the conversation to be kept", patience, func() bool { return p.keptOffline() == "hello sealed" })
	s.proxy.cut()
	p.do(chromedp.Reload())
	p.wants("#turns", "Hello, world!")
	p.wants("#past", "As of")
	p.wants("#sessions", "Release notes")
	p.wants("#status-text", "Connection lost")
	p.holds("the page's mark", "document.querySelector('.logo').complete && document.querySelector('.logo').naturalWidth > 0")
	p.accessible("offline")
	s.proxy.restore()
	p.wants("#status-text", "Live")
	p.holds("the present state", "!document.querySelector('#past')")
}

// frontOf starts a proxy before the site's relay, and returns its address. The proxy fails the
// requests for which fails returns true.
func (s *site) frontOf(fails func(*http.Request) bool) string {
	s.t.Helper()
	target, err := url.Parse(s.url)
	must(s.t, err)
	relay := httputil.NewSingleHostReverseProxy(target)
	relay.ErrorLog = log.New(io.Discard, "", 0) // requests end with their page
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fails(r) {
			http.Error(w, "the network fails", http.StatusBadGateway)
			return
		}
		relay.ServeHTTP(w, r)
	}))
	s.t.Cleanup(func() {
		front.CloseClientConnections() // the page may still have a stream
		front.Close()
	})
	return front.URL
}

// TestPageIsKeptAfterAFailedInstall fails the first install of the service worker, as a
// bad network does. The page tries again without a reload. A page that the worker could
// not claim, because it was loading, asks to be claimed.
func TestPageIsKeptAfterAFailedInstall(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{})
	var installs atomic.Int32
	front := s.frontOf(func(r *http.Request) bool {
		return r.URL.Path == "/favicon.svg" && r.Header.Get("Sec-Fetch-Dest") == "empty" && installs.Add(1) == 1
	})
	p.do(desktop(), chromedp.Navigate(front))
	p.holds("the page to be kept", "navigator.serviceWorker.controller !== null")
	if got := installs.Load(); got != 2 {
		t.Errorf("the service worker was installed %d times; want 2", got)
	}
	eval[any](p, "window.before = true; null")
	p.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		return cdp.Call(ctx, target, cdppage.Reload, cdppage.ReloadParams{IgnoreCache: new(true)})
	})
	p.holds("the page to be claimed", "!window.before && navigator.serviceWorker.controller !== null")
}

// TestPartOfThePageIsLoadedAgain fails the first request for a part of the page, which no
// service worker has cached yet. The page tries again without a press.
func TestPartOfThePageIsLoadedAgain(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	var loads atomic.Int32
	front := s.frontOf(func(r *http.Request) bool {
		return r.URL.Path == "/sw.js" || strings.HasPrefix(r.URL.Path, "/told-") && loads.Add(1) == 1
	})
	_, place, _ := strings.Cut(s.console(s.token(time.Hour)), "#")
	p.do(desktop(), chromedp.Navigate(front+"/#"+place))
	p.wants("#status-text", "Live")
	p.click("#bell")
	p.wants("#told", "Notifications")
	if got := loads.Load(); got != 2 {
		t.Errorf("the part was requested %d times; want 2", got)
	}
}

// TestSignedInDeviceOutlastsAFailedLoad fails the requests of a signed-in device for the module
// of its key, as a bad network does. The page must not stay at the form for a sign-in.
func TestSignedInDeviceOutlastsAFailedLoad(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	var fails atomic.Bool
	front := s.frontOf(func(r *http.Request) bool {
		return r.URL.Path == "/sw.js" || r.URL.Path == "/pages/keys.js" && fails.Load()
	})
	p.do(desktop(), chromedp.Navigate(strings.Replace(s.invite(), s.url, front, 1)))
	p.click("#form button")
	p.until("the page of devices", patience, func() bool { return eval[string](p, "location.pathname") == "/device" })
	fails.Store(true)
	p.do(chromedp.Navigate(front + "/"))
	p.await("#token-form")
	fails.Store(false)
	p.wants("#status-text", "Live")
}

// TestSignedInDeviceNeedsNoToken signs a device in. After that, the page connects without a
// token, even when it is loaded again. Signed out, the page asks for a token.
func TestSignedInDeviceNeedsNoToken(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	origin := "http://" + s.proxy.Addr().String() // address of the proxy, which the test can cut
	p.do(desktop(), chromedp.Navigate(strings.Replace(s.invite(), s.url, origin, 1)))
	p.click("#form button")
	p.until("the page of devices", patience, func() bool { return eval[string](p, "location.pathname") == "/device" })
	p.do(chromedp.Navigate(origin + "/"))
	p.wants("#status-text", "Live")
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	tokens := "[sessionStorage, localStorage].flatMap(Object.entries).filter(([k, v]) => k.includes('token') || v.includes('eyJ')).length" // every JSON Web Token begins with eyJ
	if got := eval[int](p, tokens); got != 0 {
		t.Errorf("%d tokens are stored; want 0", got)
	}
	p.do(chromedp.Reload())
	p.wants("#status-text", "Live")
	p.wants("#turns", "Hello, world!")

	p.findsAndCounts()
	p.readsOffline(s)
	s.shares(p)

	// The device's key is deleted. The page asks for a new sign-in and deletes its offline
	// copy.
	eval[any](p, `import("/pages/keys.js").then((k) => k.forget()).then(() => { window.forgotten = true; }); null`)
	p.holds("the key to go", "window.forgotten === true")
	p.do(chromedp.Reload())
	p.wants("#gate", "Sign in on this device")
	p.until("nothing to be kept", patience, func() bool { return p.keptOffline() == "none" })
}

// TestLinkThatDoesNotSignInHasAWayOn opens a used link in a browser that is signed in, and an address that lacks its secret
// in a browser that is not. Both must show how to go on.
func TestLinkThatDoesNotSignInHasAWayOn(t *testing.T) {
	t.Parallel()
	p, stranger := newPage(t), newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	link := s.invite()
	p.do(phone(), chromedp.Navigate(link))
	p.click("#form button")
	p.wants("#who", "Signed in as owner. You may do everything, and invite others.")
	p.do(chromedp.Navigate(link))
	p.click("#form button")
	p.wants("#on", "This browser is signed in already.")
	p.accessible("a used link")
	p.click("#on a")
	p.wants("#status-text", "Live")

	stranger.do(phone(), chromedp.Navigate(s.url+"/setup"))
	stranger.wants("#said", "lacks its last part")
	if stranger.shows("#form") {
		t.Error("an address without its secret offers to sign in; want no such button")
	}
	stranger.click("#on a")
	stranger.wants("#out", "Sign in with another device")
}

// TestOwnerWithoutAHostIsLedToOne signs the owner of a new relay in, and opens the console. It must
// lead to the page that connects a host.
func TestOwnerWithoutAHostIsLedToOne(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{})
	p.do(phone(), chromedp.Navigate(s.invite()))
	p.click("#form button")
	p.wants("#title", "Connect a host")
	p.do(chromedp.Navigate(s.url + "/"))
	p.wants("#hosts-note", "You have no host yet.")
	p.await("#connect-host")
	if p.shows("#new-session") {
		t.Error("the page offers a new session without a host; want only the way to a host")
	}
	p.accessible("no host")
	p.shot("no-host")
	p.click("#connect-host")
	p.wants("#title", "Connect a host")
}

// TestLinkWithoutItsSecretHasAWayOnAtOnce opens an address that lacks its secret, in a browser whose
// database does not answer, as after an update. The way on must not wait for the database.
func TestLinkWithoutItsSecretHasAWayOnAtOnce(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startRelayFor(t, stackConfig{})
	p.before("IDBFactory.prototype.open = () => ({})")
	p.do(phone(), chromedp.Navigate(s.url+"/setup"))
	p.wants("#said", "lacks its last part")
	if !p.shows("#on a[href=device]") {
		t.Error("the page shows no way on while the database is silent; want the other way to sign in")
	}
}
