//go:build !race

package browser_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/serviceworker"
	"github.com/chromedp/chromedp"

	"ahprelay/test/pushsite"
)

// workersOf permits notifications for an origin. It returns a function that finds the
// registration of the service worker with a scope.
func (p *page) workersOf(origin string) func(scope string) serviceworker.RegistrationID {
	p.t.Helper()
	var mu sync.Mutex
	known := map[string]serviceworker.RegistrationID{}
	must(p.t, chromedp.Listen(p.ctx, func(event any) {
		if e, ok := event.(*serviceworker.EventWorkerRegistrationUpdated); ok {
			mu.Lock()
			defer mu.Unlock()
			for _, r := range e.Registrations {
				known[r.ScopeURL] = r.RegistrationID
			}
		}
	}))
	p.do(func(ctx context.Context, target *chromedp.Target) (v chromedp.Void, err error) {
		if _, err = cdp.Call(ctx, target, browser.SetPermission, browser.SetPermissionParams{Permission: &browser.PermissionDescriptor{Name: "notifications"}, Setting: browser.PermissionSettingGranted, Origin: origin}); err == nil {
			_, err = cdp.Call(ctx, target, serviceworker.Enable, cdp.Empty{})
		}
		return v, err
	})
	return func(scope string) (id serviceworker.RegistrationID) {
		p.until("a service worker for "+scope, patience, func() bool {
			mu.Lock()
			defer mu.Unlock()
			id = known[origin+scope]
			return id != ""
		})
		return id
	}
}

// An accountPush is the notifications of an account in a page.
type accountPush struct {
	*lockScreen
	service *pushsite.Service
	scope   string // scope of the account's service worker
}

// fakesPush replaces the browser's push manager in the page, because no real push
// service is reachable. Each service worker's registration gets its own subscription.
// services maps a scope to the test's push service.
func (p *page) fakesPush(services map[string]*pushsite.Service) {
	p.t.Helper()
	var all []string
	for scope, service := range services {
		all = append(all, fmt.Sprintf("%q: %s", scope, subscriptionTo(service)))
	}
	eval[any](p, `(() => {
		const all = {`+strings.Join(all, ",")+`};
		window.asked = {};
		const scopeOf = async (manager) => new URL((await navigator.serviceWorker.getRegistrations()).find((r) => r.pushManager === manager).scope).pathname;
		const subscription = (scope) => ({ toJSON: () => all[scope], unsubscribe: async () => delete window.asked[scope] });
		PushManager.prototype.getSubscription = async function () { const scope = await scopeOf(this); return window.asked[scope] ? subscription(scope) : null; };
		PushManager.prototype.subscribe = async function ({ applicationServerKey }) {
			const scope = await scopeOf(this);
			if (scope === window.refused) throw new Error('no push service');
			window.asked[scope] = btoa(String.fromCharCode(...applicationServerKey)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
			return subscription(scope);
		};
		return null;
	})()`)
}

// toldOf opens the notification settings of an account. "" is the page's first account.
func (p *page) toldOf(account string) {
	p.t.Helper()
	p.click("#bell")
	p.click("#told-account")
	p.click(`#told-account-list [data-value="` + account + `"]`)
	p.await("#told-here")
}

// toldOn turns on notifications for an account.
func (a *accountPush) toldOn(p *page, account string) {
	p.t.Helper()
	p.toldOf(account)
	p.click("#told-on")
	p.wants("#told-note", "This device gets notifications now.")
	p.click("#told [aria-label=Close]")
	a.service.Subscribed(eval[string](p, "window.asked["+js(a.scope)+"]"))
}

// attaches connects to the account's service worker and records the worker's requests.
// It delivers a message until the notification appears.
func (a *accountPush) attaches(p *page, script, message string) {
	p.t.Helper()
	last := time.Now()
	a.push(message) // starts the worker
	a.worker = p.newTarget("service_worker", script, "true")
	eval[any](a.worker, `self.sent = []; self.real = self.fetch;
		self.fetch = (url, init) => { sent.push(url + ' ' + (init?.headers?.DPoP ? 'proof' : 'plain')); return real(url, init); };
		self.setTimeout = (act) => queueMicrotask(act);
		WindowClient.prototype.focus = async function () { return this; }; null`)
	a.worker.until("the notification", patience, func() bool {
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			a.push(message)
		}
		return strings.Contains(a.shown(), `"offered":`)
	})
}

// shown returns the title, text and data of all notifications that the account's worker
// shows.
func (a *accountPush) shown() string {
	a.worker.t.Helper()
	return a.worker.later(`registration.getNotifications().then((all) => all.map((n) => n.title + ': ' + n.body + ' ' + JSON.stringify(n.data)).join('|') || 'none')`)
}

// TestEachAccountNotifiesThroughItsOwnSubscription turns on notifications for three
// accounts with one press: the page's first account, another tenant at the same relay,
// and another relay. The page names an account that fails, and it is turned on later. Each relay pushes to its account's own subscription, with the relay's key. An
// answer goes to the relay of the question, with the account's key. A click opens the
// account's session. Mutes count for one account only. After an account is removed, its
// worker, subscription and target are gone, and the other accounts still work.
func TestEachAccountNotifiesThroughItsOwnSubscription(t *testing.T) {
	t.Parallel()
	p := newBrowser(t, nil)
	s := startStackWith(t, stackConfig{still: true})
	tenant := startStackWith(t, stackConfig{still: true})
	other := startOwnRelay(t, "--console-origin", s.url, "--notify-private", "127.0.0.0/8")
	worker := p.workersOf(s.url)
	p.do(desktop(), chromedp.Navigate(s.url+"/#host="+hostName+"&token="+s.token(time.Hour)))
	p.wants("#status-text", "Live")
	p.holds("the page to be kept", "navigator.serviceWorker.controller !== null")
	p.click("#status-open")
	p.addsByToken(tenant, "work")
	p.addsByDevice(other, func() {})
	p.click("#status-sheet [aria-label=Close]")

	const atWork, atOther = "/accounts/work/", "/accounts/127.0.0.1/"
	services := map[string]*pushsite.Service{"/": pushsite.New(t), atWork: pushsite.New(t), atOther: pushsite.New(t)}
	p.fakesPush(services)
	accounts := map[string]*accountPush{"": {scope: "/"}, "@work": {scope: atWork}, "@127.0.0.1": {scope: atOther}}
	order := []string{"", "@work", "@127.0.0.1"}
	p.toldOf("")
	eval[any](p, "window.refused = "+js(atOther)+", null")
	p.click("#told-on-all")
	p.wants("#told-note", "This device gets notifications now.\nNot for 127.0.0.1: no push service")
	p.wants("#told-which", "On for this page’s own account and work. Off for 127.0.0.1.")
	p.click("#told [aria-label=Close]")
	eval[any](p, "window.refused = '', null")
	for _, at := range order {
		a := accounts[at]
		a.lockScreen, a.service = &lockScreen{page: p}, services[a.scope]
		if a.scope == atOther {
			a.toldOn(p, at)
		} else {
			a.service.Subscribed(eval[string](p, "window.asked["+js(a.scope)+"]"))
		}
		a.push = func(message string) { p.do(pushed(s.url, worker(a.scope), message)) }
	}
	p.toldOf("@127.0.0.1")
	p.accessible("the notifications of an account")
	p.shot("accounts-told")
	p.click("#told [aria-label=Close]")
	if own, same, further := services["/"].RelayKey(), services[atWork].RelayKey(), services[atOther].RelayKey(); own != same || own == further || further == "" {
		t.Errorf("the subscriptions have the keys %q, %q and %q; want one key for each relay", own, same, further)
	}

	// The page mutes a session at the other relay. Only that account lists the mute.
	p.openSessionOf(hostName+"@127.0.0.1", "demo:/notes")
	p.press(".chat-head details button", "Mute…")
	p.press("#mute button", "For good")
	p.holds("the end of the sheet", "document.querySelector('#mute') === null")
	p.toldOf("@127.0.0.1")
	p.wants("#mutes", "demo · for good")
	p.click("#told-account")
	p.click(`#told-account-list [data-value=""]`)
	p.await("#told-off")
	if p.count("#mutes") != 0 {
		t.Error("the session is muted at the page's own relay; want it only at the account's")
	}
	p.click("#told [aria-label=Close]")
	p.openSessionOf(hostName, "demo:/notes")

	// Each account's agent asks. The notification's button sends the answer to that
	// account's relay.
	scripts := map[string]string{"": "/sw.js", "@work": "/sw.js?account=work&" + url.Values{"relay": {s.url + "/"}}.Encode(), "@127.0.0.1": "/sw.js?account=127.0.0.1&" + url.Values{"relay": {other.url + "/"}}.Encode()}
	asks := map[string]*page{"": s.asksIn("demo:/login"), "@work": tenant.asksIn("demo:/login"), "@127.0.0.1": other.asksIn("demo:/login")}
	relays := map[string]string{"": s.url, "@work": s.url, "@127.0.0.1": other.url}
	for _, at := range order {
		a := accounts[at]
		message := a.service.Next()
		for message.Kind != "approval" || message.Withdrawn {
			message = a.service.Next()
		}
		a.attaches(p, scripts[at], string(message.Text))
		if got, want := a.shown(), `"host":"`+hostName+at+`"`; !strings.Contains(got, want) {
			t.Errorf("the notification of %q is %s; want %s", at, got, want)
		}
		a.lockScreen.press("0", "")
		asks[at].wants(lastTurn+" .parts", "Allowed.")
		proof := map[string]string{"@127.0.0.1": "proof"}[at]
		if got := eval[string](a.worker, "sent.filter((s) => s.includes('/api/answers/')).join()"); !strings.HasPrefix(got, relays[at]+"/api/answers/") || strings.HasSuffix(got, "proof") != (proof != "") {
			t.Errorf("the answer for account %q went to %s; want its own relay, with its own proof", at, got)
		}
	}

	// The browser renews the subscription of a signed-in account while no page is open.
	// The worker gives it to the relay, and the next question arrives there.
	further := accounts["@127.0.0.1"]
	renewed := pushsite.New(t)
	renewed.Subscribed(further.service.RelayKey())
	eval[any](further.worker, "self.clients.matchAll = async () => [], null")
	further.renews(renewed)
	eval[any](further.worker, "delete self.clients.matchAll, null")
	further.service = renewed

	// A click on a notification opens its account's session.
	asks["@127.0.0.1"].say("permission")
	message := further.service.Next()
	for message.Kind != "approval" || message.Withdrawn {
		message = further.service.Next()
	}
	further.attaches(p, scripts["@127.0.0.1"], string(message.Text))
	further.lockScreen.press("", "")
	p.until("the session", patience, func() bool {
		at := eval[string](p, "location.hash")
		return strings.Contains(at, url.QueryEscape(hostName+"@127.0.0.1")) && strings.Contains(at, url.QueryEscape("demo:/login"))
	})

	// The page removes the account at the other relay. Its worker is gone from the
	// browser, and its target from the relay.
	p.click("#status-open")
	p.press(`[data-account="127.0.0.1"] button`, "Remove")
	p.click("#confirm-yes")
	p.until("the workers of the other accounts only", patience, func() bool {
		return p.later("navigator.serviceWorker.getRegistrations().then((all) => all.map((r) => new URL(r.scope).pathname).sort().join())") == "/,"+atWork
	})
	if got := eval[string](p, "Object.keys(asked).sort().join()"); got != "/,"+atWork {
		t.Errorf("the subscriptions %s remain; want the page's own and atWork", got)
	}
	if got := eval[string](p, "Object.keys(localStorage).filter((k) => k.startsWith('told-') && k.includes('127.0.0.1')).join()"); got != "" {
		t.Errorf("the entries %s remain in the storage; want none", got)
	}
	p.toldOf("@work")
	p.await("#told-off")
}

// openSessionOf opens a host's session by a script, and waits until the page's address
// names the session.
func (p *page) openSessionOf(host, session string) {
	p.t.Helper()
	p.holds("the session of "+host, "(b => { b.click(); return true; })(document.querySelector("+js(`[data-host-of="`+host+`"][data-session="`+session+`"] button`)+"))")
	p.until("its place", patience, func() bool { return strings.Contains(eval[string](p, "location.hash"), url.QueryEscape(session)) })
}
