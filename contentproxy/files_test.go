//go:build unix

package contentproxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// workspace makes a folder with files and links, and secret files outside it.
func workspace(t *testing.T) (folder string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	folder = filepath.Join(base, "project", "dist")
	for name, text := range map[string]string{
		"secret": "secret", "project/dist-other/a.txt": "secret", "project/dist/.env": "secret", "project/dist/.git/config": "secret",
		"project/dist/index.html": "<p>index", "project/dist/app.js": "export {}", "project/dist/sub/index.html": "<p>sub", "project/dist/a b#?.txt": "odd",
		"project/dist/mod.wasm": "\x00asm", "project/dist/.well-known/x.json": "{}", "project/dist/no-ending": "<!doctype html><p>looks like it",
	} {
		name = filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"inside.js": "app.js", "sub/up.js": "../app.js", "outside": "../../secret", "absolute": filepath.Join(base, "secret"), "absolute.js": filepath.Join(folder, "app.js"), "folder": "../../", "loop": "loop", "hidden": ".env",
	} {
		if err := os.Symlink(to, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(folder, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestOnlyTheFoldersFilesAreServed requests paths. Files in the folder must be served, and hidden
// files, special files and all outside must not.
func TestOnlyTheFoldersFilesAreServed(t *testing.T) {
	folder := workspace(t)
	get := func(method, target string, header http.Header) *http.Response {
		t.Helper()
		r := httptest.NewRequest(method, "http://canvas"+target, nil)
		for name, values := range header {
			r.Header[name] = values
		}
		w := httptest.NewRecorder()
		serveFile(w, r, folder)
		return w.Result()
	}
	body := func(r *http.Response) string {
		b, _ := io.ReadAll(r.Body)
		return string(b)
	}
	for target, want := range map[string][2]string{
		"/": {"<p>index", "text/html; charset=utf-8"}, "/index.html": {"<p>index", "text/html; charset=utf-8"}, "/sub/": {"<p>sub", "text/html; charset=utf-8"},
		"/app.js": {"export {}", "text/javascript; charset=utf-8"}, "/inside.js": {"export {}", "text/javascript; charset=utf-8"}, "/absolute.js": {"export {}", "text/javascript; charset=utf-8"}, "/sub/up.js": {"export {}", "text/javascript; charset=utf-8"},
		"/mod.wasm": {"\x00asm", "application/wasm"}, "/a%20b%23%3F.txt": {"odd", "text/plain; charset=utf-8"}, "/.well-known/x.json": {"{}", "application/json"},
		"/app.js?v=1": {"export {}", "text/javascript; charset=utf-8"}, "/no-ending": {"<!doctype html><p>looks like it", "text/html; charset=utf-8"},
	} {
		r := get("GET", target, nil)
		if got := body(r); r.StatusCode != 200 || got != want[0] || r.Header.Get("Content-Type") != want[1] || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("GET %s: HTTP %d %q %v; want 200 with the file and its type", target, r.StatusCode, got, r.Header)
		}
	}
	for _, target := range []string{
		"/none", "/outside", "/absolute", "/folder/secret", "/folder/", "/loop", "/pipe", "/.env", "/hidden", "/.git/config", "/.git/", "/../secret", "/%2e%2e/secret",
		"/sub/../../../secret", "/..%2f..%2fsecret", "/..\\secret", "/%5c..%5csecret", "//app.js", "/app.js/", "/./app.js", "/app.js%00", "/sub//index.html",
		"/../dist-other/a.txt", "/~root",
	} {
		if r := get("GET", target, nil); r.StatusCode != 404 {
			t.Errorf("GET %s: HTTP %d %q; want 404", target, r.StatusCode, body(r))
		}
	}
	if r := get("GET", "/sub", nil); r.StatusCode != 301 || r.Header.Get("Location") != "sub/" {
		t.Errorf("GET of a folder: HTTP %d %v; want 301 to sub/", r.StatusCode, r.Header)
	}
	if r := get("GET", "/app.js", http.Header{"Range": {"bytes=0-5"}}); r.StatusCode != 206 || body(r) != "export" {
		t.Errorf("GET of a range: HTTP %d; want 206 with the range", r.StatusCode)
	}
	if r := get("HEAD", "/app.js", nil); r.StatusCode != 200 || r.ContentLength != 9 || body(r) != "" {
		t.Errorf("HEAD: HTTP %d, %d bytes; want 200, 9 bytes and no body", r.StatusCode, r.ContentLength)
	}
	tag := get("GET", "/app.js", nil).Header.Get("Etag")
	if r := get("GET", "/app.js", http.Header{"If-None-Match": {tag}}); tag == "" || r.StatusCode != 304 {
		t.Errorf("GET with the file's tag: HTTP %d; want 304", r.StatusCode)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		if r := get(method, "/app.js", nil); r.StatusCode != 405 || r.Header.Get("Allow") == "" {
			t.Errorf("%s: HTTP %d; want 405 with the methods allowed", method, r.StatusCode)
		}
	}

	// After a link has replaced the folder, serveFile must serve no file.
	if err := os.Rename(folder, folder+"-was"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder+"-other", folder); err != nil {
		t.Fatal(err)
	}
	if r := get("GET", "/a.txt", nil); r.StatusCode != 404 {
		t.Errorf("a link in place of the folder: HTTP %d, %q; want 404", r.StatusCode, body(r))
	}
}

// TestOnlyAllowedFoldersAreServed lists file addresses. split must accept exactly those in the
// allowed folder.
func TestOnlyAllowedFoldersAreServed(t *testing.T) {
	folder := workspace(t)
	link := filepath.Join(filepath.Dir(folder), "link")
	if err := os.Symlink("dist", link); err != nil {
		t.Fatal(err)
	}
	for _, named := range []string{folder, link, folder + "/"} {
		allowed, err := ParseAllowed("file://" + named)
		if err != nil {
			t.Fatal(err)
		}
		cfg := &Config{Allow: []Allowed{allowed}}
		for text, want := range map[string]string{
			"file://" + named: "/", "file://" + folder + "/": "/", "file://" + folder + "/index.html": "/index.html", "file://" + folder + "/a%20b?x=1#y": "/a%20b?x=1#y",
			"file://" + folder + "/sub/": "/sub/",
		} {
			o, u, ok := cfg.split(text)
			if !ok || o != (origin{filesScheme, folder, filesScheme}) || u.String() != want && u.String() != strings.TrimSuffix(want, "/") {
				t.Errorf("%s allowed, %s: %v %v %t; want %s", named, text, o, u, ok, want)
			}
		}
		for _, text := range []string{
			"file://" + filepath.Dir(folder), "file://" + folder + "-other/a.txt", "file://" + folder + "/../x", "file://" + folder + "/%2e%2e/x", "file:" + folder, "file:/" + folder,
			"FILE://" + folder + "/", "file://localhost" + folder + "/", "file:////" + folder, "file://" + folder + "//x", "file://" + folder + "/./x", "http://" + folder, "file:///",
		} {
			if o, u, ok := cfg.split(text); ok {
				t.Errorf("with the folder %s, split accepts %s: %v %v; want a refusal", named, text, o, u)
			}
		}
	}
	if _, err := ParseAllowed("file://" + folder + "/built/later"); err != nil {
		t.Errorf("ParseAllowed of an absent folder: %v; want no error", err)
	}
	for _, text := range []string{"file:///", "file://", "file:" + folder, "file://host/x", "file:///x?y", "file:///x#y", "file:///x/../y", "file://" + folder + "/loop"} {
		if a, err := ParseAllowed(text); err == nil {
			t.Errorf("ParseAllowed(%q) = %+v; want an error", text, a)
		}
	}
}

// TestFilesStayInside opens random paths in the folder. No opened file may be a secret.
func TestFilesStayInside(t *testing.T) {
	folder := workspace(t)
	part := rapid.SampledFrom([]string{"..", ".", "", "secret", "folder", "project", "dist", "sub", "outside", ".env", "hidden", ".git", "config", "%2e%2e", "a.txt", "dist-other", "absolute", "\\", "~"})
	rapid.Check(t, func(t *rapid.T) {
		at := "/" + strings.Join(rapid.SliceOfN(part, 1, 6).Draw(t, "parts"), "/")
		file, _, err := openFile(folder, at)
		if err != nil {
			return
		}
		text, _ := io.ReadAll(file)
		_ = file.Close()
		if strings.Contains(string(text), "secret") {
			t.Fatalf("openFile opened a secret at %s; want only files inside", at)
		}
	})
}

// TestFilesAreTheHostsWord has a client name a file address, and the host repeat it. The address
// must not be minted for this canvas. For a canvas about which the client has said nothing, the
// same address must be minted.
func TestFilesAreTheHostsWord(t *testing.T) {
	folder := workspace(t)
	allowed, err := ParseAllowed("file://" + folder)
	if err != nil {
		t.Fatal(err)
	}
	at := func(path string) string { return "file://" + folder + path }
	for _, said := range []string{at("/app.js"), " FILE:" + folder, "file://localhost" + folder + "/app.js"} {
		c := newHost(t, Config{Allow: []Allowed{allowed}}).client(t)
		c.sends(`{"method":"dispatchAction","params":{"channel":"ahp-canvas:/1","clientSeq":1,"action":{"type":"canvas/updated","url":%q}}}`, said)
		if strings.Contains(c.opens("1", serverState("i1", at("/app.js"))), Scheme) || !strings.Contains(c.opens("2", serverState("i2", at("/app.js"))), Scheme+":/i2/app.js") {
			t.Errorf("%s: the client's address is minted, or a different canvas's is not; want only the latter", said)
		}
	}
	c := newHost(t, Config{Allow: []Allowed{allowed}}).client(t)
	if got := c.opens("1", serverState("i1", "file://"+filepath.Dir(folder)+"/dist-other/a.txt")); strings.Contains(got, Scheme) {
		t.Errorf("a file that is not permitted is minted: %s; want its own address", got)
	}
}
