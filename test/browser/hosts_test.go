//go:build !race

package browser_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/auth"
)

// TestFirstPaneAgreesWithTheList fails the stream of questions. The list shows that a session
// needs the person, and the pane beside it must not deny that.
func TestFirstPaneAgreesWithTheList(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	front := s.frontOf(func(r *http.Request) bool { return r.URL.Path == "/api/events" })
	_, place, _ := strings.Cut(s.console(s.token(time.Hour)), "#")
	p.do(desktop(), chromedp.Navigate(front+"/#"+place))
	p.wants("#chat-title", "Nothing needs you")
	p.begin()
	p.say("permission")
	p.wants(lastTurn+" .question", "Allow")
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(front+"/#"+place))
	p.holds("a session that needs the person", `document.querySelector("#sessions [data-group=needs] li")`)
	p.wants("#chat-title", "Needs you")
}

// TestOneDeadHostLeavesTheOther shows two hosts in one list. Sessions that need the
// user come first. A host dies: the list marks its sessions, and the other host works
// on. The dead host returns.
func TestOneDeadHostLeavesTheOther(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	const second = "lab"
	other := s.addHost(second)
	s.startAgent(other)
	token := s.tokenWith(func(c *auth.Client) { c.Hosts = []string{hostName, second} })
	p.do(desktop(), chromedp.Navigate("http://"+s.proxy.Addr().String()+"/#token="+token))
	p.wants("#status-text", "2 of 2 hosts live")
	row := func(host, session string) string {
		return fmt.Sprintf(`[data-host-of=%q][data-session=%q]`, host, session)
	}
	in := func(host, session string) {
		t.Helper()
		p.holds("the session", fmt.Sprintf("(b => { b.click(); return true; })(document.querySelector(%s))", js(row(host, session)+" button")))
	}
	for _, host := range []string{hostName, second} {
		p.wants(row(host, "demo:/login"), "Fix the flaky login test")
	}

	// A session that needs the user comes first in the list. A key opens it, even while
	// the page shows another host.
	in(second, "demo:/notes")
	p.wants("#turns", "Search understands")
	p.wants("#chat-sub", second)
	p.say("permission")
	p.wants("#sessions section:first-of-type[data-group=needs] li", "Release notes")
	in(hostName, "demo:/login")
	p.wants("#turns", "Done. 500 runs")
	eval[any](p, `document.activeElement.blur(); dispatchEvent(new KeyboardEvent("keydown", {key: "n", altKey: true}))`)
	p.wants("#chat-title", "Release notes")
	p.wants(lastTurn+" .question", "Allow")

	// A host dies. Its sessions stay in the list and are marked. The other host's sessions
	// work on.
	s.host.kill()
	p.hostIs(hostName, "offline")
	p.holds("its sessions to be as last seen",
		fmt.Sprintf("document.querySelector(%s).hasAttribute('data-stale') && !document.querySelector(%s).hasAttribute('data-stale')", js(row(hostName, "demo:/login")), js(row(second, "demo:/login"))))
	p.wants("#status-text", "Live")
	p.click(lastTurn + " .question button.primary")
	p.wants(lastTurn+" .parts", "Allowed.")
	p.shot("two-hosts-one-away")

	// The dead host returns. The page needs no reload.
	s.host.start()
	p.hostIs(hostName, "online")
	p.holds("its sessions to be live", fmt.Sprintf("!document.querySelector(%s).hasAttribute('data-stale')", js(row(hostName, "demo:/login"))))
	in(hostName, "demo:/login")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")

	// A row keeps its place while the user presses it, although the order changes. The
	// pressed row opens.
	p.say("permission")
	p.wants("#sessions section:first-of-type[data-group=needs] li", "Fix the flaky")
	p.await(lastTurn + " .question button.primary")
	p.whilePressed(row(second, "demo:/notes")+" button", func() {
		eval[any](p, "document.querySelector("+js(lastTurn+" .question button.primary")+").click()")
		p.wants(lastTurn+" .parts", "Allowed.")
		p.holds("nobody to be needed where the row still stands", "!document.querySelector('#sessions [data-group=needs] li .asked button:not(:disabled)')")
	})
	p.wants("#chat-sub", second)
	p.wants("#chat-title", "Release notes")
	p.holds("the row where it belongs", "!document.querySelector('#sessions [data-group=needs]')")

	// The user limits the list to a single host.
	p.click("#filter")
	p.click("#hosts [data-host=" + second + "] button")
	p.until("the other's sessions to go", patience, func() bool {
		return p.count(`[data-host-of="`+hostName+`"]`) == 0 && p.count(`[data-host-of="`+second+`"]`) > 0
	})
	p.enter("#search", "flaky")
	p.until("what was searched for", patience, func() bool { return p.count("#sessions li") == 1 })
	if got := p.text("#sessions li"); !strings.Contains(got, second) {
		t.Errorf("the search shows the session %q; want the second host's", got)
	}
}

// TestStatusBeginsWithHostAndConnection opens the sheet with the status. It must show first whether
// the host is online and since when the page is connected to it, and the ids of the connection last.
func TestStatusBeginsWithHostAndConnection(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(phone(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#status-text", "Live")
	p.click("#status-open")
	const connection = "#hosts [data-host=" + hostName + "] [data-connection]"
	p.wants(connection, "Live since ")
	p.wants("#about", "serverSeq")
	p.holds("the ids last", `document.querySelector("#forget").compareDocumentPosition(document.querySelector("#about")) === Node.DOCUMENT_POSITION_FOLLOWING`)
	p.shot("status")
	s.proxy.cut()
	p.wants(connection, "Connection lost")
	s.proxy.restore()
	p.wants(connection, "Live since ")
}
