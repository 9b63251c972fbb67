package auth

import (
	"errors"
	"time"

	"github.com/golang-jwt/jwt/v5"
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

// PeekToken returns the ID of a token of any kind, and when it expires if
// these keys have signed it; else that is zero, for nobody here knows it.
func (k *Keys) PeekToken(token string) (id string, expires time.Time, err error) {
	if len(token) > MaxTokenSize {
		return "", time.Time{}, errors.New("token is too long")
	}
	cl := new(claims)
	parsed, _, err := jwt.NewParser().ParseUnverified(token, cl)
	if err != nil {
		return "", time.Time{}, errors.New("not a JWT, or only a part of one")
	}
	if cl.ID == "" {
		return "", time.Time{}, errors.New("the token has no ID (jti); revoke its subject")
	}
	typ, _ := parsed.Header["typ"].(string)
	own, err := k.verify(tokenKind(typ), token)
	if errors.Is(err, ErrTokenExpired) {
		return "", time.Time{}, err
	}
	if err == nil && own.ExpiresAt != nil {
		expires = own.ExpiresAt.UTC()
	}
	return cl.ID, expires, nil
}
