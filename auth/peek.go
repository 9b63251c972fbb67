package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// PeekHost returns the host named in an enrolment token or credential. It does not verify
// the token, for which host-agents have no keys.
func PeekHost(token string) (tenant, host string, err error) {
	const want = "want what relay token host prints"
	if len(token) > MaxTokenSize {
		return "", "", fmt.Errorf("enrolment token: %d bytes long; %s", len(token), want)
	}
	cl := new(claims)
	parsed, _, err := jwt.NewParser().ParseUnverified(token, cl)
	if err != nil {
		return "", "", errors.New("enrolment token: not a JWT, or only a part of one; " + want)
	}
	typ, _ := parsed.Header["typ"].(string)
	if kind := tokenKind(typ); kind != hostKind && kind != credentialKind {
		return "", "", fmt.Errorf("enrolment token: this is %v; %s", kind, want)
	}
	enrolment, err := cl.enrolment()
	if err != nil {
		return "", "", fmt.Errorf("enrolment token: %w; %s", err, want)
	}
	return enrolment.Tenant, enrolment.Host, nil
}

// PeekTimes returns when a credential was issued and when it expires. Like PeekHost,
// it does not verify the token.
func PeekTimes(token string) (issued, expires time.Time, err error) {
	cl := new(claims)
	if _, _, err := jwt.NewParser().ParseUnverified(token, cl); err != nil || cl.IssuedAt == nil || cl.ExpiresAt == nil {
		return time.Time{}, time.Time{}, errors.New("credential: not a JWT with iat and exp")
	}
	return cl.IssuedAt.Time, cl.ExpiresAt.Time, nil
}
