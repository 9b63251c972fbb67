package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A client replaces its token on an open connection before the token expires:
//
//	→ {"id":1,"method":"relay/refreshToken","params":{"channel":"ahp-root://","token":"…"}}
//	← {"id":1,"result":{"expiresAt":"2026-03-04T05:06:07Z"}}
//
// From then on, the connection is closed with 4501 when the new token expires. The new
// token must be valid for this host, and have the same tenant, subject and key. In all
// but other hosts and the number of connections, it must have the same authority
// ([auth.Client.SameAuthority]). A client that needs different authority
// must reconnect. Errors are -32602 without a token, -32007 for an invalid token, -32009
// for different authority, and -32603 if the token cannot be verified at the moment. After
// an error, the previous token stays valid.
//
// The host never receives a message with this method, not even a notification.

// refreshMethod is the method that refreshes a token. The relay answers it.
const refreshMethod = "relay/refreshToken"

// A credential holds a client's first and latest tokens.
type credential struct {
	// Set by newClient, then read-only.
	first  auth.Client // the token of the handshake
	host   hostKey     // the client's host
	verify func(ctx context.Context, token string) (auth.Client, error)

	latest atomic.Pointer[auth.Client] // the token of the latest refresh; nil: none

	mu     sync.Mutex // guards expiry
	expiry *time.Timer
}

// now returns the client identified by the latest token.
func (t *credential) now() auth.Client {
	if latest := t.latest.Load(); latest != nil {
		return *latest
	}
	return t.first
}

// expireLater starts a timer that calls end when the latest token expires.
func (t *credential) expireLater(end func()) *time.Timer {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expiry = time.AfterFunc(time.Until(t.now().Expires), end)
	return t.expiry
}

// refresh verifies a new token, and replaces the latest token. code is for the error
// response.
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

// sameAuthority returns an error if the token's authority differs from the connection's.
func (t *credential) sameAuthority(who auth.Client) error {
	before := &t.first
	switch {
	case who.Tenant != before.Tenant || who.Subject != before.Subject:
		return errors.New("the token is for a different subject; reconnect with it")
	case who.Key != before.Key:
		return errors.New("the token is bound to a different key; reconnect with it")
	case !who.MayReach(t.host.tenant, t.host.name):
		return errors.New("the token is not for this host")
	}
	who.Hosts, who.MaxConnections = before.Hosts, before.MaxConnections // the connection is open, and to this host
	if !who.SameAuthority(*before) {
		return errors.New("the token has different authority; reconnect with it")
	}
	return nil
}

// answerRefresh handles a token refresh. It returns false for other messages.
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
	c.endIfRevoked() // the token may have been revoked since its verification
	c.log().Info("token refreshed", "token", who.ID, "expires", who.Expires)
	result, err := json.Marshal(map[string]time.Time{"expiresAt": who.Expires})
	if err != nil { // only if the expiry's year has five digits
		result = nil
	}
	c.answer(ahp.AppendResult(nil, env.ID, result))
	return true
}
