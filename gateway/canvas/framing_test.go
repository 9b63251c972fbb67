package canvas

import (
	"net/http"
	"strings"
	"testing"
)

// An application sets arbitrary headers on framing, reports, caching and cookies. The
// relay replaces them: only the canvas's own origin and the relay's may frame the
// canvas, the browser reports nothing, no shared cache stores the answer, and cookies
// stay at the canvas's origin.
func FuzzFramable(f *testing.F) {
	f.Add("default-src 'self'; frame-ancestors 'none'; report-uri /x, sandbox;FRAME-ANCESTORS\t*", "public, s-maxage=5, no-transform", "a=b; Domain=localhost; Path=/x")
	f.Add(";;,\f;frame-ancestors", "private=\"x\", Public", "__Host-ahp-canvas=mine; Path=/; Secure")
	f.Add("", "", "AHP-canvas=x")
	f.Fuzz(func(t *testing.T, policy, caching, cookie string) {
		if strings.ContainsAny(policy+caching+cookie, "\r\n\x00") {
			return // net/http rejects such headers
		}
		for _, origin := range []Origin{{"https", "canvas.example", ""}, {"http", "localhost", "8484"}} {
			c := &Canvases{Config: Config{Origin: origin}}
			h := http.Header{"Content-Security-Policy": {policy}, "Cache-Control": {caching}, "Set-Cookie": {cookie}}
			c.framable(h, "https://relay.example")
			ancestors := 0
			for _, one := range strings.Split(strings.Join(h["Content-Security-Policy"], ","), ",") {
				for _, directive := range strings.Split(one, ";") {
					switch name, value, _ := strings.Cut(strings.ToLower(strings.Trim(directive, " \t\f")), " "); name {
					case "report-uri", "report-to":
						t.Errorf("for the application's policy %q, the sent policy has a report address %s; want none", policy, value)
					case "frame-ancestors":
						if ancestors++; value != "'self' https://relay.example" {
							t.Errorf("%q: %s may frame the page; want only the relay's page", policy, value)
						}
					}
				}
			}
			if ancestors != 1 {
				t.Errorf("%q: %d frame-ancestors directives reach the page, policy %q; want 1", policy, ancestors, h["Content-Security-Policy"])
			}
			for _, directive := range strings.Split(h.Get("Cache-Control"), ",") {
				if name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(directive)), "="); name == "public" || name == "s-maxage" {
					t.Errorf("Cache-Control %q became %q; want no shared caches", caching, h.Get("Cache-Control"))
				}
			}
			for _, line := range h["Set-Cookie"] {
				got, err := http.ParseSetCookie(line)
				if err != nil || got.Domain != "" || strings.EqualFold(got.Name, origin.cookieName()) {
					t.Errorf("Set-Cookie %q became %q; want no domain, and not the relay's cookie", cookie, line)
				}
			}
		}
	})
}
