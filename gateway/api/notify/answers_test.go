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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// records implements [notify.Records] for settings. It stores no jobs.
type records struct {
	memstore.Store

	mu        sync.Mutex
	followers map[string]func(store.Record)
}

func (r *records) Update(key string, change func(old []byte) ([]byte, error)) error {
	var data []byte
	err := r.Store.Update(key, func(old []byte) (next []byte, err error) {
		data, err = change(old)
		return data, err
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for prefix, follow := range r.followers {
		if err == nil && strings.HasPrefix(key, prefix) {
			follow(store.Record{Key: key, Rev: 1, Data: data})
		}
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

func (*records) Write(context.Context, ...store.Change) []store.Result { return nil }

func (*records) Ready() <-chan struct{} { return nil }

// TestAnswerLinkEndsWithTheHost gives an answer by a link from a notification, before and after
// the person's authority loses the host. The relay forwards the first answer to the host-agent,
// which does not know which hosts a person may reach. It refuses the second.
func TestAnswerLinkEndsWithTheHost(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := registry.LoadRevocations("", nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	ada := auth.Client{Tenant: "t", Subject: "ada", Hosts: []string{"laptop", "server"}, Access: auth.AccessApprove, Expires: time.Now().Add(time.Hour)}
	now := ada
	standing := func(auth.Client) (auth.Client, bool, error) { return now, true, nil }
	board := notify.NewBoard()
	api := notifyapi.New(notifyapi.Config{
		Caller: authn.New(authn.Config{
			Keys: keys, Revoked: revoked, Limits: admission.New(admission.Limits{}.WithDefaults(), 1<<20), Audit: audit.New(log, nil), Count: func(string) {},
		}),
		Board: board, Instance: "relay", Standing: standing, Life: t.Context(),
	})
	notifier, err := notify.Start(notify.Config{
		Board: board, Records: new(records), Instance: "relay", Log: log, Standing: standing, Capability: api.Capability,
		Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer notifier.Close()
	answers := 0
	api.Start(notifier, func(context.Context, notice.Answer) (notice.Outcome, error) {
		answers++
		return notice.Outcome{Result: notice.Given}, nil
	}, nil)
	target, err := notifier.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Webhook, URL: "http://127.0.0.1/hook"})
	if err != nil {
		t.Fatal(err)
	}
	yes := notice.Option{ID: "yes", Label: "Allow once"}
	link := api.Capability(&notify.Job{Tenant: "t", Host: "server", Subject: "ada", Target: target.ID, Event: notice.Event{
		ID: notice.ID("s:/1", "q"), Kind: notice.Approval, Session: "s:/1", Answer: notice.Choice, Options: []notice.Option{yes}, At: time.Now(),
	}}, ada, yes)
	mux := http.NewServeMux()
	api.Routes(mux)
	post := func() int {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("POST", "/api/answers/"+link, nil))
		return w.Code
	}
	if status := post(); status != http.StatusOK || answers != 1 {
		t.Fatalf("the answer got HTTP %d, and the host %d answers; want 200 and 1", status, answers)
	}
	now.Hosts = []string{"laptop"}
	if status := post(); status != http.StatusNotFound || answers != 1 {
		t.Errorf("without the host, the answer got HTTP %d, and the host %d answers; want 404 and still 1", status, answers)
	}
}
