package bench

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
)

// returningHosts is the number of host-agents that come back to a restarted relay.
const returningHosts = 500

// returns measures the relay's processor time for each host-agent that comes back after a
// restart of the relay. Each host-agent has its own TCP connection, WebSocket and NATS
// login. The host-agents share a process, and their hosts are one process. The cost of a
// relay's start is that of a relay without host-agents.
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

// A meteredSite is a site whose relay shows its metrics.
type meteredSite struct {
	*site
	metrics string // URL
}

func (b *testbed) siteWithMetrics(cfg siteConfig) (*meteredSite, error) {
	host, err := procs.FreeAddress()
	if err != nil {
		return nil, err
	}
	admin := net.JoinHostPort(host, relayPort)
	cfg.relayFlags = append(cfg.relayFlags, "--admin-listen", admin)
	s, err := b.site(cfg)
	return &meteredSite{s, "http://" + admin + "/metrics"}, err
}

// restart kills and starts the relay, and waits until it holds n hosts. It returns the
// processor time of the relay since its start, and the time until then.
func (s *meteredSite) restart(n int) (used, took time.Duration, err error) {
	if err := s.relay.End(syscall.SIGKILL); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := s.startRelay(); err != nil {
		return 0, 0, err
	}
	if err := await(s.bed.ctx, func() error { return s.holds(n) }); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	used, err = loadgen.CPU(s.relay.Pid())
	return used, took, err
}

var leasesHeard = regexp.MustCompile(`(?m)^ahp_relay_registry_leases_heard (\d+)$`)

// holds returns an error until the relay holds n hosts through its own port.
func (s *meteredSite) holds(n int) error {
	time.Sleep(50 * time.Millisecond) // a scrape costs the relay processor time
	response, err := s.http.Get(s.metrics)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	found := leasesHeard.FindSubmatch(text)
	if found == nil {
		return stop(fmt.Errorf("%s has no %s", s.metrics, leasesHeard))
	}
	if held, err := strconv.Atoi(string(found[1])); err != nil || held < n {
		return fmt.Errorf("the relay holds %s hosts; want %d", found[1], n)
	}
	return nil
}
