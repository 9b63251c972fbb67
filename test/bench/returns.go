package bench

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
)

// returningHosts is the number of host-agents that reconnect to a restarted relay.
const returningHosts = 500

// returns measures the relay's processor time for each host-agent that reconnects after
// the relay has restarted. Each host-agent has its own TCP connection, WebSocket and
// NATS login. All host-agents run in one process, and one process serves as their host.
// The restart of a relay without host-agents gives the cost of the start, which is
// subtracted.
func returns(b *testbed) ([]Figure, error) {
	n := b.many(returningHosts)
	full, err := b.siteWithMetrics(siteConfig{name: "full", hosts: n, together: true})
	if err != nil {
		return nil, err
	}
	empty, err := b.siteWithMetrics(siteConfig{name: "empty"})
	if err != nil {
		return nil, err
	}
	for _, agent := range empty.agents {
		agent.Kill()
	}
	var each, took series
	err = b.rounds(func(int) error {
		start, _, err := empty.restart(0)
		if err != nil {
			return err
		}
		all, wall, err := full.restart(n)
		each, took = append(each, ms(all-start)/float64(n)), append(took, wall.Seconds())
		return err
	})
	if err != nil {
		return nil, err
	}
	work := fmt.Sprintf("%d host-agents come back to a restarted relay: ", n)
	return []Figure{
		newFigure(work+"the relay, for each", "ms of processor", each).orient(atMost(1.2)).means("A restart of everything is short."),
		newFigure(work+"all are held, from its start on", "s", took),
	}, nil
}

// A meteredSite is a site with a relay that serves its metrics.
type meteredSite struct {
	*site
	metrics *loadgen.Metrics
}

func (b *testbed) siteWithMetrics(cfg siteConfig) (*meteredSite, error) {
	host, err := procs.FreeAddress()
	if err != nil {
		return nil, err
	}
	admin := net.JoinHostPort(host, relayPort)
	cfg.relayFlags = append(cfg.relayFlags, "--admin-listen", admin)
	s, err := b.site(cfg)
	return &meteredSite{s, &loadgen.Metrics{URL: "http://" + admin + "/metrics"}}, err
}

// restart kills the relay, starts it again, and waits until it holds n hosts. It
// returns the time that this took, and the relay's processor time since its start,
// without the time for requests to its metrics.
func (s *meteredSite) restart(n int) (used, took time.Duration, err error) {
	if err := s.relay.End(syscall.SIGKILL); err != nil {
		return 0, 0, err
	}
	s.metrics.Started()
	began := time.Now()
	if err := s.startRelay(); err != nil {
		return 0, 0, err
	}
	if err := await(s.bed.ctx, func() error { return s.holds(n) }); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	used, err = s.metrics.Apart(s.bed.ctx, s.relay.Pid())
	return used, took, err
}

// holds returns an error unless the relay holds n hosts through its own port.
func (s *meteredSite) holds(n int) error {
	time.Sleep(loadgen.HeldEvery)
	held, err := s.metrics.Held(s.bed.ctx)
	switch {
	case errors.Is(err, loadgen.ErrNoMetric):
		return stop(err)
	case err == nil && held < n:
		return fmt.Errorf("the relay holds %d hosts; want %d", held, n)
	}
	return err
}
