package oidc_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
)

// want fails unless the verifier accepts the token, or refuses it if good is false.
func want(t *testing.T, what string, p *oidc.Provider, token string, good bool) {
	t.Helper()
	if _, err := p.Verify(t.Context(), token); (err == nil) != good {
		t.Errorf("%s: Verify = %v; want the token accepted: %v", what, err, good)
	}
}

func TestKeysAreKept(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	for range 50 {
		want(t, "a token", p, i.rs(nil), true)
	}
	if got := i.requests.Load(); got != 2 {
		t.Errorf("%d requests for 50 tokens; want 2: discovery and keys", got)
	}
}

// TestNewKeyIsValidAtOnce replaces the issuer's key. A token with the new key must be accepted at
// once. A token with the old key must be accepted until the relay fetches the keys again.
func TestNewKeyIsValidAtOnce(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	want(t, "a token", p, i.rs(nil), true)
	i.later(11 * time.Second)
	i.set(func(i *issuer) { i.keys = []any{jwk("new", otherKey.Public(), "")} })
	want(t, "a token of the old key", p, i.rs(nil), true)
	want(t, "a token of the new key", p, i.token(jwt.SigningMethodRS256, "new", otherKey, nil), true)
	want(t, "a token of the key that is gone", p, i.rs(nil), false)
}

// TestKeysAreForTheirAlgorithm signs tokens with an algorithm that the relay permits, but for which
// the key was not made. The relay must refuse these tokens.
func TestKeysAreForTheirAlgorithm(t *testing.T) {
	i := newIssuer(t)
	i.keys = []any{jwk("rsa", rsaKey.Public(), "RS256")}
	p := i.provider(func(c *oidc.Config) { c.Algorithms = []string{"RS256", "RS512", "PS256"} })
	want(t, "RS256", p, i.rs(nil), true)
	want(t, "RS512", p, i.token(jwt.SigningMethodRS512, "rsa", rsaKey, nil), false)
	want(t, "PS256", p, i.token(jwt.SigningMethodPS256, "rsa", rsaKey, nil), false)
}

// TestRemovedKeyIsForgotten removes a key at the issuer. After a while, tokens with this key must
// be refused, although no new key was used.
func TestRemovedKeyIsForgotten(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	want(t, "a token", p, i.rs(nil), true)
	i.set(func(i *issuer) { i.keys = []any{jwk("new", otherKey.Public(), "")} })
	i.later(16 * time.Minute)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := p.Verify(t.Context(), i.rs(nil)); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the removed key is accepted after a minute; want a refusal")
		}
	}
}

// TestUnknownKeysDoNotFloodTheIssuer sends 200 tokens with unknown keys at once. The relay must
// fetch the keys once, and accept good tokens meanwhile.
func TestUnknownKeysDoNotFloodTheIssuer(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	want(t, "a token", p, i.rs(nil), true)
	for round := range 3 {
		before := i.requests.Load()
		i.later(11 * time.Second)
		var all sync.WaitGroup
		for n := range 200 {
			token := i.unknown(round*1000 + n)
			all.Go(func() {
				if _, err := p.Verify(context.Background(), token); !errors.Is(err, auth.ErrTokenInvalid) {
					t.Errorf("Verify of a token with an unknown key ID: %v; want ErrTokenInvalid", err)
				}
			})
		}
		all.Wait()
		if got := i.requests.Load() - before; got != 2 {
			t.Errorf("round %d: %d requests for 200 tokens; want 2", round, got)
		}
		want(t, "a token meanwhile", p, i.rs(nil), true)
	}
}

// TestInvalidClaimsCauseNoFetch sends tokens with invalid claims or headers. The relay must refuse
// them without a request to the issuer.
func TestInvalidClaimsCauseNoFetch(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	for _, change := range []map[string]any{
		{"aud": "x"}, {"exp": start.Add(-time.Hour).Unix()}, {"header alg": "HS256"}, {"header typ": "x"}, {"header kid": nil},
	} {
		want(t, fmt.Sprint(change), p, i.rs(change), false)
	}
	if got := i.requests.Load(); got != 0 {
		t.Errorf("%d requests; want none", got)
	}
}

// TestKnownKeysOutliveAnOutage has an issuer that is down. Tokens with known keys must be accepted
// for a day, and not longer.
func TestKnownKeysOutliveAnOutage(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	down := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) }
	i.set(func(i *issuer) { i.discovery = down })
	_, err := p.Verify(t.Context(), i.rs(nil))
	if !errors.Is(err, auth.ErrIssuerAway) || !strings.Contains(err.Error(), "HTTP 503") {
		t.Errorf("a token while the issuer is down: %v; want HTTP 503", err)
	}
	for range 20 {
		want(t, "a token at once after that", p, i.rs(nil), false)
	}
	if got := i.requests.Load(); got != 1 {
		t.Errorf("%d requests; want 1 in ten seconds", got)
	}
	i.set(func(i *issuer) { i.discovery = nil })
	i.later(11 * time.Second)
	want(t, "a token when the issuer is back", p, i.rs(nil), true)

	i.set(func(i *issuer) { i.jwks = down })
	for range 23 {
		i.later(time.Hour)
		want(t, "a token of a known key", p, i.rs(nil), true)
	}
	i.later(2 * time.Hour)
	want(t, "a token after more than a day", p, i.rs(nil), false)
	i.set(func(i *issuer) { i.jwks = nil })
	i.later(11 * time.Second)
	want(t, "a token when the issuer is back", p, i.rs(nil), true)
}

// TestMalformedAnswersOfAnIssuerAreRefused has an issuer send malformed answers, or redirects to
// another issuer. Verify must fail with the reason, and send no request to the other issuer.
func TestMalformedAnswersOfAnIssuerAreRefused(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := newIssuer(t)
	redirect := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+strings.TrimPrefix(r.URL.Path, "/realm"), http.StatusFound)
	}
	huge := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		line := []byte(strings.Repeat(" ", 64<<10))
		for range 1 << 14 { // a GiB if the relay read everything
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}
	says := func(v any) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, v) }
	}
	many := make([]jose.JSONWebKey, 65)
	for n := range many {
		many[n] = jwk("rsa", rsaKey.Public(), "")
	}
	for text, change := range map[string]func(i *issuer){
		"HTTP 302":               func(i *issuer) { i.discovery = redirect },
		"HTTP 302; want 200":     func(i *issuer) { i.jwks = redirect },
		"more than 262144":       func(i *issuer) { i.discovery = huge },
		"more than 262144 bytes": func(i *issuer) { i.jwks = huge },
		"a different issuer": func(i *issuer) {
			i.discovery = says(map[string]string{"issuer": elsewhere.url(), "jwks_uri": elsewhere.URL + "/keys"})
		},
		"not an https: URL": func(i *issuer) {
			i.discovery = says(map[string]string{"issuer": i.url(), "jwks_uri": "http://192.0.2.1/keys"})
		},
		"jwks_uri is not an https": func(i *issuer) {
			i.discovery = says(map[string]string{"issuer": i.url(), "jwks_uri": "file:///etc/passwd"})
		},
		"its jwks_uri": func(i *issuer) { i.discovery = says(map[string]string{"issuer": i.url()}) },
		"not JSON": func(i *issuer) {
			i.jwks = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }
		},
		"cannot unmarshal":          func(i *issuer) { i.jwks = says([]int{1}) },
		"no key for signing":        func(i *issuer) { i.keys = nil },
		"no key for signing tokens": func(i *issuer) { i.keys = []any{jose.JSONWebKey{KeyID: "rsa", Key: []byte("secret"), Use: "sig"}} },
		"no key for":                func(i *issuer) { i.keys = []any{jose.JSONWebKey{KeyID: "rsa", Key: rsaKey, Use: "sig"}} }, // a private key
		"no key":                    func(i *issuer) { i.keys = []any{jwk("rsa", small.Public(), "")} },
		"no key for signing t":      func(i *issuer) { i.keys = []any{jose.JSONWebKey{KeyID: "rsa", Key: rsaKey.Public(), Use: "enc"}} },
		"65 keys":                   func(i *issuer) { i.jwks = says(map[string]any{"keys": many}) },
	} {
		i := newIssuer(t)
		change(i)
		p := i.provider(nil)
		if _, err := p.Verify(t.Context(), i.rs(nil)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("Verify = %v; want %q", err, text)
		}
	}
	if got := elsewhere.requests.Load(); got != 0 {
		t.Errorf("%d requests to a server that is not the issuer; want none", got)
	}
	// Keys with unknown types must not make the others invalid.
	i := newIssuer(t)
	i.keys = append([]any{map[string]any{"kty": "future", "kid": "rsa"}, 7, map[string]any{"kty": "RSA", "n": "!"}}, i.keys...)
	want(t, "a token beside odd keys", i.provider(nil), i.rs(nil), true)
}

// roundTripper adapts a function to [http.RoundTripper].
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestFetchFromASlowIssuerEnds has an issuer that never answers. Verify must fail after its timeout
// or its context's end, and Close must end a fetch.
func TestFetchFromASlowIssuerEnds(t *testing.T) {
	i := newIssuer(t)
	token := i.rs(nil)
	synctest.Test(t, func(t *testing.T) {
		silent := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}
		begin := time.Now()
		p, err := oidc.New(i.config(), oidc.Options{HTTP: silent, Now: i.time})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Verify(t.Context(), token); !errors.Is(err, auth.ErrIssuerAway) {
			t.Errorf("Verify = %v; want ErrIssuerAway", err)
		}
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("Verify took %v; want 5s", took)
		}
		i.later(11 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		if _, err := p.Verify(ctx, token); err == nil || time.Since(begin) != time.Second {
			t.Errorf("Verify = %v after %v; want an error after 1s", err, time.Since(begin))
		}
		p.Close() // closes during the second fetch
	})
}
