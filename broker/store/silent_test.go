package store_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker"
	"ahprelay/broker/store"
	"ahprelay/test/natssite"
)

// A silentStore is a NATS server that behaves like a cluster without a leader: it has a stream, and
// stops answering once a consumer requests messages.
type silentStore struct {
	conn *nats.Conn

	mu     sync.Mutex
	silent bool
	asked  chan string // requests that get no answer
}

// newSilentStore starts a silentStore, and returns it with its URL.
func newSilentStore(t *testing.T) (s *silentStore, url string) {
	t.Helper()
	nats, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	nats.Start()
	t.Cleanup(func() {
		nats.Shutdown()
		nats.WaitForShutdown()
	})
	if !nats.ReadyForConnections(natssite.Patience) {
		t.Fatal("the NATS server is not ready after natssite.Patience; want it ready")
	}
	s = &silentStore{asked: make(chan string, 1000)}
	if s.conn, err = natssite.Connect(nats.ClientURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.conn.Close)
	if _, err := s.conn.Subscribe("$JS.API.>", s.answer); err != nil {
		t.Fatal(err)
	}
	return s, nats.ClientURL()
}

func (s *silentStore) answer(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := strings.TrimPrefix(m.Subject, "$JS.API.")
	if strings.HasPrefix(what, "CONSUMER.MSG.NEXT.") {
		s.silent = true // the consumer gets no heartbeats either
		return
	}
	if s.silent {
		s.asked <- what
		return
	}
	answer := map[string]any{"error": map[string]any{"code": 404, "description": "not here"}}
	switch {
	case strings.HasPrefix(what, "STREAM.INFO."):
		answer = map[string]any{"config": jetstream.StreamConfig{Name: strings.TrimPrefix(what, "STREAM.INFO.")}, "created": time.Now(), "state": map[string]any{}}
	case strings.HasPrefix(what, "STREAM.MSG.GET."):
		answer = map[string]any{"error": jetstream.APIError{Code: 404, ErrorCode: jetstream.JSErrCodeMessageNotFound}}
	case strings.HasPrefix(what, "CONSUMER.CREATE."):
		var ask struct {
			Stream string         `json:"stream_name"`
			Config map[string]any `json:"config"`
		}
		_ = json.Unmarshal(m.Data, &ask)
		parts := strings.Split(what, ".")
		answer = map[string]any{"stream_name": ask.Stream, "name": parts[3], "config": ask.Config, "created": time.Now()}
	}
	body, _ := json.Marshal(answer)
	_ = m.Respond(body)
}

// TestStopsWhileNobodyLeads closes a store while its request for a new consumer has no answer.
// Close must not wait for the answer.
func TestStopsWhileNobodyLeads(t *testing.T) {
	t.Parallel()
	silent, url := newSilentStore(t)
	keys := natssite.NewKeys(t)
	sealer, err := keys.Sealer("records")
	if err != nil {
		t.Fatal(err)
	}
	conn := natssite.DialRelay(t, broker.RelayDialConfig{URL: url, Keys: keys, Instance: "r"})
	store, err := store.Start(t.Context(), store.Config{Conn: conn, Sealer: sealer, Name: "records"})
	if err != nil {
		t.Fatal(err)
	}
	for !strings.HasPrefix(natssite.Next(t, "question for messages", silent.asked), "CONSUMER.CREATE.") {
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		store.Close()
	}()
	select {
	case <-closed:
	case <-time.After(20 * time.Second): // a single request may take 10 s
		t.Error("Close has not returned after 20 s; want it earlier")
		<-closed
	}
}
