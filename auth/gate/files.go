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

// If the host's files are on this machine, the gate ensures that symbolic links do not
// lead out of the permitted folders. It follows links in the requested file's path and in
// the permitted folders, and compares the targets.
// Section Comparing URIs of the package documentation lists the gaps that remain.

// errLocal reports a file on a different machine.
var errLocal = errors.New("it is on a server or drive that this machine does not have")

// leadsInside returns an error if the target of a file: or vscode-remote: URI, in canonical
// form, is outside all of the patterns and folders. Other URIs pass.
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

// follow returns the canonical URI of a file's target. If the file is missing, the URI is
// below the target of the nearest existing folder. A dangling link is an error.
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
			return "", fmt.Errorf("its target cannot be determined: %w", cause(err))
		}
		path, rest = parent, filepath.Join(filepath.Base(path), rest)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil { // a dangling link could be written through
		return "", fmt.Errorf("its target cannot be determined: %w", cause(err))
	}
	target := localURI(origin, filepath.Join(real, rest))
	if strings.HasSuffix(uri, "/") && !strings.HasSuffix(target, "/") {
		target += "/"
	}
	return target, nil
}

// cause returns a file system error without the path, which the client may not learn.
func cause(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return errors.New("links cannot be followed")
}

// localPath returns the path on this machine for a file's canonical URI, and the part of
// the URI before the path.
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

// followPattern replaces the folder in a pattern, up to the first star, by its target. If
// that fails, it returns the pattern unchanged.
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
