package gate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"ahprelay/auth"
)

// Where the host's files are those of this machine, it is seen to that
// symbolic links do not lead out of what is named: below a folder that is
// named there may be links that lead elsewhere. What is asked for, and the
// folders that are named, are followed to where they lead, and compared there.
//
// Between the look and what the host does then, somebody who may write there
// can put a link in place of a folder. And links that a host follows within
// what it was asked for, such as in a folder that it copies, are not looked at.

// errLocal reports a file of another machine where files are those of this
// one.
var errLocal = errors.New("it is on a server, or a drive, that this machine does not have")

// leadsInside says why the canonical URI of a file leads elsewhere than the
// patterns of a list and some folders say.
func leadsInside(uri string, patterns, folders []string) error {
	scheme := schemeOf(uri)
	if scheme != fileScheme && scheme != remoteScheme {
		return nil
	}
	target, err := follow(uri)
	if err != nil {
		return err
	}
	leads := func(pattern string) bool {
		followed := followPattern(pattern, scheme)
		return above(target, func(u string) bool { return auth.Matches(followed, u) })
	}
	within := func(folder string) bool {
		followed, err := follow(folder)
		return err == nil && above(target, func(u string) bool { return u == followed })
	}
	if slices.ContainsFunc(patterns, leads) || slices.ContainsFunc(folders, within) {
		return nil
	}
	return errOut
}

func schemeOf(uri string) string {
	scheme, _, _ := strings.Cut(uri, ":")
	return scheme
}

// follow returns the canonical URI of where that of a file leads. What does
// not exist yet is where its folder leads.
func follow(uri string) (string, error) {
	origin, path, err := localPath(uri)
	if err != nil {
		return "", err
	}
	rest := ""
	for {
		_, err := os.Lstat(path)
		if err == nil {
			break
		}
		parent := filepath.Dir(path)
		if parent == path || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return "", fmt.Errorf("where it leads cannot be seen: %w", cause(err))
		}
		path, rest = parent, filepath.Join(filepath.Base(path), rest)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil { // a link that leads nowhere is one that may be written through
		return "", fmt.Errorf("where it leads cannot be seen: %w", cause(err))
	}
	target := localURI(origin, filepath.Join(real, rest))
	if strings.HasSuffix(uri, "/") && !strings.HasSuffix(target, "/") {
		target += "/"
	}
	return target, nil
}

// cause is an error of the file system without the path: it may be one that
// the client is not to know.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return errors.New("links that cannot be followed")
}

// localPath returns the path on this machine of the canonical URI of a file,
// and what stands before it in the URI.
func localPath(uri string) (origin, path string, err error) {
	scheme, rest, _ := strings.Cut(uri, "://")
	authority, path, _ := cutAuthority("//" + rest)
	origin = scheme + "://" + authority
	path = unescapePercent(path)
	windows := runtime.GOOS == "windows"
	switch {
	case windows && isDrive(path):
		return origin, filepath.FromSlash(strings.TrimPrefix(path, "/") + "/"), nil
	case windows && scheme == fileScheme && authority != "":
		return origin, filepath.FromSlash("//" + authority + path), nil
	case windows, isDrive(path), scheme == fileScheme && authority != "":
		return "", "", errLocal
	}
	return origin, filepath.Clean("/" + path), nil
}

// localURI returns the canonical URI of a file of this machine.
func localURI(origin, path string) string {
	path = filepath.ToSlash(path)
	if server := strings.TrimPrefix(origin, fileScheme+":"); server != "//" && strings.HasPrefix(path, server) {
		path = strings.TrimPrefix(path, server)
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if isDrive(path) {
		path = "/" + strings.ToLower(path[1:2]) + path[2:]
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = encode(part)
	}
	return origin + strings.Join(parts, "/")
}

// followPattern returns a pattern of files whose folder, up to the first star,
// is followed to where it leads. One whose folder cannot be is left as it is.
func followPattern(pattern, scheme string) string {
	folder, rest := pattern, ""
	if star := strings.IndexByte(pattern, '*'); star >= 0 {
		slash := strings.LastIndexByte(pattern[:star], '/')
		folder, rest = pattern[:slash+1], pattern[slash+1:]
	}
	if schemeOf(folder) != scheme || strings.Count(folder, "/") < 3 {
		return pattern
	}
	target, err := follow(folder)
	if err != nil {
		return pattern
	}
	return target + rest
}
