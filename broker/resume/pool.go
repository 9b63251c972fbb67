package resume

import "sync"

// A Pool bounds the bytes stored for absent clients, per person and in total.
// Of its methods, only Add may be called on a nil Pool.
type Pool struct {
	person, total int

	mu   sync.Mutex // guards the fields below
	held map[string]int
	all  int
}

// NewPool returns a Pool with its bounds, in bytes.
func NewPool(person, total int) *Pool {
	return &Pool{person: person, total: total, held: map[string]int{}}
}

// Add adds bytes, which may be negative, to a person's count.
func (p *Pool) Add(person string, bytes int) {
	if p == nil || bytes == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all += bytes
	if p.held[person] += bytes; p.held[person] == 0 {
		delete(p.held, person)
	}
}

// Full reports whether a bound is exceeded, so no more bytes may be stored for a
// person's absent client.
func (p *Pool) Full(person string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[person] > p.person || p.all > p.total
}

// Held returns the bytes stored for all clients, including present ones.
func (p *Pool) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}
