package broker_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/test/natssite"
)

// A front is a relay's public port, which connects WebSockets to a NATS server. It counts
// handshakes.
type front struct {
	*httptest.Server
	handshakes atomic.Int32

	mu    sync.Mutex // guards the fields below
	conns []net.Conn
}

func newFront(t *testing.T, to *embedded.Server, place string) *front {
	f := &front{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.handshakes.Add(1)
		w.Header().Set(broker.PlaceHeader, place)
		natssite.Pipe(w, r, to)
	}))
	f.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.conns = append(f.conns, conn)
		return ctx
	}
	f.Start()
	t.Cleanup(f.cut)
	return f
}

func (f *front) url() string { return "ws" + strings.TrimPrefix(f.URL, "http") }

// cut closes the port and all its connections.
func (f *front) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.Close()
}

// advise sends a ping with MoveAdvice, as an unmasked frame, on all connections.
func (f *front) advise(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		if _, err := conn.Write(append([]byte{0x89, byte(len(broker.MoveAdvice))}, broker.MoveAdvice...)); err != nil {
			t.Error(err)
		}
	}
}

// TestSecondConnectionIsUsed connects a host-agent that knows three relays. Its second connection
// must lead to a relay in a different place, without connecting to NATS. When the first connection
// is lost, the host-agent must use the second at once, without a further handshake, and open
// another second connection. It must move to that one on the advice of its relay.
func TestSecondConnectionIsUsed(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	own, near, far := newFront(t, s.Server, "eu/1"), newFront(t, s.Server, "eu/1"), newFront(t, s.Server, "eu/2")
	cfg := s.AgentConfig(t, "acme", "laptop", time.Hour)
	cfg.URLs, cfg.Compress = []string{own.url(), near.url(), far.url()}, broker.Zstandard
	second := make(chan string, 100)
	cfg.Events.Standby = func(url string) { second <- url }
	agent := natssite.DialAgent(t, cfg)
	await := func(want string) {
		t.Helper()
		select {
		case got := <-second:
			if got != want {
				t.Fatalf("the second connection leads to %q; want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no second connection to %q after a minute; want one", want)
		}
	}
	await(far.url())
	if n := s.Server.Connections("acme"); n != 1 {
		t.Errorf("the host-agent has %d connections to NATS; want one", n)
	}
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.out")
	own.cut()
	natssite.Eventually(t, "the second connection is in use", func() bool { return agent.Leads(far.url()) })
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.out")
	if n := far.handshakes.Load(); n != 1 {
		t.Errorf("the host-agent made %d handshakes at the second relay; want one", n)
	}
	await("")
	await(near.url()) // a relay in another place than the current one
	far.advise(t)
	natssite.Eventually(t, "the host-agent has moved on its relay's advice", func() bool { return agent.Leads(near.url()) })
}
