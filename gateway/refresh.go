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

// A client whose token is about to end gives the relay another one, on its
// connection:
//
//	→ {"id":1,"method":"relay/refreshToken","params":{"channel":"ahp-root://","token":"…"}}
//	← {"id":1,"result":{"expiresAt":"2026-03-04T05:06:07Z"}}
//
// The connection then ends (4501) when the new token does. It must be for the same
// tenant and subject, be for this host, and allow the very same: access,
// channels, methods and reverse. What a connection may do does not change while
// it lasts; a client that may do something else now connects anew. A token that is
// not good, or says something else, is an error: -32007 and -32009, or -32603 if
// nobody can say now whether it is good; the one of before goes on.
//
// No message of this method goes to the host, a notification neither.

// refreshMethod is answered by the relay.
const refreshMethod = "relay/refreshToken"

// A credential is what a client has shown: the token that it came with, and the latest.
type credential struct {
	// Set by newClient, then read-only.
	first  auth.Client // of the token that it came with
	host   hostKey     // that it is for
	verify func(ctx context.Context, token string) (auth.Client, error)

	latest atomic.Pointer[auth.Client] // of the token that it has given since; nil: none

	mu     sync.Mutex // guards expiry
	expiry *time.Timer
}

// now is what the latest token says.
func (t *credential) now() auth.Client {
	if latest := t.latest.Load(); latest != nil {
		return *latest
	}
	return t.first
}

// expireLater calls end when the token ends, the latest of then.
func (t *credential) expireLater(end func()) *time.Timer {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expiry = time.AfterFunc(time.Until(t.now().Expires), end)
	return t.expiry
}

// refresh takes another token.
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
		return who, ahp.CodeInternalError, auth.ErrIssuerAway // why is in the relay's log
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

// sameAuthority reports how a token allows something else than the one of
// before.
func (t *credential) sameAuthority(who auth.Client) error {
	before := &t.first
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	switch {
	case who.Tenant != before.Tenant || who.Subject != before.Subject:
		return errors.New("the token is of another subject; connect anew with it")
	case who.Key != before.Key:
		return errors.New("the token is bound to another key; connect anew with it")
	case !who.MayReach(t.host.tenant, t.host.name):
		return errors.New("the token is not for this host")
	case who.Audience != before.Audience || who.Access != before.Access || who.Files != before.Files || who.Reverse != before.Reverse || !same(who.Channels, before.Channels) || !same(who.Methods, before.Methods):
		return errors.New("the token allows something else than the one of before; connect anew with it")
	}
	return nil
}

// answerRefresh answers a client that gives another token, and reports whether
// that is what the message was.
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
	if err != nil { // a year of five digits
		result = nil
	}
	c.answer(ahp.AppendResult(nil, env.ID, result))
	return true
}
