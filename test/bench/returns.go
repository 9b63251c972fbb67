package bench

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// returningHosts is the number of host-agents that reconnect to a restarted relay.
const returningHosts = 500

// returns measures the relay's processor time for each host-agent that reconnects after
// the relay has restarted. Each host-agent has its own TCP connection, WebSocket and
// NATS login. All host-agents run in one process, and one process serves as their host.
// The restart of a relay without host-agents gives the cost of the start, which is
// subtracted.
func returns(b *testbed) []Figure {
	n := b.many(returningHosts)
	full := b.siteWithMetrics(siteConfig{name: "full", hosts: n, together: true})
	empty := b.siteWithMetrics(siteConfig{name: "empty"})
	for _, agent := range empty.agents {
		agent.Kill()
	}
	var each, took series
	b.rounds(func(int) {
		start, _ := empty.restart(0)
		all, wall := full.restart(n)
		each, took = append(each, ms(all-start)/float64(n)), append(took, wall.Seconds())
	})
	work := fmt.Sprintf("%d host-agents come back to a restarted relay: ", n)
	return []Figure{
		newFigure(work+"the relay, for each", "ms of processor", each).orient(atMost(1.2)).means("A restart of everything is short."),
		newFigure(work+"all are held, from its start on", "s", took),
	}
}

// A meteredSite is a site with a relay that serves its metrics.
type meteredSite struct {
	*site
	metrics *loadgen.Metrics
}

func (b *testbed) siteWithMetrics(cfg siteConfig) *meteredSite {
	admin := net.JoinHostPort(must.Get(procs.FreeAddress()), relayPort)
	cfg.relayFlags = append(cfg.relayFlags, "--admin-listen", admin)
	return &meteredSite{b.site(cfg), &loadgen.Metrics{URL: "http://" + admin + "/metrics"}}
}

// restart kills the relay, starts it again, and waits until it holds n hosts. It
// returns the time that this took, and the relay's processor time since its start,
// without the time for requests to its metrics.
func (s *meteredSite) restart(n int) (used, took time.Duration) {
	must.Do(s.relay.End(syscall.SIGKILL))
	s.metrics.Started()
	began := time.Now()
	s.startRelay()
	ctx, cancel := context.WithTimeout(s.bed.ctx, readyTime)
	defer cancel()
	must.Do(loadgen.AwaitHeld(ctx, n, s.metrics))
	took = time.Since(began)
	return must.Get(s.metrics.Apart(s.bed.ctx, s.relay.Pid())), took
}
