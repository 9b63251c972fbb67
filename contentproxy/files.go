package contentproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"ahprelay/ahp"
)

// If the host's owner allows a folder, canvases with an address file:///<folder>/<path> show files
// from it. The folder acts as the root of a web server, so that pages with absolute paths work.
//
// A file must lie below the folder after all symbolic links are resolved, even if links change
// during the read (os.Root). No name in its resolved path may begin with a dot, except .well-known,
// because workspaces contain .git and .env. The folder's own links are resolved when the owner allows it; a link that
// replaces the folder later is not followed.

// filesScheme is the scheme of addresses in folders. Origins of files have it as their port too.
const filesScheme = "file"

func parseFolder(text string) (Allowed, error) {
	folder, ok := filePath(text)
	if !ok || folder == filepath.VolumeName(folder)+string(filepath.Separator) {
		return Allowed{}, fmt.Errorf("%q is not a valid folder for canvases; want a URL such as file:///home/ada/project/dist", text)
	}
	real, err := resolve(folder)
	if err != nil {
		return Allowed{}, fmt.Errorf("%q: %w", text, err)
	}
	return Allowed{filesScheme, folder, real}, nil
}

// filePath returns the path in a file: URL; ok is false unless the URL is local and in canonical
// form.
func filePath(text string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(text, filesScheme+":///")
	if !ok || len(text) > maxAddress || strings.ContainsAny(rest, "?#") || checkPath(rest) != nil {
		return "", false
	}
	decoded, err := url.PathUnescape(rest)
	name = "/" + decoded
	if runtime.GOOS == "windows" { // file:///C:/Users
		name = decoded
	}
	clean := filepath.Clean(filepath.FromSlash(name))
	return clean, err == nil && filepath.ToSlash(clean) == strings.TrimSuffix(name, "/") && filepath.IsAbs(clean)
}

// resolve resolves the symbolic links in a path. The last parts of the path need not exist.
func resolve(name string) (string, error) {
	real, err := filepath.EvalSymlinks(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	if _, err := os.Lstat(name); err == nil {
		return "", fmt.Errorf("%s is a link without a target", name)
	}
	parent, err := resolve(filepath.Dir(name))
	return filepath.Join(parent, filepath.Base(name)), err
}

// splitFile splits a file's URL into the allowed folder, as an origin, and the URL relative to that
// folder.
func (cfg *Config) splitFile(text string) (origin, *url.URL, bool) {
	address, fragment, _ := strings.Cut(text, "#")
	address, query, _ := strings.Cut(address, "?")
	name, ok := filePath(address)
	if !ok || strings.ContainsFunc(query+fragment, control) {
		return origin{}, nil, false
	}
	for _, a := range cfg.Allow {
		if a.scheme != filesScheme {
			continue
		}
		for _, folder := range []string{a.host, a.port} { // as named, and resolved
			below, err := filepath.Rel(folder, name)
			if err != nil || !filepath.IsLocal(below) {
				continue
			}
			u := &url.URL{Path: "/", RawQuery: query, Fragment: fragment}
			if below != "." {
				u.Path += filepath.ToSlash(below)
			}
			if strings.HasSuffix(address, "/") {
				u.Path = strings.TrimSuffix(u.Path, "/") + "/"
			}
			return origin{filesScheme, a.port, filesScheme}, u, true
		}
	}
	return origin{}, nil, false
}

// errNoFile reports that a path names no readable file.
var errNoFile = errors.New("file not found")

// errFolder reports that a path names a folder but lacks the final slash.
var errFolder = errors.New("path is a folder")

// hidden reports whether a path has a part that begins with a dot, except .well-known.
func hidden(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") && part != "." && part != ".well-known" {
			return true
		}
	}
	return false
}

// openFile opens the file at a decoded URL path below a folder. A path that ends in a slash means
// its index.html. The branches refuse each way out of the folder. The error is errFolder for a path
// of a folder, or else errNoFile.
func openFile(folder, at string) (*os.File, fs.FileInfo, error) {
	name := strings.TrimPrefix(at, "/")
	if name == "" || strings.HasSuffix(name, "/") {
		name += "index.html"
	}
	if !fs.ValidPath(name) || strings.ContainsAny(name, "\\\x00") || hidden(name) {
		return nil, nil, errNoFile
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, nil, errNoFile
	}
	defer func() { _ = root.Close() }()
	real, err := filepath.EvalSymlinks(filepath.Join(folder, filepath.FromSlash(name)))
	if err != nil {
		return nil, nil, errNoFile
	}
	name, err = filepath.Rel(folder, real) // if a link has replaced the folder, name leads out of the folder
	if err != nil || !filepath.IsLocal(name) || hidden(filepath.ToSlash(name)) {
		return nil, nil, errNoFile
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // without O_NONBLOCK, opening a pipe would block
	if err != nil {
		return nil, nil, errNoFile
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		err = errNoFile
	case info.IsDir():
		err = errFolder
	case !info.Mode().IsRegular():
		err = errNoFile
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

func serveFile(w http.ResponseWriter, r *http.Request, folder string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "files are read-only", http.StatusMethodNotAllowed)
		return
	}
	file, info, err := openFile(folder, r.URL.Path)
	h := w.Header()
	if errors.Is(err, errFolder) {
		h.Set("Location", url.PathEscape(path.Base(r.URL.Path))+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer func() { _ = file.Close() }()
	if kind := typeByName(info.Name()); kind != "" {
		h.Set("Content-Type", kind) // else it is detected
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	h.Set("Etag", fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size()))
	http.ServeContent(w, r, "", info.ModTime(), file)
}

// readFile reads a file from a folder for a client's AHP request.
func (f *fetcher) readFile(ctx context.Context, folder string, a Address) (*content, *refusal) {
	at, err := url.PathUnescape(a.Path)
	if err != nil {
		return nil, refuse(ahp.CodeInvalidParams, "the address is malformed")
	}
	file, info, err := openFile(folder, at)
	if err != nil {
		return nil, refuse(ahp.CodeNotFound, "%v", err)
	}
	defer func() { _ = file.Close() }()
	body, err := io.ReadAll(io.LimitReader(file, int64(f.limit)+1))
	switch {
	case err != nil || ctx.Err() != nil:
		return nil, refuse(ahp.CodeNotFound, "the file cannot be read")
	case len(body) > f.limit:
		return nil, refuse(ahp.CodePermissionDenied, "the content is larger than %d bytes", f.limit)
	}
	return newContent(body, mimeType("", info.Name(), body)), nil
}

// webTypes are media types that web pages depend on. They take precedence over the types that the
// operating system configures.
var webTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".htm": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8", ".json": "application/json", ".map": "application/json",
	".svg": "image/svg+xml", ".wasm": "application/wasm", ".webmanifest": "application/manifest+json", ".txt": "text/plain; charset=utf-8",
	".md": "text/markdown; charset=utf-8", ".woff2": "font/woff2", ".woff": "font/woff", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg",
	".webp": "image/webp", ".avif": "image/avif", ".gif": "image/gif", ".ico": "image/x-icon", ".mp4": "video/mp4", ".webm": "video/webm",
}

// typeByName returns the media type for a file name, or "" if unknown.
func typeByName(name string) string {
	ext := path.Ext(name)
	if kind := webTypes[strings.ToLower(ext)]; kind != "" {
		return kind
	}
	return mime.TypeByExtension(ext)
}
