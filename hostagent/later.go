package hostagent

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// maxLater bounds the pause after repeated refusals for a limit.
const maxLater = 5 * time.Minute

// A limitError reports a relay's refusal for a limit (HTTP 429), or while it is busy with
// other host-agents (503).
type limitError struct {
	error
	after time.Duration // as demanded by the relay
	busy  bool          // the relay spreads the returns itself
}

// Unwrap returns the refusal without its time.
func (e *limitError) Unwrap() error { return e.error }

// A pausing keeps a host-agent from asking again too soon after refusals for a limit.
type pausing struct {
	mu       sync.Mutex
	until    time.Time
	refusals int
	last     error
}

// err returns the last refusal while it is too soon to ask again.
func (p *pausing) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := time.Until(p.until); left > 0 {
		return fmt.Errorf("%w; the next attempt is in %v", p.last, left.Round(time.Second))
	}
	return nil
}

// refused begins a pause: as long as the relay demanded, twice as long after each
// further refusal, with jitter.
func (p *pausing) refused(e *limitError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := min(max(e.after, time.Second)<<min(p.refusals, 10), maxLater)
	if e.busy {
		p.until, p.last = time.Now().Add(min(e.after, maxLater)-rand.N(time.Second)), e.error
		return
	}
	p.refusals++
	p.until, p.last = time.Now().Add(wait/2+rand.N(wait/2+1)), e.error
}

// granted ends the pauses.
func (p *pausing) granted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusals, p.until = 0, time.Time{}
}
