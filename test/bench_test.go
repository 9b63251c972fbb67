package test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"ahprelay/test/refclient"
	"ahprelay/test/refhost"
	"ahprelay/test/stack"
)

// benchStack is a stack whose host reaches clients without a tap in between.
func benchStack(b *testing.B) (host string, relayed string, token string) {
	b.Helper()
	h, err := refhost.New(refhost.Config{})
	if err != nil {
		b.Fatal(err)
	}
	server, err := stack.Serve(h)
	if err != nil {
		b.Fatal(err)
	}
	cfg := stack.Config{DataDir: b.TempDir(), Upstream: server.URL()}
	cfg.Agent.Upstream.URL = server.URL()
	s, err := stack.Start(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		s.Close()
		server.Stop()
		_ = h.Close()
	})
	token, err = s.Token(nil)
	if err != nil {
		b.Fatal(err)
	}
	return server.URL(), s.URL(stack.Host), token
}

func benchClient(b *testing.B, url, token, id string) *refclient.Client {
	b.Helper()
	c, err := refclient.Dial(b.Context(), url, refclient.Options{Token: token, NoRecord: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Initialize(b.Context(), refclient.InitializeParams{ClientID: id, ProtocolVersions: []string{"0.9.0"}}); err != nil {
		b.Fatal(err)
	}
	return c
}

// BenchmarkRoundTrip is a request of 512 B and its answer, straight at the
// host and through relay, NATS and host-agent.
func BenchmarkRoundTrip(b *testing.B) {
	host, relayed, token := benchStack(b)
	pad := make([]byte, 420)
	for i := range pad {
		pad[i] = 'x'
	}
	params := json.RawMessage(fmt.Sprintf(`{"channel":"ahp-root://","pad":%q}`, pad))
	for name, url := range map[string]string{"direct": host, "relayed": relayed} {
		b.Run(name, func(b *testing.B) {
			c := benchClient(b, url, token, name)
			for b.Loop() {
				if _, err := c.Call(b.Context(), "ping", params); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFanout is one action of a host to all clients of one chat, in the
// relay, the host-agent, the host and the clients together.
func BenchmarkFanout(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			_, relayed, token := benchStack(b)
			vars := flowVars("demo", "00000000")
			got := make(chan struct{}, 1<<20)
			var clients []*refclient.Client
			for i := range n {
				c, err := refclient.Dial(b.Context(), relayed, refclient.Options{Token: token, NoRecord: true, OnFrame: func(f []byte) {
					if isDelta(f) {
						got <- struct{}{}
					}
				}})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Abort() })
				benchJoin(b, c, i, vars)
				clients = append(clients, c)
			}
			b.ResetTimer()
			turns := (b.N + 999) / 1000
			for turn := range turns {
				if _, err := clients[0].Dispatch(vars["chat"], map[string]any{
					"type": "chat/turnStarted", "turnId": fmt.Sprint(turn), "startedAt": "2026-11-21T12:00:00.000Z",
					"message": map[string]any{"text": "stream 1000 0 300", "origin": map[string]any{"kind": "user"}},
				}); err != nil {
					b.Fatal(err)
				}
				for range 1000 * n {
					<-got
				}
			}
			b.ReportMetric(float64(1000*turns*n)/b.Elapsed().Seconds(), "deliveries/s")
		})
	}
}

func benchJoin(b *testing.B, c *refclient.Client, i int, vars map[string]string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: fmt.Sprint("viewer-", i), ProtocolVersions: []string{"0.9.0"}}); err != nil {
		b.Fatal(err)
	}
	if i == 0 {
		if _, err := c.Call(ctx, "createSession", map[string]any{"channel": vars["session"], "provider": vars["provider"]}); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := c.Subscribe(ctx, vars["chat"]); err != nil {
		b.Fatal(err)
	}
}
