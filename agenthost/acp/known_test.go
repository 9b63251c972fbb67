package acp

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program writes an executable file with a text, and returns its path.
func program(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKnownAgentsAreFound(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	node := program(t, dir, "node", "\x7fELF")
	claude := program(t, dir, "claude-agent-acp", "#!/usr/bin/env node\nconsole.log()\n")
	program(t, dir, "codex", "\x7fELF")
	opencode := program(t, dir, "opencode", "\x7fELF")
	lost := program(t, dir, "lost", "#!/usr/bin/env no-such-interpreter\n")
	for _, c := range []struct {
		setting string
		command []string
		want    []string
		err     string
	}{
		{"opencode", nil, []string{opencode, "acp"}, ""},
		{"claude", nil, []string{node, claude}, ""},
		{"gemini=" + opencode, nil, []string{opencode, "--acp"}, ""},
		{"mine=" + opencode, nil, []string{opencode}, ""},
		{"mine", []string{"opencode", "--x"}, []string{opencode, "--x"}, ""},
		{"opencode", []string{"opencode", "acp", "--pure"}, []string{opencode, "acp", "--pure"}, ""},
		{"codex", nil, nil, "Codex is installed, but its adapter codex-acp is not: npm install -g @agentclientprotocol/codex-acp"},
		{"gemini", nil, nil, "gemini is not on PATH: npm install -g @google/gemini-cli"},
		{"mine", nil, nil, "is unknown; want one of claude, codex"},
		{"mine", []string{"absent"}, nil, "not found"},
		{"mine=" + opencode, []string{"opencode"}, nil, "either a path or a command"},
		{"lost=" + lost, nil, nil, "requires no-such-interpreter"},
		{"My Agent", nil, nil, "want a name"},
	} {
		got, err := Parse(c.setting, c.command)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("Parse(%s, %v): %v; want %s", c.setting, c.command, err, c.err)
			}
			continue
		}
		if err != nil || !slices.Equal(got.Command, c.want) {
			t.Errorf("Parse(%s, %v) = %v, %v; want %v", c.setting, c.command, got.Command, err, c.want)
		}
	}
}
