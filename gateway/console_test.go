package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestConsoleHeaders has each page, and what belongs to it, come with what keeps
// others from it.
func TestConsoleHeaders(t *testing.T) {
	for _, path := range []string{"/", "/sw.js", "/canvas-inband.html", "/terminal.html", "/canvas-direct.html", "/mcp-app.html?connect=https://example.com"} {
		w := httptest.NewRecorder()
		console(canvasOrigin{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		for name, want := range map[string]string{
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cache-Control":                "no-cache",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q; want %q", path, name, got, want)
			}
		}
		policy := w.Header().Get("Content-Security-Policy")
		if inFrame := strings.Contains(path, ".html"); strings.HasPrefix(policy, "sandbox allow-scripts;") != inFrame || !strings.Contains(policy, "default-src 'none'") {
			t.Errorf("%s: policy %q", path, policy)
		}
	}
}
