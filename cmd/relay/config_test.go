package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ahprelay/test/testca"
)

// TestConfigCheckNamesTheFault checks configuration files. For a wrong file it names
// the fault, and it accepts the delivered example. The check creates no file.
func TestConfigCheckNamesTheFault(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(t.TempDir(), "open") // for all users
	if err := errors.Join(os.WriteFile(open, nil, 0o600), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"data-dir: " + dir: "in order",
		"data-dir: " + dir + "\nlisten: 0.0.0.0:8484":                                                       "--listen-plain",
		"data-dir: " + dir + "\nlisten: 127.0.0.1:0\nlisen: x":                                              "line 3: unknown flag lisen",
		"listen: 127.0.0.1:0":                                                                               "--data-dir",
		"data-dir: " + dir + "\ntls-cert: /none":                                                            "--tls-key",
		"data-dir: " + dir + "\ntls-cert: /none\ntls-key: /none":                                            "no such file",
		"data-dir: " + dir + "\ncluster-route: [10.0.0.1:6222]":                                             "add --cluster-listen",
		"data-dir: " + dir + "\ndrain: soon":                                                                "drain",
		"data-dir: " + dir + "\ntrust-proxy: [10.0.0.300]":                                                  "--trust-proxy",
		"data-dir: " + dir + "\npublic-url: relay":                                                          "--public-url",
		"data-dir: " + dir + "\npublic-url: https://a.b/relay":                                              "without a path",
		"data-dir: " + dir + "\npublic-url: https://a.b/":                                                   "in order",
		"data-dir: " + dir + "\nmax-queued: 5":                                                              "--max-queued is 5",
		"data-dir: " + dir + "\nallow-origin: ['[x']":                                                       `--allow-origin "[x"`,
		"data-dir: " + dir + "\naudit-file: " + dir + "/no/audit":                                           "--audit-file",
		"data-dir: " + dir + "\naudit-file: " + dir + "/audit":                                              "in order",
		"data-dir: " + dir + "\naudit-file: " + open:                                                        "chmod 600",
		"data-dir: " + dir + "\nown-url: relay":                                                             "--own-url",
		"data-dir: " + dir + "\nstrict: laptop":                                                             "--strict",
		"data-dir: " + dir + "\nconsole-origin: https://a.b/":                                               "--console-origin",
		"data-dir: " + dir + "\ncanvas-domain: https://a.b/c":                                               "--canvas-domain",
		"data-dir: " + dir + "\nnotify-contact: foo":                                                        "--notify-contact",
		"data-dir: " + dir + "\nnats-listen: '4222'":                                                        "--nats-listen",
		"data-dir: " + dir + "\nresume: 1ms":                                                                "--resume is 1ms",
		"data-dir: " + dir + "\nacme-email: a@b.example":                                                    "--acme-email has no effect without --acme-domain or --acme-dns",
		"data-dir: " + dir + "\nacme-email: a@b.example\nacme-domain: a.example":                            "in order",
		"data-dir: " + dir + "\ntls-cert: " + open + "\ntls-key: " + open:                                   "--tls-cert " + open,
		"data-dir: " + dir + "\nwitness: true":                                                              "--witness needs a cluster",
		"data-dir: " + dir + "\nwitness: true\ncluster-listen: 127.0.0.1:0\ncluster-route: [10.0.0.1:6222]": "in order",
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
	cert, key, err := testca.WriteFilesFor(net.IPv4(127, 0, 0, 1), t.TempDir())
	if err := errors.Join(err, os.Rename(cert, filepath.Join(dir, "cert.pem")), os.Rename(key, filepath.Join(dir, "key.pem"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"smtp-password", "oidc-secret"} {
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
