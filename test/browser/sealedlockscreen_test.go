//go:build !race

package browser_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/pushsite"
)

// delivers gives a message to the browser until holds is true for the notifications
// that are shown. A worker that is starting may drop a message.
func (l *lockScreen) delivers(message, what string, holds func(shown string) bool) {
	l.t.Helper()
	var last time.Time
	var shown string
	defer func() {
		if l.t.Failed() {
			l.t.Logf("the lock screen shows %q after a message of %d bytes", shown, len(message))
		}
	}()
	l.until(what, patience, func() bool {
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			l.push(message)
		}
		shown = l.notifications()
		return holds(shown)
	})
}

// pairsForNotes pairs this page with a sealed host, and turns notifications on with a
// push service.
func (l *lockScreen) pairsForNotes(s *sealedSite, service *pushsite.Service) {
	l.t.Helper()
	ids := l.allowNotifications(s.console)
	l.push = func(message string) { l.do(pushed(s.console, ids(), message)) }
	l.do(desktop(), chromedp.Navigate(s.address(url.Values{"host": {hostName}, "token": {s.token(time.Hour)}})))
	l.click("[data-pair]")
	l.await("#pair-code")
	s.pairs(l.page)
	l.notifiesBy(service)
}

// notifiesBy turns notifications on. The page subscribes to this push service.
func (l *lockScreen) notifiesBy(service *pushsite.Service) {
	l.t.Helper()
	l.holds("the page to be kept", "navigator.serviceWorker.controller !== null")
	eval[any](l.page, `(() => {
		window.subscribed = `+subscriptionTo(service)+`;
		const subscription = { toJSON: () => window.subscribed, unsubscribe: async () => true };
		PushManager.prototype.getSubscription = async () => subscription;
		PushManager.prototype.subscribe = async ({ applicationServerKey }) => {
			window.asked = btoa(String.fromCharCode(...applicationServerKey)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
			return subscription;
		};
		return null;
	})()`)
	l.click("#bell")
	l.click("#told-on")
	l.wants("#told-note", "This device gets notifications now.")
	service.Subscribed(eval[string](l.page, "window.asked"))
	l.click("#told [aria-label=Close]")
	l.worker = l.newTarget("service_worker", "/sw.js", "true")
	eval[any](l.worker, `self.sent = []; self.real = self.fetch;
		self.fetch = (url, init) => { if (init?.body) sent.push(url + ' ' + init.body); return real(url, init); };
		self.setTimeout = (act) => queueMicrotask(act);
		WindowClient.prototype.focus = async function () { return this; }; null`)
}

// TestSealedLockScreen answers a sealed host's question by a button of the
// notification, in a console from another origin than the relay's. The service worker
// rejects messages that the relay has written, changed or repeated.
func TestSealedLockScreen(t *testing.T) {
	t.Parallel()
	s := startSealed(t)
	l := &lockScreen{page: newBrowser(t, nil)}
	service := pushsite.New(t)
	l.pairsForNotes(s, service)

	l.begin()
	l.say("permission")
	first := fromHost(service)
	l.delivers(first, "the notification", func(shown string) bool { return strings.Contains(shown, `"offered":`) })
	if got := l.notifications(); !strings.Contains(got, "echo test") || !strings.Contains(got, `"label":"Allow Once"`) {
		t.Errorf("the lock screen shows %s; want echo test, and Allow Once", got)
	}
	l.press("0", "")
	l.wants(lastTurn+" .parts", "Allowed.")
	if got := l.notifications(); got != "" {
		t.Errorf("after the answer, the lock screen shows %s; want nothing", got)
	}
	if got := eval[string](l.worker, "sent.join()"); strings.Count(got, "/api/letters/") != 1 || strings.Contains(got, "allow") || strings.Contains(got, "demo:") {
		t.Errorf("the answer was sent as %s; want one letter, without readable text", got)
	}

	// The question ends, and the relay then repeats it. The relay may send the end of the
	// question and the end of the turn in either order.
	end, done := fromHost(service), fromHost(service)
	if strings.Contains(done, `\"withdrawn\":true`) {
		end, done = done, end
	}
	if !strings.Contains(end, `\"withdrawn\":true`) {
		t.Fatalf("after the answer, the push is %s; want the withdrawal", end)
	}
	forged := fmt.Sprintf(`{"id":"forged","kind":"approval","at":"2126-11-23T12:00:00Z","host":%q,"session":"demo:/x","title":"Forged title","text":"Forged text","says":"Forged words","answers":[{"label":"Allow","url":"/api/answers/a.b"}]}`, hostName)
	for range 2 { // a worker that is starting may drop a message
		l.push(end)
		l.push(first)
		l.delivers(forged, "the relay's notification", func(shown string) bool { return strings.Contains(shown, "An agent needs you") })
	}
	if got := l.notifications(); strings.Contains(got, "Forged") || strings.Contains(got, "offered") || strings.Contains(got, "echo") {
		t.Errorf("the relay's notification is shown as the host's: %s; want only An agent needs you", got)
	}
	eval[any](l.worker, "registration.getNotifications().then((all) => all.forEach((n) => n.close())), null")
	l.until("no notification", patience, func() bool { return l.notifications() == "" })
	changed := strings.Replace(done, `\"says\":\"`, `\"says\":\"Forged `, 1)
	l.delivers(changed, "the changed notification", func(shown string) bool {
		return strings.Contains(shown, `"host":""`) || strings.Contains(shown, "Forged")
	})
	if got := l.notifications(); strings.Contains(got, "Forged") {
		t.Errorf("a changed notification is shown: %s; want none of its text", got)
	}
	l.renewsSealed(service)
}

// fromHost waits for the next push that a sealed host has encrypted. It skips the relay's own, as of
// a host that was away for a moment.
func fromHost(service *pushsite.Service) string {
	for {
		if text := string(service.Next().Text); strings.Contains(text, `"sealed":`) {
			return text
		}
	}
}

// renewsSealed makes the browser renew its subscription. Without a page, a notification
// asks for one, because a worker has no connection to the host. A page gives the new keys
// to the relay and to the host.
func (l *lockScreen) renewsSealed(former *pushsite.Service) {
	l.t.Helper()
	service := pushsite.New(l.t)
	service.Subscribed(former.RelayKey())
	eval[any](l.worker, "self.clients.matchAll = async () => [], null")
	l.renews(service)
	if got := l.notifications(); !strings.Contains(got, "Open this page once") {
		l.t.Errorf("without a page, the lock screen shows %s", got)
	}
	eval[any](l.worker, "delete self.clients.matchAll, null")
	eval[any](l.page, "window.subscribed = "+subscriptionTo(service)+", null")
	l.renews(service)
	l.until("the host to have the new keys", patience, func() bool {
		return strings.Contains(l.later(`new Promise((resolve) => { indexedDB.open('ahp-sealed').onsuccess = ({ target: { result: db } }) => {
			db.transaction('kept').objectStore('kept').getAll().onsuccess = ({ target }) => { db.close(); resolve(target.result.map((p) => p?.push?.p256dh).join()); };
		}; })`), service.Target(true).Keys.P256dh)
	})
	l.say("permission")
	if got := fromHost(service); !strings.Contains(got, "echo test") {
		l.t.Errorf("the renewed subscription gets %s", got)
	}
}
