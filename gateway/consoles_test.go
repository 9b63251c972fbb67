package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestOnlyConsoleOriginsCallTheInterfaces sends requests from pages of different
// origins. Only the configured console's origin gets headers that permit the call, and
// only at the interfaces for consoles.
func TestOnlyConsoleOriginsCallTheInterfaces(t *testing.T) {
	t.Parallel()
	s := &Server{cfg: Config{ConsoleOrigins: []string{"https://console.example"}}}
	handler := s.admitConsoles(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for _, c := range []struct {
		method, path, origin string
		preflight            bool
		status               int
		allowed              string
	}{
		{"GET", "/api/hosts", "https://console.example", false, http.StatusTeapot, "https://console.example"},
		{"OPTIONS", "/api/hosts", "https://console.example", true, http.StatusNoContent, "https://console.example"},
		{"OPTIONS", "/api/hosts", "https://console.example", false, http.StatusTeapot, "https://console.example"},
		{"GET", "/api/hosts", "https://console.example.evil", false, http.StatusTeapot, ""},
		{"OPTIONS", "/api/hosts", "http://console.example", true, http.StatusTeapot, ""},
		{"GET", "/api/hosts", "", false, http.StatusTeapot, ""},
		{"OPTIONS", "/auth/token", "https://console.example", true, http.StatusNoContent, "https://console.example"},
		{"POST", "/auth/device", "https://console.example", false, http.StatusTeapot, "https://console.example"},
		{"POST", "/auth/share", "https://console.example", false, http.StatusTeapot, "https://console.example"},
		{"POST", "/auth/device", "https://evil.example", false, http.StatusTeapot, ""},
		{"POST", "/auth/setup", "https://console.example", false, http.StatusTeapot, ""},
		{"GET", "/operator/hosts", "https://console.example", false, http.StatusTeapot, ""},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		r.Header.Set("Origin", c.origin)
		if c.preflight {
			r.Header.Set("Access-Control-Request-Method", "GET")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if got := w.Header().Get("Access-Control-Allow-Origin"); w.Code != c.status || got != c.allowed {
			t.Errorf("%s %s from the origin %q: HTTP %d, allowed origin %q; want %d, %q", c.method, c.path, c.origin, w.Code, got, c.status, c.allowed)
		}
		if w.Header().Get("Access-Control-Allow-Credentials") != "" {
			t.Error("an answer has Access-Control-Allow-Credentials; want it without")
		}
	}
	for _, bad := range []string{"console.example", "https://console.example/", "*", "https://*.example/x"} {
		if err := (&Config{ConsoleOrigins: []string{bad}}).checkOrigins(); err == nil || !strings.Contains(err.Error(), "--console-origin") {
			t.Errorf("console origin %q gives %v; want an error that names --console-origin", bad, err)
		}
	}
}
