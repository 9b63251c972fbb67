//go:build !race

package browser_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"ahprelay/auth"
)

// stored returns the client token in the tab's storage, which survives a reload.
func (p *page) stored() string { return eval[string](p, "sessionStorage.getItem('ahp-relay-token')") }

// follows clicks a link to the page's own address with this fragment.
func (p *page) follows(fragment url.Values) {
	p.t.Helper()
	eval[any](p, fmt.Sprintf("Object.assign(document.createElement('a'), {href: %q}).click()", "#"+fragment.Encode()))
}

// TestLinksChangeNothingWithoutConsent follows links with a different token or host, in
// a console that has both. The page shows what would change, and changes nothing until
// the user agrees.
func TestLinksChangeNothingWithoutConsent(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	mine := s.tokenWith(func(c *auth.Client) { c.Subject = "ada" })
	theirs := s.tokenWith(func(c *auth.Client) { c.Subject, c.Access = "mallory", auth.AccessRead })
	p.do(desktop(), chromedp.Navigate(s.console(mine)))
	p.wants("#status-text", "Live")
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	was := eval[string](p, "location.href")

	unchanged := func(what string) {
		t.Helper()
		p.holds("no question", "!document.querySelector('#swap').open")
		if p.stored() != mine || eval[string](p, "location.href") != was || p.text("#chat-title") != "Fix the flaky login test" {
			t.Errorf("%s: the page is at %s; want the same session, address and token", what, eval[string](p, "location.href"))
		}
	}
	asked := func(words ...string) {
		t.Helper()
		for _, word := range words {
			p.wants("#swap[open]", word)
		}
		if got := eval[string](p, "location.href"); strings.Contains(got, "token") {
			t.Errorf("the address %s contains the token; want it removed", got)
		}
		if p.stored() != mine {
			t.Error("the token has changed before the user's answer; want the old one")
		}
	}

	p.follows(url.Values{"token": {theirs}, "host": {"elsewhere"}})
	asked("ada → mallory", "write → read", "demo → elsewhere")
	p.shot("link-asked")
	p.click("#swap-keep")
	unchanged("kept")

	p.follows(url.Values{"token": {theirs}})
	asked("ada → mallory")
	eval[any](p, "document.querySelector('#swap').requestClose()") // what the Escape key does
	unchanged("escaped")

	p.follows(url.Values{"token": {"not.a.token"}})
	asked("does not accept")
	if eval[bool](p, "!document.querySelector('#swap-take').disabled") {
		t.Error("a token which the relay refuses can be accepted; want the button disabled")
	}
	p.click("#swap-keep")
	unchanged("a bad token")

	p.follows(url.Values{"host": {"elsewhere"}, "session": {"demo:/login"}})
	asked("demo → elsewhere")
	p.click("#swap-keep")
	unchanged("another host")

	// The user accepts the other token. It stays after a reload of the tab.
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(s.console(theirs)))
	asked("ada → mallory")
	p.click("#swap-take")
	p.until("the other token", patience, func() bool { return p.stored() == theirs })
	p.wants("#status-text", "Live")
	p.wants("#read-only", "read-only")

	// The page asks nothing when the user navigates with the browser's own buttons.
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	eval[any](p, "history.back()")
	p.await(".first")
	if eval[bool](p, "document.querySelector('#swap').open") {
		t.Error("going back in the history asks the user; want no question")
	}
}

// front brings a tab to the front, because the browser does not draw background tabs.
func front(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
	_, err := cdp.Call(ctx, target, cdppage.BringToFront, cdp.Empty{})
	return chromedp.Void{}, err
}

// TestOpenerCannotNavigateTheConsole opens the console from another site. That site
// keeps no reference to the console, and can neither navigate nor replace it.
func TestOpenerCannotNavigateTheConsole(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	theirs := s.tokenWith(func(c *auth.Client) { c.Subject = "mallory" })
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><title>other</title><button id=open>Open</button><script>
			document.querySelector("#open").onclick = () => { window.held = window.open(%q, "console"); };
		</script>`, s.console(s.token(time.Hour)))
	}))
	t.Cleanup(other.Close)
	p.do(chromedp.Navigate(strings.Replace(other.URL, "127.0.0.1", "localhost", 1)))
	p.click("#open")
	p.holds("the opener to lose it", "window.held !== undefined && window.held.closed")
	eval[any](p, fmt.Sprintf("try { held.location = %q } catch {}", s.console(theirs)))

	var console *page
	p.until("the console", patience, func() bool {
		infos, err := p.targets()
		must(t, err)
		for _, info := range infos {
			if info.Type == "page" && strings.HasPrefix(info.URL, "http://"+s.proxy.Addr().String()) {
				console = p.attach(info.TargetID, "true")
			}
		}
		return console != nil
	})
	console.do(front)
	console.wants("#status-text", "Live")
	if got := eval[string](console, "String(window.opener)"); got != "null" {
		t.Errorf("the console's window.opener is %s; want null", got)
	}
	if eval[bool](console, "document.querySelector('#swap').open") {
		t.Error("the opener's navigation asks the user; want no question")
	}
}
