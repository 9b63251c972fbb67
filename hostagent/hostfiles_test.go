package hostagent

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"ahprelay/auth"
	"ahprelay/gate"
)

// TestHostFiles tells whose files a host's are.
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
			t.Errorf("%q of %v: %v; want %v", test.files, test.upstream, got, test.want)
		}
	}
}

// TestLinksBesideTheHost has a link lead out of what the owner allows, beside
// a host of this machine, and beside one of another.
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
				t.Errorf("files %s: the host got %q; want %d messages", files, got, want)
			}
		})
	}
}
