//go:build !race

package browser_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/auth"
	"ahprelay/test/hostrpc"
)

// shared creates a link to a session, as relay share does. It returns the link and its
// token.
func (s *site) shared(session string, access auth.Access) (link, token string) {
	s.t.Helper()
	who := auth.Client{
		Tenant: s.tenant, Subject: "link-1", Hosts: []string{hostName}, Channels: []string{session}, Access: access,
		Expires: time.Now().Add(time.Hour),
	}
	if access == auth.AccessRead {
		who.Audience = who.Subject
	}
	token, err := s.keys.Tokens().IssueClient(who)
	if err != nil {
		s.t.Fatal(err)
	}
	return "http://" + s.proxy.Addr().String() + "/#" + url.Values{"host": {hostName}, "session": {session}, "token": {token}}.Encode(), token
}

// shows reports whether an element is visible now.
func (p *page) shows(selector string) bool {
	return eval[bool](p, "document.querySelector('"+selector+"')?.checkVisibility() ?? false")
}

// TestReadLinkOffersNoActions opens a link at the level look. The page shows the
// session live and no other session. It offers no action that the link forbids.
func TestReadLinkOffersNoActions(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	link, token := s.shared("demo:/live", auth.AccessRead)
	p.do(desktop(), colours("light"), chromedp.Navigate(link))
	p.wants("#status-text", "Live")
	p.wants("#read-only", "read-only")
	p.wants("#looking", "You can look at this, and change nothing.")
	p.grows()
	p.wants("#sessions", "Watching the build")
	if n := eval[int](p, "document.querySelectorAll('#sessions li').length"); n != 1 {
		t.Errorf("%d sessions are listed; want the shared one", n)
	}
	for _, selector := range []string{"#composer", "#stop", "#send", "#new-session", ".question button", "#canvas-close"} {
		if p.shows(selector) {
			t.Errorf("%s is offered to a person who only reads; want it hidden", selector)
		}
	}
	p.hasNoToken(token)
	p.shot("shared")
	p.do(phone())
	p.click("#back")
	p.shot("shared-list")
}

// TestReadLinkShowsQuestionsWithoutButtons opens a link at the level look while an
// agent asks. The page shows the question without buttons.
func TestReadLinkShowsQuestionsWithoutButtons(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("permission")
	p.wants(lastTurn+" .question button.primary", "Allow")

	link, _ := s.shared("demo:/login", auth.AccessRead)
	other := newPage(t)
	other.do(desktop(), chromedp.Navigate(link))
	other.wants(lastTurn+" .tool", "Waits for a user with the right to answer.")
	if other.shows(".question button") {
		t.Error("a person with the level look is shown buttons; want none")
	}
	other.shot("shared-question")
	p.click(lastTurn + " .question button.primary")
	other.wants(lastTurn+" .parts", "Allowed.")
}

// TestTalkLinkIsLimitedToItsSession opens a link with write access. The guest can talk
// in the session, and cannot begin another.
func TestTalkLinkIsLimitedToItsSession(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	link, _ := s.shared("demo:/login", auth.AccessWrite)
	p.do(desktop(), chromedp.Navigate(link))
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	if p.shows("#new-session") || p.shows("#read-only") {
		t.Error("the page offers a new session, or shows read-only; want neither")
	}
}

// TestLinkBelowOperateOffersNoOperation opens a link at the level approve while the agent
// asks, at a host that wants a sign-in. The guest can allow the request as it is. The page
// offers neither a change of the request nor a sign-in, which the host-agent would refuse.
func TestLinkBelowOperateOffersNoOperation(t *testing.T) {
	t.Parallel()
	p, guest := newPage(t), newPage(t)
	s := startStackWith(t, stackConfig{signIn: []hostrpc.SignIn{{Resource: "https://api.example/", Name: "The service"}}})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("danger")
	p.wants(approval, "Edit first")
	p.wants("#sessions .notice", "The service")
	link, _ := s.shared("demo:/login", auth.AccessApprove)
	guest.do(desktop(), chromedp.Navigate(link))
	guest.wants(holds, "Allow")
	if text := guest.text(approval); strings.Contains(text, "Edit first") {
		t.Errorf("a guest with the level approve is offered %q; want no change of the request", text)
	}
	if guest.shows("#sessions .notice") {
		t.Errorf("a guest with the level approve is offered %q; want no sign-in", guest.text("#sessions .notice"))
	}
}

// TestRevokedLinkEndsItsPage revokes a link while a guest's page is open. The page
// closes the session and shows why.
func TestRevokedLinkEndsItsPage(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	link, token := s.shared("demo:/live", auth.AccessRead)
	p.do(desktop(), chromedp.Navigate(link))
	p.wants("#looking", "You can look at this")
	s.revoke(token)
	p.wants("#token-why", "no longer shared with you") // both the connection and the list of hosts may report the end
	p.shot("revoked")
}

// TestPrivateSessionLeavesOthersLists makes a session private to its owner. It
// disappears from another person's list at once, and its address shows that person
// nothing.
func TestPrivateSessionLeavesOthersLists(t *testing.T) {
	t.Parallel()
	p, q := newPage(t), newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	own := s.tokenWith(func(c *auth.Client) { c.Subject, c.Access = "ada", auth.AccessAdmin })
	p.do(desktop(), chromedp.Navigate(s.console(own)))
	q.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	for _, one := range []*page{p, q} {
		one.openSession("demo:/notes")
		one.wants("#turns", "Search understands")
	}
	if n := q.count(".chat-head [data-do=private]"); n != 0 {
		t.Error("a person without the level own is offered private sessions; want no such button")
	}
	p.press(".chat-head details button", "Keep to myself")
	q.holds("the session to be gone", "!document.querySelector('[data-session=\"demo:/notes\"]') && !!document.querySelector('[data-session]')")
	q.do(chromedp.Reload())
	q.wants("#chat-note", "This session cannot be shown")
	if text := q.text("body"); strings.Contains(text, "Search understands") || strings.Contains(text, "Release notes") {
		t.Error("the page shows text from a private session; want none")
	}
	p.wants("#turns", "Search understands")
	p.press(".chat-head details button", "Show to others")
	q.do(chromedp.Reload())
	q.wants("#turns", "Search understands")
}
