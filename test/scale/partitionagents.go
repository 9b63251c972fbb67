package scale

import (
	"context"
	"strings"
	"time"

	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/load"
	"ahprelay/test/must"
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
func (p *divided) surround(ctx context.Context, c *Cluster, n int) (s *surrounding) {
	s = &surrounding{n: n, relays: p.relays, began: time.Now()}
	s.viewer = viewerOf(p.keys)
	a := Agents{KeyDir: keyDir(c.dir), Count: n}
	for _, r := range p.relays {
		a.URLs = append(a.URLs, r.URL())
	}
	s.stop = help(ctx, c.dir, "Agents", a)
	defer must.Undo(s.stop)
	must.Within("before the cut", func() { s.online(ctx, p.relays, everywhere) })
	return s
}

func everywhere(*hostsapi.Info) bool { return true }

// online waits until each of some relays lists all hosts as online, at places that fit.
func (s *surrounding) online(ctx context.Context, relays []*gateway.Relay, fits func(*hostsapi.Info) bool) (since map[string]time.Time) {
	for _, r := range relays {
		since = onlineAt(ctx, r.URL(), s.viewer, s.n, fits)
	}
	return since
}

// secondAfter is the longest time until a host-agent opens its second connection.
const secondAfter = 21 * time.Second

// awaitSecond waits until the host-agents have their second connections. url is a URL at
// the relay that will be isolated.
func (s *surrounding) awaitSecond(ctx context.Context, url string) {
	load.Pause(ctx, time.Until(s.began.Add(secondAfter)))
	s.away = url[:strings.LastIndexByte(url, '/')+1]
	s.home = 0
	s.before = onlineAt(ctx, s.relays[0].URL(), s.viewer, s.n, func(h *hostsapi.Info) bool {
		if !s.elsewhere(h) {
			s.home++
		}
		return true
	})
}

// elsewhere reports whether a host's relay is known and is not the isolated one.
func (s *surrounding) elsewhere(h *hostsapi.Info) bool {
	return h.Endpoint != "" && !strings.HasPrefix(h.Endpoint, s.away)
}

// awaitMoved waits until relays list all hosts at relays that are not isolated.
func (s *surrounding) awaitMoved(ctx context.Context, relays []*gateway.Relay) {
	s.online(ctx, relays, s.elsewhere)
}

// fallen waits until relays list all hosts as online, and returns how many a relay has
// listed as offline since awaitSecond.
func (s *surrounding) fallen(ctx context.Context, relays []*gateway.Relay) (most int) {
	must.Within("after healing", func() {
		for i := range relays {
			most = max(most, changed(s.before, s.online(ctx, relays[i:i+1], s.elsewhere)))
		}
	})
	return most
}
