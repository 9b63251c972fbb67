package authn

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"ahprelay/gateway/admission"
)

// TestAddressIsFoundBehindProxies: Address returns the client's address from
// X-Forwarded-For if the headers come from a trusted proxy.
func TestAddressIsFoundBehindProxies(t *testing.T) {
	trusting := New(Config{TrustProxy: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}})
	for _, test := range []struct {
		remote    string
		forwarded []string
		want      string
	}{
		{"192.0.2.1:1000", nil, "192.0.2.1"},
		{"[2001:db8::1]:1000", nil, "2001:db8::1"},
		{"[::ffff:192.0.2.1]:1000", nil, "192.0.2.1"},
		// An untrusted proxy's header is ignored.
		{"192.0.2.1:1000", []string{"198.51.100.1"}, "192.0.2.1"},
		{"10.0.0.1:1000", nil, "10.0.0.1"},
		{"10.0.0.1:1000", []string{"198.51.100.1"}, "198.51.100.1"},
		{"[fd00::1]:1000", []string{"2001:db8::1"}, "2001:db8::1"},
		{"10.0.0.1:1000", []string{"198.51.100.1:4000"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"[2001:db8::1]:4000"}, "2001:db8::1"},
		{"10.0.0.1:1000", []string{"[2001:db8::1]"}, "2001:db8::1"},
		// The client's forged address comes first.
		{"10.0.0.1:1000", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"127.0.0.1, 198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"nonsense, 198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"198.51.100.1, nonsense"}, "10.0.0.1"},
		{"10.0.0.1:1000", []string{""}, "10.0.0.1"},
		{"10.0.0.1:1000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"10.0.0.1:1000", []string{strings.Repeat("10.0.0.2,", 100) + "10.0.0.4"}, "10.0.0.2"},
		{"somewhere", []string{"198.51.100.1"}, "somewhere"},
	} {
		r := &http.Request{RemoteAddr: test.remote, Header: http.Header{"X-Forwarded-For": test.forwarded}}
		if got := trusting.Address(r); got != test.want {
			t.Errorf("from %s, forwarded for %.60q: %s; want %s", test.remote, test.forwarded, got, test.want)
		}
	}
}

// TestProofIsForTheWholeURL: a proof must name the scheme, host and path that the
// client used, as far as trusted proxies report them.
func TestProofIsForTheWholeURL(t *testing.T) {
	trust := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for name, test := range map[string]struct {
		public, remote, proto string
		tls                   bool
		want                  []string
	}{
		"plain":                        {remote: "192.0.2.1:1", want: []string{"http://r.example/api/x%2Fy"}},
		"TLS":                          {remote: "192.0.2.1:1", tls: true, want: []string{"https://r.example/api/x%2Fy"}},
		"a trusted proxy":              {remote: "10.0.0.1:1", proto: "https", want: []string{"https://r.example/api/x%2Fy"}},
		"a proxy on this machine":      {remote: "[::1]:1", proto: "https", want: []string{"https://r.example/api/x%2Fy"}},
		"a client that claims TLS":     {remote: "192.0.2.1:1", proto: "https", want: []string{"http://r.example/api/x%2Fy"}},
		"a proxy that takes a part":    {public: "https://p.example/relay/", remote: "10.0.0.1:1", want: []string{"https://p.example/relay/api/x%2Fy", "http://r.example/api/x%2Fy"}},
		"the public URL, as it came":   {public: "https://r.example", remote: "192.0.2.1:1", tls: true, want: []string{"https://r.example/api/x%2Fy"}},
		"the public URL, TLS in front": {public: "https://r.example", remote: "192.0.2.1:1", want: []string{"https://r.example/api/x%2Fy", "http://r.example/api/x%2Fy"}},
	} {
		r := httptest.NewRequest("GET", "/api/x%2Fy?q", nil)
		r.Host, r.RemoteAddr = "r.example", test.remote
		if test.tls {
			r.TLS = &tls.ConnectionState{}
		}
		if test.proto != "" {
			r.Header.Set("X-Forwarded-Proto", test.proto)
		}
		if got := New(Config{TrustProxy: trust, PublicURL: test.public}).urls(r); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q; want %q", name, got, test.want)
		}
	}
}

// FuzzAddress reads arbitrary headers X-Forwarded-For. Address must return an IP
// address, or the connection's remote address as it is.
func FuzzAddress(f *testing.F) {
	f.Add("10.0.0.1:1", "198.51.100.1, [::1]:5")
	f.Add("[fe80::1%eth0]:1", "fe80::1%eth0,")
	trusting := New(Config{TrustProxy: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}})
	f.Fuzz(func(t *testing.T, remote, forwarded string) {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {forwarded}}}
		got := trusting.Address(r)
		if _, err := netip.ParseAddr(got); err != nil && got != remote {
			t.Errorf("Address = %q; want an IP address, or the connection's address", got)
		}
		admission.AddressGroup(got)
	})
}
