package auth

import (
	"errors"
	"time"
)

// operatorKind is the kind of token with which a command on the relay's machine proves
// to the running relay that it can read the keys.
const operatorKind tokenKind = "ahp-operator+jwt"

// operatorTTL is the lifetime of such a token: long enough for one request.
const operatorTTL = 30 * time.Second

// IssueOperator signs a token for one request of the relay's operator. It allows
// everything in all tenants; name describes its purpose in logs.
func (t Tokens) IssueOperator(name string) (string, error) {
	cl := t.newClaims("", name, "", time.Time{}, t.keys.now().Add(operatorTTL))
	return t.issue(operatorKind, cl)
}

// VerifyOperator checks such a token. The error wraps ErrTokenExpired or
// ErrTokenInvalid.
func (t Tokens) VerifyOperator(token string) error {
	cl, err := t.verify(operatorKind, token)
	if err != nil {
		return err
	}
	if cl.IssuedAt == nil || cl.ExpiresAt.Sub(cl.IssuedAt.Time) > operatorTTL+time.Second {
		return errors.Join(ErrTokenInvalid, errors.New("lifetime too long"))
	}
	return nil
}

// TokenID returns the ID and expiry of any token signed with these keys. The error
// wraps ErrTokenExpired or ErrTokenInvalid. An expired token has an ID all the same.
func (t Tokens) TokenID(token string) (id string, expires time.Time, err error) {
	cl, err := t.verify(kindOf(token), token)
	if cl == nil || cl.ID == "" || cl.ExpiresAt == nil {
		return "", time.Time{}, err
	}
	return cl.ID, cl.ExpiresAt.UTC(), err
}
