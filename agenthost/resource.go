package agenthost

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"ahprelay/ahp"
)

type resourceParams struct {
	Channel  string `json:"channel,omitempty"`
	URI      string `json:"uri"`
	Encoding string `json:"encoding,omitempty"`
}

type resourceContent struct {
	Data        string `json:"data"`
	Encoding    string `json:"encoding"`
	ContentType string `json:"contentType"`
}

// newContent encodes data as text if it is UTF-8 and base64 is not requested, or
// else as base64.
func newContent(data []byte, encoding, contentType string) resourceContent {
	if encoding != "base64" && utf8.Valid(data) {
		return resourceContent{string(data), "utf-8", contentType}
	}
	return resourceContent{base64.StdEncoding.EncodeToString(data), "base64", contentType}
}

var contentTypes = map[string]string{
	".css": "text/css", ".gif": "image/gif", ".html": "text/html", ".jpg": "image/jpeg", ".js": "text/javascript",
	".mjs": "text/javascript", ".wasm": "application/wasm", ".woff2": "font/woff2",
	".json": "application/json", ".md": "text/markdown", ".png": "image/png", ".svg": "image/svg+xml", ".txt": "text/plain",
}

func contentType(uri string) string {
	return cmp.Or(contentTypes[path.Ext(uri)], "application/octet-stream")
}

// resourceRead answers resourceRead for file: and demo-blob: URIs.
func (rs *resources) resourceRead(_ *conn, params resourceParams) (any, error) {
	if size, ok := strings.CutPrefix(params.URI, blobPrefix); ok {
		return rs.blob(size, params)
	}
	data, err := rs.files.read(params.URI, rs.host.cfg.MaxFrame)
	if err != nil {
		return nil, err
	}
	return newContent(data, params.Encoding, contentType(params.URI)), nil
}

// blobPrefix begins URIs of generated content: demo-blob:/<n> has n bytes.
const blobPrefix = "demo-blob:/"

const blobLine = "0123456789 abcdefghijklmnopqrstuvwxyz 0123456789 ABCDEFGHIJKLMN\n"

func (rs *resources) blob(size string, params resourceParams) (any, error) {
	h := rs.host
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 {
		return nil, fail(ahp.CodeNotFound, "Content not found: %s", params.URI)
	}
	if n > h.cfg.MaxFrame {
		return nil, fail(ahp.CodeInternalError, "Failed to read content: %s: it does not fit into a frame of %d bytes", params.URI, h.cfg.MaxFrame)
	}
	data := strings.Repeat(blobLine, n/len(blobLine)+1)[:n]
	return newContent([]byte(data), params.Encoding, "text/plain"), nil
}

type directoryEntry struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

type directoryList struct {
	Entries []directoryEntry `json:"entries"`
}

// resourceList answers resourceList, sorted by name.
func (rs *resources) resourceList(_ *conn, params resourceParams) (any, error) {
	entries := []directoryEntry{}
	for _, name := range rs.files.towards(params.URI) {
		entries = append(entries, directoryEntry{name, fileType(true)})
	}
	r, name, err := rs.files.find(params.URI)
	if err != nil && len(entries) > 0 {
		return directoryList{entries}, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := fs.Stat(r.fsys, name)
	if err != nil {
		return nil, fileError("Directory not found", params.URI, err)
	}
	if !info.IsDir() {
		return nil, fail(ahp.CodeNotFound, "Not a directory: %s", params.URI)
	}
	list, err := fs.ReadDir(r.fsys, name)
	if err != nil {
		return nil, fileError("Directory not found", params.URI, err)
	}
	entries = entries[:0]
	for _, entry := range list {
		entries = append(entries, directoryEntry{entry.Name(), fileType(entry.IsDir())})
	}
	slices.SortFunc(entries, func(a, b directoryEntry) int { return cmp.Compare(a.Name, b.Name) })
	return directoryList{entries}, nil
}

func fileType(isDir bool) string {
	if isDir {
		return "directory"
	}
	return "file"
}

func (rs *resources) resourceResolve(_ *conn, params resourceParams) (any, error) {
	r, name, err := rs.files.find(params.URI)
	if err != nil {
		return nil, err
	}
	info, err := fs.Stat(r.fsys, name)
	if err != nil {
		return nil, fileError("Resource not found", params.URI, err)
	}
	return struct {
		URI   string `json:"uri"`
		Type  string `json:"type"`
		Size  int64  `json:"size"`
		Mtime string `json:"mtime"`
		Etag  string `json:"etag"`
	}{
		params.URI, fileType(info.IsDir()), info.Size(), timestamp(info.ModTime()),
		fmt.Sprintf("%x-%x", info.ModTime().UnixNano(), info.Size()),
	}, nil
}

// resourceRequestLocked answers resourceRequest. Resources that the host serves
// need no additional permission.
func (rs *resources) resourceRequestLocked(_ *conn, params resourceParams) (any, error) {
	if _, _, err := rs.files.find(params.URI); err != nil {
		return nil, err
	}
	return struct{}{}, nil
}

type writeParams struct {
	resourceParams
	Data       string `json:"data"`
	CreateOnly bool   `json:"createOnly"`
	Mode       string `json:"mode"`
	Position   int    `json:"position"`
}

// resourceWrite answers resourceWrite for whole files.
func (rs *resources) resourceWrite(_ *conn, params writeParams) (any, error) {
	if params.Mode != "" && params.Mode != "truncate" || params.Position != 0 {
		return nil, fail(ahp.CodeInvalidParams, "This host writes whole files only")
	}
	data := []byte(params.Data)
	if params.Encoding == "base64" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(params.Data); err != nil {
			return nil, fail(ahp.CodeInvalidParams, "Invalid params: data is not base64")
		}
	}
	root, name, err := rs.files.changeable(params.URI)
	if err != nil {
		return nil, err
	}
	flags, change := os.O_WRONLY|os.O_CREATE|os.O_TRUNC, "updated"
	if _, err := root.Lstat(name); err != nil {
		change = "added"
	}
	if params.CreateOnly {
		flags |= os.O_EXCL
	}
	f, err := root.OpenFile(name, flags, 0o644)
	if err != nil {
		return nil, fileError("Resource not found", params.URI, err)
	}
	_, err = f.Write(data)
	if err := cmp.Or(err, f.Close()); err != nil {
		return nil, fileError("Resource not found", params.URI, err)
	}
	rs.fileChanged(params.URI, change)
	return struct{}{}, nil
}

type deleteParams struct {
	resourceParams
	Recursive bool `json:"recursive"`
}

func (rs *resources) resourceDelete(_ *conn, params deleteParams) (any, error) {
	root, name, err := rs.files.changeable(params.URI)
	if err != nil {
		return nil, err
	}
	remove := root.Remove
	if _, err := root.Lstat(name); err == nil && params.Recursive {
		remove = root.RemoveAll
	}
	if err := remove(name); err != nil {
		return nil, fileError("Resource not found", params.URI, err)
	}
	rs.fileChanged(params.URI, "deleted")
	return struct{}{}, nil
}

// resourceMkdir answers resourceMkdir. An existing directory is no error.
func (rs *resources) resourceMkdir(_ *conn, params resourceParams) (any, error) {
	root, name, err := rs.files.changeable(params.URI)
	if err != nil {
		return nil, err
	}
	if err := root.MkdirAll(name, 0o755); err != nil {
		return nil, fileError("Resource not found", params.URI, err)
	}
	rs.fileChanged(params.URI, "added")
	return struct{}{}, nil
}
