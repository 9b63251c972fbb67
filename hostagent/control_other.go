//go:build !unix

package hostagent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// controlDir is the directory of control sockets, which is made on first use:
// below the user's profile, which others cannot read.
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

// listenPrivate listens at a path, in place of whoever did before. Who may
// connect is up to the directory. Remove takes it away again.
func listenPrivate(path string) (listener net.Listener, remove func(), err error) {
	_ = os.Remove(path)
	listener, err = net.Listen("unix", path)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	return listener, func() {}, nil // closing it does
}
