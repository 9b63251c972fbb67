package contentproxy

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestUnsafeCanvasAddressesAreRefused(t *testing.T) {
	t.Parallel()
	good := map[string]Address{
		"ahp-canvas-content:/i1/":                       {"i1", "", ""},
		"ahp-canvas-content:/i1":                        {"i1", "", ""},
		"ahp-canvas-content:/i1/a/b.html":               {"i1", "a/b.html", ""},
		"ahp-canvas-content:/i%201/a%20b?x=%2e%2e#frag": {"i 1", "a%20b", "x=%2e%2e"},
		"ahp-canvas-content:/i1/%252e%252e/x":           {"i1", "%252e%252e/x", ""}, // a name after decoding once
		"ahp-canvas-content:/i1/...":                    {"i1", "...", ""},
	}
	for text, want := range good {
		if got, err := ParseAddress(text); err != nil || got != want {
			t.Errorf("ParseAddress(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
	bad := map[string]string{
		"":                                     "want ahp-canvas-content:",
		"https://x/y":                          "want ahp-canvas-content:",
		"AHP-canvas-content:/i/x":              "want ahp-canvas-content:",
		"ahp-canvas-content:/":                 "instance missing",
		"ahp-canvas-content://i/x":             "instance missing",
		"ahp-canvas-content:/i%/x":             "percent-encoding",
		"ahp-canvas-content:/i/%zz":            "percent-encoding",
		"ahp-canvas-content:/i/../x":           `".."`,
		"ahp-canvas-content:/i/a/..":           `".."`,
		"ahp-canvas-content:/i/%2e%2e/x":       `".."`,
		"ahp-canvas-content:/i/a%2f..%2Fx":     `".."`,
		"ahp-canvas-content:/i/a%00":           "control character",
		"ahp-canvas-content:/i/a\\b":           "backslash",
		"ahp-canvas-content:/i/a%5cb":          "backslash",
		"ahp-canvas-content:/i/x?a\r\nHost: y": "control character",
		"ahp-canvas-content:/i/" + strings.Repeat("x", maxAddress): "exceed",
	}
	for text, want := range bad {
		if got, err := ParseAddress(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseAddress(%.60q) = %+v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// TestMintedAddressesLeadBack mints canvas addresses for random loopback URLs. Each must parse, and
// lead to the same URL.
func TestMintedAddressesLeadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		instance := rapid.StringN(1, 20, 60).Draw(t, "instance")
		host := rapid.SampledFrom([]string{"localhost", "127.0.0.1", "[::1]"}).Draw(t, "host")
		port := rapid.SampledFrom([]string{"", ":80", ":3000"}).Draw(t, "port")
		path := rapid.StringMatching(`(/([a-z.]{1,4}|%20|%41|ä|%2F)+){0,3}/?`).Draw(t, "path")
		query := rapid.StringMatching(`(\?[a-z=&%20]{0,9})?`).Draw(t, "query")
		text := "http://" + host + port + path + query
		o, u, ok := (&Config{}).split(text)
		if !ok {
			if !strings.Contains(path, "..") && !strings.Contains(query, "%") {
				t.Fatalf("split refuses the loopback address %q; want it split", text)
			}
			return
		}
		a, err := ParseAddress(mint(instance, u))
		if err != nil {
			t.Fatalf("ParseAddress of the address minted for %q: %v; want no error", text, err)
		}
		if a.Instance != instance {
			t.Fatalf("the instance %q is parsed as %q; want the same", instance, a.Instance)
		}
		back, again, ok := (&Config{}).split(o.url(a))
		if !ok || back != o || again.Path != strings.TrimSuffix("/"+strings.TrimPrefix(u.Path, "/"), "") || again.RawQuery != u.RawQuery {
			t.Fatalf("the address %q leads to %q; want itself", text, o.url(a))
		}
	})
}

func TestOnlyLiteralLoopbackAddressesAreMinted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"https://localhost/x", "HTTP://localhost/x", "http://127.1/x", "http://0x7f.0.0.1/x", "http://2130706433/x", "http://0177.0.0.1/x",
		"http://127.0.0.2/x", "http://[::ffff:127.0.0.1]/x", "http://[0:0:0:0:0:0:0:1]/x", "http://localhost.example.com/x", "http://localhost./x",
		"http://user@localhost/x", "http://localhost@evil.example/x", "http://evil.example#@localhost/", "http://10.0.0.1/x",
		"http://localhost:80:80/x", "http://localhost/../x", "http://localhost/%2e%2e/x", "http://0.0.0.0/", "http://[::]/", "ws://localhost/",
		"http:localhost", "http:///x", "http://", "file:///etc/passwd", "http://LOCALHOST/",
		"http://localhost:03000/", "http://127.0.0.1:0080/", "http://[::1]:0/", "http://localhost:65536/", "http://localhost:68536/",
	} {
		if _, _, ok := (&Config{}).split(text); ok {
			t.Errorf("split accepts %q", text)
		}
	}
}

// FuzzParseAddress fails if an address leads out of its canvas, or changes when it is formatted and
// parsed.
func FuzzParseAddress(f *testing.F) {
	for _, text := range []string{"ahp-canvas-content:/i%201/a%20b?x=%2e%2e#frag", "ahp-canvas-content:/i/%252e%252e/x", "ahp-canvas-content:/i/..%2fx", "ahp-canvas-content:/%2e%2e/x", "ahp-canvas-content:/i/a%5c..", "ahp-canvas-content:/i?\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAddress(text)
		if err != nil {
			return
		}
		u, err := url.Parse("http://127.0.0.1:1/" + a.Path)
		if err != nil || u.Host != "127.0.0.1:1" || strings.ContainsAny(u.Path, "\\\x00\r\n") || slices.Contains(strings.Split(u.Path, "/"), "..") {
			t.Errorf("the address %q leads to %v, %v; want a path below 127.0.0.1:1", text, u, err)
		}
		if again, err := ParseAddress(a.String()); err != nil || again != a {
			t.Errorf("%q is parsed as %+v, and its text as %+v, %v; want the same", text, a, again, err)
		}
	})
}
