package auth

import (
	"errors"
	"time"
)

// operatorKind is the kind of token with which a command on the relay's
// machine, which can read the keys, shows the running relay that it can.
const operatorKind tokenKind = "ahp-operator+jwt"

// operatorTTL is how long such a token is good: for one request.
const operatorTTL = 30 * time.Second

// IssueOperator signs a token for one request of who runs the relay. It allows
// everything, of all tenants; name says in logs what it is for.
func (k *Keys) IssueOperator(name string) (string, error) {
	cl := k.newClaims("", name, "", time.Time{}, k.now().Add(operatorTTL))
	return k.issue(operatorKind, cl)
}

// VerifyOperator checks such a token. The error wraps ErrTokenExpired or
// ErrTokenInvalid.
func (k *Keys) VerifyOperator(token string) error {
	cl, err := k.verify(operatorKind, token)
	if err != nil {
		return err
	}
	if cl.IssuedAt == nil || cl.ExpiresAt.Sub(cl.IssuedAt.Time) > operatorTTL+time.Second {
		return errors.Join(ErrTokenInvalid, errors.New("good for too long"))
	}
	return nil
}

// TokenID returns the ID of a token of any kind that these keys have signed,
// and when it expires. The error wraps ErrTokenExpired or ErrTokenInvalid; an expired token has an ID all the same.
func (k *Keys) TokenID(token string) (id string, expires time.Time, err error) {
	cl, err := k.verify(kindOf(token), token)
	if cl == nil || cl.ID == "" || cl.ExpiresAt == nil {
		return "", time.Time{}, err
	}
	return cl.ID, cl.ExpiresAt.UTC(), err
}
