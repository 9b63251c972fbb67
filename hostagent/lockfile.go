package hostagent

import (
	"cmp"
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

// At each start, VS Code's command line ("code agent host") writes the address
// and connection token of its agent host to a lock file in the cli directory of
// the user's VS Code; each VS Code quality (stable, insiders) has its own file.
// The upstream lock:/path names such a file, which the host-agent reads for
// each connection.
//
// The file has one of two forms: {address, pid, connection_token} or
// {schemaVersion: 1, pid, port, host?, dialHost?, connectionToken?}.

const lockScheme = "lock"

// maxLockFile bounds a lock file, in bytes, far above real sizes.
const maxLockFile = 64 << 10

// lockDirs are the directories of lock files below the user's home.
var lockDirs = []string{".vscode/cli", ".vscode-insiders/cli", ".vscode-server/cli", ".vscode-server-insiders/cli", ".vscode-cli"}

// readLock returns the address, connection token and process id in a lock file.
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
		return "", "", 0, fmt.Errorf("%s is not a lock file of an agent host", path)
	}
	switch {
	case lock.Address != "":
		address = lock.Address
	case lock.Port > 0 && lock.Port < 1<<16:
		address = "ws://" + net.JoinHostPort(dialable(lock.DialHost, lock.Host), strconv.Itoa(lock.Port))
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "ws" || u.Port() == "" || !isLoopback(u.Hostname()) {
		return "", "", 0, fmt.Errorf("%s does not have the address of an agent host on this machine", path)
	}
	lock.Token = cmp.Or(lock.Token, lock.ConnectionToken)
	return "ws://" + u.Host, lock.Token, lock.PID, nil
}

// dialable returns the first loopback address among a listener's addresses, or 127.0.0.1 if there
// is none.
func dialable(names ...string) string {
	for _, name := range names {
		if isLoopback(name) {
			return name
		}
	}
	return "127.0.0.1"
}

// locked returns the upstream with the address and token from its lock file.
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

// A Found is an AHP host found on this machine.
type Found struct {
	Upstream string // the host's address, in the form of --upstream
	What     string // a description for people
	Token    string // required connection token, if known and not in Upstream's lock file
}

// Locked reports whether the host was found through a lock file.
func (f Found) Locked() bool { return strings.HasPrefix(f.Upstream, lockScheme+":") }

// knownPorts are the documented ports of AHP hosts.
var knownPorts = []string{"18990", "8081", "8765"}

// FindHosts looks for AHP hosts on this machine: in the lock files of VS Code
// below the home directory, and among this user's processes (Copilot). If it
// finds none, it checks whether something listens on a known port. It sends no
// message.
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
			what := "a listener on " + at
			if at == copilotAddress {
				what += ", the default port of GitHub Copilot CLI's AHP host"
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
