package auth

import (
	"errors"
	"time"
)

// operatorKind is the kind of token that a command on the relay's machine sends to the
// running relay. It proves that the command can read the relay's keys.
const operatorKind tokenKind = "ahp-operator+jwt"

// operatorTTL is the lifetime of an operator's token, which is needed for one request only.
const operatorTTL = 30 * time.Second

// IssueOperator signs a token for a request by the relay's operator, with full authority
// in all tenants. name describes its purpose in logs.
func (t Tokens) IssueOperator(name string) (string, error) {
	cl := t.newClaims("", name, "", time.Time{}, t.keys.now().Add(operatorTTL))
	return t.issue(operatorKind, cl)
}

// VerifyOperator verifies a token from IssueOperator. The error wraps ErrTokenExpired or
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

// TokenID returns the ID and expiry of any token signed with these keys. The error wraps
// ErrTokenExpired or ErrTokenInvalid. For an expired token, it returns the ID with the
// error.
func (t Tokens) TokenID(token string) (id string, expires time.Time, err error) {
	cl, err := t.verify(kindOf(token), token)
	if cl == nil || cl.ID == "" || cl.ExpiresAt == nil {
		return "", time.Time{}, err
	}
	return cl.ID, cl.ExpiresAt.UTC(), err
}
