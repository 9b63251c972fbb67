package hostagent

import (
	"math/rand/v2"
	"sync"
	"time"

	"ahprelay/broker"
	"ahprelay/internal/retryafter"
)

// maxLater bounds the pause after a refusal.
const maxLater = 5 * time.Minute

// A limitError reports that a relay refused a request because of a limit (HTTP
// 429), or because it is busy (HTTP 5xx with Retry-After).
type limitError struct {
	error
	after time.Duration // pause that the relay demands
	busy  bool          // the relay is busy, and gives each host-agent a different pause
}

// Unwrap returns the refusal without its pause.
func (e *limitError) Unwrap() error { return e.error }

// A pausing delays a host-agent's next request after a limitError.
type pausing struct {
	mu       sync.Mutex
	until    time.Time
	refusals int
	last     error
}

// err returns the last refusal during the pause, as a [broker.PauseError], and nil
// otherwise.
func (p *pausing) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Until(p.until) > 0 {
		return &broker.PauseError{Err: p.last, Until: p.until}
	}
	return nil
}

// refused begins a pause, and returns its end. After a refusal for a limit, the pause lasts
// as long as the relay demanded, and up to twice as long after each further refusal.
// For a busy relay, package retryafter decides.
func (p *pausing) refused(e *limitError) (until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	least := min(max(e.after, time.Second), maxLater)
	wait := min(least<<min(p.refusals, 10), maxLater)
	p.refusals++
	pause := max(least, wait/2+rand.N(wait/2+1))
	if e.busy {
		pause = retryafter.Pause(min(e.after, maxLater), p.refusals)
	}
	p.until, p.last = time.Now().Add(pause), e.error
	return p.until
}

// granted ends the pause, and forgets earlier refusals.
func (p *pausing) granted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusals, p.until = 0, time.Time{}
}
