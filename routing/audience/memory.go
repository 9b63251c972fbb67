package audience

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Bounds of what is remembered of viewers.
const (
	maxRemembered = 16384
	maxGreeting   = 1 << 10 // bytes
)

// A Memory has what viewers have said of themselves in initialize, for when they
// come again with reconnect, which says it no more. It is safe for concurrent use.
type Memory struct {
	mu   sync.Mutex
	said *simplelru.LRU[viewerKey, string]
}

// A viewerKey is a viewer that has been here, by the clientId that it gives itself.
// Others who say the same learn nothing by it: what is remembered is no more than
// what a viewer can do.
type viewerKey struct{ name, clientID string }

// NewMemory returns an empty Memory. What is longest ago is forgotten.
func NewMemory() *Memory {
	said, _ := simplelru.NewLRU[viewerKey, string](maxRemembered, nil) // fails only without a limit
	return &Memory{said: said}
}

func (m *Memory) remember(name, clientID, greeting string) {
	if len(greeting)+len(clientID) > maxGreeting {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.said.Add(viewerKey{name, clientID}, greeting)
}

func (m *Memory) recall(name, clientID string) (greeting string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.said.Get(viewerKey{name, clientID})
}
