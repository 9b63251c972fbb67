//go:build !race

package browser_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/serviceworker"
	"github.com/chromedp/chromedp"

	notifyapi "ahprelay/gateway/api/notify"
	"ahprelay/test/procs"
)

// pushed makes the browser's push service deliver a message.
func pushed(origin string, id serviceworker.RegistrationID, data string) step {
	return func(ctx context.Context, target *chromedp.Target) (v chromedp.Void, err error) {
		_, err = cdp.Call(ctx, target, serviceworker.DeliverPushMessage, serviceworker.DeliverPushMessageParams{Origin: origin, RegistrationID: id, Data: data})
		return v, err
	}
}

// allowNotifications lets an origin show notifications, and returns a function that returns
// the registration of the origin's service worker with the scope "/".
func (p *page) allowNotifications(origin string) (latest func() serviceworker.RegistrationID) {
	p.t.Helper()
	workers := p.workersOf(origin)
	return func() serviceworker.RegistrationID { return workers("/") }
}

// notifications returns the device's notifications: title, text and data of each.
func (p *page) notifications() string {
	eval[any](p, `window.shown = undefined; navigator.serviceWorker.ready.then((r) => r.getNotifications())
		.then((all) => { window.shown = all.map((n) => n.title + ": " + n.body + " " + JSON.stringify(n.data)).join("|"); }); null`)
	p.holds("the notifications", "window.shown !== undefined")
	return eval[string](p, "window.shown")
}

// TestNotificationsEndWithAnAnswer delivers notifications to this device while the page is closed, and
// removes them after an answer. The service worker also caches the page.
func TestNotificationsEndWithAnAnswer(t *testing.T) {
	t.Parallel()
	p := newBrowser(t, nil)
	s := startStackWith(t, stackConfig{still: true}) // a turn that ends would be one more delivery
	origin := "http://" + s.proxy.Addr().String()
	latest := p.allowNotifications(origin)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#status-text", "Live")
	p.holds("the page to be kept", "navigator.serviceWorker.controller !== null")

	// No push service is reachable here, so the subscription is a fake.
	eval[any](p, `PushManager.prototype.subscribe = async function (o) {
		window.asked = new Uint8Array(o.applicationServerKey).length;
		return { toJSON: () => ({ endpoint: "https://127.0.0.1:1/abc", keys: {
			p256dh: "BNcRdreALRFXTkOOUHK1EtK2wtaz5Ry4YfYCA_0QTpQtUbVlUls0VJXg7A8u-Ts1XbjhazAkj7I99e8QcYP7DkM", auth: "tBHItJI5svbpez7KI4CCXg" } }) };
	}; null`)
	p.click("#bell")
	p.click("#told-on")
	p.wants("#told-note", "This device gets notifications now.")
	if got := eval[int](p, "window.asked"); got != 65 {
		t.Errorf("the relay's key has %d bytes; want 65", got)
	}
	p.await("#told-off")
	p.otherWays(s)

	// A starting worker may silently drop a message, so it is sent until it appears.
	// Its id keeps it single.
	deliver := func(data string) func() {
		var last time.Time
		return func() {
			if time.Since(last) < 5*time.Second {
				return
			}
			last = time.Now()
			p.do(pushed(origin, latest(), data))
		}
	}
	const asked = `{"id":"e1","kind":"approval","at":"2026-11-23T12:00:00Z","host":"demo","session":"demo:/login","says":"demo needs you","title":"Fix the flaky login test","text":"Run a test command","detail":"echo test"}`
	again := deliver(asked)
	p.until("a notification", patience, func() bool { again(); return strings.Contains(p.notifications(), "echo test") })
	if got, want := p.notifications(), "Fix the flaky login test: demo needs you\nRun a test command\necho test "+`{"host":"demo","session":"demo:/login","asks":true}`; got != want {
		t.Errorf("the device shows %q; want %q", got, want)
	}
	again = deliver(`{"id":"e1","at":"2026-11-23T12:00:00Z","withdrawn":true}`)
	p.until("no notification", patience, func() bool { again(); return p.notifications() == "" })

	// The push service delivers the first message again, after the withdrawal.
	late, next := deliver(asked), deliver(`{"id":"e2","title":"Another","says":"demo needs you"}`)
	p.until("another notification", patience, func() bool { late(); next(); return strings.Contains(p.notifications(), "Another") })
	if got := p.notifications(); strings.Contains(got, "echo test") {
		t.Errorf("a withdrawn notification is shown again: %q; want it gone", got)
	}
	again = deliver(strings.Replace(asked, "12:00", "12:01", 1)) // the agent asks again
	p.until("the new question", patience, func() bool { again(); return strings.Contains(p.notifications(), "echo test") })
	again = deliver(`no JSON`)
	p.until("a notification", patience, func() bool { again(); return strings.Contains(p.notifications(), "An agent needs you") })

	// A click opens the session.
	eval[any](p, fmt.Sprintf(`navigator.serviceWorker.dispatchEvent(new MessageEvent("message", {data: {open: {host: %q, session: "demo:/login"}}})); null`, hostName))
	p.wants("#turns", "Done. 500 runs")
	p.withoutRelay(s)
	p.takesShared(origin)
}

// takesShared shares text and a picture from a different app: they go with the next
// message in the next session opened.
func (p *page) takesShared(origin string) {
	p.t.Helper()
	eval[any](p, `window.went = ''; (() => {
		const form = new FormData();
		form.set("text", "look at this");
		form.append("files", new File([Uint8Array.from(atob("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="), (c) => c.charCodeAt(0))], "screen.png", {type: "image/png"}));
		fetch("/share", {method: "POST", body: form}).then((r) => { window.went = r.url; });
	})(); null`)
	p.until("an answer of the worker", patience, func() bool { return eval[string](p, "window.went") != "" })
	went := eval[string](p, "window.went")
	if !strings.HasPrefix(went, origin+"/?") {
		p.t.Fatalf("sharing leads to %s; want the console", went)
	}
	p.do(chromedp.Navigate(went + "#host=" + hostName))
	p.wants("#handed", "Open the session that gets what you have shared.")
	p.openSession("demo:/login")
	p.until("the words", patience, func() bool {
		return strings.Contains(eval[string](p, "document.querySelector('#prompt')?.value ?? ''"), "look at this")
	})
	p.await("#composer .pictures img[alt='screen.png']")
	if p.shows("#handed") {
		p.t.Error("the shared picture is offered again; want it once")
	}
}

// withoutRelay opens the console while the relay is unreachable: it opens and reports
// that.
func (p *page) withoutRelay(s *site) {
	p.t.Helper()
	p.enter("#prompt", "a thought")
	s.proxy.cut()
	p.do(chromedp.Reload())
	p.wants("#hosts-note", "The relay is unreachable.")
	p.wants("#chat-note", "opens when the host is online")
	if got := eval[string](p, "JSON.stringify(performance.getEntriesByType('resource').filter((e) => e.transferSize > 0 && !e.name.includes('/api/')).map((e) => e.name))"); got != "[]" {
		p.t.Errorf("without a relay, the page loads %s from the network; want nothing", got)
	}
	s.proxy.restore()
	p.wants("#status-text", "Live")
	p.wants("#turns", "Done. 500 runs")
	if got := eval[string](p, "document.querySelector('#prompt').value"); got != "a thought" {
		p.t.Errorf("the editor contains %q; want a thought", got)
	}
}

// otherWays adds, tests, changes and removes a webhook, sets quiet hours, and mutes a
// session from its menu. The relay has the same settings as the page.
func (p *page) otherWays(s *site) {
	p.t.Helper()
	got := make(chan string, 16)
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Header.Get("Webhook-Signature") + " " + string(body)
	}))
	defer service.Close()
	set := func() (n notifyapi.Notifying) {
		n, err := procs.GetJSON[notifyapi.Notifying](p.t.Context(), s.url+"/api/notify", s.token(time.Hour))
		must(p.t, err)
		return n
	}
	p.click("#way-add")
	p.click("#way-kind")
	p.click("#way-kind-list [data-value=webhook]")
	p.enter("#way-url", "ftp://example.com/x")
	p.click("#way-form [type=submit]")
	p.wants("#way-note", "want https://")
	eval[any](p, `document.querySelector("#way-url").value = ""`)
	p.enter("#way-url", service.URL+"/agents")
	p.click("#way-form .checks-of label:nth-last-child(2)") // joins are not notified
	p.click("#way-form [type=submit]")
	p.wants("#way-secret", "whsec_")
	p.wants("[data-way=webhook]", "an agent needs me, it is done, it has failed, a host is away")
	p.wants("#told-links", "They have no links yet")
	eval[any](p, `{ const real = fetch; window.fetch = async (...all) => { // the relay has learned its address
		const answer = await real(...all);
		return String(all[0]).endsWith('api/notify') ? new Response(JSON.stringify({ ...await answer.json(), url: 'https://relay.example.com' }), answer) : answer;
	}; null; }`)
	p.click("[data-way=webhook] [data-do=test]")
	p.wants("#told-links", "Their links lead to https://relay.example.com.")
	select {
	case told := <-got:
		if !strings.HasPrefix(told, "v1,") || !strings.Contains(told, "test") {
			p.t.Errorf("the webhook got %q; want a signature, and the test message", told)
		}
	case <-time.After(patience):
		p.t.Fatal("the webhook got no message; want the test")
	}
	p.wants("[data-way=webhook] .said", "The test was delivered.")
	p.wants("#deliveries", "test")
	p.wants("#deliveries .badge", "told")

	p.click("[data-way=webhook] [data-do=change]")
	p.enter("#way-name", "The lamp")
	p.click("#way-form [type=submit]")
	p.wants("[data-way=webhook] .name", "The lamp")
	if n := set(); len(n.Targets) != 2 || n.Targets[1].Name != "The lamp" || len(n.Targets[1].Kinds) != 8 || !strings.HasPrefix(n.Targets[1].URL, service.URL) {
		p.t.Errorf("the relay has the targets %+v; want two, the second with the name The lamp", n.Targets)
	}
	p.click("#quiet")
	p.await("#quiet-from")
	eval[any](p, `(e => { e.value = "21:30"; e.dispatchEvent(new Event("change", {bubbles: true})); })(document.querySelector("#quiet-from"))`)
	p.until("the quiet hours", patience, func() bool {
		n := set()
		return n.Quiet != nil && n.Quiet.From == "21:30" && n.Quiet.To == "07:00" && n.Quiet.Zone != ""
	})

	p.click("#told [aria-label=Close]")
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	mute := func(label, choice string) {
		p.t.Helper()
		p.click(".chat-head .menu summary")
		p.press(".chat-head .menu button", label)
		p.await("#mute")
		if choice == "" {
			p.seen("mute")
			choice = ".answers button:nth-child(2)"
		}
		p.click("#mute " + choice)
		p.until("the dialog to go", patience, func() bool { return p.count("#mute") == 0 })
	}
	mute("Mute…", "")
	if n := set(); len(n.Mutes) != 1 || n.Mutes[0].Session != "demo:/login" || time.Until(n.Mutes[0].Until) < 7*time.Hour || n.Quiet == nil {
		p.t.Errorf("the relay has the mutes %+v, quiet %+v; want one for demo:/login, about 8 h, and quiet hours", n.Mutes, n.Quiet)
	}
	mute("Muted…", "button.primary")
	mute("Mute…", ".answers button:first-child")
	p.click("#bell")
	p.wants("#mutes", "Fix the flaky login test")
	p.seen("told")
	p.click("#mutes button")
	p.until("no mute", patience, func() bool { return p.count("#mutes") == 0 && len(set().Mutes) == 0 })
	p.click("[data-way=webhook] [data-do=remove]")
	p.click("[data-way=webhook] [data-do=remove].armed")
	p.until("no webhook", patience, func() bool { return p.count("[data-way=webhook]") == 0 && len(set().Targets) == 1 })
	p.click("#quiet")
	p.until("no quiet hours", patience, func() bool { return set().Quiet == nil })
	p.click("#told [aria-label=Close]")
	p.openSession("demo:/notes")
}
