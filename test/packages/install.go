package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
)

// checkInstall installs with the documented line in a chroot with a shell, curl and
// openssl, pairs the host-agent with a relay, and sees its host's sessions in Chromium.
func checkInstall(dist, root, suite string) error {
	if err := bootstrap(root, suite); err != nil {
		return err
	}
	within := func(command string) (string, error) {
		return say("chroot", root, "env", "HOME=/root", "sh", "-c", command)
	}
	if _, err := within("command -v curl && command -v openssl || { apt-get update && apt-get install -y --no-install-recommends curl openssl; }"); err != nil {
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
	home := filepath.Join(root, "root/.local")
	if err := os.RemoveAll(home); err != nil {
		return err
	}
	said, err := within("curl -fsSL " + s.url + "/install.sh | sh")
	if err != nil {
		return err
	}
	log.Print(said)
	if err := s.alter(dist, "SHA256SUMS"); err != nil {
		return err
	}
	if said, err := within("curl -fsSL " + s.url + "/install.sh | sh"); err == nil {
		return fmt.Errorf("altered checksums are installed: %s", said)
	}
	said, err = say("env", "AHP_TEST_INSTALLED="+root, "go", "test", "-count=1", "-run", "^TestInstalledPrograms$", "-v", "./test/browser")
	if err == nil && !strings.Contains(said, "--- PASS: TestInstalledPrograms") {
		err = errors.New(said)
	}
	if err != nil {
		return err
	}
	log.Print("installed with one line, paired with one line; the page on a phone shows the sessions: artifacts/console-installed.png")
	return os.RemoveAll(home)
}
