package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// signsIn are the paths at which a browser registers a device key and gets tokens.
var signsIn = []string{"/auth/device", "/auth/token", "/auth/share"}

// admitConsoles allows pages from ConsoleOrigins to sign in and to call /api/ with tokens
// (CORS). Cookies are not sent with these calls.
func (s *Server) admitConsoles(next http.Handler) http.Handler {
	if len(s.cfg.ConsoleOrigins) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, origin := w.Header(), r.Header.Get("Origin")
		if !strings.HasPrefix(r.URL.Path, "/api/") && !slices.Contains(signsIn, r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		h.Add("Vary", "Origin")
		if !slices.Contains(s.cfg.ConsoleOrigins, origin) {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "DPoP-Nonce, Retry-After")
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, DPoP")
		h.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}
