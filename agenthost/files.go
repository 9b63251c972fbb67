package agenthost

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A fileStore serves file: URIs from one or several directories.
type fileStore struct{ roots []*fileRoot }

// A fileRoot is a directory tree, or files in memory.
type fileRoot struct {
	fsys     fs.FS
	prefix   string   // absolute path with slashes at which clients see fsys
	root     *os.Root // nil: the files are in memory
	writable bool
}

func openFileStore(cfg Config) (*fileStore, error) {
	s := &fileStore{}
	for _, dir := range cfg.directories() {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("agenthost: Config.Root or Folders: %w", err), s.close())
		}
		s.roots = append(s.roots, &fileRoot{fsys: root.FS(), prefix: filepath.ToSlash(filepath.Clean(dir)), root: root, writable: cfg.Writable})
	}
	if len(s.roots) == 0 {
		s.roots = []*fileRoot{{fsys: newMemFS(cfg.Files, cfg.Now()), prefix: "/"}}
	}
	return s, nil
}

func (s *fileStore) close() (err error) {
	for _, r := range s.roots {
		if r.root != nil {
			err = errors.Join(err, r.root.Close())
		}
	}
	return err
}

func (s *fileStore) defaultDirectory() string {
	return (&url.URL{Scheme: "file", Path: s.roots[0].prefix}).String()
}

// find returns the served directory that contains a file: URI, and the file's name
// in that directory.
func (s *fileStore) find(uri string) (*fileRoot, string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Path == "" {
		return nil, "", fail(ahp.CodeInternalError, "ENOPRO: No file system provider found for resource '%s'", uri)
	}
	clean := path.Clean("/" + u.Path)
	for _, r := range s.roots {
		if clean == r.prefix {
			return r, ".", nil
		}
		if name, ok := strings.CutPrefix(clean, strings.TrimSuffix(r.prefix, "/")+"/"); ok && fs.ValidPath(name) && (u.Host == "" || u.Host == "localhost") {
			return r, name, nil
		}
	}
	return nil, "", fail(ahp.CodePermissionDenied, "Not in a directory that this host serves: %s", uri)
}

// towards lists a directory that contains served directories. It returns only the
// entries that lead to served directories.
func (s *fileStore) towards(uri string) []string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Path == "" {
		return nil
	}
	var names []string
	above := strings.TrimSuffix(path.Clean("/"+u.Path), "/") + "/"
	for _, r := range s.roots {
		if rest, ok := strings.CutPrefix(r.prefix, above); ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// changeable returns the root and the name of a file that a client wants to change. It
// returns an error if the file must not change.
func (s *fileStore) changeable(uri string) (*os.Root, string, error) {
	r, name, err := s.find(uri)
	if err != nil {
		return nil, "", err
	}
	if !r.writable || name == "." {
		return nil, "", fail(ahp.CodePermissionDenied, "Permission denied: %s", uri)
	}
	return r.root, name, nil
}

// read returns a file of at most limit bytes.
func (s *fileStore) read(uri string, limit int) ([]byte, error) {
	r, name, err := s.find(uri)
	if err != nil {
		return nil, err
	}
	info, err := fs.Stat(r.fsys, name)
	switch {
	case err != nil:
		return nil, fileError("Content not found", uri, err)
	case info.IsDir():
		return nil, fail(ahp.CodeInternalError, "Failed to read content: %s: it is a directory", uri)
	case info.Size() > int64(limit):
		return nil, fail(ahp.CodeInternalError, "Failed to read content: %s: its %d bytes do not fit into a frame of %d", uri, info.Size(), limit)
	}
	data, err := fs.ReadFile(r.fsys, name)
	return data, fileError("Content not found", uri, err)
}

// fileError returns an error with the text that VS Code's host uses.
func fileError(missing, uri string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fail(ahp.CodeNotFound, "%s: %s", missing, uri)
	case errors.Is(err, fs.ErrExist):
		return fail(ahp.CodeAlreadyExists, "File already exists: %s", uri)
	case errors.Is(err, fs.ErrPermission):
		return fail(ahp.CodePermissionDenied, "Permission denied: %s", uri)
	}
	return fail(ahp.CodeInternalError, "%s: %v", uri, err)
}

// A memFS is a read-only file system in memory.
type memFS struct {
	files   map[string]string   // content by name
	dirs    map[string][]string // names of the entries, by directory
	created time.Time
}

func newMemFS(files map[string]string, now time.Time) *memFS {
	m := &memFS{files: make(map[string]string), dirs: map[string][]string{".": nil}, created: now}
	for name, content := range files {
		name = strings.TrimPrefix(name, "/")
		m.files[name] = content
		m.link(name)
	}
	return m
}

// link adds a name to its directory, and that directory to its parents.
func (m *memFS) link(name string) {
	dir := path.Dir(name)
	_, known := m.dirs[dir]
	m.dirs[dir] = append(m.dirs[dir], path.Base(name))
	if !known {
		m.link(dir)
	}
}

// Open implements [fs.FS]. It always fails, because callers use Stat, ReadFile and
// ReadDir.
func (m *memFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

// Stat implements [fs.StatFS].
func (m *memFS) Stat(name string) (fs.FileInfo, error) {
	if _, ok := m.dirs[name]; ok {
		return memInfo{path.Base(name), 0, fs.ModeDir | 0o555, m.created}, nil
	}
	if content, ok := m.files[name]; ok {
		return memInfo{path.Base(name), int64(len(content)), 0o444, m.created}, nil
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

// ReadFile implements [fs.ReadFileFS]. It returns no error for a missing file, because
// callers call Stat first.
func (m *memFS) ReadFile(name string) ([]byte, error) {
	return []byte(m.files[name]), nil
}

// ReadDir implements [fs.ReadDirFS].
func (m *memFS) ReadDir(name string) ([]fs.DirEntry, error) {
	var entries []fs.DirEntry
	for _, base := range m.dirs[name] {
		info, err := m.Stat(path.Join(name, base))
		if err != nil {
			return nil, err
		}
		entries = append(entries, fs.FileInfoToDirEntry(info))
	}
	return entries, nil
}

// memInfo implements [fs.FileInfo].
type memInfo struct {
	name string
	size int64
	mode fs.FileMode
	time time.Time
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) Mode() fs.FileMode  { return i.mode }
func (i memInfo) ModTime() time.Time { return i.time }
func (i memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memInfo) Sys() any           { return nil }
