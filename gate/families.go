package gate

import "sync"

// maxFamilies bounds the channels of which a host-agent remembers to which
// others they belong.
const maxFamilies = 16 << 10

// Families are what the host has said to anybody of which channel belongs to
// which. A client that resumes has been told nothing yet on its new
// connection. It is safe for concurrent use; the zero value knows nothing, and
// nil learns nothing.
type Families struct {
	mu      sync.Mutex
	parents map[string]string
	order   []string // of parents, the oldest first
}

// learn notes that the host has said on one channel that another belongs to
// it.
func (f *Families) learn(child, parent string) {
	if f == nil || child == parent {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.parents == nil {
		f.parents = map[string]string{}
	}
	if _, known := f.parents[child]; !known {
		if len(f.order) >= maxFamilies {
			delete(f.parents, f.order[0])
			f.order = f.order[1:]
		}
		f.order = append(f.order, child)
	}
	f.parents[child] = parent
}

// parent returns the channel that another belongs to, "" if that is not known.
func (f *Families) parent(child string) string {
	if f == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.parents[child]
}
