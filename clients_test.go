package ahprelay

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// A clientRow is a line in the table with the clients that have been run: client, version,
// run, result.
var clientRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]*) ?\| (` + "`make [^|]+" + `) \| [^|]+ \|$`)

// TestClientsAreRun checks the table in docs/clients.md: its make targets and tests exist, and
// make clients installs the given versions.
func TestClientsAreRun(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	makefile, installed := read("Makefile"), read("test/install-clients.sh")
	out, err := exec.CommandContext(t.Context(), "git", "grep", "-hoE", `^func Test\w+\(`, "--", "*_test.go").Output()
	if err != nil {
		t.Skip("no git repository: ", err)
	}
	tests := string(out)
	rows := clientRow.FindAllStringSubmatch(read("docs/clients.md"), -1)
	if len(rows) < 6 {
		t.Errorf("the documented table lists %d clients; want at least 6", len(rows))
	}
	for _, row := range rows {
		client, version, run := row[1], strings.TrimSpace(row[2]), row[3]
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(run, -1) {
			target, isTarget := strings.CutPrefix(name[1], "make ")
			switch {
			case isTarget && !strings.Contains(makefile, "\n"+target+":"):
				t.Errorf("%s: the Makefile has no target %s", client, target)
			case !isTarget && !strings.Contains(tests, "func "+name[1]+"("):
				t.Errorf("%s: there is no test %s", client, name[1])
			}
			if target == "clients" && !strings.Contains(installed, "@"+version) {
				t.Errorf("%s: make clients does not install version %s", client, version)
			}
		}
	}
}
