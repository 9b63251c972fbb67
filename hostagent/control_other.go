//go:build !unix

package hostagent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// controlDir returns the directory of control sockets, and makes it if needed. It is
// below the user's profile, which other users cannot read.
func controlDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("control socket: %w", err)
	}
	dir := filepath.Join(base, "ahp-host-agent")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("control socket: %w", err)
	}
	return dir, nil
}

// controlDirs returns the directories in which a host-agent of this user may have its
// control socket.
func controlDirs() []string {
	dir, err := controlDir()
	if err != nil {
		return nil
	}
	return []string{dir}
}

// isPrivate returns true: other users cannot read this user's profile.
func isPrivate(string) bool { return true }

// ListenPrivate listens at a path and replaces an earlier listener there. The
// permissions of the directory limit who may connect. Closing the listener deletes
// the socket; remove does nothing.
func ListenPrivate(path string) (listener net.Listener, remove func(), err error) {
	_ = os.Remove(path)
	listener, err = net.Listen("unix", path)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	return listener, func() {}, nil
}
