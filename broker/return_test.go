package broker_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/broker/embedded"
	"ahprelay/test/natssite"
)

// BenchmarkReturn restarts a NATS server to which a thousand host-agents are connected. It reports
// how they reconnect: how many in the busiest 100 ms, after which time all are back, and how many
// have fetched new credentials. Server and host-agents all run on this machine.
func BenchmarkReturn(b *testing.B) {
	for _, outage := range []time.Duration{0, 2 * time.Second, 20 * time.Second} {
		for _, way := range []string{"tcp", "websocket"} {
			b.Run(fmt.Sprintf("outage=%v/%s", outage, way), func(b *testing.B) {
				for b.Loop() {
					r := measureReturn(b, 1000, outage, way == "websocket")
					b.ReportMetric(float64(slices.Max(r.histogram)), "peak/100ms")
					b.ReportMetric(r.last.Seconds(), "s-all-back")
					b.ReportMetric(float64(r.fetched), "fetches")
					b.Logf("in each 100 ms: %v", r.histogram)
				}
			})
		}
	}
}

// TestManyComeBack restarts the server of twenty host-agents. All must reconnect within a
// minute, without fetching new credentials.
func TestManyComeBack(t *testing.T) {
	t.Parallel()
	for _, webSocket := range []bool{false, true} {
		if r := measureReturn(t, 20, 0, webSocket); r.fetched != 0 {
			t.Errorf("WebSocket %v: %d host-agents asked for credentials; want none, those that they had were good", webSocket, r.fetched)
		}
	}
}

// A returned describes how host-agents reconnected after an outage.
type returned struct {
	histogram []int         // number of host-agents that reconnected in each 100 ms after the restart
	last      time.Duration // time until all were connected
	fetched   int           // number of credentials fetched
}

// measureReturn connects n host-agents, stops their server for the duration outage, starts it
// again, and waits until all have reconnected.
func measureReturn(t testing.TB, n int, outage time.Duration, webSocket bool) returned {
	t.Helper()
	s := natssite.New(t)
	url := s.URL()
	var server atomic.Pointer[embedded.Server]
	server.Store(s.Server)
	if webSocket {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if to := server.Load(); to != nil {
				natssite.Pipe(w, r, to)
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		t.Cleanup(front.Close)
		url = "ws" + strings.TrimPrefix(front.URL, "http")
	}
	var fetched atomic.Int32
	var mu sync.Mutex
	var back []time.Time
	all := make(chan struct{})
	for i := range n {
		cfg := s.AgentConfig(t, "acme", fmt.Sprintf("host-%d", i), 0)
		cfg.URLs = []string{url}
		fetch := cfg.Credentials
		cfg.Credentials = func(ctx context.Context) (string, error) {
			fetched.Add(1)
			return fetch(ctx)
		}
		cfg.Events.Reconnected = func(string) {
			mu.Lock()
			defer mu.Unlock()
			if back = append(back, time.Now()); len(back) == n {
				close(all)
			}
		}
		natssite.DialAgent(t, cfg)
	}
	fetched.Store(0)
	server.Store(nil)
	listen := s.Server.Addr().String()
	s.Server.Close()
	time.Sleep(outage)
	s.Start(t, listen)
	server.Store(s.Server)
	up := time.Now()
	select {
	case <-all:
	case <-time.After(natssite.Patience):
		t.Fatalf("%d of %d host-agents are connected after %v; want all", len(back), n, natssite.Patience)
	}
	r := returned{fetched: int(fetched.Load())}
	for _, at := range back {
		after := max(at.Sub(up), 0)
		r.last = max(r.last, after)
		for len(r.histogram) <= int(after/(100*time.Millisecond)) {
			r.histogram = append(r.histogram, 0)
		}
		r.histogram[after/(100*time.Millisecond)]++
	}
	return r
}
