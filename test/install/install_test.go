// Package install_test runs the install script against a web server on loopback.
package install_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
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

// A site is a web server with releases. Each program in a release prints its name and
// version.
type site struct {
	url    string
	files  map[string][]byte // content of each path
	script string            // install script for these releases
	key    *ecdsa.PrivateKey
}

func newSite(t *testing.T) *site {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{files: map[string][]byte{}, key: key}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := s.files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if bytes.HasSuffix(data, []byte("CUT")) { // the transfer ends before the announced length
			w.Header().Set("Content-Length", fmt.Sprint(2*len(data)))
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	s.release(t, "/latest", "1.1.0")
	s.release(t, "/all/v1.0.0", "1.0.0")
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../packaging/install/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	s.script = strings.NewReplacer("@LATEST@", s.url+"/latest", "@VERSIONS@", s.url+"/all",
		"@PUBLIC_KEY@", strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))).Replace(string(text))
	return s
}

func archive(program, version string) string {
	return fmt.Sprintf("%s_%s_%s_%s", program, version, runtime.GOOS, runtime.GOARCH)
}

// release adds a release with a signature to the site, at a path.
func (s *site) release(t *testing.T, folder, version string) {
	t.Helper()
	var sums strings.Builder
	for _, program := range []string{"host-agent", "ahp-connect", "relay"} {
		text := fmt.Sprintf("#!/bin/sh\necho %s %s\n", program, version)
		var packed bytes.Buffer
		zipped := gzip.NewWriter(&packed)
		w := tar.NewWriter(zipped)
		if err := w.WriteHeader(&tar.Header{Name: archive(program, version) + "/" + program, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := zipped.Close(); err != nil {
			t.Fatal(err)
		}
		s.files[folder+"/"+archive(program, version)+".tar.gz"] = packed.Bytes()
		fmt.Fprintf(&sums, "%x  %s.tar.gz\n", sha256.Sum256(packed.Bytes()), archive(program, version))
	}
	digest := sha256.Sum256([]byte(sums.String()))
	signature, err := ecdsa.SignASN1(rand.Reader, s.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	s.files[folder+"/SHA256SUMS"] = []byte(sums.String())
	s.files[folder+"/SHA256SUMS.sig"] = []byte(base64.StdEncoding.EncodeToString(signature) + "\n")
}

// shells returns the command of each shell on this machine that can run the script.
func shells(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{"sh": {"sh", "-s", "--"}}
	if path, err := exec.LookPath("busybox"); err == nil {
		found["busybox"] = []string{path, "sh", "-s", "--"}
	}
	return found
}

// install pipes the script into a shell, as the documented line does. HOME and PATH are
// those given. It returns the output.
func (s *site) install(shell []string, home, path string, args ...string) (string, error) {
	cmd := exec.Command(shell[0], append(shell[1:len(shell):len(shell)], args...)...)
	cmd.Stdin = strings.NewReader(s.script)
	cmd.Env = []string{"HOME=" + home, "PATH=" + path, "TMPDIR=" + home}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustHave(t *testing.T, dir string, versions map[string]string) {
	t.Helper()
	for program, version := range versions {
		out, err := exec.Command(filepath.Join(dir, program), "--version").Output()
		if version == "" && err != nil {
			continue
		}
		if string(out) != program+" "+version+"\n" {
			t.Errorf("%s --version: %q, %v; want %s", program, out, err, version)
		}
	}
}

func TestScriptInstallsAndUpdates(t *testing.T) {
	s := newSite(t)
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			bin := filepath.Join(home, ".local/bin")
			out, err := s.install(shell, home, os.Getenv("PATH"), "--version", "1.0.0")
			if err != nil || !strings.Contains(out, "next: "+bin+"/host-agent up https://") || !strings.Contains(out, "not on your PATH") {
				t.Fatal(out, err)
			}
			mustHave(t, bin, map[string]string{"host-agent": "1.0.0", "ahp-connect": "1.0.0", "relay": ""})
			// A second run replaces programs by a newer version.
			out, err = s.install(shell, home, os.Getenv("PATH")+":"+bin, "host-agent", "relay")
			if err != nil || !strings.Contains(out, "next: host-agent up https://") {
				t.Fatal(out, err)
			}
			mustHave(t, bin, map[string]string{"host-agent": "1.1.0", "ahp-connect": "1.0.0", "relay": "1.1.0"})
			if mark, err := os.ReadFile(filepath.Join(bin, ".host-agent.installed")); err != nil || string(mark) != "host-agent_1.1.0\n" {
				t.Errorf("the mark of the installation is %q, %v; want host-agent_1.1.0", mark, err)
			}
			left, _ := filepath.Glob(filepath.Join(home, "tmp*"))
			if len(left) > 0 {
				t.Error("these files are left behind: ", left)
			}
		})
	}
}

// TestProgramsAreForAllUsers installs with a umask that hides new files from other users, as hardened systems set it. An administrator
// installs programs for all users, so these must be able to run them.
func TestProgramsAreForAllUsers(t *testing.T) {
	s := newSite(t)
	s.script = "umask 077\n" + s.script
	for name, shell := range shells(t) {
		home, bin := t.TempDir(), t.TempDir()
		if out, err := s.install(shell, home, os.Getenv("PATH"), "--dir", bin, "relay"); err != nil {
			t.Fatal(name, out, err)
		}
		if info, err := os.Stat(filepath.Join(bin, "relay")); err != nil || info.Mode() != 0o755 {
			t.Errorf("with %s, relay has the mode %v, %v; want 0755", name, info.Mode(), err)
		}
	}
}

func TestNothingIsInstalled(t *testing.T) {
	only := func(t *testing.T, names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			path, err := exec.LookPath(name)
			if err != nil {
				continue
			}
			if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	tools := []string{"cat", "chmod", "cp", "cut", "mkdir", "mktemp", "mv", "rm", "sed", "sha256sum", "tar", "gzip", "uname", "wc"}
	second := "/latest/" + archive("ahp-connect", "1.1.0") + ".tar.gz"
	for name, c := range map[string]struct {
		do   func(t *testing.T, s *site)
		path func(t *testing.T) string
		args []string
		want string
	}{
		"altered archive":   {do: func(_ *testing.T, s *site) { s.files[second][15] ^= 1 }, want: "does not have the signed checksum"},
		"altered checksums": {do: func(_ *testing.T, s *site) { s.files["/latest/SHA256SUMS"][0] ^= 1 }, want: "signature"},
		"other key": {do: func(t *testing.T, s *site) {
			s.files["/latest/SHA256SUMS.sig"] = newSite(t).files["/latest/SHA256SUMS.sig"]
		}, want: "signature"},
		"no signature":       {do: func(_ *testing.T, s *site) { delete(s.files, "/latest/SHA256SUMS.sig") }, want: "SHA256SUMS.sig could not be downloaded"},
		"cut download":       {do: func(_ *testing.T, s *site) { s.files[second] = []byte("xCUT") }, want: "could not be downloaded"},
		"cut script":         {do: func(_ *testing.T, s *site) { s.script = s.script[:len(s.script)-len("main \"$@\"\n")] }},
		"no download tool":   {path: func(t *testing.T) string { return only(t, append(tools, "openssl")...) }, want: "neither curl nor wget"},
		"no openssl":         {path: func(t *testing.T) string { return only(t, append(tools, "curl", "wget")...) }, want: "install openssl"},
		"directory no":       {args: []string{"--dir", "/proc/none"}, want: "/proc/none cannot be written"},
		"unknown program":    {args: []string{"nonsense"}, want: "unknown argument nonsense"},
		"missing value":      {args: []string{"--dir"}, want: "--dir needs a value"},
		"no such version":    {args: []string{"--version", "9.9.9"}, want: "/all/v9.9.9/SHA256SUMS could not be downloaded"},
		"program that fails": {do: func(t *testing.T, s *site) { s.broken(t) }, want: "does not start on this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			for shellName, shell := range shells(t) {
				s, home, path := newSite(t), t.TempDir(), os.Getenv("PATH")
				if c.do != nil {
					c.do(t, s)
				}
				if c.path != nil {
					if shellName == "busybox" {
						continue // busybox contains these tools
					}
					full, err := exec.LookPath(shell[0])
					if err != nil {
						t.Fatal(err)
					}
					shell, path = append([]string{full}, shell[1:]...), c.path(t)
				}
				out, err := s.install(shell, home, path, c.args...)
				if (err == nil) != (c.want == "") || !strings.Contains(out, c.want) {
					t.Errorf("%s: %v: %s; want %q", shellName, err, out, c.want)
				}
				if installed, _ := filepath.Glob(filepath.Join(home, ".local/bin/*")); len(installed) > 0 {
					t.Errorf("%s has installed %v; want nothing", shellName, installed)
				}
			}
		})
	}
}

// broken replaces host-agent in the latest release by a program that fails.
func (s *site) broken(t *testing.T) {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	w := tar.NewWriter(zipped)
	if err := w.WriteHeader(&tar.Header{Name: archive("host-agent", "1.1.0") + "/host-agent", Mode: 0o755, Size: 17}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, "#!/bin/sh\nexit 1\n")
	_, _ = w.Close(), zipped.Close()
	name := archive("host-agent", "1.1.0") + ".tar.gz"
	s.files["/latest/"+name] = packed.Bytes()
	sums := fmt.Sprintf("%x  %s\n", sha256.Sum256(packed.Bytes()), name)
	digest := sha256.Sum256([]byte(sums))
	signature, err := ecdsa.SignASN1(rand.Reader, s.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	s.files["/latest/SHA256SUMS"], s.files["/latest/SHA256SUMS.sig"] = []byte(sums), []byte(base64.StdEncoding.EncodeToString(signature))
}
