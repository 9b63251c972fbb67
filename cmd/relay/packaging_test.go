package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPackagesSetExistingFlags: units, chart and configuration set existing flags only, and the units
// restrict their services to their work.
func TestPackagesSetExistingFlags(t *testing.T) {
	help, _, err := relay(t, "serve", "--help")
	if err != nil {
		t.Fatal(err)
	}
	set := regexp.MustCompile(`AHP_RELAY_[A-Z_]*[A-Z]`)
	files := 0
	err = filepath.WalkDir("../../packaging", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		for _, name := range set.FindAllString(string(text), -1) {
			if !strings.Contains(help, "$"+name) {
				t.Errorf("%s sets %s, which is no flag of relay serve", path, name)
			}
		}
		return err
	})
	if err != nil || files < 8 {
		t.Fatalf("%d files, %v", files, err)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here: the units are not looked at")
	}
	for _, unit := range []string{"ahp-relay.service", "ahp-host-agent@.service"} {
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", "../../packaging/systemd/"+unit).CombinedOutput()
		if err != nil && strings.Contains(string(out), "Unknown") {
			t.Skip("an old systemd-analyze: the units are not looked at")
		}
		if err != nil {
			t.Errorf("%s: more than 2.0: %v\n%s", unit, err, out)
		}
	}
}
