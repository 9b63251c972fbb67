package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrIssuerAway reports a token of which nobody can say whether it is good: its
// issuer does not give the keys to check it with.
var ErrIssuerAway = errors.New("the issuer of the token does not give its keys")

// A Verifier checks client tokens of one issuer, and returns what they say. The
// error wraps ErrTokenExpired, ErrTokenInvalid or ErrIssuerAway. It may have to ask the issuer
// for keys, which takes seconds at worst. It may be called by several
// goroutines at a time.
type Verifier interface {
	Verify(ctx context.Context, token string) (Client, error)
}

// Verify implements [Verifier] for the relay's own tokens.
func (k *Keys) Verify(_ context.Context, token string) (Client, error) { return k.VerifyClient(token) }

// Issuers are a Verifier of tokens of several issuers: those that are named
// here by their iss, and Own for all others.
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

// issuerOf returns the iss of a token that nobody has checked, or "".
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
