package hostagent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBothFormsOfLockFilesAreRead writes VS Code's lock files in both forms, and invalid ones.
// endpoint must read the file anew each time, and refuse addresses on other machines.
func TestBothFormsOfLockFilesAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent-host-stable.lock")
	u := Upstream{URL: "lock:" + path}
	if err := u.Check(); err != nil {
		t.Fatal(err)
	}
	if !u.isHere() {
		t.Error("isHere of a lock file's host = false; want true")
	}
	for _, test := range []struct{ lock, address, port string }{
		{`{"address":"ws://127.0.0.1:4567/","pid":7,"connection_token":"t k"}`, "ws://127.0.0.1:4567?tkn=t+k", "4567"},
		{`{"address":"ws://localhost:4567","pid":7}`, "ws://localhost:4567", "4567"},
		{`{"schemaVersion":1,"pid":7,"port":81,"connectionToken":"tok","protocolVersion":"0.1.0"}`, "ws://127.0.0.1:81?tkn=tok", "81"},
		{`{"schemaVersion":1,"pid":7,"port":81,"host":"0.0.0.0"}`, "ws://127.0.0.1:81", "81"},
		{`{"schemaVersion":1,"pid":7,"port":81,"host":"localhost","dialHost":"::1"}`, "ws://[::1]:81", "81"},
		{`{"address":"ws://192.0.2.1:80","pid":7}`, "", ""}, // an address on a different machine
		{`{"address":"http://127.0.0.1:80","pid":7}`, "", ""},
		{`{"address":"ws://127.0.0.1@192.0.2.1:80","pid":7}`, "", ""},
		{`{"port":0,"pid":7}`, "", ""},
		{`{"port":70000,"pid":7}`, "", ""},
		{`{`, "", ""},
		{``, "", ""},
	} {
		if err := os.WriteFile(path, []byte(test.lock), 0o600); err != nil {
			t.Fatal(err)
		}
		address, network, _, err := u.endpoint()
		if address != test.address || (err == nil) != (test.address != "") || err == nil && network != "tcp" {
			t.Errorf("%s: %q, %v; want %q", test.lock, address, err, test.address)
		}
		if err != nil && strings.Contains(err.Error(), "tok") {
			t.Errorf("%s: the error contains the token: %v; want it hidden", test.lock, err)
		}
		if got := strings.Join(u.port(), " "); got != test.port {
			t.Errorf("%s: port %q; want %q", test.lock, got, test.port)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := u.endpoint(); err == nil || !strings.Contains(err.Error(), "lock file is gone") {
		t.Errorf("endpoint without a lock file = %v; want lock file is gone", err)
	}
}

// silentPort returns a port at which no program listens or can begin to: a client of l uses it.
func silentPort(t *testing.T, l net.Listener) int {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().(*net.TCPAddr).Port
}

// TestStaleLockFilesAreSkipped writes lock files for a listening host, for the same host again, and
// for hosts that have ended. FindHosts must return the listening host once.
func TestStaleLockFilesAreSkipped(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	home := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	port := l.Addr().(*net.TCPAddr).Port
	ended := silentPort(t, l)
	live := write(".vscode/cli/agent-host-stable.lock", fmt.Sprintf(`{"schemaVersion":1,"pid":7,"port":%d}`, port))
	write(".vscode-server/cli/agent-host-stable.lock", fmt.Sprintf(`{"address":"ws://127.0.0.1:%d","pid":7}`, port)) // the same host
	write(".vscode-insiders/cli/agent-host-insiders.lock", fmt.Sprintf(`{"schemaVersion":1,"pid":7,"port":%d}`, ended))
	write(".vscode-cli/agent-host-x.lock", `no JSON`)
	var locks []Found
	for _, f := range FindHosts(home) {
		if strings.HasPrefix(f.Upstream, "lock:") { // real hosts on this machine may be found, too
			locks = append(locks, f)
		}
	}
	if len(locks) != 1 || locks[0].Upstream != "lock:"+live || !strings.Contains(locks[0].What, "process 7") {
		t.Errorf("FindHosts = %+v; want %s alone", locks, live)
	}
}
