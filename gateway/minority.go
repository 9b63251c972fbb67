package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
)

// A Minority is what a relay does while it is cut off from the majority of its cluster.
// Both sides may then serve the same host, through different host-agents.
type Minority string

// The choices. In each but MinorityServe, the relay asks its host-agents to connect to
// other relays, which they may reach, and is not ready.
const (
	MinorityServe Minority = "serve" // everything goes on
	MinorityRead  Minority = "read"  // clients receive and read; requests that change anything end their connection
	MinorityStop  Minority = "stop"  // no client is served
)

// check reports an unknown choice.
func (m Minority) check() error {
	switch m {
	case MinorityServe, MinorityRead, MinorityStop:
		return nil
	}
	return fmt.Errorf("minority %q: want %s, %s or %s", string(m), MinorityServe, MinorityRead, MinorityStop)
}

// Times of a cut.
const (
	adviseAfter   = 2 * time.Second  // host-agents are advised to move, which costs them a pause
	adviseEvery   = 5 * time.Second  // interval between advices
	minorityAfter = 15 * time.Second // a shorter cut has no effect
	minorityEvery = time.Second      // interval between looks
	minorityLook  = 3 * time.Second  // bound for one look
)

// cutReason is the reason in close frames and at /readyz.
const cutReason = "this relay is cut off from the majority of its cluster"

// errCutOff ends a client that asks for a change during a cut.
var errCutOff = errors.New(cutReason + "; reconnect to reach another relay")

// A cutWatch finds the cuts of a relay.
type cutWatch struct {
	cutOff  func(context.Context) bool // see [embedded.Server.CutOff]
	members func() (connected, all int)
	advise  func()        // a cut has lasted for adviseAfter, and each adviseEvery later
	changed func(on bool) // a cut has lasted for minorityAfter, or has ended
	log     *slog.Logger
	seen    *atomic.Bool // a cut was seen

	end     context.CancelFunc
	running sync.WaitGroup
}

// startCutWatch starts the watch. The caller must close it.
func startCutWatch(w *cutWatch) *cutWatch {
	ctx, end := context.WithCancel(context.Background())
	w.end = end
	w.running.Go(func() { w.run(ctx) })
	return w
}

func (w *cutWatch) close() {
	w.end()
	w.running.Wait()
}

func (w *cutWatch) run(ctx context.Context) {
	tick := time.NewTicker(minorityEvery)
	defer tick.Stop()
	var since, advised time.Time // of the current cut, and of the last advice; zero: none
	on, missing := false, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := missingMajority(w.members()); now != missing {
			if missing = now; now != "" {
				w.log.Warn("store without a majority" + now)
			}
		}
		look, cancel := context.WithTimeout(ctx, minorityLook)
		cut := w.cutOff(look)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case !cut:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		w.seen.Store(!since.IsZero())
		if !since.IsZero() && time.Since(since) >= adviseAfter && time.Since(advised) >= adviseEvery {
			advised = time.Now()
			w.advise()
		}
		if long := !since.IsZero() && time.Since(since) >= minorityAfter; long != on {
			on = long
			w.log.Warn("majority of the cluster", "reachable", !on)
			w.changed(on)
		}
	}
}

// missingMajority describes the lack of a majority of servers, and the remedy, or
// returns "". Servers that come back empty at their old addresses get their copies from
// any that are left.
func missingMajority(connected, all int) string {
	if connected > all/2 {
		return ""
	}
	return fmt.Sprintf("; %d of %d relays of the cluster are connected, and changes need a majority: start the others; "+
		"if their data is lost for good, start each with relay serve, the same keys, its old --cluster-listen and --cluster-route, and an empty data directory", connected, all)
}

// leave advises host-agents to move to other relays. With MinorityServe, it does
// nothing.
func (s *Server) leave() {
	if s.cfg.Minority != MinorityServe {
		s.agents.Advise()
	}
}

// leaving reports whether host-agents should not connect to this relay.
func (s *Server) leaving() bool { return s.cfg.Minority != MinorityServe && s.cutSeen.Load() }

// setCutOff begins or ends the effect of a cut.
func (s *Server) setCutOff(on bool) {
	if s.cfg.Minority == MinorityServe {
		return
	}
	s.cutOff.Store(on)
	if !on {
		return
	}
	s.agents.SendAway()
	if s.cfg.Minority == MinorityStop {
		for _, c := range s.hosts.all() {
			c.end(ahp.CloseHostOffline, closeReason(ahp.CloseHostOffline, cutReason))
		}
	}
}

// unlessCutOff returns answer, except during a cut: then the host counts as away.
func (s *Server) unlessCutOff(answer func(context.Context, notice.Answer) (notice.Outcome, error)) func(context.Context, notice.Answer) (notice.Outcome, error) {
	return func(ctx context.Context, a notice.Answer) (notice.Outcome, error) {
		if s.cutOff.Load() {
			return notice.Outcome{Result: notice.Away}, nil
		}
		return answer(ctx, a)
	}
}

// stopped reports whether a cut keeps the relay from serving any client.
func (s *Server) stopped() bool { return s.cfg.Minority == MinorityStop && s.cutOff.Load() }

// changes reports whether a client's message may change something at the host.
func changes(env *ahp.Envelope) bool {
	if env.Kind == ahp.Response {
		return false
	}
	method, known := ahp.ClientMethods[string(env.Method)]
	return !known || method.Level != ahp.Look
}
