package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// VS Code's command line (code agent host) notes in a lock file where its agent host
// is, and with which connection token: anew with each start, for each quality, in the cli
// directory of the user's VS Code. lock:/path names such a file as an upstream: it is read for
// each connection.
//
// It has had two forms: {address, pid, connection_token} and {schemaVersion: 1, pid, port,
// host?, dialHost?, connectionToken?}.

const lockScheme = "lock"

// maxLockFile is far more than one has, in bytes.
const maxLockFile = 64 << 10

// lockDirs are where lock files are, below the user's home.
var lockDirs = []string{".vscode/cli", ".vscode-insiders/cli", ".vscode-server/cli", ".vscode-server-insiders/cli", ".vscode-cli"}

// readLock returns where the host is that a lock file is about.
func readLock(path string) (address, token string, pid int, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", "", 0, err
	}
	var lock struct {
		Address, ConnectionToken, Host, DialHost string
		Token                                    string `json:"connection_token"`
		PID                                      int
		Port                                     int
	}
	if len(data) > maxLockFile || json.Unmarshal(data, &lock) != nil {
		return "", "", 0, fmt.Errorf("%s is no lock file of an agent host", path)
	}
	switch {
	case lock.Address != "":
		address = lock.Address
	case lock.Port > 0 && lock.Port < 1<<16:
		address = "ws://" + net.JoinHostPort(dialable(lock.DialHost, lock.Host), strconv.Itoa(lock.Port))
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "ws" || u.Port() == "" || !isLoopback(u.Hostname()) {
		return "", "", 0, fmt.Errorf("%s names no agent host of this machine", path)
	}
	if lock.Token == "" {
		lock.Token = lock.ConnectionToken
	}
	return "ws://" + u.Host, lock.Token, lock.PID, nil
}

// dialable is where to reach a host that listens at what a lock file says: on every
// address is on the loopback one, too.
func dialable(names ...string) string {
	for _, name := range names {
		if isLoopback(name) {
			return name
		}
	}
	return "127.0.0.1"
}

// locked is what a lock file says now of an upstream, in place of it.
func (u Upstream) locked() (Upstream, string, error) {
	parsed, err := url.Parse(u.URL)
	if err != nil || parsed.Scheme != lockScheme {
		return u, "", err
	}
	address, token, _, err := readLock(parsed.Path)
	if errors.Is(err, os.ErrNotExist) {
		return u, "", fmt.Errorf("upstream %s: no agent host runs there: its lock file is gone", u)
	}
	if err != nil {
		return u, "", fmt.Errorf("upstream %s: %w", u, err)
	}
	u.URL = address
	return u, token, nil
}

// A Found is an AHP host that runs on this machine.
type Found struct {
	Upstream string // as for --upstream
	What     string // for people
	Token    string // the connection token that it wants, if that is known and not in Upstream's lock file
}

// Locked reports whether a lock file is about the host.
func (f Found) Locked() bool { return strings.HasPrefix(f.Upstream, lockScheme+":") }

// knownPorts are where AHP hosts listen that were started as their documents say.
var knownPorts = []string{"18990", "8081", "8765"}

// FindHosts looks for AHP hosts on this machine: in VS Code's lock files below the home
// directory and among this user's processes (Copilot's), or else on known ports, where something has to take
// connections. It sends no message to any of them.
func FindHosts(home string) (list []Found) {
	var seen []string
	for _, dir := range lockDirs {
		files, err := filepath.Glob(filepath.Join(home, dir, "agent-host*.lock"))
		if err != nil {
			continue
		}
		for _, file := range files {
			address, _, pid, err := readLock(file)
			if err != nil || !listens(strings.TrimPrefix(address, "ws://")) || slices.Contains(seen, address) {
				continue
			}
			seen = append(seen, address)
			list = append(list, Found{Upstream: lockScheme + ":" + file, What: fmt.Sprintf("VS Code's agent host, process %d, %s", pid, strings.TrimPrefix(address, "ws://"))})
		}
	}
	if list = append(list, copilotHosts("/proc")...); len(list) > 0 {
		return list
	}
	for _, port := range knownPorts {
		at := net.JoinHostPort("127.0.0.1", port)
		if listens(at) {
			what := "something that listens on " + at
			if at == copilotAddress {
				what += ", where GitHub Copilot CLI's AHP host does"
			}
			list = append(list, Found{Upstream: "ws://" + at, What: what})
		}
	}
	return list
}

func listens(at string) bool {
	conn, err := net.DialTimeout("tcp", at, findTime)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
