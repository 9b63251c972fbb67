package notify_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
)

// startSending starts a Notifier that may send to loopback addresses, and returns it
// with its Board.
func startSending(t *testing.T, mail *notify.MailConfig) (*notify.Notifier, *notify.Board) {
	board := notify.NewBoard()
	notifier, err := notify.Start(notify.Config{
		Board: board, Records: newShelf().view(), Instance: "me", Log: slog.New(slog.DiscardHandler), PublicURL: "https://relay.example.com", Mail: mail,
		Standing:   func(who auth.Client) (auth.Client, bool, error) { return who, true, nil },
		Capability: func(_ *notify.Job, _ auth.Client, o notice.Option) string { return "cap-" + o.ID },
		Private:    []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(notifier.Close)
	return notifier, board
}

// hostile returns an event with markup and line breaks in its texts.
func hostile() notice.Event {
	e := event(1, notice.Approval)
	e.Title, e.Text, e.Detail = "<!channel> *fix*\r\nBcc: eve@example.com", "Run <https://evil.example|this>", "rm -rf /"
	e.Answer, e.Options = notice.Choice, []notice.Option{{ID: "yes", Label: "Allow"}, {ID: "no", Label: "Deny", Deny: true}}
	e.Fit()
	return e
}

// TestTargetsReceiveTheirFormat sends an event with markup to ntfy, Slack and a
// webhook. Each gets its own format, in which the markup has no effect.
func TestTargetsReceiveTheirFormat(t *testing.T) {
	type request struct {
		path, body string
		header     http.Header
	}
	got := make(chan request, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- request{r.URL.Path, string(body), r.Header}
	}))
	defer server.Close()
	notifier, board := startSending(t, nil)
	var secret string
	for _, w := range []notify.Target{
		{Kind: notify.Ntfy, URL: server.URL + "/topic", Token: "tk_1", Details: true},
		{Kind: notify.Slack, URL: server.URL + "/slack", Details: true},
		{Kind: notify.Webhook, URL: server.URL + "/hook"},
	} {
		w, err := notifier.SetTarget(t.Context(), ada, w)
		if err != nil {
			t.Fatal(err)
		}
		secret += w.Secret
	}
	e := hostile()
	e.Chat = "c:/2"
	board.Take("t", "h", notice.Report{Instance: "a", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}})
	for range 3 {
		r := <-got
		switch r.path {
		case "/":
			var m struct {
				Topic, Title, Message, Click string
				Actions                      []struct{ Label, URL string }
			}
			if err := json.Unmarshal([]byte(r.body), &m); err != nil || m.Topic != "topic" || r.header.Get("Authorization") != "Bearer tk_1" ||
				len(m.Actions) != 2 || m.Actions[0].URL != "https://relay.example.com/api/answers/cap-yes" || !strings.Contains(m.Message, "rm -rf /") ||
				m.Click != "https://relay.example.com/#host=h&session=s%3A%2F1" {
				t.Errorf("ntfy got %s; want the topic, two actions, the command and the link", r.body)
			}
		case "/slack":
			var m struct{ Text string }
			if err := json.Unmarshal([]byte(r.body), &m); err != nil || strings.Contains(m.Text, "<!") || strings.Contains(m.Text, "<https://evil") || !strings.Contains(m.Text, "&lt;!channel&gt;") {
				t.Errorf("Slack got %s; want the agent's text with escaped markup", r.body)
			}
		case "/hook":
			key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
			if err != nil {
				t.Fatal(err)
			}
			mac := hmac.New(sha256.New, key)
			fmt.Fprintf(mac, "%s.%s.%s", r.header.Get("webhook-id"), r.header.Get("webhook-timestamp"), r.body)
			if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.header.Get("webhook-signature") != want {
				t.Errorf("webhook is signed %s; want %s", r.header.Get("webhook-signature"), want)
			}
			if !strings.Contains(r.body, `"chat":"c:/2"`) {
				t.Errorf("the webhook got %s; want the question's chat", r.body)
			}
			// This webhook gets no details, so it does not show the call, and may only
			// refuse.
			if strings.Contains(r.body, "rm -rf") || strings.Contains(r.body, "cap-yes") || !strings.Contains(r.body, "cap-no") {
				t.Errorf("the webhook got %s; want no details, and only the refusal", r.body)
			}
		}
	}
}

// TestNotificationsOfferOnceThenDeny: a host-agent offers to allow for the session, to
// refuse, and to allow once. The notification offers to allow once and to refuse, in
// this order. If the call is risky or not shown whole, the notification offers only to
// refuse.
func TestNotificationsOfferOnceThenDeny(t *testing.T) {
	session, once, deny := notice.Option{ID: "allow-session", Label: "Allow in this Session"}, notice.Option{ID: "allow-once", Label: "Allow Once"}, notice.Option{ID: "skip", Label: "Skip", Deny: true}
	for _, test := range []struct {
		risky, hidden bool
		want          []string
	}{
		{false, false, []string{"Allow Once", "Skip"}},
		{true, false, []string{"Skip"}},
		{false, true, []string{"Skip"}},
	} {
		got := make(chan []byte, 2)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- body
		}))
		notifier, board := startSending(t, nil)
		for _, w := range []notify.Target{{Kind: notify.Webhook, URL: server.URL + "/hook", Details: true}, {Kind: notify.Ntfy, URL: server.URL + "/topic", Details: true}} {
			if _, err := notifier.SetTarget(t.Context(), ada, w); err != nil {
				t.Fatal(err)
			}
		}
		e := event(1, notice.Approval)
		e.Risky, e.Hidden, e.Answer, e.Options = test.risky, test.hidden, notice.Choice, []notice.Option{session, deny, once}
		board.Take("t", "h", notice.Report{Instance: "a", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}})
		for range 2 {
			var m struct {
				Actions []struct{ Label string }                   // in the request to ntfy
				Data    struct{ Answers []struct{ Label string } } // in the webhook's request
			}
			body := <-got
			if err := json.Unmarshal(body, &m); err != nil {
				t.Fatal(err)
			}
			var labels []string
			for _, a := range append(m.Actions, m.Data.Answers...) {
				labels = append(labels, a.Label)
			}
			if !slices.Equal(labels, test.want) {
				t.Errorf("for a question with risky %v and hidden %v, the notification offers %q; want %q", test.risky, test.hidden, labels, test.want)
			}
		}
		server.Close()
	}
}

// TestLessMutesNothingThatComesLater: a token with little authority sets a mute or
// quiet hours, and a token with more authority adds a target later. The times do not
// apply to that target, and are shown only to the token that set them.
func TestLessMutesNothingThatComesLater(t *testing.T) {
	less := ada
	less.ID, less.Access = "2", auth.AccessRead
	for what, times := range map[string]struct {
		quiet *notify.Quiet
		mutes []notify.Mute
	}{
		"mute":  {mutes: []notify.Mute{{Host: "h"}}},
		"quiet": {quiet: &notify.Quiet{From: "00:00", To: "23:59", Zone: "UTC"}},
	} {
		synctest.Test(t, func(t *testing.T) { // it is midnight UTC
			d := newFixture(t)
			defer d.stop()
			if err := d.SetTimes(less, times.quiet, times.mutes); err != nil {
				t.Fatal(err)
			}
			var ways []string
			for url, who := range map[string]auth.Client{one: ada, two: less} {
				way, err := d.SetTarget(t.Context(), who, notify.Target{Kind: notify.Webhook, URL: url})
				if err != nil {
					t.Fatal(err)
				}
				ways = append(ways, way.ID)
			}
			d.says([]notice.Event{event(1, notice.Approval)})
			time.Sleep(time.Minute)
			d.want("127.0.0.1", 1)
			d.want("127.0.0.2", 0)
			p := d.Person("t", "ada")
			if quiet, mutes := d.TimesFor(&p, ada); quiet != nil || mutes != nil {
				t.Errorf("%s: the token with more rights sees the quiet hours %v and the mutes %v; want none from the token with fewer rights", what, quiet, mutes)
			}
			if quiet, mutes := d.TimesFor(&p, less); quiet == nil && mutes == nil {
				t.Errorf("%s: the token that made the quiet hours and mutes does not see them; want them", what)
			}

			// The token with more authority sets mutes for all targets. From then on,
			// the token with little authority cannot change them.
			err := errors.Join(d.SetTimes(ada, nil, []notify.Mute{{Host: "other"}}), d.RemoveTarget(ada, ways[0]), d.RemoveTarget(ada, ways[1]))
			if err != nil {
				t.Errorf("%s: the token with more rights changes its own settings: %v; want no error", what, err)
			}
			if err := d.SetTimes(less, nil, nil); !errors.Is(err, notify.ErrLess) {
				t.Errorf("%s: the token with fewer rights clears the settings: %v; want ErrLess", what, err)
			}
		})
	}
}

// TestTokenStaysWithItsServer changes the URL of a target. The target keeps its token
// at the same server, and loses it at a new server unless the change brings a new
// token.
func TestTokenStaysWithItsServer(t *testing.T) {
	notifier, _ := startSending(t, nil)
	for _, test := range []struct{ url, token, want string }{
		{"", "", "tk_1"},
		{"http://127.0.0.1:8001/other", "", "tk_1"},
		{"http://127.0.0.1:8002/topic", "", ""},
		{"http://127.0.0.2:8001/topic", "", ""},
		{"http://127.0.0.2:8001/topic", "tk_2", "tk_2"},
	} {
		way, err := notifier.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Ntfy, URL: "http://127.0.0.1:8001/topic", Token: "tk_1"})
		if err != nil {
			t.Fatal(err)
		}
		changed, err := notifier.SetTarget(t.Context(), ada, notify.Target{ID: way.ID, Kind: notify.Ntfy, URL: test.url, Token: test.token})
		if err != nil || changed.Token != test.want {
			t.Errorf("%+v: the changed target's token is %q, %v; want %q", test, changed.Token, err, test.want)
		}
		if err := notifier.RemoveTarget(ada, way.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLessChangesNothing: a token with less authority than the target's cannot change,
// remove or mute the target. It can add its own target.
func TestLessChangesNothing(t *testing.T) {
	hook := notify.Target{Kind: notify.Webhook, URL: "http://127.0.0.1:8001/"}
	for what, less := range map[string]func(*auth.Client){
		"look":         func(c *auth.Client) { c.Access = auth.AccessRead },
		"one session":  func(c *auth.Client) { c.Channels = []string{"demo:/1"} },
		"other hosts":  func(c *auth.Client) { c.Hosts = []string{"lab-*"} },
		"some methods": func(c *auth.Client) { c.Methods = []string{"subscribe"} },
		"connections":  func(c *auth.Client) { c.MaxConnections = 1 },
	} {
		notifier, _ := startSending(t, nil)
		way, err := notifier.SetTarget(t.Context(), ada, hook)
		if err != nil {
			t.Fatal(err)
		}
		who := ada
		less(&who)
		refused := func(did string, err error) {
			t.Helper()
			if !errors.Is(err, notify.ErrLess) {
				t.Errorf("%s: %s: %v; want %v", what, did, err, notify.ErrLess)
			}
		}
		change := hook
		change.ID, change.URL = way.ID, "http://127.0.0.1:8001/mallory"
		_, err = notifier.SetTarget(t.Context(), who, change)
		refused("change", err)
		refused("remove", notifier.RemoveTarget(who, way.ID))
		refused("mute", notifier.SetTimes(who, nil, []notify.Mute{{Host: "h"}}))
		refused("quiet", notifier.SetTimes(who, &notify.Quiet{From: "00:00", To: "23:59", Zone: "UTC"}, nil))
		own, err := notifier.SetTarget(t.Context(), who, hook)
		if err != nil {
			t.Errorf("%s: a target made by the token with fewer rights: %v; want no error", what, err)
		}
		if err := errors.Join(notifier.RemoveTarget(ada, own.ID), notifier.SetTimes(ada, nil, nil), notifier.RemoveTarget(ada, way.ID)); err != nil {
			t.Errorf("%s: changes by the token with more rights: %v; want no error", what, err)
		}
	}
}

// TestMailArrives: a minimal server receives the mail about an event with line breaks
// in its texts. The texts add no header. SetTarget refuses an address with a line
// break.
func TestMailArrives(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mails := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		lines := bufio.NewScanner(conn)
		fmt.Fprint(conn, "220 here\r\n")
		var mail strings.Builder
		for data := false; lines.Scan(); {
			line := lines.Text()
			switch {
			case data && line == ".":
				data = false
				mails <- mail.String()
				fmt.Fprint(conn, "250 ok\r\n")
			case data:
				mail.WriteString(line + "\n")
			case line == "DATA":
				data = true
				fmt.Fprint(conn, "354 go on\r\n")
			case line == "QUIT":
				fmt.Fprint(conn, "221 bye\r\n")
				return
			default:
				fmt.Fprint(conn, "250 ok\r\n")
			}
		}
	}()
	cfg := &notify.MailConfig{URL: "smtp://" + l.Addr().String() + "?tls=no", From: "relay@example.com"}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	notifier, board := startSending(t, cfg)
	if _, err := notifier.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Mail, To: "ada@example.com\r\nBcc: eve@example.com"}); err == nil {
		t.Error("a mail address with a line break is accepted; want an error")
	}
	if _, err := notifier.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Mail, To: "ada@example.com", Details: true}); err != nil {
		t.Fatal(err)
	}
	e := hostile()
	board.Take("t", "h", notice.Report{Instance: "a", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}})
	select {
	case mail := <-mails:
		head, body, _ := strings.Cut(mail, "\n\n")
		if strings.Contains(head, "\nBcc:") || !strings.Contains(head, "<ada@example.com>") || !strings.Contains(body, "rm -rf /") {
			t.Errorf("the mail is\n%s\nwant ada's address, the command, and no further header", mail)
		}
	case <-time.After(time.Minute):
		t.Errorf("no mail within a minute; deliveries: %+v", notifier.Deliveries("t", "ada"))
	}
	_ = l.Close()
	<-done
}

// TestTenantTargetsAreToldOnce: two relays have the same target for a tenant. The
// target gets each event with its kinds and hosts once, without answers. It is no
// person's target.
func TestTenantTargetsAreToldOnce(t *testing.T) {
	got := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
	}))
	defer server.Close()
	config := `[{"tenant":"t","kind":"slack","url":"` + server.URL + `/slack","kinds":["approval","done"],"hosts":["h*"],"details":true}]`
	ways, err := notify.ReadTenantTargets([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	shared := newShelf()
	var boards []*notify.Board
	for _, name := range []string{"one", "two"} {
		board := notify.NewBoard()
		notifier, err := notify.Start(notify.Config{
			Board: board, Records: shared.view(), Instance: name, Log: slog.New(slog.DiscardHandler), Targets: ways,
			Standing:   func(who auth.Client) (auth.Client, bool, error) { return who, false, nil },
			Capability: func(*notify.Job, auth.Client, notice.Option) string { return "" },
			Private:    []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(notifier.Close)
		if n := len(notifier.Person("t", "").Targets); n != 0 {
			t.Errorf("Person with an empty subject has %d targets; want 0", n)
		}
		boards = append(boards, board)
	}
	say := func(host string, seq uint64, e notice.Event) {
		for _, b := range boards {
			b.Take("t", host, notice.Report{Instance: "a", Seq: seq, Events: []notice.Event{e}})
		}
	}
	say("other", 1, event(1, notice.Done))
	say("host", 1, event(2, notice.Failed))
	say("host", 2, event(3, notice.Done))
	say("host", 3, event(4, notice.Done))
	for range 2 {
		if body := <-got; !strings.Contains(body, "host: is done") {
			t.Errorf("the tenant's target receives %s; want that the host's turn is done", body)
		}
	}
	if len(got) != 0 {
		t.Errorf("the tenant's target receives a third notification: %s; want two", <-got)
	}
	for _, bad := range []string{`{}`, `[{"kind":"webpush","url":"https://example.com"}]`, `[{"kind":"webhook","url":"https://example.com"}]`, `[{"kind":"slack","uri":"x"}]`} {
		targets, err := notify.ReadTenantTargets([]byte(bad))
		if err == nil {
			_, err = notify.Start(notify.Config{Board: notify.NewBoard(), Records: newShelf().view(), Log: slog.New(slog.DiscardHandler), Targets: targets})
		}
		if err == nil {
			t.Errorf("the targets %s are accepted; want an error", bad)
		}
	}
}
