package acp

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ahprelay/test/acpagent"
)

// continued starts a host with an agent that has these capabilities, and a session in which a client chooses an option.
// The agent remembers a message.
func continued(t *testing.T, store, with string, chosen map[string]any) (*realSite, *talk) {
	t.Helper()
	command, environment := acpagent.Command(acpagent.Options{Store: store, With: with})
	s := &realSite{site: &site{folder: t.TempDir()}, storage: t.TempDir(), cfg: Config{Program: Program{Name: "test", Title: "Test", Command: command}, Environment: environment}}
	s.start(t)
	k := s.connect(t).begin(s.site, "s1", nil)
	k.dispatch(k.session, map[string]any{"type": "session/configChanged", "config": chosen})
	k.until("session/configChanged") // echo of the client's own action
	k.until("session/configChanged")
	k.prompt("remember red")
	k.end()
	return s, k
}

// recalls sends a prompt, and fails the test unless the agent remembers the message.
func (k *talk) recalls() {
	k.t.Helper()
	k.prompt("recall")
	if end := k.end(); end != "turnComplete" || k.last() != "markdown: remember red" {
		k.t.Errorf("after the restart, the turn ends with %s: %s; want turnComplete, remember red", end, k.last())
	}
}

// forgets replaces a value in the conversation that the agent has stored.
func forgets(t *testing.T, store, value, by string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(store, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the agent has stored %q, %v; want one conversation", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || !bytes.Contains(text, []byte(value)) {
		t.Fatalf("the agent has stored %s, %v; want %s", text, err, value)
	}
	if err := os.WriteFile(files[0], bytes.Replace(text, []byte(value), []byte(by), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestConversationOutlivesItsModel chooses a model, which the agent no longer accepts after a restart. The
// conversation must go on, with the agent's own choice.
func TestConversationOutlivesItsModel(t *testing.T) {
	store := t.TempDir()
	s, k := continued(t, store, "options resume", map[string]any{"model": "large"})
	s.stop(t)
	forgets(t, store, `"large"`, `"small"`)
	_, s.cfg.Environment = acpagent.Command(acpagent.Options{Store: store, With: "options resume stays"})
	s.start(t)
	defer s.stop(t)
	s.reopen(t, k).recalls()
}

// TestConversationOutlivesAForbiddenMode chooses a mode that skips permissions. The owner then forbids such modes. The
// conversation must go on in a different mode.
func TestConversationOutlivesAForbiddenMode(t *testing.T) {
	store := t.TempDir()
	s, k := continued(t, store, "resume", map[string]any{"mode": "bypassPermissions"})
	s.stop(t)
	forgets(t, store, `"bypassPermissions"`, `"ask"`)
	s.cfg.NoBypass = true
	s.start(t)
	defer s.stop(t)
	k = s.reopen(t, k)
	k.recalls()
	if config := fmt.Sprint(k.state(k.session)["config"].(map[string]any)["values"]); config != "map[mode:ask]" {
		t.Errorf("the options are %s; want the mode ask", config)
	}
}
