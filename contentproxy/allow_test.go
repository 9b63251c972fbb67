package contentproxy

import "testing"

// TestPatternsAllowOrigins lists patterns and URLs. split must accept exactly the URLs whose origin
// matches.
func TestPatternsAllowOrigins(t *testing.T) {
	for pattern, urls := range map[string]map[string]bool{
		"https://localhost:*":     {"https://localhost/": true, "https://localhost:8443/": true, "https://localhost.example/": false, "http://a.localhost/": false},
		"http://192.168.1.7:3000": {"http://192.168.1.7:3000/a": true, "http://192.168.1.7/": false, "https://192.168.1.7:3000/": false, "http://192.168.1.70:3000/": false},
		"http://*.localhost:*":    {"http://a.localhost:1/": true, "http://a.b.localhost/": true, "http://.localhost/": false, "http://xlocalhost/": false},
		"https://app.internal":    {"https://app.internal/": true, "https://APP.internal:443/": true, "https://app.internal:444/": false, "https://u@app.internal/": false},
	} {
		allowed, err := ParseAllowed(pattern)
		if err != nil {
			t.Fatal(err)
		}
		cfg := &Config{Allow: []Allowed{allowed}}
		for url, want := range urls {
			if _, _, ok := cfg.split(url); ok != want {
				t.Errorf("the pattern %s allows the address %s: %t; want %t", pattern, url, ok, want)
			}
		}
	}
	for _, text := range []string{"", "localhost", "ftp://localhost", "http://", "http://*", "http://a.*.b", "http://a/b", "http://u@a", "http://a:1:*", "http://a?b", "*://a"} {
		if a, err := ParseAllowed(text); err == nil {
			t.Errorf("ParseAllowed(%q) = %+v; want an error", text, a)
		}
	}
}
