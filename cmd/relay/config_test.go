package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigCheckNamesTheFault checks configuration files. For a wrong file it names
// the fault, and it accepts the delivered example. The check creates no file.
func TestConfigCheckNamesTheFault(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"data-dir: " + dir: "in order",
		"data-dir: " + dir + "\nlisten: 0.0.0.0:8484":             "--listen-plain",
		"data-dir: " + dir + "\nlisten: 127.0.0.1:0\nlisen: x":    "line 3: unknown flag lisen",
		"listen: 127.0.0.1:0":                                     "--data-dir",
		"data-dir: " + dir + "\ntls-cert: /none":                  "--tls-key",
		"data-dir: " + dir + "\ntls-cert: /none\ntls-key: /none":  "no such file",
		"data-dir: " + dir + "\ncluster-route: [10.0.0.1:6222]":   "add --cluster-listen",
		"data-dir: " + dir + "\ndrain: soon":                      "drain",
		"data-dir: " + dir + "\ntrust-proxy: [10.0.0.300]":        "--trust-proxy",
		"data-dir: " + dir + "\npublic-url: relay":                "--public-url",
		"data-dir: " + dir + "\npublic-url: https://a.b/relay":    "without a path",
		"data-dir: " + dir + "\npublic-url: https://a.b/":         "in order",
		"data-dir: " + dir + "\nmax-queued: 5":                    "--max-queued is 5",
		"data-dir: " + dir + "\nallow-origin: ['[x']":             `--allow-origin "[x"`,
		"data-dir: " + dir + "\naudit-file: " + dir + "/no/audit": "--audit-file",
		"data-dir: " + dir + "\naudit-file: " + dir + "/audit":    "in order",
	} {
		file := filepath.Join(t.TempDir(), "relay.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _, err := relay(t, "config", "check", file)
		if err != nil {
			out = err.Error()
		}
		if !strings.Contains(out, want) || (err == nil) != (want == "in order") {
			t.Errorf("%q: %s; want %s", text, out, want)
		}
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
		t.Errorf("config check has made the files %v, %v; want none", made, err)
	}
	if out, _, err := relay(t, "config", "check", "../../packaging/relay.yaml"); err != nil || !strings.Contains(out, "in order") {
		t.Errorf("config check of the packaged example: %s, %v; want the output in order", out, err)
	}
}
