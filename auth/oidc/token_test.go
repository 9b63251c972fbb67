package oidc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
)

func TestTokensGiveTheRulesAuthority(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(func(c *oidc.Config) {
		c.Rules = []oidc.Rule{
			{When: []oidc.Condition{{Claim: "groups", Contains: "admins"}}, Hosts: []string{"*"}, Access: auth.AccessAdmin},
			{
				When: []oidc.Condition{
					{Claim: "groups", Contains: "dev"}, {Claim: "scope", Contains: "ahp.read"}, {Claim: "realm_access.roles", Contains: "viewer"},
					{Claim: "email_verified", Equals: "true"}, {Claim: "level", Equals: "3"}, {Claim: "sub", Equals: "ann"},
				},
				Tenant: "acme", Hosts: []string{"build-*"}, Access: auth.AccessRead, Channels: []string{"mock:/*"}, Methods: []string{"resource*"},
				Files: true, Reverse: true, MaxConnections: 2, MaxTTL: 10 * time.Minute,
			},
			{Hosts: []string{"*"}, Access: auth.AccessWrite},
		}
	})
	place := strings.TrimPrefix(i.url(), "http://")
	got, err := p.Verify(t.Context(), i.rs(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := auth.Client{
		ID: got.ID, Tenant: "acme", Subject: "ann@" + place, Hosts: []string{"build-*"}, Access: auth.AccessRead,
		IssuedAt: start, Expires: start.Add(10 * time.Minute), Channels: []string{"mock:/*"}, Methods: []string{"resource*"}, Files: true, Reverse: true, MaxConnections: 2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("client (-want +got):\n%s", diff)
	}
	got, err = p.Verify(t.Context(), i.rs(map[string]any{"groups": []string{"staff", "admins-not"}}))
	if err != nil || got.Access != auth.AccessWrite || got.Tenant != "default" || !got.Expires.Equal(start.Add(time.Hour)) {
		t.Errorf("the authority of a token that matches the last rule is %+v, %v; want level operate in tenant default, for an hour", got, err)
	}
	for _, claims := range []map[string]any{{"exp": start.UnixMilli()}, {"iat": -start.UnixMilli()}} {
		claims["groups"] = []string{"staff"}
		if c, err := p.Verify(t.Context(), i.rs(claims)); err == nil {
			t.Errorf("a token with %v is accepted as %+v; want an error, because relays cannot write its times", claims, c)
		}
	}
	// A rule with a limit of ten minutes refuses a token that is eleven minutes old.
	_, err = p.Verify(t.Context(), i.rs(map[string]any{"iat": start.Add(-11 * time.Minute).Unix()}))
	if !errors.Is(err, auth.ErrTokenExpired) {
		t.Errorf("a token too old for its rule: %v; want ErrTokenExpired", err)
	}
}

func TestTokenIDs(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	id := func(change map[string]any) string {
		t.Helper()
		c, err := p.Verify(t.Context(), i.rs(change))
		if err != nil {
			t.Fatal(err)
		}
		return c.ID
	}
	one, two, again, none, other := id(nil), id(map[string]any{"jti": "t2"}), id(map[string]any{"level": 9}), id(map[string]any{"jti": nil}), id(map[string]any{"jti": nil, "level": 9})
	if one == two || one != again || none == one || none == other || len(one) != 26 {
		t.Errorf("the tokens' IDs are %q, %q, %q, %q and %q; want equal IDs for the first and third only", one, two, again, none, other)
	}
}

// TestConditionsCompareExactly lists conditions that a careless comparison would find true. No rule
// may match.
func TestConditionsCompareExactly(t *testing.T) {
	i := newIssuer(t)
	for name, c := range map[string]oidc.Condition{
		"another case":              {Claim: "Groups", Contains: "dev"},
		"a part of a string":        {Claim: "groups", Contains: "de"},
		"a part of a scope":         {Claim: "scope", Contains: "ahp"},
		"a list as a whole":         {Claim: "groups", Equals: "[staff dev]"},
		"a list's first":            {Claim: "groups", Equals: "staff"},
		"a number as a string":      {Claim: "level", Contains: "3"},
		"no claim":                  {Claim: "nobody", Equals: "null"},
		"within what is no object":  {Claim: "sub.ann", Equals: "ann"},
		"an object":                 {Claim: "realm_access", Contains: "roles"},
		"a bool in a list's manner": {Claim: "email_verified", Contains: "true"},
	} {
		p := i.provider(func(cfg *oidc.Config) { cfg.Rules[0].When = []oidc.Condition{c} })
		if _, err := p.Verify(t.Context(), i.rs(nil)); err == nil || !strings.Contains(err.Error(), "no rule") {
			t.Errorf("the condition on %s: Verify = %v; want an error that no rule matches", name, err)
		}
	}
}

func TestForgedIDTokensAreRefused(t *testing.T) {
	i := newIssuer(t)
	elsewhere := newIssuer(t)
	p := i.provider(nil)
	der, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	good := i.rs(nil)
	parts := strings.Split(good, ".")
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	with := func(name string, value any) string { return i.rs(map[string]any{name: value}) }
	payload := func(json string) string {
		return parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(json)) + "." + parts[2]
	}
	for _, test := range []struct {
		name, token string
		want        error
		text        string
	}{
		{"empty", "", auth.ErrTokenInvalid, "not a JWT"},
		{"huge", good + strings.Repeat("A", auth.MaxTokenSize), auth.ErrTokenInvalid, "want at most"},
		{"truncated", good[:len(good)-9], auth.ErrTokenInvalid, ""},
		{"without signature", parts[0] + "." + parts[1] + ".", auth.ErrTokenInvalid, "bad signature"},

		{"HS256 with the public key", i.token(jwt.SigningMethodHS256, "rsa", public, nil), auth.ErrTokenInvalid, "algorithm"},
		{"none", i.token(jwt.SigningMethodNone, "rsa", jwt.UnsafeAllowNoneSignatureType, nil), auth.ErrTokenInvalid, "algorithm"},
		{"NONE in the header", with("header alg", "NONE"), auth.ErrTokenInvalid, "algorithm"},
		{"an algorithm that is not configured", i.token(jwt.SigningMethodRS512, "rsa", rsaKey, nil), auth.ErrTokenInvalid, "algorithm"},
		{"another's key", i.token(jwt.SigningMethodRS256, "rsa", otherKey, nil), auth.ErrTokenInvalid, "bad signature"},
		{"a key of another kind", i.token(jwt.SigningMethodES256, "rsa", ecKey, nil), auth.ErrTokenInvalid, "no key with that ID"},
		{"a kid of another kind", i.token(jwt.SigningMethodRS256, "ec", rsaKey, nil), auth.ErrTokenInvalid, "no key with that ID"},
		{"a curve of another size", i.token(jwt.SigningMethodES384, "ec", p384, nil), auth.ErrTokenInvalid, "algorithm"},
		{"a key brought along", i.token(jwt.SigningMethodRS256, "rsa", otherKey, map[string]any{"header jwk": map[string]any{"kty": "RSA"}, "header jku": elsewhere.URL + "/keys"}), auth.ErrTokenInvalid, "bad signature"},
		{"no kid", with("header kid", nil), auth.ErrTokenInvalid, "kid"},
		{"kid is a number", with("header kid", 7), auth.ErrTokenInvalid, "kid"},
		{"unknown kid", i.unknown(1), auth.ErrTokenInvalid, "no key with that ID"},

		{"typ", with("header typ", "ahp-client+jwt"), auth.ErrTokenInvalid, "typ"},
		{"logout token", with("header typ", "logout+jwt"), auth.ErrTokenInvalid, "typ"},
		{"no typ", with("header typ", nil), auth.ErrTokenInvalid, "typ"},

		{"aud", with("aud", "somebody"), auth.ErrTokenInvalid, "aud"},
		{"aud of others", with("aud", []string{"a", "ahp2"}), auth.ErrTokenInvalid, "aud"},
		{"no aud", with("aud", nil), auth.ErrTokenInvalid, "aud"},
		{"iss", elsewhere.rs(nil), auth.ErrTokenInvalid, "iss"},
		{"iss with a slash", with("iss", i.url()+"/"), auth.ErrTokenInvalid, "iss"},
		{"no iss", with("iss", nil), auth.ErrTokenInvalid, "iss"},
		{"no exp", with("exp", nil), auth.ErrTokenInvalid, "exp"},
		{"no iat", with("iat", nil), auth.ErrTokenInvalid, "iat"},
		{"no sub", with("sub", nil), auth.ErrTokenInvalid, "sub"},
		{"empty sub", with("sub", ""), auth.ErrTokenInvalid, "sub"},
		{"sub of lines", with("sub", "ann\nlevel=INFO"), auth.ErrTokenInvalid, "unprintable"},
		{"sub too long", with("sub", strings.Repeat("x", 256)), auth.ErrTokenInvalid, "subject is"},
		{"exp is a text", with("exp", "tomorrow"), auth.ErrTokenInvalid, ""},
		{"exp is huge", with("exp", 1e300), auth.ErrTokenExpired, ""},
		{"nbf", with("nbf", start.Add(time.Minute).Unix()), auth.ErrTokenInvalid, "not yet valid"},
		{"issued later", with("iat", start.Add(auth.Leeway+time.Second).Unix()), auth.ErrTokenInvalid, "not yet valid"},
		{"expired a second ago, beyond the leeway", with("exp", start.Add(-auth.Leeway-time.Second).Unix()), auth.ErrTokenExpired, "expired at 2026-03-04T05:06:01Z"},
		{"expired, just at the leeway", with("exp", start.Add(-auth.Leeway).Unix()), auth.ErrTokenExpired, ""},

		{"a claim twice", payload(`{"iss":"` + i.url() + `","sub":"ann","sub":"bob"}`), auth.ErrTokenInvalid, "duplicate name"},
		{"a claim again with the long s", payload(`{"iss":"` + i.url() + `","sub":"ann","ſub":"bob"}`), auth.ErrTokenInvalid, "duplicate name"},
		{"a claim again in other case", payload(`{"iss":"` + i.url() + `","sub":"ann","SUB":"bob"}`), auth.ErrTokenInvalid, "duplicate name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := p.Verify(t.Context(), test.token)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Fatalf("Verify = %v; want %v with %q", err, test.want, test.text)
			}
			for _, part := range strings.Split(test.token, ".") {
				if len(part) > 8 && strings.Contains(err.Error(), part) {
					t.Errorf("the error contains a part of the token: %v", err)
				}
			}
		})
	}
}

func TestSoundIDTokensAreAccepted(t *testing.T) {
	i := newIssuer(t)
	p := i.provider(nil)
	for name, token := range map[string]string{
		"RS256":                  i.rs(nil),
		"ES256":                  i.token(jwt.SigningMethodES256, "ec", ecKey, nil),
		"EdDSA":                  i.token(jwt.SigningMethodEdDSA, "ed", edKey, nil),
		"expired in the leeway":  i.rs(map[string]any{"exp": start.Add(1-auth.Leeway).Unix() + 1}),
		"aud is a list":          i.rs(map[string]any{"aud": []string{"else", "ahp"}}),
		"an access token":        i.rs(map[string]any{"header typ": "at+jwt"}),
		"its long name":          i.rs(map[string]any{"header typ": "application/AT+JWT"}),
		"typ in other case":      i.rs(map[string]any{"header typ": "jwt"}),
		"headers not heard of":   i.rs(map[string]any{"header future": true}),
		"a nbf that has come":    i.rs(map[string]any{"nbf": start.Unix()}),
		"numbers with fractions": i.rs(map[string]any{"iat": float64(start.Unix()) + 0.5}),
	} {
		if _, err := p.Verify(t.Context(), token); err != nil {
			t.Errorf("%s: %v; want it accepted", name, err)
		}
	}
}

func TestInvalidConfigurationsAreRefused(t *testing.T) {
	i := newIssuer(t)
	for want, spoil := range map[string]func(*oidc.Config){
		`issuer ""`:         func(c *oidc.Config) { c.Issuer = "" },
		"want https":        func(c *oidc.Config) { c.Issuer = "http://login.example.com" },
		"want a URL such":   func(c *oidc.Config) { c.Issuer = "https://a@login.example.com" },
		"no audience":       func(c *oidc.Config) { c.Audience = "" },
		`algorithm "HS256"`: func(c *oidc.Config) { c.Algorithms = []string{"RS256", "HS256"} },
		`algorithm "none"`:  func(c *oidc.Config) { c.Algorithms = []string{"none"} },
		"no rules":          func(c *oidc.Config) { c.Rules = nil },
		"rule 1: no hosts":  func(c *oidc.Config) { c.Rules[0].Hosts = nil },
		"access":            func(c *oidc.Config) { c.Rules[0].Access = "" },
		"tenant":            func(c *oidc.Config) { c.Rules[0].Tenant = "a.b" },
		"max-ttl":           func(c *oidc.Config) { c.Rules[0].MaxTTL = -1 },
		"pattern":           func(c *oidc.Config) { c.Rules[0].Channels = []string{""} },
		"each condition":    func(c *oidc.Config) { c.Rules[0].When = []oidc.Condition{{Claim: "a"}} },
		"either equals":     func(c *oidc.Config) { c.Rules[0].When = []oidc.Condition{{Claim: "a", Equals: "b", Contains: "c"}} },
	} {
		cfg := i.config()
		spoil(&cfg)
		if _, err := oidc.New(cfg, oidc.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v; want an error with %q", err, want)
		}
	}
}

// FuzzVerify fails if Verify accepts a token that the issuer has not signed.
func FuzzVerify(f *testing.F) {
	i := newIssuer(f)
	p := i.provider(nil)
	good := i.rs(nil)
	if _, err := p.Verify(f.Context(), good); err != nil {
		f.Fatal(err)
	}
	for _, token := range []string{good[:len(good)-1], i.unknown(1), "..", "e30.e30.", i.token(jwt.SigningMethodNone, "rsa", jwt.UnsafeAllowNoneSignatureType, nil)} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		c, err := p.Verify(t.Context(), token)
		if err == nil && !strings.HasPrefix(c.Subject, "ann@") {
			t.Errorf("Verify accepts a token with %+v; want a subject that begins with ann@", c)
		}
		if err != nil && !errors.Is(err, auth.ErrTokenInvalid) && !errors.Is(err, auth.ErrTokenExpired) {
			t.Errorf("Verify = %v; want ErrTokenInvalid or ErrTokenExpired", err)
		}
	})
}
