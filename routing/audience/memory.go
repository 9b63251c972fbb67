package audience

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Bounds of a Memory.
const (
	maxRemembered = 16384
	maxGreeting   = 1 << 10 // bytes of greeting and clientId; longer ones are not remembered
)

// A Memory remembers the protocol versions and capabilities that viewers declared in
// initialize, because reconnect does not repeat them. It is safe for concurrent use.
type Memory struct {
	mu        sync.Mutex
	greetings *simplelru.LRU[viewerKey, string]
}

// A viewerKey identifies a viewer by link name and the clientId that the viewer
// chose. A viewer that uses another viewer's clientId learns nothing secret, because the
// memory contains only versions and capabilities.
type viewerKey struct{ name, clientID string }

// NewMemory returns an empty Memory. If it is full, it forgets the least recently
// used viewers.
func NewMemory() *Memory {
	greetings, _ := simplelru.NewLRU[viewerKey, string](maxRemembered, nil) // fails only without a limit
	return &Memory{greetings: greetings}
}

func (m *Memory) remember(name, clientID, greeting string) {
	if len(greeting)+len(clientID) > maxGreeting {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.greetings.Add(viewerKey{name, clientID}, greeting)
}

func (m *Memory) recall(name, clientID string) (greeting string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.greetings.Get(viewerKey{name, clientID})
}
