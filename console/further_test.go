package console

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// get requests the page as a browser does: with a cookie, and with the ETag of a stored copy.
// Either may be "".
func get(host, cookie, etag string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Host = host
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	if etag != "" {
		r.Header.Set("If-None-Match", etag)
	}
	w := httptest.NewRecorder()
	Handler("").ServeHTTP(w, r)
	return w
}

// connects returns the directive connect-src of a page's policy.
func connects(w *httptest.ResponseRecorder) string {
	for directive := range strings.SplitSeq(w.Header().Get("Content-Security-Policy"), "; ") {
		if sources, is := strings.CutPrefix(directive, "connect-src "); is {
			return sources
		}
	}
	return "none"
}

// TestPolicyAdmitsOnlyRelaysThatThePersonHasAdded requests the page with various cookies. The
// page's policy must permit connections to its own relay, and to valid relays in the right cookie.
func TestPolicyAdmitsOnlyRelaysThatThePersonHasAdded(t *testing.T) {
	t.Parallel()
	value := url.PathEscape
	nine := strings.TrimSpace(strings.Repeat("https://r.example ", 9))
	for _, c := range []struct{ name, host, cookie, want string }{
		{"none", "relay.example", "", "'self'"},
		{"a relay", "relay.example", "__Host-ahp-relays=" + value("https://b.example"), "'self' https://b.example wss://b.example"},
		{"two, with a port", "relay.example:8443", "__Host-ahp-relays=" + value("https://b.example https://c.example:444"), "'self' https://b.example wss://b.example https://c.example:444 wss://c.example:444"},
		{"this machine", "127.0.0.1:8080", "ahp-relays=" + value("http://localhost:9"), "'self' http://localhost:9 ws://localhost:9"},
		// Another site below the same domain can set a cookie without the prefix.
		{"without the prefix", "relay.example", "ahp-relays=" + value("https://b.example"), "'self'"},
		{"without TLS", "relay.example", "__Host-ahp-relays=" + value("http://b.example"), "'self'"},
		{"a wildcard", "relay.example", "__Host-ahp-relays=" + value("* https://* https:"), "'self'"},
		{"a further directive", "relay.example", "__Host-ahp-relays=" + value("https://b.example;script-src https://c.example"), "'self' https://c.example wss://c.example"},
		{"a path", "relay.example", "__Host-ahp-relays=" + value("https://b.example/x"), "'self'"},
		{"bad escapes", "relay.example", "__Host-ahp-relays=%zz", "'self'"},
		{"too many", "relay.example", "__Host-ahp-relays=" + value(nine), "'self'" + strings.Repeat(" https://r.example wss://r.example", maxFurtherRelays)},
	} {
		w := get(c.host, c.cookie, "")
		if got := connects(w); got != c.want {
			t.Errorf("%s: the page connects to %s; want %s", c.name, got, c.want)
		}
		if all := w.Header().Get("Content-Security-Policy"); !strings.Contains(all, "script-src 'self';") || !strings.Contains(all, "default-src 'none'") {
			t.Errorf("%s: the policy is %s; want scripts from the page only", c.name, all)
		}
	}
}

// TestKeptPageKeepsNoPolicy requests the page with the ETag of a stored copy. The answer may be 304
// only if the copy has the same policy, because after 304 browsers keep the policy of their copy.
func TestKeptPageKeepsNoPolicy(t *testing.T) {
	t.Parallel()
	const cookie = "__Host-ahp-relays=https%3A%2F%2Fb.example"
	plain, more := get("relay.example", "", ""), get("relay.example", cookie, "")
	for _, c := range []struct {
		name, cookie, etag string
		want               int
	}{
		{"the same page", "", plain.Header().Get("ETag"), http.StatusNotModified},
		{"the same page with the relay", cookie, more.Header().Get("ETag"), http.StatusNotModified},
		{"a relay was added", cookie, plain.Header().Get("ETag"), http.StatusOK},
		{"a relay was removed", "", more.Header().Get("ETag"), http.StatusOK},
	} {
		if got := get("relay.example", c.cookie, c.etag).Code; got != c.want {
			t.Errorf("%s: %d; want %d", c.name, got, c.want)
		}
	}
}

// FuzzFurtherRelays reads arbitrary cookies. The policy may get nothing but origins from them, and
// only a bounded number.
func FuzzFurtherRelays(f *testing.F) {
	f.Add("relay.example", "https://b.example https://c.example:1")
	f.Add("127.0.0.1:1", "http://[::1]:80 '*'; script-src *")
	f.Fuzz(func(t *testing.T, host, value string) {
		for _, name := range []string{relaysCookie, relaysCookieLoopback} {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Host = host
			r.Header.Set("Cookie", name+"="+value)
			sources := strings.Fields(furtherRelays(r))
			if len(sources) > 2*maxFurtherRelays {
				t.Errorf("furtherRelays returns %d sources; want at most two for each relay", len(sources))
			}
			for i := 0; i < len(sources); i += 2 {
				if !relayOrigin.MatchString(sources[i]) || sources[i+1] != "ws"+strings.TrimPrefix(sources[i], "http") {
					t.Errorf("the sources are %q and %q; want a relay's origin, and the same for WebSockets", sources[i], sources[i+1])
				}
			}
		}
	})
}
