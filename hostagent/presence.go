package hostagent

import (
	"context"
	"sync"
	"time"

	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/internal/awake"
)

// countEvery is the shortest interval between reports of the client count.
const countEvery = time.Second

// presence is the host's state as reported to relays.
type presence struct {
	changed chan struct{} // the host's condition has changed; capacity 1
	counted chan struct{} // the client count has changed; capacity 1

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

// hostChanged sets the host's condition.
func (p *presence) hostChanged(now condition) {
	p.mu.Lock()
	p.current.State, p.current.Reason, p.current.HostVersion = now.state, now.reason, now.version
	p.current.Silent = now.silent.Milliseconds()
	p.mu.Unlock()
	signal(p.changed)
}

// clients changes the client count by n.
func (p *presence) clients(n int) {
	p.mu.Lock()
	p.current.Clients += n
	p.mu.Unlock()
	signal(p.counted)
}

// keptAwake sets what keeps the machine awake.
func (p *presence) keptAwake(by awake.Held) {
	p.mu.Lock()
	p.current.KeptAwake = [2]int{by.Sessions, by.People}
	p.mu.Unlock()
	signal(p.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
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
