package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
)

// opened returns the content of each part in a file that relay diag has written, by the
// part's name.
func opened(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for files := tar.NewReader(zip); ; {
		head, err := files.Next()
		if err == io.EOF {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		parts[path.Base(head.Name)] = string(text)
	}
}

// secretsIn returns everything in a directory's files that may be a secret: long words
// in base64 or hexadecimal digits, and binary files, raw and in base64.
func secretsIn(t *testing.T, dir string) (words []string) {
	t.Helper()
	long := regexp.MustCompile(`[A-Za-z0-9+/_=-]{20,}`)
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		words = append(words, long.FindAllString(string(data), -1)...)
		if len(data) >= 16 && len(data) <= 4096 {
			words = append(words, string(data), base64.RawURLEncoding.EncodeToString(data), base64.StdEncoding.EncodeToString(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// TestDiagHasNoSecrets runs relay diag for a running relay. The file must contain no
// secret from the relay's data directory, settings or log.
func TestDiagHasNoSecrets(t *testing.T) {
	dir, file, log := t.TempDir(), filepath.Join(t.TempDir(), "diag.tar.gz"), filepath.Join(t.TempDir(), "log")
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	token, err := keys.Tokens().IssueClient(auth.Client{Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	lines := "the first line\nGET /ahp/laptop?tkn=" + token + "\nlink https://relay.example.com/setup#sesame-open-thyself\nuser nats://joe:swordfish@nats.example.com\nthe last line\n"
	if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	url, admin := servingWith(t, dir, "127.0.0.1:0", "--notify-smtp", "smtp://joe:swordfish@mail.example.com", "--notify-mail-from", "relay@example.com", "--hold", "7m")
	out, errs, err := relay(t, "diag", "--data-dir", dir, "--relay", url, "--admin", admin, "--log", log, file)
	if err != nil || errs != "" || !strings.Contains(out, file) {
		t.Fatalf("diag: %q, %q, %v", out, errs, err)
	}
	parts := opened(t, file)
	for name, want := range map[string]string{
		"version.txt": "relay diag " + cli.Version, "check.txt": "0 hosts enrolled", "data-dir.txt": "keys/", "settings.json": `"hold":"7m0s"`,
		"metrics.txt": "ahp_relay_build_info{", "ready.txt": "ready", "connections.json": `"connections":0`, "mcp.json": `"initialized":0`,
		"goroutines.txt": "goroutine 1 ", "heap.txt": "heap profile", "log.txt": "the first line\nGET /ahp/laptop?tkn=***\nlink https://relay.example.com/setup#***\nuser nats://***@nats.example.com\nthe last line\n",
	} {
		if !strings.Contains(parts[name], want) {
			t.Errorf("%s lacks %q: %.300s", name, want, parts[name])
		}
	}
	all := ""
	for _, text := range parts {
		all += text
	}
	secrets := secretsIn(t, filepath.Join(dir, "keys"))
	if len(secrets) < 5 {
		t.Fatalf("%d secrets in the data directory; want all", len(secrets))
	}
	for _, secret := range append(secrets, token, "swordfish", "sesame") {
		if strings.Contains(all, secret) {
			t.Errorf("the diagnosis file contains the secret %.20s…", secret)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the diagnosis file's mode is %v, %v; want it readable by its owner only", info.Mode(), err)
	}
	if _, _, err := relay(t, "diag", "--data-dir", dir, "--relay", url, "--admin", admin, file); err == nil {
		t.Error("diag replaces an existing file; want an error")
	}
}

// TestDiagNotesMissingParts runs relay diag without a relay and without a log. The file
// must name the missing parts.
func TestDiagNotesMissingParts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "diag.tar.gz")
	dir := t.TempDir()
	_, errs, err := relay(t, "diag", "--data-dir", dir, "--relay", "http://127.0.0.1:1", "--admin", "http://127.0.0.1:1", "--log", filepath.Join(dir, "none"), file)
	if err != nil || strings.Count(errs, "not there: ") != 9 {
		t.Errorf("diag prints %q, %v; want nine parts reported as missing", errs, err)
	}
	parts := opened(t, file)
	if !strings.Contains(parts["metrics.txt"], "no relay") || !strings.Contains(parts["version.txt"], "relay diag") {
		t.Errorf("the file's parts are %v; want the reason in metrics.txt, and the version", parts)
	}
}
