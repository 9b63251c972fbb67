package gateway

import (
	"ahprelay/gateway/canvas"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestConsolePagesHaveSecurityHeaders requests files of the console. Each response has
// the security headers, and a page for a frame (.html) also has a sandbox.
func TestConsolePagesHaveSecurityHeaders(t *testing.T) {
	for _, path := range []string{"/", "/sw.js", "/canvas-inband.html", "/terminal.html", "/math.html", "/diagram.html", "/canvas-direct.html", "/mcp-app.html?connect=https://example.com"} {
		w := httptest.NewRecorder()
		console(canvas.Origin{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		for name, want := range map[string]string{
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Permissions-Policy":           "camera=(self), microphone=(self), geolocation=(), payment=(), usb=()",
			"Cache-Control":                "no-cache",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q; want %q", path, name, got, want)
			}
		}
		policy := w.Header().Get("Content-Security-Policy")
		if inFrame := strings.Contains(path, ".html"); strings.HasPrefix(policy, "sandbox allow-scripts;") != inFrame || !strings.Contains(policy, "default-src 'none'") {
			t.Errorf("%s: policy %q; want a sandbox only for pages in frames, and default-src none", path, policy)
		}
		if apart := path == "/math.html" || path == "/diagram.html"; apart && (strings.Contains(policy, "connect-src") || strings.Contains(policy, "http")) {
			t.Errorf("the page %s, which shows an agent's text, has the policy %q; want no network", path, policy)
		}
	}
}

// The pages for sign-in at an authorization server run only their own script.
// /outside.html may reach authorization servers, and only the console can frame it. No
// page can frame /signed-in.html.
func TestSignInPagesRunOnlyTheirScript(t *testing.T) {
	for path, want := range map[string]struct{ connects, framed string }{
		"/outside.html":   {"connect-src https: ", "frame-ancestors 'self'"},
		"/signed-in.html": {"", "frame-ancestors 'none'"},
	} {
		w := httptest.NewRecorder()
		console(canvas.Origin{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		policy := w.Header().Get("Content-Security-Policy")
		if w.Code != http.StatusOK || !strings.Contains(policy, "default-src 'none'; script-src 'self'; "+want.connects) || !strings.Contains(policy, want.framed) ||
			strings.Contains(policy, "unsafe") || (want.connects == "" && strings.Contains(policy, "connect-src")) || !strings.Contains(policy, "require-trusted-types-for 'script'; trusted-types 'none'") {
			t.Errorf("%s: HTTP %d, policy %q; want 200, and a policy for the page's own script only", path, w.Code, policy)
		}
	}
}

// The relay serves its OAuth client metadata at the URL that the metadata names as the
// client's id.
func TestOAuthClientDocumentIsAtItsID(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "https://relay.example.com/oauth-client.json", nil)
	serveOAuthClient(w, r)
	var got oauthClient
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.ID != "https://relay.example.com/oauth-client.json" || len(got.Redirects) != 1 || got.Redirects[0] != "https://relay.example.com/signed-in.html" || got.Method != "none" {
		t.Errorf("the OAuth client document is %+v; want the relay's own ID and one redirect address", got)
	}
}
