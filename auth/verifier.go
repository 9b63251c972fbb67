package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrIssuerAway reports a token that cannot be checked, because its issuer does not
// provide its keys.
var ErrIssuerAway = errors.New("the token's issuer does not provide its keys")

// A Verifier checks one issuer's client tokens, and returns their content. The error
// wraps ErrTokenExpired, ErrTokenInvalid or ErrIssuerAway. Verify may fetch keys from
// the issuer, which can take seconds. It is safe for concurrent use.
type Verifier interface {
	Verify(ctx context.Context, token string) (Client, error)
}

// Verify implements [Verifier] for the relay's own tokens.
func (t Tokens) Verify(_ context.Context, token string) (Client, error) { return t.VerifyClient(token) }

// Issuers is a Verifier for tokens of several issuers. It selects a verifier in Others
// by a token's iss, or else Own.
type Issuers struct {
	Own    Verifier
	Others map[string]Verifier
}

// Verify implements [Verifier].
func (i Issuers) Verify(ctx context.Context, token string) (Client, error) {
	if len(token) > MaxTokenSize {
		return Client{}, fmt.Errorf("%w: %d bytes long; want at most %d", ErrTokenInvalid, len(token), MaxTokenSize)
	}
	if v := i.Others[issuerOf(token)]; v != nil {
		return v.Verify(ctx, token)
	}
	return i.Own.Verify(ctx, token)
}

// issuerOf returns the iss of an unverified token, or "".
func issuerOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct{ Iss string }
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Iss
}
