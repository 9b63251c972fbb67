//go:build !race

package browser_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/gateway/notify"
	"ahprelay/test/pushsite"
)

// A lockScreen shows and presses the notifications of a signed-in device. It does so
// through the device's service worker, like a phone's lock screen.
type lockScreen struct {
	*page
	worker *page
	told   chan notify.Message // receives each message that the relay sends
	push   func(message string)
}

// startLockScreen signs a device in, and makes the relay notify it of everything. No
// push service is reachable: a webhook receives the relay's messages, and the test
// gives them to the browser.
func startLockScreen(t *testing.T, s *site) *lockScreen {
	t.Helper()
	l := &lockScreen{page: newBrowser(t, nil), told: make(chan notify.Message, 64)}
	ids := l.allowNotifications(s.url)
	l.do(desktop(), chromedp.Navigate(s.invite()))
	l.click("#form button")
	l.until("the page of devices", patience, func() bool { return eval[string](l.page, "location.pathname") == "/device" })
	l.do(chromedp.Navigate(s.url + "/"))
	l.wants("#status-text", "Live")
	l.holds("the page to be kept", "navigator.serviceWorker.controller !== null")
	l.push = func(message string) { l.do(pushed(s.url, ids(), message)) }

	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var event struct{ Data notify.Message }
		if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &event) != nil {
			t.Errorf("the webhook received %s: %v; want a message", body, err)
		}
		l.told <- event.Data
	}))
	t.Cleanup(service.Close)
	if got := l.later(fmt.Sprintf(`import('/pages/keys.js').then((k) => k.call('POST', 'api/notify/ways', {kind: 'webhook', url: %q, details: true})).then((w) => w.kind)`, service.URL)); got != "webhook" {
		t.Fatalf("adding the webhook returns %s; want webhook", got)
	}
	// The browser keeps the worker while the test is attached. A script records the
	// worker's requests, shortens its pauses, and lets it focus windows, which browsers
	// permit only after a real press.
	l.worker = l.newTarget("service_worker", "/sw.js", "true")
	eval[any](l.worker, `self.sent = []; self.fails = 0; self.real = self.fetch;
		self.fetch = async (url, init) => {
			if (!String(url).includes('/api/answers/')) return real(url, init);
			const {Authorization = '', DPoP = ''} = init.headers ?? {};
			sent.push(Authorization.split(' ')[0] + ' ' + (DPoP ? 'proof' : 'plain'));
			if (fails-- > 0) throw new TypeError('no network');
			return real(url, init);
		};
		self.setTimeout = (act) => queueMicrotask(act);
		WindowClient.prototype.focus = async function () { return this; };
		Object.defineProperty(NotificationEvent.prototype, 'reply', {configurable: true, get() { return self.typed; }}); null`)
	return l
}

// ring waits for the relay's next message of a kind, shows it as a notification, and
// returns it.
func (l *lockScreen) ring(kind string) notify.Message {
	l.t.Helper()
	m := l.next(kind)
	l.show(m)
	return m
}

// next waits for the relay's next message of a kind, and returns it.
func (l *lockScreen) next(kind string) (m notify.Message) {
	l.t.Helper()
	for string(m.Kind) != kind || m.Withdrawn {
		select {
		case m = <-l.told:
		case <-time.After(patience):
			l.t.Fatalf("no notification %s was sent in time; want one", kind)
		}
	}
	return m
}

// show gives a message to the browser until the notification appears, because a worker
// that is starting may drop it.
func (l *lockScreen) show(m notify.Message) {
	l.t.Helper()
	body, err := json.Marshal(m)
	must(l.t, err)
	var last time.Time
	l.until("the notification", patience, func() bool {
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			l.push(string(body))
		}
		return strings.Contains(l.notifications(), `"offered":`)
	})
}

// press presses a button of the notification, or with action "" the notification
// itself. reply is the text that the user types.
func (l *lockScreen) press(action, reply string) {
	l.t.Helper()
	l.handles("the press", fmt.Sprintf(`self.typed = %q; self.over = false; registration.getNotifications().then(([notification]) => {
		const press = new NotificationEvent('notificationclick', {notification, action: %q});
		press.waitUntil = (p) => { p.then(() => { self.over = true; }, (err) => { self.over = String(err); }); };
		self.dispatchEvent(press);
	}); null`, reply, action))
}

// handles gives an event to the worker by a script, which sets self.over to true behind
// the event.
func (l *lockScreen) handles(what, script string) {
	l.t.Helper()
	eval[any](l.worker, script)
	l.worker.until(what+" to be handled", patience, func() bool { return eval[any](l.worker, "self.over") != false })
	if over := eval[any](l.worker, "self.over"); over != true {
		l.t.Fatalf("handling %s returns %v; want true", what, over)
	}
}

// renews makes the browser renew its subscription: the new push service takes the place
// of the former.
func (l *lockScreen) renews(service *pushsite.Service) {
	l.t.Helper()
	l.handles("the renewed subscription", `self.over = false; (() => {
		const change = new ExtendableEvent('pushsubscriptionchange');
		change.newSubscription = { toJSON: () => (`+subscriptionTo(service)+`) };
		change.waitUntil = (p) => { p.then(() => { self.over = true; }, (err) => { self.over = String(err); }); };
		self.dispatchEvent(change);
	})(); null`)
}

// subscriptionTo returns the JSON of a subscription to a push service.
func subscriptionTo(service *pushsite.Service) string {
	way := service.Target(true)
	return fmt.Sprintf("{endpoint: %q, keys: {p256dh: %q, auth: %q}}", way.URL, way.Keys.P256dh, way.Keys.Auth)
}

// requests returns the answers that the worker has sent since the last call: each
// request's scheme, and whether it had a proof.
func (l *lockScreen) requests() string {
	l.t.Helper()
	return eval[string](l.worker, "sent.splice(0).join()")
}

// answersInRows answers questions in the list of sessions. A row cannot allow a request
// that is dangerous, or that it does not show completely.
func (l *lockScreen) answersInRows() {
	l.t.Helper()
	session := strings.TrimPrefix(eval[string](l.page, "new URLSearchParams(location.hash.slice(1)).get('session')"), "#")
	in := `[data-group=needs] [data-session="` + session + `"] .asked`
	labels := func(where string) string {
		return eval[string](l.page, "[...document.querySelectorAll("+js(where+" .answers button")+")].map((b) => b.textContent).join()")
	}
	press := func(where, label string) { // repeats, because a row that has just moved ignores a press
		l.until(label+" to be taken", patience, func() bool {
			return eval[bool](l.page, "(b => { b?.click(); return !b; })([...document.querySelectorAll("+js(where+" .answers button")+")].find((b) => b.textContent === "+js(label)+"))")
		})
	}
	for _, test := range []struct{ prompt, shows, answers, press, end string }{
		{"permission", "echo test", "Allow Once,Skip", "Allow Once", "Allowed."},
		{"edit", "session.go +2 −2, session_test.go +3", "Read it first,Skip", "Skip", "Then not."},
		{"danger", "The host marks this as dangerous.", "Read it first,Skip", "Skip", "Then not."},
	} {
		l.openSession(session)
		l.say(test.prompt)
		l.next("approval")
		l.openSession("demo:/notes")
		l.wants(in, test.shows)
		if got := labels(in); got != test.answers {
			l.t.Errorf("%s: the row offers %s; want %s", test.prompt, got, test.answers)
		}
		press(in, test.press)
		l.openSession(session)
		l.wants(lastTurn+" .parts", test.end)
	}

	// On a wide screen, the first pane shows the questions of all sessions.
	l.say("ask choice")
	l.next("question")
	l.leave("location.hash = new URLSearchParams({host: " + js(hostName) + "})")
	l.wants(".first .asked", "How shall I go on?")
	l.accessible("first pane")
	l.shot("needs") // docs/console/inbox.png is this state in the form phone-light
	press(".first .asked", "Step by step")
	l.wants("#chat-title", "Nothing needs you")
	l.openSession(session)
	l.wants(lastTurn+" .parts", "step")
}

// TestLockScreenAnswers answers by the buttons of notifications while the page shows
// something else. The worker signs answers with the device's key, repeats an answer
// after a failure, and sends a typed reply.
func TestLockScreenAnswers(t *testing.T) {
	t.Parallel()
	l := startLockScreen(t, startStack(t))
	actions := func() string {
		eval[any](l.worker, `self.now = ''; registration.getNotifications().then((all) => { self.now = all.flatMap((n) => [n.title, ...n.actions.map((a) => a.action + '=' + a.title)]).join('|') || 'none'; }); null`)
		l.worker.until("the notifications", patience, func() bool { return eval[string](l.worker, "self.now") != "" })
		return eval[string](l.worker, "self.now")
	}

	l.begin()
	l.say("permission")
	approval := l.ring("approval")
	if got := actions(); !strings.HasSuffix(got, "|0=Allow Once|1=Skip") {
		t.Errorf("the lock screen shows %q; want the buttons to allow once and to skip", got)
	}
	eval[any](l.worker, "self.fails = 2, null")
	l.press("0", "")
	l.wants(lastTurn+" .parts", "Allowed.")
	l.wants(lastTurn+" .given", "Allowed by owner · Chrome on Linux")
	if got, want := l.requests(), "DPoP proof,DPoP proof,DPoP proof"; got != want {
		t.Errorf("the answer was sent with %q; want %q", got, want)
	}
	if got := actions(); got != "none" {
		t.Errorf("after the answer, the lock screen shows %q; want none", got)
	}

	// An answer comes too late. Then the relay does not answer.
	l.show(approval)
	l.press("1", "")
	if got := actions(); got != "Not answered: already answered by owner" {
		t.Errorf("after a late answer, the lock screen shows %q; want already answered by owner", got)
	}
	l.requests()
	l.show(approval)
	eval[any](l.worker, "self.fails = 4, null")
	l.press("0", "")
	if got, sent := actions(), strings.Count(l.requests(), "DPoP"); got != "Not answered: the relay cannot be reached" || sent != 4 {
		t.Errorf("after %d requests without a relay, the lock screen shows %q; want 4, and the relay cannot be reached", sent, got)
	}

	eval[any](l.worker, "registration.getNotifications().then((all) => all.forEach((n) => n.close())), null")

	l.say("ask text")
	l.ring("question")
	if got := actions(); !strings.HasSuffix(got, "|0=Reply") {
		t.Errorf("the lock screen shows %q; want a reply", got)
	}
	l.press("0", "clock/injected")
	l.wants(lastTurn+" .parts", "clock/injected")

	l.answersInRows()

	// Some systems, such as iOS, show no buttons. A press on the notification then opens
	// the question.
	eval[any](l.worker, "Object.defineProperty(self.Notification, 'maxActions', {value: 0}), null")
	l.say("permission")
	approval = l.ring("approval")
	if got := actions(); strings.Contains(got, "=") || got == "none" {
		t.Errorf("without room for buttons, the lock screen shows %q; want a question without buttons", got)
	}
	l.openSession("demo:/notes")
	l.press("", "")
	l.holds("the question in focus", "document.querySelector('[data-ask]')?.contains(document.activeElement)")
	if got := eval[string](l.page, "location.hash"); strings.Contains(got, "turn=") {
		t.Errorf("the address keeps the turn: %s; want it removed", got)
	}

	// A device that is signed out answers with the notification's own right.
	l.later("import('/pages/keys.js').then((k) => k.forget()).then(() => 'gone')")
	l.requests()
	l.show(approval)
	l.press("1", "")
	l.wants(lastTurn+" .parts", "Denied.")
	if got := l.requests(); got != " plain" {
		t.Errorf("the answer was sent with %q; want no token", got)
	}
}
