package hostagent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// GitHub Copilot CLI's AHP host ("copilot --ahp-host") writes no lock file. Its
// address and connection token can be read from its command line if they were
// given there. If Copilot generated the token, only its terminal shows it.

// copilotAddress is the default address of Copilot's host.
const copilotAddress = "127.0.0.1:8765"

// copilotHosts returns the Copilot hosts among this user's processes, as listed in
// /proc. It finds none on systems without /proc.
func copilotHosts(proc string) (list []Found) {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "cmdline"))
	if err != nil {
		return nil
	}
	for _, file := range files {
		// Only a process's user and root may read this link, so hosts of different
		// users are skipped.
		if _, err := os.Readlink(filepath.Join(filepath.Dir(file), "exe")); err != nil {
			continue
		}
		line, err := os.ReadFile(file)
		if err != nil || len(line) > maxLockFile {
			continue
		}
		address, token, ok := copilotArguments(strings.Split(string(line), "\x00"))
		same := func(f Found) bool { return f.Upstream == "ws://"+address } // Copilot's launcher has the same arguments
		if !ok || slices.ContainsFunc(list, same) || !listens(address) {
			continue
		}
		list = append(list, Found{Upstream: "ws://" + address, What: copilotName(address), Token: token})
	}
	return list
}

func copilotName(address string) string { return "GitHub Copilot CLI's AHP host, " + address }

// copilotArguments reads a process's arguments. If they are those of a Copilot
// host on this machine, it returns the address, and the connection token or "".
func copilotArguments(arguments []string) (address, token string, ok bool) {
	host := slices.Index(arguments, "--ahp-host")
	named := func(s string) bool {
		return strings.Contains(filepath.Base(s), "copilot") || strings.Contains(s, "@github/copilot")
	}
	if host < 1 || !slices.ContainsFunc(arguments[:host], named) {
		return "", "", false
	}
	value := func(name string) string {
		for i, a := range arguments {
			if v, ok := strings.CutPrefix(a, name+"="); ok {
				return v
			}
			if a == name && i+1 < len(arguments) {
				return arguments[i+1]
			}
		}
		return ""
	}
	address = copilotAddress
	if listen := value("--listen"); listen != "" {
		at, port, err := net.SplitHostPort(listen)
		if err != nil || port == "" || port == "0" {
			return "", "", false
		}
		address = net.JoinHostPort(dialable(at), port)
	}
	return address, value("--ahp-host-token"), true
}

// WantsToken reports whether the host refuses a WebSocket because it requires a
// connection token.
func (u Upstream) WantsToken(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	sock, err := u.dial(ctx, 1<<20)
	if err == nil {
		sock.Close("found")
		return false
	}
	var answer *httpError
	return errors.As(err, &answer) && (answer.status == http.StatusUnauthorized || answer.status == http.StatusForbidden)
}
