package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestUnitSetsKnownFlagsInItsOwnDirectories reads the unit for a user's host-agent. It
// may set only flags that exist. The service may write only to its own directories,
// because the rest of the system is read-only for it. In the system's manager, %h would
// be root's home directory.
func TestUnitSetsKnownFlagsInItsOwnDirectories(t *testing.T) {
	text, err := os.ReadFile("../../packaging/systemd/ahp-host-agent@.service")
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	if err := run(t.Context(), []string{"run", "--help"}, &help, &help); err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`AHP_AGENT_[A-Z_]*[A-Z]`).FindAllString(string(text), -1) {
		if !strings.Contains(help.String(), "$"+name) {
			t.Errorf("the unit sets %s; want only variables of host-agent run", name)
		}
	}
	for _, want := range []string{
		"\nStateDirectory=ahp-host-agent-%i\n", "AHP_AGENT_CREDENTIALS_FILE=/var/lib/ahp-host-agent-ada/credential\n", "--credentials-file /var/lib/ahp-host-agent-ada/credential",
		"\nRestartSec=2\n", fmt.Sprintf("\nRestartPreventExitStatus=%d\n", statusRefused),
		"\nRuntimeDirectory=ahp-host-agent-%i\n", "\nEnvironment=XDG_RUNTIME_DIR=/run/ahp-host-agent-%i\n", // FindControl looks there
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
	if strings.Contains(string(text), "%h") {
		t.Error("the unit names the home directory of root; want directories which systemd makes")
	}
}

// TestRemovalEndsAllServices runs the script before the removal of the package, with a script in place of systemctl. It must stop
// and disable the relay and each user's host-agent. Before an upgrade, it must leave them.
func TestRemovalEndsAllServices(t *testing.T) {
	text, err := os.ReadFile("../../packaging/preremove.sh")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(string(text), "/run/systemd/system", bin)
	for why, wants := range map[string][]string{"remove": {"stop ahp-relay.service ahp-host-agent@*.service\n", "disable ahp-relay.service ahp-host-agent@.service\n"}, "0": {"stop", "disable"}, "upgrade": nil, "1": nil} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "preremove.sh", why)
		cmd.Env = []string{"PATH=" + bin}
		out, err := cmd.CombinedOutput()
		if err != nil || len(wants) == 0 && len(out) > 0 {
			t.Errorf("the script with %s runs %s, %v; want systemctl only for a removal", why, out, err)
		}
		for _, want := range wants {
			if !strings.Contains(string(out), want) {
				t.Errorf("the script with %s runs %s; want %q", why, out, want)
			}
		}
	}
}
