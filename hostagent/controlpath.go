package hostagent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

const (
	socketExt = ".sock"

	// maxSocketPath is the longest socket path, in bytes, that every system accepts,
	// with room for a temporary name.
	maxSocketPath = 90

	controlName = "ahp-host-agent" // name of the directories for control sockets
)

// unitDirs is the directory for the runtime directories of systemd's units.
var unitDirs = "/run"

// ControlPath returns the default path of the control socket of a host at a relay: in this user's
// directory, named after tenant, host and relay. With credentials, the relay is theirs, so that all
// commands with these credentials find the same socket; otherwise it is the first of relays.
func ControlPath(credentials *CredentialFile, relays []string, tenant, host string) (string, error) {
	relay := ""
	if credentials != nil {
		relay = credentials.Relay()
	}
	if relay == "" && len(relays) > 0 {
		relay = relays[0]
	}
	dir, err := controlDir()
	if err != nil {
		return "", err
	}
	path := socketIn(dir, relay, tenant, host)
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("control socket: %s is too long for a socket path; set a shorter one with --control", path)
	}
	return path, nil
}

func socketIn(dir, relay, tenant, host string) string {
	at := relay
	if u, err := url.Parse(relay); err == nil {
		at = u.Host
	}
	at = strings.ReplaceAll(at, ":", "_") // Windows permits no colon in a file's name
	path := filepath.Join(dir, tenant+"."+host+"@"+at+socketExt)
	if len(path) > maxSocketPath {
		path = filepath.Join(dir, shortName(tenant+"."+host)+shortName(at)+socketExt)
	}
	return path
}

func shortName(long string) string {
	sum := sha256.Sum256([]byte(long))
	return hex.EncodeToString(sum[:4])
}

// isSocketOf reports whether the name of a control socket is that of a host, at any relay.
func isSocketOf(name, tenant, host string) bool {
	return strings.HasPrefix(name, tenant+"."+host+"@") || strings.HasPrefix(name, shortName(tenant+"."+host)) && len(name) == 16+len(socketExt)
}

// FindControl returns the control socket of a running host-agent of this user, which
// may be a service. It looks for the given host's only socket, or, if host is empty, for
// the only socket.
func FindControl(tenant, host string) (string, error) {
	dirs := controlDirs()
	var found []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil || !isPrivate(dir) {
			continue // most of these directories do not exist
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			if !strings.HasSuffix(path, socketExt) || host != "" && !isSocketOf(entry.Name(), tenant, host) {
				continue
			}
			if conn, err := net.Dial("unix", path); err == nil { // skips sockets of crashed host-agents
				_ = conn.Close()
				found = append(found, path)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: no control socket in %s; run this command as the host-agent's user, or set the socket's path with --control", ErrNoAgent, strings.Join(dirs, ", "))
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("several host-agents are running; choose one with --host or --control:\n  %s", strings.Join(found, "\n  "))
}
