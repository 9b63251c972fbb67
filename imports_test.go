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
	{"acmedns", "ahp", "alike", "console", "fair", "giveback", "idle", "lockorder", "meter"},
	{"tracing"},
	{"auth", "refhost", "view"},
	{"auth/device", "auth/oidc", "people"},
	{"link"},
	{"broker", "notice"},
	{"broker/embedded", "records", "registry"},
	{"routing", "contentproxy", "gate", "watch", "notify"},
	{"mcpgate", "audience", "gateway/admission"},
	{"gateway/audit"},
	{"gateway/authn"},
	{"gateway/hosthttp", "gateway/agenthttp", "gateway/operatorhttp", "gateway/notifyhttp", "gateway/canvashttp"},
	{"gateway/peoplehttp"},
	{"gateway", "hostagent"},
	{"cmd/internal/cli"},
	{"cmd/relay", "cmd/host-agent"},
}

// dependencies returns what each package imports, and what those do.
func dependencies(t *testing.T, packages []string) map[string][]string {
	t.Helper()
	args := []string{"list", "-f", "{{.ImportPath}}{{range .Deps}} {{.}}{{end}}"}
	for _, pkg := range packages {
		args = append(args, "ahprelay/"+pkg)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		all[strings.TrimPrefix(names[0], "ahprelay/")] = names[1:]
	}
	if len(all) != len(packages) {
		t.Fatalf("%d packages are listed; want %d", len(all), len(packages))
	}
	return all
}

// TestImportsPointDown fails on an import from a lower layer to a higher one,
// and on test code in a binary.
func TestImportsPointDown(t *testing.T) {
	all := dependencies(t, slices.Concat(layers...))
	var below []string
	for _, layer := range layers {
		for _, pkg := range layer {
			for _, dep := range all[pkg] {
				name, ours := strings.CutPrefix(dep, "ahprelay/")
				switch {
				case dep == "testing":
					t.Errorf("%s depends on package testing", pkg)
				case !ours, slices.Contains(below, name):
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
	for _, dep := range dependencies(t, []string{"cmd/host-agent"})["cmd/host-agent"] {
		if strings.HasPrefix(dep, "github.com/nats-io/nats-server/") {
			t.Errorf("host-agent depends on %s", dep)
		}
	}
}
