package connect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// listenUnix listens on a socket which only this user can open. A socket left by an
// ended program is replaced.
func listenUnix(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		return nil, errors.Join(&PortTaken{path, os.ErrExist}, conn.Close())
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("--listen unix:%s: a file is there that is no socket", path)
	}
	_ = os.Remove(path) // it may not exist
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--listen unix:%s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
