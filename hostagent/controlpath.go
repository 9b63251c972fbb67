package hostagent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
)

const (
	socketExt = ".sock"

	// maxSocketPath is the longest socket path, in bytes, that every system accepts,
	// with room for a temporary name.
	maxSocketPath = 90
)

// ControlPath returns the default path of a host's control socket: in this user's
// directory, named after tenant and host.
func ControlPath(tenant, host string) (string, error) {
	dir, err := controlDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, tenant+"."+host+socketExt)
	if len(path) > maxSocketPath {
		sum := sha256.Sum256([]byte(tenant + "." + host))
		path = filepath.Join(dir, hex.EncodeToString(sum[:8])+socketExt)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("control socket: %s is too long for a socket path; set a shorter one with --control", path)
	}
	return path, nil
}

// FindControl returns the control socket of the only host-agent that this user runs.
func FindControl() (string, error) {
	dir, err := controlDir()
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("control socket: %w", err)
	}
	var found []string
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if !strings.HasSuffix(path, socketExt) {
			continue
		}
		if conn, err := net.Dial("unix", path); err == nil { // skips sockets of crashed host-agents
			_ = conn.Close()
			found = append(found, path)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: no control socket in %s; set its path with --control", ErrNoAgent, dir)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("several host-agents are running; choose one with --host or --control:\n  %s", strings.Join(found, "\n  "))
}
