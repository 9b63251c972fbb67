package agents

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"ahprelay/agenthost/acp"
	"ahprelay/test/acpagent"
)

func TestMain(m *testing.M) {
	acpagent.RunIfAsked()
	goleak.VerifyTestMain(m)
}

// TestHostServesItsAgents starts a host with two agents. The host's log must contain
// the version of each.
func TestHostServesItsAgents(t *testing.T) {
	command, environment := acpagent.Command(acpagent.Options{})
	var programs []acp.Program
	for _, name := range []string{"one", "two"} {
		programs = append(programs, acp.Program{Name: name, Title: name, Command: command})
	}
	host, err := Start(Config{Flags: Flags{Folder: []string{t.TempDir()}, Bypass: true}, Programs: programs, Environment: environment, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	in, client := io.Pipe()
	said, out := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { _ = host.ServeStdio(t.Context(), in, out) })
	go fmt.Fprintln(client, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"],"initialSubscriptions":["ahp-root://"]}}`)
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, 1<<20)
	seen := map[string]bool{}
	for len(seen) < 2 && lines.Scan() { // until the log has the versions of both agents
		for _, name := range []string{"one", "two"} {
			if strings.Count(lines.Text(), "Test agent 1") == 2 && strings.Contains(lines.Text(), `"provider":"`+name+`"`) {
				seen[name] = true
			}
		}
	}
	client.Close()
	said.Close()
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if len(seen) != 2 {
		t.Errorf("Describe was called for the agents %v; want both", seen)
	}
}

func TestRepositoriesAreFoundNearby(t *testing.T) {
	home := t.TempDir()
	for _, dir := range []string{"b/.git", "a/inner/.git", "a/inner/sub/.git", ".hidden/x/.git", "node_modules/y/.git", "1/2/3/4/5/6/.git", "plain/folder"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(home, "b"), filepath.Join(home, "a", "inner")}
	if got := Repositories(home); !slices.Equal(got, want) {
		t.Errorf("Repositories = %v; want %v", got, want)
	}
	t.Setenv("HOME", home)
	if got, err := folders(nil); err != nil || len(got) != 2 {
		t.Errorf("folders without a setting = %v, %v; want 2", got, err)
	}
	t.Setenv("HOME", t.TempDir())
	if _, err := folders(nil); !errors.Is(err, errNoFolder) {
		t.Errorf("folders = %v; want %v", err, errNoFolder)
	}
	if _, err := folders([]string{filepath.Join(home, "absent")}); err == nil {
		t.Error("folders accepts an absent folder; want an error")
	}
}

func TestCommandBelongsToOneAgent(t *testing.T) {
	for _, f := range []Flags{{}, {Agent: []string{"a", "b"}}} {
		if _, err := f.Programs([]string{"--", "true"}); err == nil {
			t.Errorf("Programs with the agents %v accepts a command; want an error, because the command needs exactly one agent", f.Agent)
		}
	}
	list, err := (&Flags{Agent: []string{"mine"}}).Programs([]string{"--", "true"})
	if err != nil || len(list) != 1 || list[0].Name != "mine" {
		t.Errorf("Programs = %v, %v; want mine alone", list, err)
	}
	pinned, err := (&Flags{Agent: []string{"mine=" + list[0].Path()}}).Pinned()
	if err != nil || len(pinned) != 1 || pinned[0] != "mine="+list[0].Path() {
		t.Errorf("Pinned = %v, %v; want mine with its path", pinned, err)
	}
}
