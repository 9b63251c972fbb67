package hostagent

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

// refusedFor is how long relays may refuse a running host-agent's token before the
// host-agent gives up. During this time, an operator can replace the token file or
// restore the relays' keys.
const refusedFor = time.Minute

// refusals records how relays answer the token of a running host-agent.
type refusals struct {
	after  time.Duration
	report func(error) // called at the first refusal after a success
	fail   func(error) // called at each refusal once refusals have lasted for after

	mu    sync.Mutex
	since time.Time // time of the first refusal after a success; zero: the last answer was a success
}

// answered records the result of a request for credentials. Only a success ends a
// series of refusals: an unreachable or overloaded relay has not judged the token.
func (r *refusals) answered(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.since = time.Time{}
	case !TokenRefused(err):
	case r.since.IsZero():
		r.since = time.Now()
		r.report(err)
	case time.Since(r.since) >= r.after:
		r.fail(err)
	}
}

// TokenRefused reports whether an error is a relay's refusal of the token. A restart
// with the same token would fail in the same way.
func TokenRefused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden)
}
