// Package console serves the web console. The files in dist are embedded; go run
// ./console/build writes them.
//
// A file with a content hash in its name never changes. Text files are stored
// compressed and sent as stored.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

//go:embed dist
var dist embed.FS

// A File is one console file.
type File struct {
	Type      string // for Content-Type
	ETag      string
	Immutable bool // the name contains the content hash

	plain, packed []byte // packed is nil if compression does not make the file shorter
}

var hashed = regexp.MustCompile(`-[A-Z0-9]{8}\.(js|css)$`)

// Files returns the console's files by URL path. Callers share the map and the files
// and must not change them.
var Files = sync.OnceValues(readFiles)

func readFiles() (map[string]*File, error) {
	files := map[string]*File{}
	err := fs.WalkDir(dist, "dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		f := &File{plain: content}
		name = strings.TrimPrefix(name, "dist")
		if plain, ok := strings.CutSuffix(name, ".gz"); ok {
			name, f.packed = plain, content
			if f.plain, err = unpack(content); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		sum := sha256.Sum256(f.plain)
		f.ETag = `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
		f.Type = typeOf(name)
		f.Immutable = hashed.MatchString(name)
		files[strings.TrimSuffix(name, "index.html")] = f
		return nil
	})
	return files, err
}

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// types overrides content types for which operating systems have different defaults.
var types = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8",
	".svg": "image/svg+xml", ".webmanifest": "application/manifest+json", ".png": "image/png", ".LICENSE": "text/plain; charset=utf-8",
}

func typeOf(name string) string {
	if t, ok := types[path.Ext(name)]; ok {
		return t
	}
	return mime.TypeByExtension(path.Ext(name))
}

// ServeHTTP sends the file, or 304 if the client's copy is current.
func (f *File) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.serve(w, r, "") }

// serve sends the file with a policy of its own. Browsers keep the policy of their copy
// after 304, so the policy is part of the file's name there.
func (f *File) serve(w http.ResponseWriter, r *http.Request, policy string) {
	h := w.Header()
	etag := f.ETag
	if policy != "" {
		sum := sha256.Sum256([]byte(policy))
		etag = strings.TrimSuffix(etag, `"`) + "." + base64.RawURLEncoding.EncodeToString(sum[:6]) + `"`
	}
	h.Set("ETag", etag)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if f.Immutable {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if strings.Contains(r.Header.Get("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.Type)
	body := f.plain
	if f.packed != nil && takesGzip(r.Header.Get("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		body = f.packed
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have disconnected
	}
}

var gzipRefused = regexp.MustCompile(`gzip\s*;\s*q=0(\.0*)?\s*(,|$)`)

func takesGzip(accepted string) bool {
	return strings.Contains(accepted, "gzip") && !gzipRefused.MatchString(accepted)
}
