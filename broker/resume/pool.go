package resume

import "sync"

// A Pool bounds the bytes that a relay holds for absent clients: for each person, and
// in total. A nil Pool bounds nothing.
type Pool struct {
	person, total int

	mu   sync.Mutex // guards the fields below
	held map[string]int
	all  int
}

// NewPool returns a Pool with bounds in bytes.
func NewPool(person, total int) *Pool {
	return &Pool{person: person, total: total, held: map[string]int{}}
}

// Add counts bytes of a person.
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

// Full reports whether no more may be held for an absent client of a person.
func (p *Pool) Full(person string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[person] > p.person || p.all > p.total
}

// Held returns the bytes held for all clients, present ones included.
func (p *Pool) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}
