package registry_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestStateFileOutlivesCrash copies a relay's file while the relay runs, as a crash would leave it.
// A new relay with that file must know the host.
func TestStateFileOutlivesCrash(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	path := filepath.Join(t.TempDir(), "hosts.json")
	r := registryWith(t, s, registry.Config{File: path})
	natssite.Enrol(t, r, "acme", "spare")
	var data []byte
	natssite.Eventually(t, "the file has the host", func() bool {
		data, _ = os.ReadFile(path) // a copy, as a crash would leave it
		return strings.Contains(string(data), "acme.spare")
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the state file's mode is %v, %v; want it readable by its owner only", info.Mode(), err)
	}
	left := filepath.Join(t.TempDir(), "hosts.json")
	if err := os.WriteFile(left, data, 0o600); err != nil {
		t.Fatal(err)
	}
	other := natssite.New(t)
	if h, ok := registryWith(t, other, registry.Config{File: left}).Lookup("acme", "spare"); !ok || h.Enrolled.IsZero() {
		t.Errorf("a registry that starts after a crash finds the host %+v, %v; want it known", h, ok)
	}
}

// TestDamagedStateFile starts a relay with a damaged file. It must start without hosts, log an
// error, and keep the damaged file under another name.
func TestDamagedStateFile(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"cut off": `{"version":2,"hosts":[{"host":"acme.laptop","enr`, "bad name": `{"version":2,"hosts":[{"host":"acme.*","enrolled":"2026-03-04T00:00:00Z"}]}`, "empty": "",
	} {
		t.Run(name, func(t *testing.T) {
			s := natssite.New(t)
			path := filepath.Join(t.TempDir(), "hosts.json")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			lines := natssite.LogLines{Lines: make(chan string, 100)}
			r := registryWith(t, s, registry.Config{File: path, Log: slog.New(lines)})
			if hosts := r.Hosts("acme"); len(hosts) > 0 {
				t.Errorf("Hosts = %+v; want none", hosts)
			}
			if kept, err := os.ReadFile(path + ".damaged"); err != nil || string(kept) != text {
				t.Errorf("the renamed state file has %q, %v; want the damaged text", kept, err)
			}
			if line := natssite.Next(t, "log line", lines.Lines); !strings.HasPrefix(line, "ERROR") || !strings.Contains(line, path) {
				t.Errorf("the log says %q; want an error that names the file", line)
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the damaged state file: Stat = %v; want it renamed", err)
			}
		})
	}
}
