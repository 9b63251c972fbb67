package notify_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
)

// The test of a target names each part that its notifications lack. Once the relay
// knows its public URL, notifications have links and buttons.
func TestTargetsTestNamesMissingParts(t *testing.T) {
	got := make(chan string, 4)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
	}))
	defer server.Close()
	board := notify.NewBoard()
	notifier, err := notify.Start(notify.Config{
		Board: board, Records: newShelf().view(), Instance: "me", Log: slog.New(slog.DiscardHandler),
		Standing:   func(who auth.Client) (auth.Client, bool, error) { return who, true, nil },
		Capability: func(_ *notify.Job, _ auth.Client, o notice.Option) string { return "cap-" + o.ID },
		Private:    []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(notifier.Close)
	viewer := ada
	viewer.Access = auth.AccessTalk
	missing := func(target notify.Target, who auth.Client) (words []string) {
		target.URL = server.URL + "/topic"
		target, err := notifier.SetTarget(t.Context(), who, target)
		if err != nil {
			t.Fatal(err)
		}
		d, err := notifier.Try(t.Context(), who, target.ID)
		if err != nil || d.Outcome != notify.Delivered {
			t.Fatalf("Try = %+v, %v; want it delivered", d, err)
		}
		<-got
		for _, m := range d.Missing {
			what, _, _ := strings.Cut(m, ":")
			words = append(words, what)
		}
		return words
	}
	check := func(got []string, want string) {
		t.Helper()
		if strings.Join(got, "; ") != want {
			t.Errorf("the missing parts of notifications are %q; want %q", got, want)
		}
	}
	check(missing(notify.Target{Kind: notify.Ntfy, Kinds: []notice.Kind{notice.Done}}, viewer),
		"No link and no buttons; No question, and no button to allow; No approvals; No questions")
	check(missing(notify.Target{Kind: notify.Ntfy, Details: true}, ada), "No link and no buttons")

	notifier.LearnURL("https://relay.example.com")
	check(missing(notify.Target{Kind: notify.Slack, Details: true}, ada), "")
	e := hostile()
	board.Take("t", "h", notice.Report{Instance: "a", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}})
	for {
		var m struct {
			Click   string
			Actions []struct{ URL string }
		}
		if body := <-got; json.Unmarshal([]byte(body), &m) != nil || m.Actions == nil {
			continue // the request to Slack
		}
		if len(m.Actions) == 0 || !strings.HasPrefix(m.Click, "https://relay.example.com/#") || !strings.HasPrefix(m.Actions[0].URL, "https://relay.example.com/api/answers/") {
			t.Errorf("ntfy got %+v; want links and buttons", m)
		}
		return
	}
}

// LearnURL adopts the first public URL, and a relay that starts later reads it from the
// records. A configured URL takes precedence.
func TestPublicURLIsLearnedOnce(t *testing.T) {
	shelf := newShelf()
	start := func(configured string) *notify.Notifier {
		n, err := notify.Start(notify.Config{
			Board: notify.NewBoard(), Records: shelf.view(), Instance: "me", Log: slog.New(slog.DiscardHandler), PublicURL: configured, Contact: "mailto:ops@example.com",
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		return n
	}
	n := start("")
	for _, address := range []string{"http://relay.example.com", "https://localhost:8443", "https://127.0.0.1", "https://[::1]:1", "https://user@relay.example.com", "://"} {
		if n.LearnURL(address); n.PublicURL() != "" {
			t.Fatalf("the notifier has learned %s; want no URL", n.PublicURL())
		}
	}
	n.LearnURL("https://relay.example.com")
	n.LearnURL("https://other.example.com")
	for name, got := range map[string]string{"this relay": n.PublicURL(), "a new relay": start("").PublicURL()} {
		if got != "https://relay.example.com" {
			t.Errorf("%s: %q; want the first public address", name, got)
		}
	}
	configured := start("https://configured.example.com")
	configured.LearnURL("https://relay.example.com")
	if got := configured.PublicURL(); got != "https://configured.example.com" {
		t.Errorf("the public address is %q after LearnURL; want the configured https://configured.example.com", got)
	}
}
