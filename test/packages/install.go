package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A chroot is a small Debian in which the install script runs, with a web server for a
// release.
type chroot struct {
	root string
	*site
	line string // the documented line, with this web server's address
}

// run runs the documented line with a shell, and returns its output.
func (c chroot) run(shell, home, path string) (string, error) {
	return say("chroot", c.root, "env", "-i", "HOME="+home, "PATH="+path, "/bin/sh", "-c", strings.ReplaceAll(c.line, "| sh", "| "+shell))
}

const usualPath = "/usr/local/bin:/usr/bin:/bin"

// installed returns the names and versions of the programs that were installed below a
// home directory.
func (c chroot) installed(home string) string {
	found, _ := say("chroot", c.root, "/bin/sh", "-c", "for p in "+home+"/.local/bin/*; do [ ! -x $p ] || $p --version; done")
	return found
}

// checkInstall runs the documented line in a chroot with a shell, curl and openssl. It
// pairs the installed host-agent with a relay, and opens its host's sessions in
// Chromium. Before that, it checks that the script installs nothing from altered files,
// from interrupted downloads, without a program for downloads, and into a home
// directory that it cannot write.
func checkInstall(dist, root, suite string) error {
	if err := bootstrap(root, suite); err != nil {
		return err
	}
	if _, err := say("chroot", root, "sh", "-c", "command -v curl && command -v openssl && command -v busybox && command -v wget || { apt-get update && apt-get install -y --no-install-recommends curl wget openssl busybox; }"); err != nil {
		return err
	}
	s, end, err := serve(dist)
	if err != nil {
		return err
	}
	defer end()
	script, err := os.ReadFile(filepath.Join(dist, "install.sh"))
	if err != nil {
		return err
	}
	public, err := owner("LATEST")
	if err != nil {
		return err
	}
	s.altered["/install.sh"] = []byte(strings.ReplaceAll(string(script), public, s.url))
	c := chroot{root, s, "curl -fsSL " + s.url + "/install.sh | sh"}
	home := filepath.Join(root, "root/.local")
	for _, shell := range []string{"sh", "busybox sh"} {
		if err := os.RemoveAll(home); err != nil {
			return err
		}
		if err := c.refuses(dist, shell); err != nil {
			return fmt.Errorf("with %s: %w", shell, err)
		}
		if err := c.replaces(shell); err != nil {
			return fmt.Errorf("with %s: %w", shell, err)
		}
	}
	if err := os.RemoveAll(home); err != nil {
		return err
	}
	said, err := c.run("sh", "/root", usualPath)
	if err != nil {
		return err
	}
	log.Print(said)
	said, err = say("env", "AHP_TEST_INSTALLED="+root, "go", "test", "-count=1", "-run", "^TestInstalledProgramsPairAndServe$", "-v", "./test/browser")
	if err == nil && !strings.Contains(said, "--- PASS: TestInstalledProgramsPairAndServe") {
		err = errors.New(said)
	}
	if err != nil {
		return err
	}
	log.Print("installed with one line, paired with one line; the page on a phone shows the sessions: artifacts/console-installed.png")
	return os.RemoveAll(home)
}

// refuses runs the documented line in each case in which it must install nothing.
func (c chroot) refuses(dist, shell string) error {
	archive, err := only(filepath.Join(dist, "ahp-connect_*_linux_amd64.tar.gz")) // the second of the two downloads
	if err != nil {
		return err
	}
	archive = filepath.Base(archive)
	without, err := c.withoutDownloads()
	if err != nil {
		return err
	}
	sealed, err := c.readOnlyHome()
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Unmount(filepath.Join(c.root, sealed), 0) }()
	for _, one := range []struct {
		name, alter, cut, home, path, want string
	}{
		{name: "altered checksums", alter: "SHA256SUMS", want: "signature"},
		{name: "altered archive", alter: archive, want: "does not have the signed checksum"},
		{name: "interrupted download", cut: archive, want: "could not be downloaded"},
		{name: "no curl and no wget", path: without, want: "neither curl nor wget"},
		{name: "read-only home", home: sealed, want: "cannot be written"},
	} {
		with, home, path := c, "/root", usualPath
		if one.home != "" {
			home = one.home
		}
		if one.path != "" { // a file, because no program can download the script
			path, with.line = one.path, "cat /install.sh | sh"
		}
		if one.alter != "" {
			err = c.alter(dist, one.alter)
		}
		c.cut = one.cut
		if err != nil {
			return err
		}
		said, err := with.run(shell, home, path)
		c.cut = ""
		delete(c.altered, "/"+one.alter)
		if err == nil || !strings.Contains(err.Error(), one.want) {
			return fmt.Errorf("%s: the script prints %s, and ends with %v; want an error with %q", one.name, said, err, one.want)
		}
		if left := c.installed("/root") + c.installed(sealed); left != "" {
			return fmt.Errorf("%s: the script has installed %s; want nothing", one.name, left)
		}
	}
	log.Print("with ", shell, ": nothing is installed from altered or interrupted downloads, without curl and wget, and into a read-only home")
	return nil
}

// withoutDownloads makes a directory with all programs except curl and wget. It links
// busybox only under the name of its shell, because busybox contains a wget.
func (c chroot) withoutDownloads() (path string, err error) {
	const dir = "/opt/without"
	if err := os.RemoveAll(filepath.Join(c.root, dir)); err != nil {
		return "", err
	}
	_, err = say("chroot", c.root, "sh", "-c", "mkdir -p "+dir+" && for p in cat chmod cp cut mkdir mktemp mv rm sed sha256sum tar gzip uname wc openssl sh busybox; do ln -s $(command -v $p) "+dir+"/$p || exit; done")
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(c.root, "install.sh"), c.altered["/install.sh"], 0o644)
}

// readOnlyHome mounts a home directory that nobody can write, not even root.
func (c chroot) readOnlyHome() (home string, err error) {
	home = "/home/sealed"
	dir := filepath.Join(c.root, home)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return home, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, "")
}

// replaces runs the documented line where an older version is installed, with wget and
// without curl.
func (c chroot) replaces(shell string) error {
	bin := filepath.Join(c.root, "root/.local/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bin, "host-agent"), []byte("#!/bin/sh\necho host-agent 0.0.1\n"), 0o755); err != nil {
		return err
	}
	c.line = strings.ReplaceAll(c.line, "curl -fsSL", "wget -qO-")
	curl := filepath.Join(c.root, "usr/bin/curl")
	if err := os.Rename(curl, curl+".away"); err != nil {
		return err
	}
	said, err := c.run(shell, "/root", usualPath)
	if err = errors.Join(err, os.Rename(curl+".away", curl)); err != nil {
		return err
	}
	now := c.installed("/root")
	mark, err := os.ReadFile(filepath.Join(bin, ".host-agent.installed"))
	if err != nil || strings.Contains(now, "0.0.1") || !strings.Contains(now, "host-agent ") || !bytes.HasPrefix(mark, []byte("host-agent_")) {
		return fmt.Errorf("over an older version, with wget, the script prints %s; then %s is installed, with the mark %q, %v; want the new version", said, now, mark, err)
	}
	log.Print("with ", shell, ": an older version is replaced, with wget")
	return nil
}
