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

// credentials are a host-agent's user JWT. They are fetched ahead of need,
// because the library asks for them under its lock, where nothing may wait.
type credentials struct {
	// Set by newCredentials, then read-only.
	fetch func() (string, error)

	fetching sync.Mutex // held during fetch

	mu     sync.Mutex // guards the fields below
	jwt    string
	renew  time.Time // when to fetch the next; zero means never
	shown  int       // how often it was shown since a server has last accepted it
	reason error     // of the last fetch
}

// newCredentials returns credentials that are fetched with the given function
// until ctx ends.
func newCredentials(ctx context.Context, fetch func(context.Context) (string, error)) *credentials {
	return &credentials{fetch: func() (string, error) {
		ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
		defer cancel()
		return fetch(ctx)
	}}
}

// maxShown is how often credentials are shown without an answer until they are
// no longer believed to be good: not each time, for when many host-agents come
// back at once, their logins may take too long, and fetching would add to that.
const maxShown = 3

// ready fetches credentials if there are none, if they are due, or if they
// were not accepted: the relay may have new keys, or the clock of the server be
// another.
func (c *credentials) ready(refused bool) {
	c.mu.Lock()
	good := c.jwt != "" && !(refused && c.shown > 0) && c.shown < maxShown && (c.renew.IsZero() || time.Now().Before(c.renew))
	c.mu.Unlock()
	if !good {
		_ = c.update() // failure has it
	}
}

// update fetches new credentials. The old ones stay if that fails.
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

// renewAfter returns when to renew credentials that live that long: after
// about three quarters, which leaves time for a relay that is away, and not in
// step with others. A JWT counts in seconds, so one may be missing.
func renewAfter(life time.Duration) time.Duration {
	life = max(life-time.Second, life/2)
	return life*7/10 + rand.N(life/10+1)
}

// show returns the credentials for a login.
func (c *credentials) show() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jwt == "" {
		return "", errors.Join(errors.New("no credentials for NATS yet"), c.reason)
	}
	c.shown++
	return c.jwt, nil
}

// accepted says that a login succeeded.
func (c *credentials) accepted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown = 0
}

// refuses reports whether a server does not accept the credentials, as opposed
// to not answering.
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

// failure returns why the last fetch failed, if it did.
func (c *credentials) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// due returns when to fetch the next credentials, zero for never.
func (c *credentials) due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.renew
}

// renewLoop fetches new credentials before the old ones expire, and logs in
// with them by a reconnect of its own choice: one that NATS forces at expiry
// would lose what is just being sent, and come after a wait.
func (c *Conn) renewLoop(ctx context.Context) {
	const idle = time.Hour // credentials that live for ever may be replaced
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
			wait = retryCeiling // there are none yet: see again soon
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if due.IsZero() || !due.Equal(c.creds.due()) {
			continue // somebody else has fetched meanwhile
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
