package agenthost

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A fileStore holds the files for file: URIs: a directory tree, or files in memory.
type fileStore struct {
	fsys     fs.FS
	prefix   string   // absolute slash-separated path that fsys stands for
	root     *os.Root // nil: in memory
	writable bool
}

func openFileStore(cfg Config) (*fileStore, error) {
	if cfg.Root == "" {
		return &fileStore{fsys: newMemFS(cfg.Files, cfg.Now()), prefix: "/"}, nil
	}
	root, err := os.OpenRoot(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("agenthost: Config.Root: %w", err)
	}
	return &fileStore{
		fsys:     root.FS(),
		prefix:   filepath.ToSlash(filepath.Clean(cfg.Root)),
		root:     root,
		writable: cfg.Writable,
	}, nil
}

func (s *fileStore) close() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

func (s *fileStore) defaultDirectory() string {
	return (&url.URL{Scheme: "file", Path: s.prefix}).String()
}

// name returns the name in fsys for a file: URI.
func (s *fileStore) name(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Path == "" {
		return "", fail(ahp.CodeInternalError, "ENOPRO: No file system provider found for resource '%s'", uri)
	}
	clean := path.Clean("/" + u.Path)
	if clean == s.prefix {
		return ".", nil
	}
	name, ok := strings.CutPrefix(clean, strings.TrimSuffix(s.prefix, "/")+"/")
	if !ok || !fs.ValidPath(name) || u.Host != "" && u.Host != "localhost" {
		return "", fail(ahp.CodePermissionDenied, "Not in a directory that this host serves: %s", uri)
	}
	return name, nil
}

// changeable returns the name of a file to change.
func (s *fileStore) changeable(uri string) (string, error) {
	name, err := s.name(uri)
	if err != nil {
		return "", err
	}
	if !s.writable || name == "." {
		return "", fail(ahp.CodePermissionDenied, "Permission denied: %s", uri)
	}
	return name, nil
}

// read returns a file of at most limit bytes.
func (s *fileStore) read(uri string, limit int) ([]byte, error) {
	name, err := s.name(uri)
	if err != nil {
		return nil, err
	}
	info, err := fs.Stat(s.fsys, name)
	switch {
	case err != nil:
		return nil, fileError("Content not found", uri, err)
	case info.IsDir():
		return nil, fail(ahp.CodeInternalError, "Failed to read content: %s: it is a directory", uri)
	case info.Size() > int64(limit):
		return nil, fail(ahp.CodeInternalError, "Failed to read content: %s: its %d bytes do not fit into a frame of %d", uri, info.Size(), limit)
	}
	data, err := fs.ReadFile(s.fsys, name)
	return data, fileError("Content not found", uri, err)
}

// fileError words a file error like the host.
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

// link adds name to its directory, and recursively to the parents.
func (m *memFS) link(name string) {
	dir := path.Dir(name)
	_, known := m.dirs[dir]
	m.dirs[dir] = append(m.dirs[dir], path.Base(name))
	if !known {
		m.link(dir)
	}
}

// Open implements [fs.FS] for names known to Stat. ReadFile and ReadDir return their
// content.
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

// ReadFile implements [fs.ReadFileFS].
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
