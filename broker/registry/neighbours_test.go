package registry

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"
)

// A namedNeighbours is a Neighbours with routes that a test sets.
type namedNeighbours struct{ routes map[string]string }

func (n *namedNeighbours) Name() string                         { return "own" }
func (n *namedNeighbours) ClusterAddr() string                  { return "" }
func (n *namedNeighbours) Routes() map[string]string            { return n.routes }
func (n *namedNeighbours) Others() []string                     { return nil }
func (n *namedNeighbours) GiveUp(context.Context, string) error { return nil }

// TestRefusalProvesACrashOnlyAfterAnAcceptance loses the route to a relay whose address refuses
// connections. If the address accepted a connection before, the relay must count as crashed at
// once. If not, it must count as crashed only when it is silent in the store too.
func TestRefusalProvesACrashOnlyAfterAnAcceptance(t *testing.T) {
	t.Parallel()
	for _, accepts := range []bool{true, false} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if !accepts {
			_ = l.Close()
		}
		near := &namedNeighbours{routes: map[string]string{"b": "127.0.0.1"}}
		r := &Registry{beatEvery: beatEvery, life: t.Context(), cfg: Config{Instance: "me", Neighbours: near, LeaseTTL: DefaultLeaseTTL, Log: slog.New(slog.DiscardHandler)}}
		r.wire()
		r.relays.peers = map[string]*peer{"other": {session: session{Instance: "other", Node: "b", Port: port}}}
		r.relays.gone = map[string]time.Time{}
		now := time.Now()
		// turn lets the prober look once for lost relays, and waits for its probes.
		turn := func() {
			now = now.Add(acceptEvery)
			r.prober.probeLost(now)
			ended := make(chan struct{})
			go func() { r.running.Wait(); close(ended) }()
			for {
				select {
				case p := <-r.prober.probed:
					r.prober.take(p)
				case <-ended:
					return
				}
			}
		}
		turn()
		turn()
		if !accepts {
			r.relays.peers["other"].missed = absentAfter + 1
			turn()
			if len(r.relays.gone) != 0 {
				t.Error("a silent relay with a server connection counts as crashed; want it present")
			}
			r.relays.peers["other"].missed = 0
		}
		near.routes = nil
		if accepts {
			turn()
			if len(r.relays.gone) != 0 {
				t.Error("a relay whose address accepts connections counts as crashed; want it present")
			}
			_ = l.Close()
		}
		turn()
		if _, gone := r.relays.gone["other"]; gone != accepts {
			t.Errorf("a refusing relay, whose address accepted a connection before: %v, counts as crashed: %v; want both the same", accepts, gone)
		}
		if accepts {
			continue
		}
		r.relays.peers["other"].missed = absentAfter + 1
		turn()
		if _, gone := r.relays.gone["other"]; !gone {
			t.Error("a relay that refuses connections and is silent in the store counts as present; want it crashed")
		}
	}
}
