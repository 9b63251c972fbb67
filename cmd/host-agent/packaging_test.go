package main

import (
	"bytes"
	"fmt"
	"os"
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
