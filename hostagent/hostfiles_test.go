package hostagent

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// TestHostFiles lists settings and upstreams. shared must return whether the host's files are on
// this machine.
func TestHostFiles(t *testing.T) {
	for _, test := range []struct {
		files    HostFiles
		upstream Upstream
		want     bool
	}{
		{"", Upstream{URL: "ws://127.0.0.1:1/x"}, true},
		{HostFilesAuto, Upstream{URL: "ws://127.0.0.2:1"}, true},
		{HostFilesAuto, Upstream{URL: "ws://localhost:1"}, true},
		{HostFilesAuto, Upstream{URL: "wss://[::1]:1"}, true},
		{HostFilesAuto, Upstream{URL: "ws://[::ffff:127.0.0.1]:1"}, true},
		{HostFilesAuto, Upstream{URL: "unix:/run/ahp"}, true},
		{HostFilesAuto, Upstream{Command: []string{"ahp"}}, true},
		{HostFilesAuto, Upstream{URL: "ws://10.0.0.1:1"}, false},
		{HostFilesAuto, Upstream{URL: "ws://localhost.example.com:1"}, false},
		{HostFilesShared, Upstream{URL: "ws://10.0.0.1:1"}, true},
		{HostFilesSeparate, Upstream{URL: "unix:/run/ahp"}, false},
	} {
		if got := test.files.shared(test.upstream); got != test.want {
			t.Errorf("the setting %q for the host at %v reads files directly: %v; want %v", test.files, test.upstream, got, test.want)
		}
	}
}

// TestLinksBesideTheHost has a client request a file through a symbolic link that leads out of the
// permitted directory. The host-agent must refuse this if it has the host's files beside it.
// Otherwise it cannot see the link, and the host gets the request.
func TestLinksBesideTheHost(t *testing.T) {
	folder := t.TempDir()
	if err := errors.Join(os.Mkdir(folder+"/allowed", 0o700), os.Symlink("/etc", folder+"/allowed/out")); err != nil {
		t.Fatal(err)
	}
	read := fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":"resourceRead","params":{"uri":"file://%s/allowed/out/passwd"}}`, folder)
	for files, want := range map[HostFiles]int{HostFilesShared: 0, HostFilesSeparate: 1} {
		inWorld(t, func(w *world) {
			policy := gate.NewPolicy(auth.AccessAdmin, []string{"file://" + folder + "/allowed/*"}, nil, true)
			w.agent.cfg.Allow, w.agent.cfg.HostFiles = &policy, files
			ada := of("ada")
			ada.Access = "admin"
			r := w.openAs(w.relay, ada)
			hostSide := w.hostSide()
			r.send(read)
			if got := hostSide.messages(); len(got) != want {
				t.Errorf("with the setting %s, the host got %q; want %d messages", files, got, want)
			}
		})
	}
}

// TestReadersGetPermittedFilesOnly has a reader request a file in a session's folder. The host must
// get the request only if both the token and the owner's limits permit it.
func TestReadersGetPermittedFilesOnly(t *testing.T) {
	const file = `{"jsonrpc":"2.0","id":5,"method":"resourceRead","params":{"uri":"file:///home/ada/x"}}`
	reader := gate.NewPolicy(auth.AccessRead, nil, nil, true)
	folders := reader.WithFolders()
	for _, c := range []struct {
		name     string
		files    bool
		channels []string
		allow    *gate.Policy
		want     int
	}{
		{"nothing", false, nil, nil, 0},
		{"a file", false, []string{"*", "file:///home/ada/*"}, nil, 1},
		{"the owner does not", false, []string{"*", "file:///home/ada/*"}, &reader, 0},
		{"of sessions", true, nil, nil, 1},
		{"of sessions, the owner too", true, nil, &folders, 1},
		{"of sessions, the owner does not", true, nil, &reader, 0},
		{"the owner alone", false, nil, &folders, 0},
	} {
		inWorld(t, func(w *world) {
			w.agent.cfg.Allow, w.agent.cfg.HostFiles = c.allow, HostFilesSeparate
			ada := of("ada")
			ada.Access, ada.Channels, ada.Files = "read", c.channels, c.files
			r := w.openAs(w.relay, ada)
			hostSide := w.hostSide()
			hostSide.toUs <- `{"jsonrpc":"2.0","method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","workingDirectories":["file:///home/ada"]}}}`
			r.said()
			r.send(file)
			if got := hostSide.messages(); len(got) != c.want {
				t.Errorf("%s: the host got %q; want %d messages", c.name, got, c.want)
			}
		})
	}
}
