package canvas

import (
	"net/http"
	"strings"
	"testing"
)

// An application sends headers that must not reach a browser at a canvas's origin, also
// in uncommon forms. The relay drops them, and adds its own policy for framing.
func TestUnsafeHeadersAreDropped(t *testing.T) {
	c := New(Config{Origin: Origin{Scheme: "https", Domain: "canvas.example.com"}})
	for _, name := range []string{
		"X-Accel-Redirect", "X-Accel-Expires", "X-Sendfile", "X-Lighttpd-Send-File", "X-Reproxy-Url", "Fly-Replay",
		"X-Frame-Options", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc",
	} {
		h := http.Header{name: {"/internal/secret"}}
		if c.framable(h, ""); len(h[name]) > 0 {
			t.Errorf("the header %s is passed on; want it dropped", name)
		}
	}
	for _, said := range [][]string{
		{"frame-ancestors 'none'"}, {"FRAME-ANCESTORS\t'none'"}, {"img-src x, frame-ancestors 'none'"}, {"img-src x,frame-ancestors\f'none';report-uri https://evil.example"},
		{"img-src x;\tframe-ancestors\t'none'", "Report-To\tx , report-uri\tx"},
	} {
		h := http.Header{"Content-Security-Policy": said}
		c.framable(h, "https://relay.example.com")
		policies := h["Content-Security-Policy"]
		last := len(policies) - 1
		if policies[last] != "frame-ancestors 'self' https://relay.example.com" {
			t.Errorf("after the policy %q, the policies are %q; want the relay's as the last", said, policies)
		}
		rest := strings.ToLower(strings.Join(policies[:last], ","))
		if strings.Contains(rest, "ancestors") || strings.Contains(rest, "report") || strings.Contains(strings.Join(said, ""), "img-src") != strings.Contains(rest, "img-src x") {
			t.Errorf("application's policy %q: kept is %q; want img-src only", said, rest)
		}
	}
}
