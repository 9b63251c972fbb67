package hostagent

import (
	"context"
	"sync"
	"time"

	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/broker/wake"
	"ahprelay/internal/awake"
	"ahprelay/internal/signal"
)

// countEvery is the shortest interval between reports of the client count.
const countEvery = time.Second

// presence is the host's state as reported to relays.
type presence struct {
	changed chan struct{} // the host's condition has changed; capacity 1
	counted chan struct{} // the client count has changed; capacity 1

	terms func() wake.Terms // returns which machines may be woken, for relays; set by init

	mu      sync.Mutex
	current registry.Presence
	asleep  bool // the machine is about to sleep, or sleeps
}

func (p *presence) init(version string, sealed bool, terms func() wake.Terms) {
	p.terms = terms
	p.changed, p.counted = make(chan struct{}, 1), make(chan struct{}, 1)
	p.current = registry.Presence{
		State: registry.Offline, Reason: errNotYet.Error(), AgentVersion: version, Sealed: sealed,
		Wire: [2]int{link.WireMin, link.WireMax},
	}
}

func (p *presence) now() registry.Presence {
	terms := p.terms()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current.Wake = terms
	if p.asleep {
		asleep := p.current
		asleep.State, asleep.Reason, asleep.Silent, asleep.KeptAwake = registry.Asleep, asleepReason, 0, [2]int{}
		return asleep
	}
	return p.current
}

// asleepReason is the close reason for clients while the machine sleeps.
const asleepReason = "this host's machine sleeps"

// sleeps records whether the machine sleeps.
func (p *presence) sleeps(asleep bool) {
	p.mu.Lock()
	p.asleep = asleep
	p.mu.Unlock()
	signal.Send(p.changed)
}

// announceSleep reports to relays that the machine is about to sleep, and that it has
// woken up. On systems that do not announce sleep, or without D-Bus, it returns at
// once.
func (a *Agent) announceSleep(ctx context.Context, settled func() bool) {
	err := awake.Watch(ctx, func(asleep bool) {
		a.presence.sleeps(asleep)
		if !asleep {
			return
		}
		a.cfg.Log.Info("machine sleep announced")
		a.last.flush(ctx)
		for end := time.Now().Add(sleepDelay); !settled() && time.Now().Before(end) && ctx.Err() == nil; {
			time.Sleep(settledEvery)
		}
	})
	if err != nil {
		a.presence.sleeps(false) // no further event would report that sleep has ended
		a.cfg.Log.Debug("machine sleep announcements unavailable", "error", err)
	}
}

// Times of an announcement of sleep.
const (
	sleepDelay   = 2 * time.Second // for writing the last state of sessions, and again for a relay's confirmation
	settledEvery = 20 * time.Millisecond
)

func (p *presence) hostChanged(now condition) {
	p.mu.Lock()
	p.current.State, p.current.Reason, p.current.HostVersion = now.state, now.reason, now.version
	p.current.Silent = now.silent.Milliseconds()
	p.mu.Unlock()
	signal.Send(p.changed)
}

func (p *presence) clients(n int) {
	p.mu.Lock()
	p.current.Clients += n
	p.mu.Unlock()
	signal.Send(p.counted)
}

// keptAwake sets the numbers of sessions and people that keep the machine awake.
func (p *presence) keptAwake(by awake.Held) {
	p.mu.Lock()
	p.current.KeptAwake = [2]int{by.Sessions, by.People}
	p.mu.Unlock()
	signal.Send(p.changed)
}

// announce reports changes until ctx ends: the host's condition at once, the client
// count at most every countEvery.
func (p *presence) announce(ctx context.Context, update func(registry.Presence)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		case <-p.counted:
			select {
			case <-ctx.Done():
				return
			case <-p.changed:
			case <-time.After(countEvery):
			}
		}
		update(p.now())
	}
}
