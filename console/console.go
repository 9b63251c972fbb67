// Package console serves the web console. The files in dist are embedded;
// `go run ./console/build` writes them.
//
// A file with a content hash in its name never changes. Most text files are stored
// compressed, and sent so if the client accepts it.
package console

import (
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/binary"
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

	name   string // file in dist, which is read for each request, because a copy would occupy memory
	stored int    // bytes in dist
	packed bool   // the file in dist is compressed
	plain  int    // bytes without compression
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
		f, err := readFile(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		name = strings.TrimSuffix(strings.TrimPrefix(name, "dist"), packedExt)
		f.Type = typeOf(name)
		f.Immutable = hashed.MatchString(name)
		files[strings.TrimSuffix(name, "index.html")] = f
		return nil
	})
	return files, err
}

// packedExt ends the names of compressed files.
const packedExt = ".gz"

func readFile(name string) (*File, error) {
	content, err := dist.Open(name)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	sum := sha256.New()
	stored, err := io.Copy(sum, content)
	if err != nil {
		return nil, err
	}
	f := &File{
		ETag: `"` + base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:12]) + `"`,
		name: name, stored: int(stored), packed: strings.HasSuffix(name, packedExt), plain: int(stored),
	}
	if !f.packed {
		return f, nil
	}
	var length [4]byte // a gzip file ends with the length of its content
	_, err = content.(io.ReaderAt).ReadAt(length[:], stored-int64(len(length)))
	f.plain = int(binary.LittleEndian.Uint32(length[:]))
	return f, err
}

// open returns the content, compressed only if asStored is set and dist has it compressed.
func (f *File) open(asStored bool) (io.ReadCloser, error) {
	content, err := dist.Open(f.name)
	if err != nil || asStored || !f.packed {
		return content, err
	}
	return gzip.NewReader(content) // a file of dist needs no Close
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

// serve is ServeHTTP for a file whose Content-Security-Policy depends on policy. The ETag
// depends on policy too, because after 304 a browser uses the policy of its copy.
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
	asStored, size := !f.packed || takesGzip(r.Header.Get("Accept-Encoding")), f.plain
	if asStored {
		size = f.stored
	}
	if f.packed && asStored {
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(size))
	if r.Method == http.MethodHead {
		return
	}
	body, err := f.open(asStored)
	if err != nil {
		panic(err) // the files are embedded
	}
	defer body.Close()
	_, _ = io.Copy(w, body) // the client may have disconnected
}

var gzipRefused = regexp.MustCompile(`gzip\s*;\s*q=0(\.0*)?\s*(,|$)`)

func takesGzip(accepted string) bool {
	return strings.Contains(accepted, "gzip") && !gzipRefused.MatchString(accepted)
}
