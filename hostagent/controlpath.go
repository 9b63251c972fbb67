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

	// maxSocketPath is the length of a path at which every system still makes
	// a socket, in bytes, with room for a name while it is made.
	maxSocketPath = 90
)

// ControlPath returns where the control socket of a host's host-agent is by
// default: in a directory of this user's, named after tenant and host.
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
		return "", fmt.Errorf("control socket: %s is too long for a socket's path; give a shorter one with --control", path)
	}
	return path, nil
}

// FindControl returns the control socket of the only host-agent that this user
// runs.
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
		if conn, err := net.Dial("unix", path); err == nil { // it is not one of a host-agent that has crashed
			_ = conn.Close()
			found = append(found, path)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: there is no control socket in %s; say where with --control", ErrNoAgent, dir)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("several host-agents run here; say which with --host, or --control:\n  %s", strings.Join(found, "\n  "))
}
