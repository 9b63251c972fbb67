package main

import (
	"os"
	"path/filepath"
	"regexp"
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

// TestExampleIsRightInItsComments checks the packaged example with each of its commented settings switched on, apart from acme-domain,
// which excludes tls-cert.
func TestExampleIsRightInItsComments(t *testing.T) {
	text, err := os.ReadFile("../../packaging/relay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"cert.pem", "key.pem", "smtp-password", "oidc-secret"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	on := regexp.MustCompile(`(?m)^#([a-z-]+:|  )`).ReplaceAllString(string(text), "$1")
	on = strings.NewReplacer("acme-domain:", "#", "/etc/ahp-relay", dir, "/var/log/ahp-relay", dir).Replace(on)
	file := filepath.Join(dir, "relay.yaml")
	if err := os.WriteFile(file, []byte(on), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := relay(t, "config", "check", file); err != nil || strings.Count(on, "\n#") == strings.Count(string(text), "\n#") {
		t.Errorf("config check of the example with all settings: %s, %v; want no error:\n%s", out, err, on)
	}
}
