package hostagent

import (
	"context"
	"sync"
	"time"

	"ahprelay/broker/link"
	"ahprelay/broker/registry"
)

// countEvery is how often relays hear of a changed number of clients at most.
const countEvery = time.Second

// presence is what relays are told of the host.
type presence struct {
	changed chan struct{} // the host has; holds one
	counted chan struct{} // the number of clients has; holds one

	mu      sync.Mutex
	current registry.Presence
}

func (p *presence) init(version string) {
	p.changed, p.counted = make(chan struct{}, 1), make(chan struct{}, 1)
	p.current = registry.Presence{
		State: registry.Offline, Reason: errNotYet.Error(), AgentVersion: version,
		Wire: [2]int{link.WireMin, link.WireMax},
	}
}

func (p *presence) now() registry.Presence {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// hostChanged notes how the host is.
func (p *presence) hostChanged(now condition) {
	p.mu.Lock()
	p.current.State, p.current.Reason, p.current.HostVersion = now.state, now.reason, now.version
	p.current.Silent = now.silent.Milliseconds()
	p.mu.Unlock()
	signal(p.changed)
}

// clients notes that a number of clients came, or went.
func (p *presence) clients(n int) {
	p.mu.Lock()
	p.current.Clients += n
	p.mu.Unlock()
	signal(p.counted)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// announce passes changes on until ctx ends: those of the host at once, those
// of the number of clients in a while.
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
