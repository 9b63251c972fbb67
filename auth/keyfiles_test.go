package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"ahprelay/auth"
)

func TestLoadKeysKeepsThem(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	first, second := load(t, dir), load(t, dir)
	token, err := first.Tokens().IssueHost(enrolment())
	if err != nil {
		t.Fatalf("IssueHost: %v; want no error", err)
	}
	if _, err := second.Tokens().VerifyHost(token); err != nil {
		t.Errorf("VerifyHost after a second LoadKeys: %v; want no error", err)
	}
	if first.Authority().RelaysAccount() != second.Authority().RelaysAccount() || first.Authority().SystemAccount() != second.Authority().SystemAccount() {
		t.Error("the NATS accounts differ after a second LoadKeys; want the same")
	}
	err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v; want it for its owner only", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLoadKeysAtOnce(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		var wg sync.WaitGroup
		accounts := make([]string, 8)
		for i := range accounts {
			wg.Go(func() {
				if k, err := auth.LoadKeys(dir); err != nil {
					t.Errorf("LoadKeys: %v; want no error", err)
				} else {
					accounts[i] = k.Authority().RelaysAccount()
				}
			})
		}
		wg.Wait()
		for _, a := range accounts {
			if a != accounts[0] {
				t.Fatalf("accounts = %q; want all the same", accounts)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("the directory contains %v, %v; want only keys", entries, err)
		}
	}
}

func TestLoadKeysRefuses(t *testing.T) {
	file := func(name string) func(t *testing.T, dir string) string {
		return func(t *testing.T, dir string) string { return filepath.Join(dir, "keys", name) }
	}
	tests := []struct {
		name  string
		path  func(t *testing.T, dir string) string
		spoil func(t *testing.T, path string)
		want  []string // parts of the error
	}{
		{"readable by others", file("system.nk"), func(t *testing.T, path string) {
			chmod(t, path, 0o640)
		}, []string{"system.nk", "mode 0640", "chmod 600"}},
		{"missing", file("account.nk"), remove, []string{"account.nk is missing"}},
		{"truncated token key", file("token.pem"), truncate, []string{"token.pem is damaged"}},
		{"truncated nkey", file("operator.nk"), truncate, []string{"operator.nk is damaged"}},
		{"empty", file("system.nk"), write(""), []string{"system.nk is damaged"}},
		{"nkey of another kind", file("account.nk"), func(t *testing.T, path string) {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "operator.nk"))
			if err != nil {
				t.Fatal(err)
			}
			write(string(data))(t, path)
		}, []string{"account.nk", "operator", "want a NATS account"}},
		{"token key of another kind", file("token.pem"), writeECDSA, []string{"token.pem", "ecdsa", "Ed25519"}},
		{"certificate instead of a key", file("token.pem"), write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
			[]string{"token.pem", "CERTIFICATE", "PRIVATE KEY"}},
		{"key file too long", file("token.pem"), write(strings.Repeat("x", 5000)), []string{"token.pem is not a key file"}},
		{"key file is a directory", file("token.pem"), func(t *testing.T, path string) {
			remove(t, path)
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, []string{"token.pem is not a key file"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			load(t, dir)
			test.spoil(t, test.path(t, dir))
			wantRefused(t, dir, test.want)
		})
	}
}

func TestLoadKeysWithoutDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write("")(t, file)
	wantRefused(t, file, []string{file, "is a file; want a directory"})
	wantRefused(t, filepath.Join(file, "below"), []string{"not a directory"})
}

func TestLoadKeysReadOnly(t *testing.T) {
	if os.Getuid() == 0 {
		if runtime.GOOS != "linux" {
			t.Skip("file modes do not bind root")
		}
		wantRefused(t, "/proc/ahp-relay", []string{"make keys in /proc/ahp-relay"})
		return
	}
	dir := t.TempDir()
	load(t, dir)
	chmod(t, dir, 0o500)
	t.Cleanup(func() { chmod(t, dir, 0o700) })
	load(t, dir) // read access is enough
	wantRefused(t, filepath.Join(dir, "below"), []string{"make keys in", "permission denied"})
	chmod(t, filepath.Join(dir, "keys"), 0o100)
	t.Cleanup(func() { chmod(t, filepath.Join(dir, "keys"), 0o700) })
	wantRefused(t, dir, []string{"permission denied", "or root"})
}

func wantRefused(t *testing.T, dir string, want []string) {
	t.Helper()
	_, err := auth.LoadKeys(dir)
	if err == nil {
		t.Fatal("LoadKeys succeeded; want an error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("LoadKeys = %q; want it to contain %q", err, w)
		}
	}
}

func load(t *testing.T, dir string) *auth.Keys {
	t.Helper()
	k, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatalf("LoadKeys: %v; want no error", err)
	}
	return k
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 30); err != nil {
		t.Fatal(err)
	}
}

func write(text string) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func writeECDSA(t *testing.T, path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))(t, path)
}

// TestEmptyKeyDirectoryGetsKeys loads keys where their directory exists and is empty. They must be
// created, as without the directory.
func TestEmptyKeyDirectoryGetsKeys(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Errorf("LoadKeys with an empty directory keys: %v; want keys", err)
	}
}
