package hostagent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCopilotsHostIsRecognised lists command lines. Only those that start Copilot's AHP host must
// be recognized, with the address and the token that they name.
func TestCopilotsHostIsRecognised(t *testing.T) {
	for _, test := range []struct{ arguments, address, token string }{
		{"/usr/bin/copilot --experimental --ahp-host", "127.0.0.1:8765", ""},
		{"/usr/bin/copilot --experimental --ahp-host --ahp-host-token s3cret", "127.0.0.1:8765", "s3cret"},
		{"copilot --ahp-host-token=s3cret --listen=127.0.0.1:9000 --ahp-host", "127.0.0.1:9000", "s3cret"},
		{"node /x/node_modules/@github/copilot/npm-loader.js --ahp-host --listen [::1]:9000", "[::1]:9000", ""},
		{"copilot --ahp-host --listen 0.0.0.0:9000", "127.0.0.1:9000", ""},
		{"copilot --ahp-host --ahp-host-token", "127.0.0.1:8765", ""}, // the value is missing
		{"copilot --ahp-host --listen 127.0.0.1:0", "", ""},           // the system chooses a port
		{"copilot --ahp-host --listen nonsense", "", ""},
		{"copilot --ahp ws://127.0.0.1:8765", "", ""}, // Copilot as a client
		{"grep --ahp-host /usr/bin/copilot", "", ""},  // a program that only mentions the option
		{"other --ahp-host --ahp-host-token s3cret", "", ""},
		{"--ahp-host", "", ""},
		{"", "", ""},
	} {
		address, token, ok := copilotArguments(strings.Split(test.arguments, " "))
		if address != test.address || token != test.token || ok != (test.address != "") {
			t.Errorf("%s: %q, %q, %v; want %q, %q", test.arguments, address, token, ok, test.address, test.token)
		}
	}
}

// TestCopilotHostIsFound writes a process list, in which a parent and its child name the same
// listening address. copilotHosts must return this address once, and no address without listener or
// of another user.
func TestCopilotHostIsFound(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.Addr().String()
	proc := t.TempDir()
	process := func(id string, mine bool, arguments ...string) {
		dir := filepath.Join(proc, id)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cmdline"), []byte(strings.Join(arguments, "\x00")+"\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		if mine {
			if err := os.Symlink("/usr/bin/copilot", filepath.Join(dir, "exe")); err != nil {
				t.Skip(err)
			}
		}
	}
	process("7", true, "node", "/x/copilot/npm-loader.js", "--ahp-host", "--ahp-host-token", "s3cret", "--listen", at)
	process("8", true, "/x/copilot", "--ahp-host", "--ahp-host-token", "s3cret", "--listen", at)           // process 7 started it
	process("9", true, "/x/copilot", "--ahp-host", "--listen", fmt.Sprint("127.0.0.1:", silentPort(t, l))) // no program listens
	process("10", false, "/x/copilot", "--ahp-host", "--listen", at)                                       // of a different user
	want := []Found{{"ws://" + at, "GitHub Copilot CLI's AHP host, " + at, "s3cret"}}
	if got := copilotHosts(proc); !slices.Equal(got, want) {
		t.Errorf("copilotHosts = %+v; want %+v", got, want)
	}
	if got := copilotHosts(filepath.Join(proc, "none")); len(got) > 0 {
		t.Errorf("copilotHosts without /proc = %+v; want none", got)
	}
}
