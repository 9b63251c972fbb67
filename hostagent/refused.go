package hostagent

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

// refusedFor is how long relays may refuse a running host-agent's token until it gives
// up. Meanwhile its operator can replace the token file, or relays can get their keys
// back.
const refusedFor = time.Minute

// refusals follows the relays' answers to a running host-agent's token.
type refusals struct {
	after  time.Duration
	report func(error) // called at the first refusal in a row
	fail   func(error) // called at each refusal later than after

	mu    sync.Mutex
	since time.Time // of the first refusal in a row; zero: none
}

// answered notes the result of a request for credentials. Only success ends the row: an
// unreachable or overloaded relay says nothing about the token.
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

// TokenRefused reports whether an error is a relay's refusal of the token itself. A
// start with the same token would end in the same way.
func TokenRefused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden)
}
