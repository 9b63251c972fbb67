package ahprelay

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ahprelay/test/procs"
)

// floors are the packages from the bottom to the top. A package imports only
// packages of the floors below it; the packages of one floor do not import each
// other.
var floors = [][]string{
	{"internal/ablation", "internal/atomicfile", "internal/signal"},
	{"agenthost/repo", "agenthost/transcript", "ahp", "console", "internal/acmedns", "internal/awake", "internal/clock", "internal/coalesce", "internal/dialhint", "internal/fair", "internal/idle", "internal/lockorder", "internal/memory", "internal/meter", "internal/natslog", "internal/procgroup", "internal/retryafter", "internal/unauthenticated", "internal/wol"},
	{"ahp/view", "auth", "internal/acp", "internal/orphan", "internal/release", "internal/tracing"},
	{"agenthost", "auth/device", "auth/oidc", "auth/people", "auth/gate", "broker/link", "contentproxy", "internal/sealed"},
	{"agenthost/acp", "agenthost/tasks", "auth/mcpgate", "broker", "broker/notice", "broker/remember", "broker/resume", "broker/wake", "routing"},
	{"agenthost/scripted", "broker/waiting"},
	{"broker/embedded", "broker/registry", "broker/store", "hostagent/watch", "routing/audience", "gateway/admission", "gateway/wire"},
	{"gateway/desk"},
	{"gateway/notify", "gateway/audit", "gateway/remembered", "gateway/waiting", "hostagent/remembering", "hostagent/waiting"},
	{"gateway/authn"},
	{"gateway/api/agents", "gateway/api/hosts", "gateway/api/notify", "gateway/api/operator", "gateway/api/remembered", "gateway/api/waiting", "gateway/canvas"},
	{"gateway/api/people"},
	{"gateway", "hostagent", "internal/connect"},
	{"internal/connect/client"},
	{"internal/connect/acpdoor", "internal/connect/mcpdoor"},
	{"cmd/internal/agents", "cmd/internal/cli"},
	{"cmd/internal/tracer"},
	{"cmd/relay", "cmd/host-agent", "cmd/ahp-connect"},
}

// dependencies returns the direct and indirect imports of each package.
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

// TestImportsPointDown fails on an import of a higher floor, and on test code in
// a binary.
func TestImportsPointDown(t *testing.T) {
	all := dependencies(t, slices.Concat(floors...))
	var below []string
	for _, floor := range floors {
		for _, pkg := range floor {
			for _, dep := range all[pkg] {
				name, ours := strings.CutPrefix(dep, "ahprelay/")
				switch {
				case dep == "testing":
					t.Errorf("%s depends on package testing; want it only in tests", pkg)
				case !ours, slices.Contains(below, name):
				default:
					t.Errorf("%s imports %s, which is not below it", pkg, name)
				}
			}
		}
		below = append(below, floor...)
	}
}

// TestSmallProgramsStaySmall fails if a program links a large library that only the others
// need: the NATS server (17 MB), or the SDK for MCP (1.3 MB).
func TestSmallProgramsStaySmall(t *testing.T) {
	banned := map[string][]string{
		"cmd/host-agent":  {"github.com/nats-io/nats-server/", "github.com/modelcontextprotocol/go-sdk/mcp"},
		"cmd/ahp-connect": {"github.com/nats-io/nats-server/"},
	}
	for program, deps := range dependencies(t, slices.Collect(maps.Keys(banned))) {
		for _, dep := range deps {
			for _, prefix := range banned[program] {
				if strings.HasPrefix(dep, prefix) {
					t.Errorf("%s depends on %s", program, dep)
				}
			}
		}
	}
}

// TestHostAgentStaysSmall fails if a release would refuse host-agent because of its size. The
// program for the tests is 5 MB larger than a release's, which leaves out what package
// packaging/release lists.
func TestHostAgentStaysSmall(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("releases have a bound on linux_amd64 only")
	}
	dir, err := procs.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "host-agent"))
	if err != nil {
		t.Fatal(err)
	}
	const most = 23_100_000
	if info.Size() > most {
		t.Errorf("host-agent has %d bytes, more than %d: a release has more than 18,000,000 then (go run . -only linux_amd64 in packaging/release)", info.Size(), most)
	}
}

// TestEveryPackageHasAFloor fails if a package that ships is missing from floors.
func TestEveryPackageHasAFloor(t *testing.T) {
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(floors...)
	for line := range strings.Lines(string(out)) {
		pkg := strings.TrimPrefix(strings.TrimSpace(line), "ahprelay/")
		switch room, _, _ := strings.Cut(pkg, "/"); {
		case pkg == "ahprelay", room == "test", room == "docs", pkg == "console/build", pkg == "console/site", pkg == "console/site/write", pkg == "console/bundle", pkg == "console/test", pkg == "internal/acp/schema":
		case !slices.Contains(known, pkg):
			t.Errorf("%s is on no floor", pkg)
		}
	}
}

// mostRooms bounds the directories at the top.
const mostRooms = 14

// TestThereAreFewRooms fails on a new directory at the top.
func TestThereAreFewRooms(t *testing.T) {
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Skip("no git checkout: ", err)
	}
	rooms := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if room, _, nested := strings.Cut(line, "/"); nested && !strings.HasPrefix(room, ".") {
			rooms[room] = true
		}
	}
	if len(rooms) > mostRooms {
		t.Errorf("%d directories at the top; want at most %d", len(rooms), mostRooms)
	}
}
