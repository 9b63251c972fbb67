package gateway

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed console
var consoleFiles embed.FS

// consolePolicy lets the console run its own script and style, and talk to
// this relay, and nothing else.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

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
		h.Set("Content-Security-Policy", consolePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	})
}
