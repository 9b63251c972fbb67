package people

import (
	"embed"
	"io/fs"
	"net/http"

	"rsc.io/qr"
)

//go:embed pages
var pageFiles embed.FS

// pagePolicy restricts the pages to their own scripts and styles, and to requests to this
// relay.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pagesHandler serves the pages for sign-in (/setup, /signin), devices (/device) and
// shared links (/s), and their files (/pages/…).
func pagesHandler() http.Handler {
	files, err := fs.Sub(pageFiles, "pages")
	if err != nil {
		panic(err) // cannot happen: the directory is embedded
	}
	serve := http.StripPrefix("/pages", http.FileServerFS(files))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		switch r.URL.Path {
		case "/signin":
			http.ServeFileFS(w, r, files, "device.html")
		case "/s":
			http.ServeFileFS(w, r, files, "share.html")
		case "/setup", "/device":
			http.ServeFileFS(w, r, files, r.URL.Path[1:]+".html")
		default:
			serve.ServeHTTP(w, r)
		}
	})
}

// qrRows returns a text's QR code as rows of 0 and 1, or nil if the text is too long.
func qrRows(text string) []string {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return nil
	}
	rows := make([]string, code.Size)
	for y := range rows {
		row := make([]byte, code.Size)
		for x := range row {
			row[x] = '0'
			if code.Black(x, y) {
				row[x] = '1'
			}
		}
		rows[y] = string(row)
	}
	return rows
}
