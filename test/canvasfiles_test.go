package test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/contentproxy"
)

// The owner allows a folder. A canvas then shows files in the folder, by URL and
// through the client's channel. Files outside are refused.
func TestOnlyAllowedFilesAreShown(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for name, text := range map[string]string{"dist/index.html": "<p>index", "dist/assets/app.js": "export {}", "secret.txt": "secret"} {
		name = filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	allowed, err := contentproxy.ParseAllowed("file://" + base + "/dist")
	if err != nil {
		t.Fatal(err)
	}
	w := newCanvasWorld(t, contentproxy.Config{Allow: []contentproxy.Allowed{allowed}},
		agenthost.Canvas{ID: "site", Mode: agenthost.CanvasLoopback, URL: "file://" + base + "/dist/index.html"}, agenthost.Canvas{ID: "other", URL: "file://" + base + "/secret.txt"})
	c, channel, b := w.client("c"), w.open("site"), w.browser()
	address := w.show(c, channel)
	page := b.open(w.ticket(c, map[string]any{"channel": channel, "uri": address}))
	if page.status != http.StatusOK || page.body != "<p>index" || !strings.HasSuffix(page.url, "/index.html") {
		t.Fatalf("the page %s: HTTP %d %q; want 200 with the index", page.url, page.status, page.body)
	}
	base2 := strings.TrimSuffix(page.url, "/index.html")
	if r := b.send("GET", base2+"/assets/app.js", map[string]string{"Range": "bytes=7-"}, nil); r.status != http.StatusPartialContent || r.body != "{}" ||
		r.header.Get("Content-Type") != "text/javascript; charset=utf-8" || r.header.Get("Cache-Control") != "private, no-cache" {
		t.Errorf("a range of the script: HTTP %d, %q, header %v; want 206, {}, and its type", r.status, r.body, r.header)
	}
	if r := b.open(base2 + "/assets"); r.status != http.StatusNotFound || r.url != base2+"/assets/" {
		t.Errorf("a folder without a page: HTTP %d at %s; want 404 at /assets/", r.status, r.url)
	}
	if r := b.open(base2 + "/..%2fsecret.txt"); r.status != http.StatusNotFound {
		t.Errorf("a file beside the folder: HTTP %d, %q; want 404", r.status, r.body)
	}
	if r := b.send("PUT", base2+"/index.html", map[string]string{"Origin": base2}, strings.NewReader("x")); r.status != http.StatusMethodNotAllowed {
		t.Errorf("PUT of a file: HTTP %d; want 405", r.status)
	}
	if content, err := w.read(c, channel, strings.Replace(address, "index.html", "assets/app.js", 1)); err != nil || content.Text != "export {}" {
		t.Errorf("reading a file by AHP: %+v, %v; want its content", content, err)
	}
	if at := w.show(c, w.open("other")); strings.HasPrefix(at, contentproxy.Scheme) {
		t.Errorf("a file outside the permitted folders has the address %s; want none at the relay", at)
	}
}
