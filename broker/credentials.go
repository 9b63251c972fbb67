package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/nats.go"
)

// credentialsTimeout bounds one request for credentials.
const credentialsTimeout = 5 * time.Second

// credentials are a host-agent's user JWT. They are fetched in advance, because the
// NATS library reads them while it holds its lock, and a fetch there would block it.
type credentials struct {
	// Set by newCredentials, then read-only.
	fetch func() (string, error)

	fetching sync.Mutex // held during fetch

	mu     sync.Mutex // guards the fields below
	jwt    string
	renew  time.Time // when to fetch again; zero: never
	shown  int       // logins since a server last accepted the credentials
	reason error     // error of the last fetch
}

// A PauseError reports that relays give no credentials until a time. A Conn without
// credentials requests them at that time, because a busy relay then has a place for the
// host-agent.
type PauseError struct {
	Err   error
	Until time.Time
}

func (e *PauseError) Error() string {
	return fmt.Sprintf("%v; the next attempt is in %v", e.Err, max(0, time.Until(e.Until)).Round(time.Second))
}

// Unwrap returns the refusal.
func (e *PauseError) Unwrap() error { return e.Err }

// newCredentials returns credentials that are provided by fetch, until ctx ends.
func newCredentials(ctx context.Context, fetch func(context.Context) (string, error)) *credentials {
	return &credentials{fetch: func() (string, error) {
		ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
		defer cancel()
		return fetch(ctx)
	}}
}

// maxShown is the number of logins without an answer after which credentials are
// fetched anew. It is above one, because logins can time out when many host-agents
// return at once, and fetches would then add to the load.
const maxShown = 3

// ready fetches credentials if there are none, if they are due for renewal, after maxShown
// logins without an answer, or if a server refused them: the relay may have new keys, or
// the server's clock may differ.
func (c *credentials) ready(refused bool) {
	c.mu.Lock()
	good := c.jwt != "" && !(refused && c.shown > 0) && c.shown < maxShown && (c.renew.IsZero() || time.Now().Before(c.renew))
	c.mu.Unlock()
	if !good {
		_ = c.update() // the method failure returns this error later
	}
}

// update fetches new credentials. If that fails, the old credentials remain.
func (c *credentials) update() error {
	c.fetching.Lock()
	defer c.fetching.Unlock()
	userJWT, err := c.fetch()
	var life time.Duration
	if err == nil {
		life, err = auth.UserLifetime(userJWT)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.reason = fmt.Errorf("credentials for NATS: %w", err)
		return c.reason
	}
	c.jwt, c.reason, c.shown, c.renew = userJWT, nil, 0, time.Time{}
	if life > 0 {
		c.renew = time.Now().Add(renewAfter(life))
	}
	return nil
}

// renewAfter returns when to renew credentials with the given lifetime: at random
// between 70 % and 80 %, which leaves time in case the relay is unreachable. JWTs
// count whole seconds, so the real lifetime may be up to a second shorter.
func renewAfter(life time.Duration) time.Duration {
	life = max(life-time.Second, life/2)
	return life*7/10 + rand.N(life/10+1)
}

// show returns the credentials for a login, and counts the login. Without credentials,
// it returns an error with the reason.
func (c *credentials) show() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.lackLocked(); err != nil {
		return "", err
	}
	c.shown++
	return c.jwt, nil
}

// lackLocked returns an error with the reason if there are no credentials.
func (c *credentials) lackLocked() error {
	if c.jwt == "" {
		return errors.Join(errors.New("no NATS credentials yet"), c.reason)
	}
	return nil
}

// mayLogIn returns an error if the Conn has no credentials for a login.
func (c *Conn) mayLogIn() error {
	if c.creds == nil {
		return nil
	}
	c.creds.mu.Lock()
	defer c.creds.mu.Unlock()
	return c.creds.lackLocked()
}

func (c *credentials) accepted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown = 0
}

// errUnauthorized reports that a relay has refused the token in the WebSocket
// handshake.
var errUnauthorized = errors.New("the relay refused the token")

func refuses(err error) bool {
	for _, refusal := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

func (c *credentials) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// due returns when to fetch the next credentials, or zero for never.
func (c *credentials) due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.renew
}

// renewLoop fetches new credentials before the old ones expire, and reconnects with
// them. If NATS disconnected the host-agent at expiry, messages would be lost and the
// reconnect would be delayed.
func (c *Conn) renewLoop(ctx context.Context) {
	const idle = time.Hour // credentials without expiry are checked this often, because they may be replaced
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; {
		due := c.creds.due()
		wait := idle
		switch {
		case failures > 0:
			wait = RetryDelay(failures)
		case !due.IsZero():
			wait = time.Until(due)
		case !c.Connected():
			wait = retryCeiling // there are none yet: check again soon
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if due.IsZero() || !due.Equal(c.creds.due()) {
			continue // beforeRetry has fetched them already
		}
		if err := c.creds.update(); err != nil {
			failures++
			continue
		}
		failures = 0
		if c.nc.Status() == nats.CONNECTED {
			c.Redial()
		}
	}
}
