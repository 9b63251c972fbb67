package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A fixture is a web server with a signed release of host-agent for this machine.
type fixture struct {
	files map[string][]byte
	key   *ecdsa.PrivateKey
	Source
}

func newFixture(t *testing.T, version, script string) *fixture {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{files: map[string][]byte{}, key: key}
	folder := fmt.Sprintf("host-agent_%s_%s_%s", version, runtime.GOOS, runtime.GOARCH)
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	w := tar.NewWriter(zipped)
	for _, name := range []string{"README.md", "host-agent"} {
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: folder + "/" + name, Mode: 0o755, Size: int64(len(script))})); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(script)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	f.files[folder+".tar.gz"] = packed.Bytes()
	sum := sha256.Sum256(packed.Bytes())
	f.sign(t, fmt.Sprintf("%x  %s.tar.gz\n", sum, folder))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := f.files[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok || r.UserAgent() != "" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(server.Close)
	f.Source = Source{server.URL, &key.PublicKey, server.Client()}
	return f
}

func (f *fixture) sign(t *testing.T, sums string) {
	t.Helper()
	digest := sha256.Sum256([]byte(sums))
	signature, err := ecdsa.SignASN1(rand.Reader, f.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	f.files["SHA256SUMS"], f.files["SHA256SUMS.sig"] = []byte(sums), []byte(base64.StdEncoding.EncodeToString(signature)+"\n")
}

func (f *fixture) fetch(t *testing.T) (Archive, []byte, error) {
	t.Helper()
	a, err := f.Newest(t.Context(), "host-agent")
	if err != nil {
		return a, nil, err
	}
	program, err := f.Fetch(t.Context(), a)
	return a, program, err
}

func TestSignedReleasesAreFetched(t *testing.T) {
	f := newFixture(t, "1.2.3", "#!/bin/sh\necho new\n")
	a, program, err := f.fetch(t)
	if err != nil || a.Version != "1.2.3" || string(program) != "#!/bin/sh\necho new\n" {
		t.Fatalf("the release is %+v, %q, %v; want 1.2.3 and its program", a, program, err)
	}
	for version, newer := range map[string]bool{"1.2.2": true, "1.2.3-rc.1+0a1b2c3d": true, "1.2.3": false, "1.2.3+0a1b2c3d": false, "1.10.0": false} {
		if a.Newer(version) != newer {
			t.Errorf("the version 1.2.3 counts as newer than %s: %v; want the opposite", version, !newer)
		}
	}
}

func TestAlteredReleasesAreRefused(t *testing.T) {
	var archive string
	for name := range newFixture(t, "1.2.3", "x").files {
		if strings.HasSuffix(name, ".tar.gz") {
			archive = name
		}
	}
	for name, alter := range map[string]struct {
		do   func(t *testing.T, f *fixture)
		want error
	}{
		"archive":           {func(_ *testing.T, f *fixture) { f.files[archive][20] ^= 1 }, ErrChecksum},
		"archive cut":       {func(_ *testing.T, f *fixture) { f.files[archive] = f.files[archive][:40] }, ErrChecksum},
		"checksums":         {func(_ *testing.T, f *fixture) { f.files["SHA256SUMS"][0] ^= 1 }, ErrSignature},
		"line added":        {func(_ *testing.T, f *fixture) { f.files["SHA256SUMS"] = append(f.files["SHA256SUMS"], "x\n"...) }, ErrSignature},
		"signature":         {func(_ *testing.T, f *fixture) { f.files["SHA256SUMS.sig"] = []byte("MEUCIQ==") }, ErrSignature},
		"no base64":         {func(_ *testing.T, f *fixture) { f.files["SHA256SUMS.sig"] = []byte("%") }, ErrSignature},
		"key of another":    {func(t *testing.T, f *fixture) { f.Key = newFixture(t, "1.2.3", "x").Key }, ErrSignature},
		"missing signature": {func(_ *testing.T, f *fixture) { delete(f.files, "SHA256SUMS.sig") }, nil},
		"two archives":      {func(t *testing.T, f *fixture) { f.sign(t, strings.Repeat(string(f.files["SHA256SUMS"]), 2)) }, nil},
		"no archive":        {func(t *testing.T, f *fixture) { f.sign(t, "\n") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "1.2.3", "x")
			alter.do(t, f)
			if _, program, err := f.fetch(t); err == nil || program != nil || alter.want != nil && !errors.Is(err, alter.want) {
				t.Fatalf("%q, %v; want %v", program, err, alter.want)
			}
		})
	}
}

func TestReplaceAndRestore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "host-agent")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	says := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Fatalf("%q, %v; want %q", text, err, want)
		}
	}
	write("host-agent", "old")
	if _, err := Find(path); !errors.Is(err, ErrNotInstalled) {
		t.Fatalf("Find without the installer's mark = %v; want ErrNotInstalled", err)
	}
	write(".host-agent.installed", "host-agent_1.0.0")
	i, err := Find(path)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("exec format error")
	if err := i.Replace([]byte("broken"), func(string) error { return broken }); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	says("old")
	for _, next := range []string{"#!/bin/sh\necho 1", "#!/bin/sh\necho 2"} {
		if err := i.Replace([]byte(next), func(path string) error { return exec.Command(path).Run() }); err != nil {
			t.Fatal(err)
		}
		says(next)
	}
	if err := i.Restore(); err != nil {
		t.Fatal(err)
	}
	says("#!/bin/sh\necho 1")
	left, err := filepath.Glob(filepath.Join(dir, ".next*"))
	if err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
}

func TestWithoutReleaseThereIsNoSource(t *testing.T) {
	if _, err := Released(); !errors.Is(err, ErrNoSource) {
		t.Fatal(err)
	}
}

func FuzzFind(f *testing.F) {
	f.Add(strings.Repeat("0", 64) + "  host-agent_1.0.0_linux_amd64.tar.gz\n")
	f.Add(strings.Repeat("a", 64) + "  ../host-agent_1.0.0_linux_amd64.tar.gz\n")
	f.Fuzz(func(t *testing.T, sums string) {
		a, err := find(sums, "host-agent", "linux_amd64")
		if err == nil && (strings.ContainsAny(a.file, "/\\") || len(a.sum) != 64) {
			t.Fatalf("find = %+v; want a plain file name and 64 digits", a)
		}
	})
}
