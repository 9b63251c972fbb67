package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/internal/clock"
)

// A Minority selects the behaviour of a relay that is cut off from its cluster's
// majority. The relays on both sides of the cut may then serve the same host, through
// different host-agents.
type Minority string

// Values of Minority. Except with MinorityServe, a relay that is cut off reports that it
// is not ready, and asks its host-agents to connect to other relays.
const (
	MinorityServe Minority = "serve" // serve as before
	MinorityRead  Minority = "read"  // serve, but close a client that requests a change
	MinorityStop  Minority = "stop"  // serve no client
)

func (m Minority) check() error {
	switch m {
	case MinorityServe, MinorityRead, MinorityStop:
		return nil
	}
	return fmt.Errorf("--minority %q: want %s, %s or %s", string(m), MinorityServe, MinorityRead, MinorityStop)
}

// Timing of a cut.
const (
	adviseAfter   = 2 * time.Second  // after a cut of this length, host-agents are asked to move to other relays
	adviseEvery   = 5 * time.Second  // interval between such requests
	minorityAfter = 15 * time.Second // a shorter cut restricts no client
	minorityEvery = time.Second      // interval between checks
	minorityLook  = 3 * time.Second  // timeout for a check
)

// cutReason is the reason in close frames and at /readyz.
const cutReason = "this relay is cut off from the majority of its cluster"

// errCutOff closes a client that requests a change during a cut.
var errCutOff = errors.New(cutReason + "; reconnect to reach another relay")

// A cutWatch detects when the relay is cut off from its cluster's majority.
type cutWatch struct {
	cutOff  func(context.Context) bool // see [embedded.Server.CutOff]
	members func() (connected, all int)
	advise  func()        // called when a cut has lasted adviseAfter, and then each adviseEvery
	changed func(on bool) // called when a cut has lasted minorityAfter, and when it ends
	log     *slog.Logger
	seen    *atomic.Bool // the latest check found a cut

	task
}

// A task is a part of a relay that runs in a goroutine, from start to close.
type task struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (t *task) start(run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	t.running.Go(func() { run(ctx) })
}

func (t *task) close() {
	t.cancel()
	t.running.Wait()
}

// startCutWatch starts the watch. The caller must close it.
func startCutWatch(w *cutWatch) *cutWatch {
	w.start(w.run)
	return w
}

func (w *cutWatch) run(ctx context.Context) {
	var since, advised time.Time // of the current cut, and of the last advice; zero: none
	on, missing := false, ""
	for clock.Sleep(ctx, minorityEvery) {
		if now := missingMajority(w.members()); now != missing {
			if missing = now; now != "" {
				w.log.Warn("store without a majority", "hint", strings.TrimPrefix(now, "; "))
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
			w.turn(on)
		}
	}
}

// turn logs that a long cut has begun or ended, and calls changed.
func (w *cutWatch) turn(on bool) {
	if on {
		w.log.Warn("majority of the cluster unreachable")
	} else {
		w.log.Info("majority of the cluster reachable")
	}
	w.changed(on)
}

// missingMajority returns a text if too few servers are connected for a majority, with the
// remedy, or else "". A server that returns with an empty directory at its old address
// gets its copies from the remaining servers.
func missingMajority(connected, all int) string {
	if connected > all/2 {
		return ""
	}
	return fmt.Sprintf("; %d of %d relays of the cluster are connected, and changes need a majority: start the others; "+
		"if their data is lost for good, start each with relay serve, the same keys, its old --cluster-listen and --cluster-route, and an empty data directory", connected, all)
}

// leave asks host-agents to move to other relays, except with MinorityServe.
func (s *Server) leave() {
	if s.cfg.Minority != MinorityServe {
		s.agents.Advise()
	}
}

// leaving reports whether host-agents should not connect to this relay.
func (s *Server) leaving() bool { return s.cfg.Minority != MinorityServe && s.cutSeen.Load() }

// setCutOff begins or ends the restrictions for clients, except with MinorityServe. At the
// beginning, it asks host-agents to connect to other relays.
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

// unlessCutOff wraps answer. During a cut, the result is that the host is away.
func (s *Server) unlessCutOff(answer func(context.Context, notice.Answer) (notice.Outcome, error)) func(context.Context, notice.Answer) (notice.Outcome, error) {
	return func(ctx context.Context, a notice.Answer) (notice.Outcome, error) {
		if s.cutOff.Load() {
			return notice.Outcome{Result: notice.Away}, nil
		}
		return answer(ctx, a)
	}
}

// stopped reports whether the relay serves no clients because of a cut.
func (s *Server) stopped() bool { return s.cfg.Minority == MinorityStop && s.cutOff.Load() }

// changes reports whether a client's message may change state at the host.
func changes(env *ahp.Envelope) bool {
	if env.Kind == ahp.Response {
		return false
	}
	method, known := ahp.ClientMethods[string(env.Method)]
	return !known || method.Level != ahp.Look
}

// mayChange is changes for a message that waited. A sealed message, which the relay cannot read, may
// change state.
func mayChange(message []byte) bool {
	env, err := ahp.Peek(message)
	return err != nil || changes(&env)
}
