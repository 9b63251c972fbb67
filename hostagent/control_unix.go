//go:build unix

package hostagent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// controlDirs returns the directories in which a host-agent of this user may have its
// control socket. The first is this process's own.
func controlDirs() (dirs []string) {
	if base := os.Getenv("XDG_RUNTIME_DIR"); base != "" {
		dirs = append(dirs, filepath.Join(base, controlName))
	}
	dirs = append(dirs, filepath.Join(os.TempDir(), controlName+"-"+strconv.Itoa(os.Getuid())))
	if who, err := user.Current(); err == nil { // packaging/systemd/ahp-host-agent@.service
		dirs = append(dirs, filepath.Join(unitDirs, controlName+"-"+who.Username, controlName))
	}
	return dirs
}

// controlDir returns the directory for this process's control socket, and makes it if
// needed.
func controlDir() (string, error) {
	dir := controlDirs()[0]
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("control socket: %w; set its path with --control, or TMPDIR to a writable directory", err)
	}
	if !isPrivate(dir) {
		return "", fmt.Errorf("control socket: %s is not a private directory of this user; set another path with --control", dir)
	}
	return dir, nil
}

// isPrivate reports whether a directory is this user's, and for this user alone.
func isPrivate(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return info.IsDir() && info.Mode().Perm()&0o077 == 0 && (!ok || int(owner.Uid) == os.Getuid())
}

// ListenPrivate listens at a path, for this user only, and replaces an earlier
// listener there. remove deletes the socket, unless a later listener has
// replaced it.
func ListenPrivate(path string) (listener net.Listener, remove func(), err error) {
	// The socket stays in a private directory until its mode is set.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".ahp")
	if err != nil {
		return nil, nil, fmt.Errorf("socket: %w", err)
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf("socket: %w", err)
	}
	unix.SetUnlinkOnClose(false)
	own, err := place(made, path)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("socket: %w", err), unix.Close())
	}
	return unix, func() {
		if now, err := os.Lstat(path); err == nil && os.SameFile(own, now) {
			_ = os.Remove(path)
		}
	}, nil
}

// place moves a new socket to its path. An existing file there must be a
// socket, which the new socket replaces.
func place(made, path string) (os.FileInfo, error) {
	if there, err := os.Lstat(path); err == nil && there.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	}
	if err := os.Chmod(made, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(made, path); err != nil {
		return nil, err
	}
	return os.Lstat(path)
}
