package notify_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
	"ahprelay/broker/store"
	"ahprelay/gateway/admission"
	notifyapi "ahprelay/gateway/api/notify"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/notify"
	"ahprelay/test/memstore"
	"ahprelay/test/natssite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// records implements [notify.Records] for a single relay. It stores no jobs, but gives them to its
// followers.
type records struct {
	memstore.Store

	mu        sync.Mutex
	rev       uint64
	followers map[string]func(store.Record)
}

func (r *records) follow(key string, data []byte) (rev uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rev++
	for prefix, follow := range r.followers {
		if strings.HasPrefix(key, prefix) {
			follow(store.Record{Key: key, Rev: r.rev, Data: data})
		}
	}
	return r.rev
}

func (r *records) Update(key string, change func(old []byte) ([]byte, error)) error {
	var data []byte
	err := r.Store.Update(key, func(old []byte) (next []byte, err error) {
		data, err = change(old)
		return data, err
	})
	if err == nil {
		r.follow(key, data)
	}
	return err
}

func (r *records) Follow(prefix string, follow func(store.Record)) (cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.followers == nil {
		r.followers = map[string]func(store.Record){}
	}
	r.followers[prefix] = follow
	return func() {}
}

func (r *records) Write(_ context.Context, changes ...store.Change) (results []store.Result) {
	for _, c := range changes {
		results = append(results, store.Result{Rev: r.follow(c.Key, c.Data)})
	}
	return results
}

func (*records) Ready() <-chan struct{} {
	ready := make(chan struct{})
	close(ready)
	return ready
}

// accepted is the network of targets that accept each notification.
type accepted struct{}

func (accepted) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// A site is a relay's API for notifications. Tests call its handlers without a network.
type site struct {
	*notifyapi.API
	keys     *auth.Keys
	notifier *notify.Notifier
	mux      *http.ServeMux
	standing func(auth.Client) (auth.Client, bool, error) // returns the token's own authority, except in some tests
	answers  int                                          // answers that the host-agent has received
}

func newSite(t *testing.T) *site {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := registry.LoadRevocations("", nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s := &site{keys: keys, mux: http.NewServeMux(), standing: func(who auth.Client) (auth.Client, bool, error) { return who, true, nil }}
	standing := func(who auth.Client) (auth.Client, bool, error) { return s.standing(who) }
	board := notify.NewBoard()
	s.API = notifyapi.New(notifyapi.Config{
		Caller: authn.New(authn.Config{
			Keys: keys, Revoked: revoked, Limits: admission.New(admission.Limits{}.WithDefaults(), 1<<20), Audit: audit.New(log, nil),
			Count: func(string) {}, Proved: func(*http.Request) {},
		}),
		Board: board, Instance: "relay", Standing: standing, Life: t.Context(),
	})
	s.notifier, err = notify.Start(notify.Config{
		Board: board, Records: new(records), Instance: "relay", Log: log, Standing: standing, Capability: s.Capability,
		Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Transport: accepted{},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.notifier.Close)
	s.Start(s.notifier, func(context.Context, notice.Answer) (notice.Outcome, error) {
		s.answers++
		return notice.Outcome{Result: notice.Given}, nil
	}, nil)
	s.Routes(s.mux)
	return s
}

// send sends a request, with a token of the client if it has a subject.
func (s *site) send(t *testing.T, who auth.Client, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if who.Subject != "" {
		token, err := s.keys.Tokens().IssueClient(who)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	s.mux.ServeHTTP(w, r)
	return w
}

var ada = auth.Client{Tenant: "t", Subject: "ada", Hosts: []string{"laptop", "server"}, Access: auth.AccessApprove, Expires: time.Now().Add(time.Hour)}

// TestAnswerLinkEndsWithTheHost gives an answer by a link from a notification, before and after
// the person's authority loses the host. The relay forwards the first answer to the host-agent,
// which does not know which hosts a person may reach. It refuses the second.
func TestAnswerLinkEndsWithTheHost(t *testing.T) {
	s := newSite(t)
	target, err := s.notifier.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Webhook, URL: "http://127.0.0.1/hook"})
	if err != nil {
		t.Fatal(err)
	}
	yes := notice.Option{ID: "yes", Label: "Allow once"}
	link := s.Capability(&notify.Job{Tenant: "t", Host: "server", Subject: "ada", Target: target.ID, Event: notice.Event{
		ID: notice.ID("s:/1", "q"), Kind: notice.Approval, Session: "s:/1", Answer: notice.Choice, Options: []notice.Option{yes}, At: time.Now(),
	}}, ada, yes)
	post := func() int { return s.send(t, auth.Client{}, "POST", "/api/answers/"+link, "").Code }
	if status := post(); status != http.StatusOK || s.answers != 1 {
		t.Fatalf("the answer got HTTP %d, and the host %d answers; want 200 and 1", status, s.answers)
	}
	now := ada
	now.Hosts = []string{"laptop"}
	s.standing = func(auth.Client) (auth.Client, bool, error) { return now, true, nil }
	if status := post(); status != http.StatusNotFound || s.answers != 1 {
		t.Errorf("without the host, the answer got HTTP %d, and the host %d answers; want 404 and still 1", status, s.answers)
	}
}

// TestLesserTokenDoesNotSeeTheTopic lists a person's notification targets with the token that set
// one for ntfy, and with a token of the same person that may only look. Whoever knows the topic
// can read its messages, which offer answers, so only the first token is shown the topic.
func TestLesserTokenDoesNotSeeTheTopic(t *testing.T) {
	s := newSite(t)
	if _, err := s.notifier.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Ntfy, URL: "http://127.0.0.1/my-topic"}); err != nil {
		t.Fatal(err)
	}
	looks := ada
	looks.Access = auth.AccessRead
	for _, test := range []struct {
		who   auth.Client
		shows bool
	}{{ada, true}, {looks, false}} {
		got := s.send(t, test.who, "GET", "/api/notify", "").Body.String()
		if strings.Contains(got, `"who"`) {
			t.Errorf("a target is shown with the token that set it: %s", got)
		}
		if !strings.Contains(got, `"kind":"ntfy"`) || strings.Contains(got, "my-topic") != test.shows {
			t.Errorf("a token with the level %s gets %s; want the target, and its topic: %v", test.who.Access.Level(), got, test.shows)
		}
	}
}

// TestDeliveriesAreOfPermittedEvents lists a person's mutes and latest deliveries, one of them from a
// private session, with tokens that may see all events, those of another host, those of another session, and
// none of private sessions.
func TestDeliveriesAreOfPermittedEvents(t *testing.T) {
	s := newSite(t)
	if _, err := s.notifier.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Webhook, URL: "http://127.0.0.1/hook"}); err != nil {
		t.Fatal(err)
	}
	s.Board.Take("t", "server", notice.Report{Instance: "agent", Seq: 1, Events: []notice.Event{
		{ID: notice.ID("s:/secret", "done"), Kind: notice.Done, Session: "s:/secret", At: time.Now()},
		{ID: notice.ID("s:/private", "done"), Kind: notice.Done, Session: "s:/private", Only: "ada", At: time.Now()},
	}})
	natssite.Eventually(t, "the events are delivered", func() bool { return len(s.notifier.Deliveries("t", "ada")) == 2 })
	if err := s.notifier.SetTimes(ada, nil, []notify.Mute{{Host: "server", Session: "s:/muted"}}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change         func(*auth.Client)
		shows, private bool
	}{
		"all":             {func(*auth.Client) {}, true, true},
		"another host":    {func(c *auth.Client) { c.Hosts = []string{"laptop"} }, false, false},
		"another session": {func(c *auth.Client) { c.Channels = []string{"s:/other"} }, false, false},
		"the level look":  {func(c *auth.Client) { c.Access = auth.AccessRead }, true, false},
	} {
		who := ada
		test.change(&who)
		got := s.send(t, who, "GET", "/api/notify", "").Body.String()
		if strings.Contains(got, "s:/secret") != test.shows || strings.Contains(got, "s:/private") != test.private {
			t.Errorf("a token for %s gets %s; want the delivery: %v, and that of the private session: %v", name, got, test.shows, test.private)
		}
		if strings.Contains(got, "s:/muted") != test.shows {
			t.Errorf("a token for %s gets %s; want the muted session: %v", name, got, test.shows)
		}
	}
}
