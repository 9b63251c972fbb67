//go:build !race

package browser_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/serviceworker"
	"github.com/chromedp/chromedp"
)

// pushed has the browser's push service deliver a message.
func pushed(origin string, id serviceworker.RegistrationID, data string) step {
	return func(ctx context.Context, target *chromedp.Target) (v chromedp.Void, err error) {
		_, err = cdp.Call(ctx, target, serviceworker.DeliverPushMessage, serviceworker.DeliverPushMessageParams{Origin: origin, RegistrationID: id, Data: data})
		return v, err
	}
}

// notifications are those that the device shows: title and text of each.
func (p *page) notifications() string {
	eval[any](p, `window.shown = undefined; navigator.serviceWorker.ready.then((r) => r.getNotifications())
		.then((all) => { window.shown = all.map((n) => n.title + ": " + n.body + " " + JSON.stringify(n.data)).join("|"); }); null`)
	p.until("the notifications", patience, func() bool { return eval[bool](p, "window.shown !== undefined") })
	return eval[string](p, "window.shown")
}

// TestConsoleTold has this device told what agents want, while nobody looks, and
// no more once somebody has answered. What tells it keeps the page, too.
func TestConsoleTold(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{tells: true})
	origin := "http://" + s.proxy.Addr().String()
	registered := make(chan serviceworker.RegistrationID, 16)
	must(t, chromedp.Listen(p.ctx, func(event any) {
		if e, ok := event.(*serviceworker.EventWorkerRegistrationUpdated); ok {
			for _, r := range e.Registrations {
				select {
				case registered <- r.RegistrationID:
				default:
				}
			}
		}
	}))
	allow := func(ctx context.Context, target *chromedp.Target) (v chromedp.Void, err error) {
		if _, err = cdp.Call(ctx, target, browser.SetPermission, browser.SetPermissionParams{Permission: &browser.PermissionDescriptor{Name: "notifications"}, Setting: browser.PermissionSettingGranted, Origin: origin}); err == nil {
			_, err = cdp.Call(ctx, target, serviceworker.Enable, cdp.Empty{})
		}
		return v, err
	}
	p.do(desktop(), allow, chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#status-text", "Live")
	p.until("the page to be kept", patience, func() bool { return eval[bool](p, "navigator.serviceWorker.controller !== null") })

	// No push service can be reached from here: its answer is made up.
	eval[any](p, `PushManager.prototype.subscribe = async function (o) {
		window.asked = new Uint8Array(o.applicationServerKey).length;
		return { toJSON: () => ({ endpoint: "https://127.0.0.1:1/abc", keys: {
			p256dh: "BNcRdreALRFXTkOOUHK1EtK2wtaz5Ry4YfYCA_0QTpQtUbVlUls0VJXg7A8u-Ts1XbjhazAkj7I99e8QcYP7DkM", auth: "tBHItJI5svbpez7KI4CCXg" } }) };
	}; null`)
	p.click(".about summary")
	p.click(".about .row button:nth-child(2)")
	p.click("#told-on")
	p.wants("#told-note", "This device is told from now on.")
	if got := eval[int](p, "window.asked"); got != 65 {
		t.Errorf("the relay's key has %d bytes; want 65", got)
	}
	p.await("#told-off")
	p.click("#told [aria-label=Close]")

	// A message to a worker that is just being started anew may be dropped, without a
	// word: it is delivered until it is there. Its id makes it one.
	id := <-registered
	deliver := func(data string) func() {
		var last time.Time
		return func() {
			if time.Since(last) < 5*time.Second {
				return
			}
			last = time.Now()
			for len(registered) > 0 {
				id = <-registered
			}
			p.do(pushed(origin, id, data))
		}
	}
	again := deliver(`{"id":"e1","kind":"approval","host":"demo","session":"demo:/login","says":"demo needs you","title":"Fix the flaky login test","text":"Run a test command","detail":"echo test"}`)
	p.until("a notification", patience, func() bool { again(); return strings.Contains(p.notifications(), "echo test") })
	if got, want := p.notifications(), "Fix the flaky login test: demo needs you\nRun a test command\necho test "+`{"host":"demo","session":"demo:/login"}`; got != want {
		t.Errorf("the device shows %q; want %q", got, want)
	}
	again = deliver(`{"id":"e1","withdrawn":true}`)
	p.until("no notification", patience, func() bool { again(); return p.notifications() == "" })
	again = deliver(`no JSON`)
	p.until("a notification", patience, func() bool { again(); return strings.Contains(p.notifications(), "An agent needs you") })

	// What is pressed is opened.
	eval[any](p, fmt.Sprintf(`navigator.serviceWorker.dispatchEvent(new MessageEvent("message", {data: {open: {host: %q, session: "demo:/login"}}})); null`, hostName))
	p.wants("#turns", "Done. 500 runs")
	p.withoutRelay(s)
}

// withoutRelay opens the console where there is no relay to be reached: it opens,
// and says so.
func (p *page) withoutRelay(s *site) {
	p.t.Helper()
	p.enter("#prompt", "a thought")
	s.proxy.cut()
	p.do(chromedp.Reload())
	p.wants("#hosts-note", "The relay cannot be reached.")
	p.wants("#chat-note", "opens when the host is there")
	if got := eval[string](p, "JSON.stringify(performance.getEntriesByType('resource').filter((e) => e.transferSize > 0 && !e.name.includes('/api/')).map((e) => e.name))"); got != "[]" {
		p.t.Errorf("the network gave %s", got)
	}
	s.proxy.restore()
	p.wants("#status-text", "Live")
	p.wants("#turns", "Done. 500 runs")
	if got := eval[string](p, "document.querySelector('#prompt').value"); got != "a thought" {
		p.t.Errorf("of what was written there is %q", got)
	}
}
