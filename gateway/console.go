package gateway

import (
	"cmp"
	"embed"
	"io/fs"
	"net/http"
)

//go:embed console
var consoleFiles embed.FS

// consolePolicy lets the console run its own script and style, talk to this
// relay, and frame the pages below; nothing else.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// sandboxPolicies are those of the pages that stand around canvases, which are
// not to be trusted: each has an origin of its own, not this one. A canvas that
// is rebuilt from what the console reads runs whatever script it likes and
// reaches no network; one that is somewhere else on the web is in a frame of
// its own.
var sandboxPolicies = map[string]string{
	"/canvas-inband.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; " +
		"style-src 'unsafe-inline' blob: data:; img-src blob: data:; font-src blob: data:; media-src blob: data:; connect-src blob: data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/canvas-direct.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
		"frame-src https: http://127.0.0.1:* http://localhost:* http://*.localhost:*; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
}

// console serves the web console. It is the same for everybody: the token is
// in the fragment of the URL, which browsers do not send.
func console() http.Handler {
	files, err := fs.Sub(consoleFiles, "console")
	if err != nil {
		panic(err) // it is embedded
	}
	serve := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		policy := cmp.Or(sandboxPolicies[r.URL.Path], consolePolicy)
		if r.URL.Path == appPage {
			policy = appPolicy(r.URL.Query(), r.Host)
		}
		h.Set("Content-Security-Policy", policy)
		h.Set("X-DNS-Prefetch-Control", "off")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Opener-Policy", "same-origin") // who opens it, or is opened by it, has no hold on it
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	})
}
