//go:build unix

package hostagent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// controlDir returns the directory of control sockets, and makes it if needed.
func controlDir() (string, error) {
	base := os.Getenv("XDG_RUNTIME_DIR")
	dir := filepath.Join(base, "ahp-host-agent")
	if base == "" {
		dir = filepath.Join(os.TempDir(), "ahp-host-agent-"+strconv.Itoa(os.Getuid()))
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("control socket: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("control socket: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || ok && int(owner.Uid) != os.Getuid() {
		return "", fmt.Errorf("control socket: %s is not a private directory of this user; set another path with --control", dir)
	}
	return dir, nil
}

// listenPrivate listens at a path, in place of an earlier listener, for this user
// only. remove deletes the socket unless a later listener has replaced it.
func listenPrivate(path string) (listener net.Listener, remove func(), err error) {
	// The socket is made in a private directory, until it has the right mode.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".ahp")
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	unix.SetUnlinkOnClose(false)
	own, err := place(made, path)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("control socket: %w", err), unix.Close())
	}
	return unix, func() {
		if now, err := os.Lstat(path); err == nil && os.SameFile(own, now) {
			_ = os.Remove(path)
		}
	}, nil
}

// place moves a new socket to its path. It replaces nothing but sockets.
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
