package auth_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

// start is the time on the clock of newKeys.
var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func client() auth.Client {
	return auth.Client{
		ID: "id-1", Tenant: "acme", Subject: "ann@example.com", Hosts: []string{"laptop", "build-1"},
		Access: auth.AccessWrite, IssuedAt: start, Expires: start.Add(time.Hour),
		Channels: []string{"ahp-session:/*", "mock:/1"}, Methods: []string{"resource*"}, Files: true, Reverse: true, MaxConnections: 3,
	}
}

func enrolment() auth.Enrolment {
	return auth.Enrolment{
		ID: "id-2", Tenant: "acme", Host: "laptop", IssuedAt: time.Now().Truncate(time.Second).UTC(),
		Expires: time.Now().Add(time.Hour).Truncate(time.Second).UTC(),
	}
}

// newKeys returns new keys whose clock shows start, and the private key that signs their tokens.
func newKeys(t testing.TB) (*auth.Keys, ed25519.PrivateKey) {
	t.Helper()
	dir := t.TempDir()
	k, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatalf("LoadKeys: %v; want no error", err)
	}
	k.Now = func() time.Time { return start }
	data, err := os.ReadFile(filepath.Join(dir, "keys", "token.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return k, key.(ed25519.PrivateKey)
}

func issue(t testing.TB, k *auth.Keys, c auth.Client) string {
	t.Helper()
	token, err := k.Tokens().IssueClient(c)
	if err != nil {
		t.Fatalf("IssueClient: %v; want no error", err)
	}
	return token
}

func TestVerifyReturnsIssuedContent(t *testing.T) {
	k, _ := newKeys(t)
	got, err := k.Tokens().VerifyClient(issue(t, k, client()))
	if err != nil {
		t.Fatalf("VerifyClient: %v; want no error", err)
	}
	want := client()
	if want.Signer = got.Signer; k.Retired(got.Signer) || !k.Retired("other") {
		t.Errorf("the signer %q is retired; want it known, and others not", got.Signer)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("client (-want +got):\n%s", diff)
	}

	k.Now = nil
	issued := enrolment()
	token, err := k.Tokens().IssueHost(issued)
	if err != nil {
		t.Fatalf("IssueHost: %v; want no error", err)
	}
	host, err := k.Tokens().VerifyHost(token)
	if err != nil {
		t.Fatalf("VerifyHost: %v; want no error", err)
	}
	if diff := cmp.Diff(issued, host); diff != "" {
		t.Errorf("enrolment (-want +got):\n%s", diff)
	}
}

func TestIssueFillsIn(t *testing.T) {
	k, _ := newKeys(t)
	c := client()
	c.ID, c.IssuedAt = "", time.Time{}
	one, err := k.Tokens().VerifyClient(issue(t, k, c))
	if err != nil {
		t.Fatalf("VerifyClient: %v; want no error", err)
	}
	two, err := k.Tokens().VerifyClient(issue(t, k, c))
	if err != nil {
		t.Fatalf("VerifyClient: %v; want no error", err)
	}
	if one.ID == "" || one.ID == two.ID || !one.IssuedAt.Equal(start) {
		t.Errorf("ids %q and %q, issued %v; want two different ids, and %v", one.ID, two.ID, one.IssuedAt, start)
	}
}

func TestClientReachesItsHostsOnly(t *testing.T) {
	some, all, built := client(), client(), client()
	all.Hosts, built.Hosts = []string{auth.AllHosts}, []string{"build-*"}
	tests := []struct {
		c            auth.Client
		tenant, host string
		want         bool
	}{
		{some, "acme", "laptop", true},
		{some, "acme", "build-1", true},
		{some, "acme", "build-2", false},
		{some, "acme", "*", false},
		{some, "other", "laptop", false},
		{all, "acme", "build-2", true},
		{all, "other", "build-2", false},
		{built, "acme", "build-2", true},
		{built, "acme", "laptop", false},
		{auth.Client{}, "", "", false},
	}
	for _, test := range tests {
		if got := test.c.MayReach(test.tenant, test.host); got != test.want {
			t.Errorf("%v.MayReach(%q, %q) = %v; want %v", test.c.Hosts, test.tenant, test.host, got, test.want)
		}
	}
}

// TestCoversComparesEveryField: for each field of a token, either a larger value gives more
// authority, or the field gives none. A new field needs an entry in one of the two lists.
func TestCoversComparesEveryField(t *testing.T) {
	less := client()
	less.Access, less.Files, less.Reverse, less.Audience = auth.AccessRead, false, false, "stage"
	more := map[string]func(*auth.Client){
		"Hosts":          func(c *auth.Client) { c.Hosts = append(slices.Clone(c.Hosts), "build-2") },
		"Access":         func(c *auth.Client) { c.Access = auth.AccessTalk },
		"Channels":       func(c *auth.Client) { c.Channels = nil },
		"Methods":        func(c *auth.Client) { c.Methods = nil },
		"Files":          func(c *auth.Client) { c.Files = true },
		"Reverse":        func(c *auth.Client) { c.Reverse = true },
		"MaxConnections": func(c *auth.Client) { c.MaxConnections = 0 },
		"Audience":       func(c *auth.Client) { c.Audience = "" },
	}
	none := []string{"ID", "Subject", "IssuedAt", "Expires", "Device", "DeviceName", "Key", "Origins", "Signer"}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[auth.Client]()) {
		if field.Name == "Tenant" || slices.Contains(none, field.Name) {
			continue
		}
		change := more[field.Name]
		if change == nil {
			t.Errorf("the test does not know whether %s gives authority", field.Name)
			continue
		}
		larger := less
		change(&larger)
		if less.Covers(larger) || !larger.Covers(less) || less.SameAuthority(larger) {
			t.Errorf("%s: less covers more %v, more covers less %v, same %v; want false, true, false",
				field.Name, less.Covers(larger), larger.Covers(less), less.SameAuthority(larger))
		}
	}
	other := less
	other.ID, other.Subject, other.Expires, other.Device = "id-9", "bob", start, "device-1"
	if !less.SameAuthority(other) {
		t.Error("two tokens that differ in ID, subject, expiry and device have different authority; want the same")
	}
	other.Tenant = "other"
	if less.Covers(other) || other.Covers(less) {
		t.Error("a token covers a token of a different tenant")
	}
	sees, reads := less, less
	sees.Channels, reads.Channels = []string{auth.All}, []string{auth.All, "file:///home/ada/*"}
	if sees.SameAuthority(reads) || reads.SameAuthority(sees) {
		t.Error("at the level look, all channels and all channels with files are the same authority; want not, because only the latter reads files")
	}
	reads.Channels = []string{"file:///home/ada/*", auth.All, auth.All}
	if again := reads; !again.SameAuthority(reads) {
		t.Error("a token with a repeated channel has different authority than itself; want the same")
	}
	all := auth.Client{Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite}
	files := all
	if files.Files = true; !all.SameAuthority(files) {
		t.Error("a token that reaches all files does not cover a token with Files; want it to")
	}
}

func TestInvalidClientsGetNoToken(t *testing.T) {
	k, _ := newKeys(t)
	tests := map[string]func(*auth.Client){
		"tenant":                           func(c *auth.Client) { c.Tenant = "a.b" },
		"no hosts":                         func(c *auth.Client) { c.Hosts = nil },
		"host":                             func(c *auth.Client) { c.Hosts = []string{"ok", "lap.*"} },
		"access":                           func(c *auth.Client) { c.Access = "root" },
		"no subject":                       func(c *auth.Client) { c.Subject = "" },
		"subject is 257":                   func(c *auth.Client) { c.Subject = strings.Repeat("x", auth.MaxSubjectLen+1) },
		"unprintable":                      func(c *auth.Client) { c.Subject = "ann\nlevel=INFO" },
		"no expiry time":                   func(c *auth.Client) { c.Expires = time.Time{} },
		"has passed":                       func(c *auth.Client) { c.Expires = start },
		"channel patterns":                 func(c *auth.Client) { c.Channels = strings.Split(strings.Repeat("a ", auth.MaxPatterns)+"x", " ") },
		"channel pattern \"\": empty":      func(c *auth.Client) { c.Channels = []string{""} },
		"more than 8":                      func(c *auth.Client) { c.Methods = []string{strings.Repeat("*a", 9)} },
		"method pattern \"a b\": contains": func(c *auth.Client) { c.Methods = []string{"a b"} },
		"1025 bytes":                       func(c *auth.Client) { c.Channels = []string{strings.Repeat("x", auth.MaxPatternLen+1)} },
		"maxConnections":                   func(c *auth.Client) { c.MaxConnections = -1 },
		"an audience is":                   func(c *auth.Client) { c.Audience = "room" },
		"reverse":                          func(c *auth.Client) { c.Access, c.Audience = auth.AccessRead, "room" },
		"audience: subj":                   func(c *auth.Client) { c.Access, c.Reverse, c.Audience = auth.AccessRead, false, "a\nb" },
		"want at most 81": func(c *auth.Client) {
			c.Channels = strings.Split(strings.Repeat(strings.Repeat("x", 200)+" ", 63)+"x", " ")
		},
	}
	for want, spoil := range tests {
		c := client()
		spoil(&c)
		if _, err := k.Tokens().IssueClient(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("IssueClient = %v; want an error with %q", err, want)
		}
	}
	if _, err := k.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "*", Expires: start.Add(1)}); err == nil {
		t.Error("IssueHost accepts the host *; want an error")
	}
	c := client()
	c.Subject = strings.Repeat("x", auth.MaxSubjectLen)
	issue(t, k, c)
	c.Access, c.Reverse, c.Audience = auth.AccessRead, false, "room"
	if who, err := k.Tokens().VerifyClient(issue(t, k, c)); err != nil || who.Audience != "room" {
		t.Errorf("VerifyClient = %+v, %v; want the audience", who, err)
	}
}

// forge signs a token that is valid except for change, which replaces claims. A name with the
// prefix "header " replaces a header field, and nil removes it.
func forge(t testing.TB, method jwt.SigningMethod, key any, kid string, change map[string]any) string {
	t.Helper()
	claims := jwt.MapClaims{
		"iss": "ahp-relay", "aud": "ahp-relay", "sub": "ann", "jti": "1", "tenant": "acme",
		"hosts": []string{"*"}, "access": "write", "iat": start.Unix(), "exp": start.Add(time.Hour).Unix(),
	}
	token := jwt.NewWithClaims(method, claims)
	token.Header["typ"], token.Header["kid"] = "ahp-client+jwt", kid
	for name, value := range change {
		fields := map[string]any(claims)
		if header, ok := strings.CutPrefix(name, "header "); ok {
			name, fields = header, token.Header
		}
		if fields[name] = value; value == nil {
			delete(fields, name)
		}
	}
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// keyID returns the kid in the header of a token.
func keyID(t testing.TB, token string) string {
	t.Helper()
	parsed, _, err := jwt.NewParser().ParseUnverified(token, jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Header["kid"].(string)
}

func TestVerifyClientRefuses(t *testing.T) {
	k, key := newKeys(t)
	kid := keyID(t, issue(t, k, client()))
	_, stranger := newKeys(t)
	public := key.Public().(ed25519.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	eddsa := jwt.SigningMethodEdDSA
	with := func(name string, value any) string {
		return forge(t, eddsa, key, kid, map[string]any{name: value})
	}
	good := issue(t, k, client())

	tests := []struct {
		name, token string
		want        error
		text        string // a part of the error
	}{
		{"empty", "", auth.ErrTokenInvalid, "not a JWT"},
		{"garbage", "Bearer x.y.z", auth.ErrTokenInvalid, "not a JWT"},
		{"truncated", good[:len(good)-10], auth.ErrTokenInvalid, ""},
		{"without signature", good[:strings.LastIndexByte(good, '.')+1], auth.ErrTokenInvalid, "bad signature"},
		{"padded", good + "=", auth.ErrTokenInvalid, ""},
		{"huge", good + strings.Repeat("A", auth.MaxTokenSize), auth.ErrTokenInvalid, "want at most 8192"},
		{"flipped", flip(good), auth.ErrTokenInvalid, ""},

		// The public key is not secret. If a verifier used it as an HMAC secret, it would accept
		// these tokens.
		{"HS256 with the public key", forge(t, jwt.SigningMethodHS256, []byte(public), kid, nil), auth.ErrTokenInvalid, "EdDSA"},
		{"HS256 with the public PEM", forge(t, jwt.SigningMethodHS256, publicPEM, kid, nil), auth.ErrTokenInvalid, "EdDSA"},
		{"none", forge(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid, nil), auth.ErrTokenInvalid, "EdDSA"},
		{"None in the header only", with("header alg", "None"), auth.ErrTokenInvalid, "algorithm"},
		{"another key", forge(t, eddsa, stranger, kid, nil), auth.ErrTokenInvalid, "bad signature"},
		{"another kid", with("header kid", "other"), auth.ErrTokenInvalid, "a key unknown to this relay"},
		{"no kid", with("header kid", nil), auth.ErrTokenInvalid, "a key unknown to this relay"},
		{"key brought along", with("header jwk", map[string]any{"kty": "OKP"})[1:], auth.ErrTokenInvalid, ""},

		{"typ JWT", with("header typ", "JWT"), auth.ErrTokenInvalid, "want a client token"},
		{"typ in other case", with("header typ", "AHP-client+jwt"), auth.ErrTokenInvalid, "want a client token"},
		{"no typ", with("header typ", nil), auth.ErrTokenInvalid, "want a client token"},
		{"typ is a number", with("header typ", 7), auth.ErrTokenInvalid, "want a client token"},
		{"host token", with("header typ", "ahp-host+jwt"), auth.ErrTokenInvalid, "this is a host enrolment token"},

		{"aud", with("aud", "somebody"), auth.ErrTokenInvalid, "aud"},
		{"no aud", with("aud", nil), auth.ErrTokenInvalid, "aud"},
		{"iss", with("iss", "somebody"), auth.ErrTokenInvalid, "iss"},
		{"no iss", with("iss", nil), auth.ErrTokenInvalid, "iss"},
		{"no exp", with("exp", nil), auth.ErrTokenInvalid, "exp"},
		{"no iat", with("iat", nil), auth.ErrTokenInvalid, "iat"},
		{"no jti", with("jti", nil), auth.ErrTokenInvalid, "jti"},
		{"no sub", with("sub", nil), auth.ErrTokenInvalid, "no subject"},
		{"no tenant", with("tenant", nil), auth.ErrTokenInvalid, "tenant"},
		{"tenant", with("tenant", "a.>"), auth.ErrTokenInvalid, "tenant"},
		{"hosts", with("hosts", []string{"a", ">"}), auth.ErrTokenInvalid, "host"},
		{"no hosts", with("hosts", nil), auth.ErrTokenInvalid, "no hosts"},
		{"access", with("access", "WRITE"), auth.ErrTokenInvalid, "access"},
		{"no access", with("access", nil), auth.ErrTokenInvalid, "access"},
		{"claims of other types", with("sub", []int{1}), auth.ErrTokenInvalid, ""},
		{"nbf", with("nbf", start.Add(time.Minute).Unix()), auth.ErrTokenInvalid, ""},

		{"expired a second ago, beyond the leeway", with("exp", start.Add(-auth.Leeway-time.Second).Unix()),
			auth.ErrTokenExpired, "expired at 2026-03-04T05:06:01Z, 6s ago"},
		{"expired, just at the leeway", with("exp", start.Add(-auth.Leeway).Unix()), auth.ErrTokenExpired, "5s ago"},
		{"issued later", with("iat", start.Add(auth.Leeway+time.Second).Unix()), auth.ErrTokenInvalid, "in the future"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := k.Tokens().VerifyClient(test.token)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Fatalf("VerifyClient = %v; want %v with %q", err, test.want, test.text)
			}
			for _, part := range strings.Split(test.token, ".") {
				if len(part) > 8 && strings.Contains(err.Error(), part) {
					t.Errorf("the error contains a part of the token: %v", err)
				}
			}
		})
	}
}

func TestVerifyClientAccepts(t *testing.T) {
	k, key := newKeys(t)
	kid := keyID(t, issue(t, k, client()))
	for name, change := range map[string]map[string]any{
		"as it is":               nil,
		"expired in the leeway":  {"exp": start.Add(1-auth.Leeway).Unix() + 1},
		"issued in the leeway":   {"iat": start.Add(auth.Leeway).Unix()},
		"aud is a list":          {"aud": []string{"else", "ahp-relay"}},
		"claims not heard of":    {"future": true},
		"headers not heard of":   {"header future": true},
		"names at their longest": {"tenant": strings.Repeat("t", 63), "hosts": []string{strings.Repeat("h", 63)}},
	} {
		if _, err := k.Tokens().VerifyClient(forge(t, jwt.SigningMethodEdDSA, key, kid, change)); err != nil {
			t.Errorf("%s: VerifyClient = %v; want it accepted", name, err)
		}
	}
}

func TestHostTokenIsNoClientToken(t *testing.T) {
	k, _ := newKeys(t)
	k.Now = nil
	host, err := k.Tokens().IssueHost(enrolment())
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Tokens().VerifyClient(host)
	want := "this is a host enrolment token (relay token host); want a client token (relay token client)"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("VerifyClient(host token) = %v; want %q", err, want)
	}
	c := client()
	c.IssuedAt, c.Expires = time.Time{}, time.Now().Add(time.Hour)
	_, err = k.Tokens().VerifyHost(issue(t, k, c))
	want = "this is a client token (relay token client); want a host enrolment token (relay token host)"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("VerifyHost(client token) = %v; want %q", err, want)
	}
}

// flip returns the token with a changed character in its middle.
func flip(token string) string {
	b := []byte(token)
	i := len(b) / 2
	if b[i]++; b[i] == 'Z'+1 || b[i] == 'z'+1 || b[i] == '9'+1 || b[i] == '.' {
		b[i] = 'B'
	}
	return string(b)
}

func FuzzVerifyClient(f *testing.F) {
	k, key := newKeys(f)
	good := issue(f, k, client())
	kid := keyID(f, good)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(forge(f, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid, nil))
	f.Add(forge(f, jwt.SigningMethodEdDSA, key, kid, map[string]any{"exp": 1e300}))
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA"}`)) + ".bnVsbA.")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := k.Tokens().VerifyClient(token)
		if err == nil && (c.Tenant == "" || len(c.Hosts) == 0 || c.Expires.IsZero()) {
			t.Errorf("VerifyClient accepts a token with %+v; want a tenant, hosts and an expiry", c)
		}
		if err != nil && !errors.Is(err, auth.ErrTokenInvalid) && !errors.Is(err, auth.ErrTokenExpired) {
			t.Errorf("VerifyClient = %v; want ErrTokenInvalid or ErrTokenExpired", err)
		}
		if _, err := k.Tokens().VerifyHost(token); err == nil {
			t.Errorf("VerifyHost accepts the unsigned token %q; want an error", token)
		}
	})
}

// FuzzCanvas fails if a token that is no canvas grant is accepted as a ticket or a session.
func FuzzCanvas(f *testing.F) {
	k, key := newKeys(f)
	good := issue(f, k, client())
	f.Add(good)
	f.Add(forge(f, jwt.SigningMethodEdDSA, key, keyID(f, good), map[string]any{"exp": 1e300, "canvas": map[string]any{"host": "*"}}))
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		for name, verify := range map[string]func(string) (auth.CanvasGrant, error){"ticket": k.Canvases().VerifyTicket, "session": k.Canvases().VerifySession} {
			if g, err := verify(token); err == nil {
				t.Errorf("%q is accepted as a %s for %+v; want an error", token, name, g)
			} else if !errors.Is(err, auth.ErrTokenInvalid) && !errors.Is(err, auth.ErrTokenExpired) {
				t.Errorf("%s: %v; want ErrTokenInvalid or ErrTokenExpired", name, err)
			}
		}
	})
}
