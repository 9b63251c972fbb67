// Package console holds the web console as go run ./console/build has bundled
// it: the files of dist, which are embedded.
//
// Files whose names end with a hash of their content never change. Text is kept
// compressed, as clients take it.
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

// A File is one file of the console.
type File struct {
	Type      string // for Content-Type
	ETag      string
	Immutable bool // its name says what is in it

	plain, packed []byte // packed is nil where that is not shorter
}

var hashed = regexp.MustCompile(`-[A-Z0-9]{8}\.(js|css)$`)

// Files returns the files of the console by their paths on the web. They do not
// change, and are everybody's.
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

// types are those that systems disagree about.
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

// Size is how many bytes a client gets.
func (f *File) Size() int {
	if f.packed != nil {
		return len(f.packed)
	}
	return len(f.plain)
}

// ServeHTTP answers with the file: 304 to who has it.
func (f *File) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("ETag", f.ETag)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if f.Immutable {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if strings.Contains(r.Header.Get("If-None-Match"), f.ETag) {
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
		_, _ = w.Write(body) // who is gone needs no answer
	}
}

var gzipRefused = regexp.MustCompile(`gzip\s*;\s*q=0(\.0*)?\s*(,|$)`)

func takesGzip(accepted string) bool {
	return strings.Contains(accepted, "gzip") && !gzipRefused.MatchString(accepted)
}
