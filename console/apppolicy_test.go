package console

import (
	"net/url"
	"strings"
	"testing"
)

// TestAppPolicyAllowsPublicOriginsOnly makes policies for MCP Apps that request origins and
// permissions. Only public origins and known permissions may appear in the policy.
func TestAppPolicyAllowsPublicOriginsOnly(t *testing.T) {
	for _, tc := range []struct {
		origin string
		ok     bool
	}{
		{"https://cdn.example.com", true},
		{"https://cdn.example.com:8443", true},
		{"wss://live.example.com", true},
		{"https://*.example.com", true},
		{"https://a-b.example.co.uk", true},
		{"https://relay.test", false}, // this relay
		{"https://x.relay.test", false},
		{"https://*.test", false},
		{"https://*.com", false}, // all names below .com
		{"https://*", false},
		{"https:", false},
		{"*", false},
		{"'unsafe-eval'", false},
		{"http://example.com", false},
		{"data:", false},
		{"blob:", false},
		{"https://example.com/path", false},
		{"https://user@example.com", false},
		{"https://example.com;script-src *", false},
		{"https://example.com https://evil.example", false},
		{"https://example.com\nx", false},
		{"https://EXAMPLE.com", false},
		{"https://127.0.0.1", false},
		{"https://10.0.0.1:443", false},
		{"https://[::1]", false},
		{"https://0x7f.1", false},
		{"https://localhost", false},
		{"https://app.localhost", false},
		{"https://printer.local", false},
		{"https://metadata.google.internal", false},
		{"https://router.home.arpa", false},
		{"https://intranet", false},
		{"https://-x.example.com", false},
		{"https://xn--bcher-kva.example", true},
		{"", false},
	} {
		for kind, wants := range map[string]func(string) string{"connect": connecting, "resource": loading} {
			want := plainAppPolicy
			if tc.ok {
				want = wants(tc.origin)
			}
			if got := appPolicy(url.Values{kind: {tc.origin}}, "relay.test:8484"); got != want {
				t.Errorf("%s %q: %q; want %q", kind, tc.origin, got, want)
			}
		}
	}
	for text, want := range map[string]string{
		"allow=eval": "script-src 'unsafe-inline' 'unsafe-eval';", "allow=wasm": "script-src 'unsafe-inline' 'wasm-unsafe-eval';",
		"allow=worker": "script-src 'unsafe-inline'; worker-src blob:;", "allow=eval&allow=worker": "script-src 'unsafe-inline' 'unsafe-eval'; worker-src blob:;",
		"allow=frames&allow=*&allow=EVAL": "script-src 'unsafe-inline';",
	} {
		query, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := appPolicy(query, "relay.test"); got != strings.Replace(plainAppPolicy, "script-src 'unsafe-inline';", want, 1) {
			t.Errorf("%s: %q; want %q", text, got, want)
		}
	}
	many := url.Values{}
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		many.Add("connect", "https://"+string(c)+".example.com")
	}
	if got := strings.Count(appPolicy(many, "relay.test"), "https://"); got != maxAppOrigins {
		t.Errorf("%d origins; want %d", got, maxAppOrigins)
	}
}

const plainAppPolicy = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; " +
	"font-src data:; media-src data: blob:; connect-src 'none'; frame-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

// connecting returns plainAppPolicy with an origin to which the app may connect.
func connecting(origin string) string {
	return strings.Replace(plainAppPolicy, "connect-src 'none'", "connect-src "+origin, 1)
}

// loading returns plainAppPolicy with an origin from which the app may load.
func loading(origin string) string {
	return strings.NewReplacer("script-src 'unsafe-inline'", "script-src 'unsafe-inline' "+origin, "style-src 'unsafe-inline'", "style-src 'unsafe-inline' "+origin,
		"data: blob:", "data: blob: "+origin, "font-src data:", "font-src data: "+origin).Replace(plainAppPolicy)
}

func FuzzAppPolicy(f *testing.F) {
	f.Add("https://cdn.example.com", "relay.test:8484")
	f.Add("https://a.b; script-src *", "")
	f.Fuzz(func(t *testing.T, origin, host string) {
		policy := appPolicy(url.Values{"connect": {origin}}, host)
		if policy == plainAppPolicy {
			return
		}
		if policy != connecting(origin) || strings.ContainsAny(origin, " ;,'\"\n\r\t") {
			t.Errorf("the origin %q leads to the policy %q; want a policy for a plain origin", origin, policy)
		}
	})
}
