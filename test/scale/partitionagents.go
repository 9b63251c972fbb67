package scale

import (
	"context"
	"strings"
	"time"

	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
)

// A surrounding is the host-agents that a divided cluster serves beside the measured
// one. They have no hosts.
type surrounding struct {
	n, home int // all, and those at the relay that is isolated
	stop    func()

	viewer string // token that lists their hosts
	relays []*gateway.Relay
	began  time.Time
	away   string // what the URL of a host at the isolated relay begins with
	before map[string]time.Time
}

// surround starts n host-agents, and waits until all relays list their hosts.
func (p *divided) surround(ctx context.Context, c *Cluster, n int, fleet StartAgents) (s *surrounding, err error) {
	s = &surrounding{n: n, relays: p.relays, began: time.Now()}
	if s.viewer, err = viewerOf(p.keys); err != nil {
		return nil, err
	}
	a := Agents{Keys: p.keys, Count: n}
	for _, r := range p.relays {
		a.URLs = append(a.URLs, r.URL())
	}
	if s.stop, err = fleet(ctx, c.KeyDir(), a); err != nil {
		return nil, err
	}
	if _, err := s.online(ctx, p.relays, everywhere); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func everywhere(*hostsapi.Info) bool { return true }

// online waits until each of some relays lists all hosts as online, at places that fit.
func (s *surrounding) online(ctx context.Context, relays []*gateway.Relay, fits func(*hostsapi.Info) bool) (since map[string]time.Time, err error) {
	for _, r := range relays {
		if since, err = onlineAt(ctx, r.URL(), s.viewer, s.n, fits); err != nil {
			return nil, err
		}
	}
	return since, nil
}

// secondAfter is the longest time until a host-agent opens its second connection.
const secondAfter = 21 * time.Second

// awaitSecond waits until the host-agents have their second connections. url is a URL at
// the relay that will be isolated.
func (s *surrounding) awaitSecond(ctx context.Context, url string) (err error) {
	wait(ctx, time.Until(s.began.Add(secondAfter)))
	s.away = url[:strings.LastIndexByte(url, '/')+1]
	s.home = 0
	s.before, err = onlineAt(ctx, s.relays[0].URL(), s.viewer, s.n, func(h *hostsapi.Info) bool {
		if !s.elsewhere(h) {
			s.home++
		}
		return true
	})
	return err
}

// elsewhere reports whether a host's relay is known and is not the isolated one.
func (s *surrounding) elsewhere(h *hostsapi.Info) bool {
	return h.Endpoint != "" && !strings.HasPrefix(h.Endpoint, s.away)
}

// awaitMoved waits until relays list all hosts at relays that are not isolated.
func (s *surrounding) awaitMoved(ctx context.Context, relays []*gateway.Relay) error {
	_, err := s.online(ctx, relays, s.elsewhere)
	return err
}

// fallen waits until relays list all hosts as online, and returns how many a relay has
// listed as offline since awaitSecond.
func (s *surrounding) fallen(ctx context.Context, relays []*gateway.Relay) (most int, err error) {
	for i := range relays {
		since, err := s.online(ctx, relays[i:i+1], s.elsewhere)
		if err != nil {
			return 0, err
		}
		most = max(most, changed(s.before, since))
	}
	return most, nil
}
