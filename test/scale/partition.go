package scale

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ahprelay/broker/registry"
	"ahprelay/test/load"
	"ahprelay/test/must"
)

// partition isolates the first of three relays for the time s.Cut. A host-agent at this
// relay holds a host. A second host-agent for the same host waits at the second relay.
//
// A relay serves the host-agent that it lists: it connects clients to this instance,
// with the number of the instance's lease.
func partition(ctx context.Context, c *Cluster, s *Plan) (rows []Row) {
	c.Spread(0, false)
	defer c.ways.Close()
	c.Start(ctx)
	defer c.Stop()
	first, endFirst := c.Relays[0].hold(ctx)
	defer endFirst()
	history := make([]*served, len(c.Relays))
	for i, r := range c.Relays {
		must.Do(await(ctx, func() bool { h, ok := r.Registry.Lookup(Tenant(0), watched); return ok && h.AgentInstance != "" }))
		history[i] = &served{}
		history[i].hear(r.lookup())
		defer r.Registry.Subscribe(history[i].hear)()
	}
	c.ways.Cut(0)
	began := time.Now()
	second, endSecond := c.Relays[1].hold(ctx)
	defer endSecond()
	took := time.Since(began)
	load.Pause(ctx, time.Until(began.Add(s.Cut)))
	apart := c.Relays[0].lookup()
	must.Do(c.ways.Heal(0))
	healed := time.Now()
	all := func() bool {
		for _, r := range c.Relays {
			if h := r.lookup(); h.State != registry.Online || h.Fence != second.Fence() {
				return false
			}
		}
		return true
	}
	must.Within("after healing", func() { must.Do(await(ctx, all)) })
	agreed := time.Since(healed)
	load.Pause(ctx, s.Cut/2)
	var both error
	for i, h := range history {
		both = errors.Join(both, h.check(fmt.Sprint("relay ", i)))
	}
	verdict := "one after the other"
	if both != nil {
		verdict = both.Error()
	}
	name := fmt.Sprintf("one relay of three cut off for %v, with a host-agent of the same host on each side", s.Cut)
	return []Row{
		{Name: name + ": what each relay accepts", Got: verdict, Wanted: "never both", Good: both == nil},
		{
			Name: name + ": the one in the minority keeps its host there, the other has it after",
			Got:  took.Round(time.Second).String(), Wanted: "more than a lease", Good: took > registry.DefaultLeaseTTL && apart.Fence == first.Fence() && apart.State == registry.Online,
		},
		{Name: name + ": after it, all relays serve the later one, which has noticed nothing", Got: agreed.Round(10 * time.Millisecond).String(), Wanted: "≤ 10s", Good: agreed <= 10*time.Second && all()},
	}
}

// lookup returns the relay's entry for the watched host.
func (r *Relay) lookup() registry.Host {
	h, _ := r.Registry.Lookup(Tenant(0), watched)
	return h
}

// A served records a host's host-agents, in the order in which a relay listed them.
type served struct {
	mu  sync.Mutex
	all []registry.Host
}

func (s *served) hear(h registry.Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Name == watched && h.AgentInstance != "" {
		s.all = append(s.all, h)
	}
}

// check returns an error if the relay has listed an earlier host-agent again after a
// later host-agent.
func (s *served) check(who string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i < len(s.all); i++ {
		if was, is := s.all[i-1], s.all[i]; is.Fence < was.Fence || is.Fence == was.Fence && is.AgentInstance != was.AgentInstance {
			return fmt.Errorf("%s went from %s (%d) to %s (%d)", who, was.AgentInstance, was.Fence, is.AgentInstance, is.Fence)
		}
	}
	return nil
}
