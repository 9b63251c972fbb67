package oidc_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
)

// start is what the issuer's clock shows at first.
var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// All tests share these keys, because generating a key is slow.
var (
	rsaKey, _   = rsa.GenerateKey(rand.Reader, 2048)
	otherKey, _ = rsa.GenerateKey(rand.Reader, 2048)
	ecKey, _    = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edKey, _ = ed25519.GenerateKey(rand.Reader)
)

// An issuer is an OpenID Connect provider on the loopback interface. If discovery or jwks is set,
// it answers that request.
type issuer struct {
	testing.TB
	*httptest.Server
	requests atomic.Int64

	mu        sync.Mutex
	keys      []any // the members of the key set: jose.JSONWebKey, or anything else
	discovery func(w http.ResponseWriter, r *http.Request)
	jwks      func(w http.ResponseWriter, r *http.Request)
	now       time.Time
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{TB: t, now: start, keys: []any{
		jwk("rsa", rsaKey.Public(), ""), jwk("ec", ecKey.Public(), "ES256"), jwk("ed", edKey.Public(), "EdDSA"),
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /realm/.well-known/openid-configuration", i.serve(func() func(http.ResponseWriter, *http.Request) { return i.discovery }, func(w http.ResponseWriter) {
		writeJSON(w, map[string]string{"issuer": i.url(), "jwks_uri": i.URL + "/keys"})
	}))
	mux.HandleFunc("/keys", i.serve(func() func(http.ResponseWriter, *http.Request) { return i.jwks }, func(w http.ResponseWriter) {
		i.mu.Lock()
		defer i.mu.Unlock()
		writeJSON(w, map[string]any{"keys": i.keys})
	}))
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

// serve counts a request. It answers with odd's function if the test has set it, or else with
// usual.
func (i *issuer) serve(odd func() func(http.ResponseWriter, *http.Request), usual func(http.ResponseWriter)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		i.requests.Add(1)
		i.mu.Lock()
		f := odd()
		i.mu.Unlock()
		if f != nil {
			f(w, r)
			return
		}
		usual(w)
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(v)
}

func jwk(id string, public crypto.PublicKey, alg string) jose.JSONWebKey {
	return jose.JSONWebKey{KeyID: id, Key: public, Algorithm: alg, Use: "sig"}
}

// url returns the issuer's name, which its tokens have as iss.
func (i *issuer) url() string { return i.URL + "/realm" }

// set changes the issuer's behaviour under its lock.
func (i *issuer) set(change func(i *issuer)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(i)
}

// later moves the issuer's clock ahead.
func (i *issuer) later(d time.Duration) { i.set(func(i *issuer) { i.now = i.now.Add(d) }) }

func (i *issuer) time() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.now
}

// config returns a relay's configuration that trusts this issuer.
func (i *issuer) config() oidc.Config {
	return oidc.Config{
		Issuer: i.url(), Audience: "ahp", Algorithms: []string{"RS256", "ES256", "EdDSA"},
		Rules: []oidc.Rule{{Hosts: []string{"*"}, Access: auth.AccessWrite}},
	}
}

// provider returns a verifier for this issuer's tokens. change may change its configuration.
func (i *issuer) provider(change func(*oidc.Config)) *oidc.Provider {
	i.Helper()
	cfg := i.config()
	if change != nil {
		change(&cfg)
	}
	p, err := oidc.New(cfg, oidc.Options{Now: i.time})
	if err != nil {
		i.Fatal(err)
	}
	i.Cleanup(p.Close)
	return p
}

// token returns a token that is valid except for change, which replaces claims. A name with the
// prefix "header " replaces a header field, and nil removes it.
func (i *issuer) token(method jwt.SigningMethod, kid string, key any, change map[string]any) string {
	i.Helper()
	now := i.time()
	claims := map[string]any{
		"iss": i.url(), "aud": "ahp", "sub": "ann", "jti": "t1", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"groups": []string{"staff", "dev"}, "scope": "openid ahp.read", "email_verified": true, "level": 3,
		"realm_access": map[string]any{"roles": []string{"viewer"}},
	}
	token := jwt.NewWithClaims(method, jwt.MapClaims(claims))
	token.Header["kid"] = kid
	for name, value := range change {
		fields := claims
		if len(name) > 7 && name[:7] == "header " {
			name, fields = name[7:], token.Header
		}
		if fields[name] = value; value == nil {
			delete(fields, name)
		}
	}
	signed, err := token.SignedString(key)
	if err != nil {
		i.Fatal(err)
	}
	return signed
}

// rs returns what token returns, signed with RS256.
func (i *issuer) rs(change map[string]any) string {
	i.Helper()
	return i.token(jwt.SigningMethodRS256, "rsa", rsaKey, change)
}

// unknown returns a token whose kid the issuer does not know. n makes the kid unique.
func (i *issuer) unknown(n int) string {
	i.Helper()
	return i.rs(map[string]any{"header kid": fmt.Sprintf("unknown-%d", n)})
}
