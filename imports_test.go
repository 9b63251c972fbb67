package ahprelay

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers are the packages from the bottom to the top. One imports only what
// stands before it; those on one line do not import each other.
var layers = [][]string{
	{"without"},
	{"acmedns", "ahp", "alike", "console", "fair", "idle", "meter"},
	{"tracing"},
	{"auth", "refhost", "view"},
	{"auth/device", "auth/oidc", "people"},
	{"link"},
	{"broker", "notice"},
	{"broker/embedded", "records", "registry"},
	{"routing", "contentproxy", "gate", "watch", "notify"},
	{"mcpgate", "audience"},
	{"gateway", "hostagent"},
	{"cmd/internal/cli"},
	{"cmd/relay", "cmd/host-agent"},
}

func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "ahprelay/"+pkg).Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}

// TestImportsPointDown fails on an import from a lower layer to a higher one,
// and on test code in a binary.
func TestImportsPointDown(t *testing.T) {
	var below []string
	for _, layer := range layers {
		for _, pkg := range layer {
			for _, dep := range dependencies(t, pkg) {
				name, ours := strings.CutPrefix(dep, "ahprelay/")
				switch {
				case dep == "testing":
					t.Errorf("%s depends on package testing", pkg)
				case !ours, name == pkg, slices.Contains(below, name):
				default:
					t.Errorf("%s imports %s, which is not below it", pkg, name)
				}
			}
		}
		below = append(below, layer...)
	}
}

// TestHostAgentHasNoServer fails if host-agents link the NATS server.
func TestHostAgentHasNoServer(t *testing.T) {
	for _, dep := range dependencies(t, "cmd/host-agent") {
		if strings.HasPrefix(dep, "github.com/nats-io/nats-server/") {
			t.Errorf("host-agent depends on %s", dep)
		}
	}
}
