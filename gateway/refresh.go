package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A client replaces its expiring token on its connection:
//
//	→ {"id":1,"method":"relay/refreshToken","params":{"channel":"ahp-root://","token":"…"}}
//	← {"id":1,"result":{"expiresAt":"2026-03-04T05:06:07Z"}}
//
// The connection then ends (4501) with the new token. The new token must be for the
// same tenant and subject, for this host, and with equal authority: access, channels,
// methods and reverse. A connection's authority never changes; a client with different
// authority must reconnect. An invalid token is refused with -32007, different
// authority with -32009, and with -32603 if the token cannot be verified at the
// moment. The previous token then stays valid.
//
// The host never receives a message with this method, not even a notification.

// refreshMethod is answered by the relay.
const refreshMethod = "relay/refreshToken"

// A credential holds a client's first and latest tokens.
type credential struct {
	// Set by newClient, then read-only.
	first  auth.Client // from the handshake
	host   hostKey     // the client's host
	verify func(ctx context.Context, token string) (auth.Client, error)

	latest atomic.Pointer[auth.Client] // from the latest refresh; nil: none

	mu     sync.Mutex // guards expiry
	expiry *time.Timer
}

// now returns the latest token's client.
func (t *credential) now() auth.Client {
	if latest := t.latest.Load(); latest != nil {
		return *latest
	}
	return t.first
}

// expireLater calls end when the latest token expires.
func (t *credential) expireLater(end func()) *time.Timer {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expiry = time.AfterFunc(time.Until(t.now().Expires), end)
	return t.expiry
}

// refresh verifies and adopts a new token.
func (t *credential) refresh(ctx context.Context, params []byte) (who auth.Client, code int, err error) {
	m := [...]ahp.Member{{Name: "token"}}
	if ahp.Members(params, m[:]) != nil {
		return who, ahp.CodeInvalidParams, errors.New("params: want {channel, token}")
	}
	token, ok := ahp.Text(m[0].Raw)
	if !ok {
		return who, ahp.CodeInvalidParams, errors.New("params: want {channel, token}")
	}
	switch who, err = t.verify(ctx, token); {
	case errors.Is(err, auth.ErrIssuerAway):
		return who, ahp.CodeInternalError, auth.ErrIssuerAway // the relay's log has the cause
	case err != nil:
		return who, ahp.CodeAuthRequired, err
	}
	if err := t.sameAuthority(who); err != nil {
		return who, ahp.CodePermissionDenied, err
	}
	t.latest.Store(&who)
	t.mu.Lock()
	t.expiry.Reset(time.Until(who.Expires))
	t.mu.Unlock()
	return who, 0, nil
}

// sameAuthority reports a difference between a token's authority and the connection's.
func (t *credential) sameAuthority(who auth.Client) error {
	before := &t.first
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	switch {
	case who.Tenant != before.Tenant || who.Subject != before.Subject:
		return errors.New("the token is for a different subject; reconnect with it")
	case who.Key != before.Key:
		return errors.New("the token is bound to a different key; reconnect with it")
	case !who.MayReach(t.host.tenant, t.host.name):
		return errors.New("the token is not for this host")
	case who.Audience != before.Audience || who.Access != before.Access || who.Files != before.Files || who.Reverse != before.Reverse || !same(who.Channels, before.Channels) || !same(who.Methods, before.Methods):
		return errors.New("the token has different authority; reconnect with it")
	}
	return nil
}

// answerRefresh handles a token refresh, and reports whether the message was one.
func (c *client) answerRefresh(env *ahp.Envelope) bool {
	if string(env.Method) != refreshMethod {
		return false
	}
	if env.Kind != ahp.Request {
		return true
	}
	who, code, err := c.token.refresh(c.ctx, env.Params)
	if err != nil {
		c.log().Info("token not refreshed", "error", err)
		c.answer(ahp.AppendError(nil, env.ID, code, err.Error(), nil))
		return true
	}
	c.endIfRevoked() // since it was verified
	c.log().Info("token refreshed", "token", who.ID, "expires", who.Expires)
	result, err := json.Marshal(map[string]time.Time{"expiresAt": who.Expires})
	if err != nil { // a year with five digits
		result = nil
	}
	c.answer(ahp.AppendResult(nil, env.ID, result))
	return true
}
