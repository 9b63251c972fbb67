package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrIssuerAway reports that a token cannot be verified, because its issuer does not
// provide its keys.
var ErrIssuerAway = errors.New("the token's issuer does not provide its keys")

// A Verifier verifies client tokens from one issuer, and returns their content. The error
// wraps ErrTokenExpired, ErrTokenInvalid or ErrIssuerAway. Verify may fetch keys from the
// issuer, which can take seconds. It is safe for concurrent use.
type Verifier interface {
	Verify(ctx context.Context, token string) (Client, error)
}

// Verify implements [Verifier] for the relay's own tokens.
func (t Tokens) Verify(_ context.Context, token string) (Client, error) { return t.VerifyClient(token) }

// Issuers is a Verifier for several issuers. It uses the verifier in Others for a token's
// iss, and otherwise Own.
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
