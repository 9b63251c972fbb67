package acp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/test/acpagent"
)

// geminiSite starts a host whose agent imitates Gemini CLI with its faults.
func geminiSite(t *testing.T) (s *realSite, store string) {
	t.Helper()
	store = t.TempDir()
	command, environment := acpagent.Command(acpagent.Options{Store: store, With: "load gemini"})
	program := filepath.Join(t.TempDir(), "gemini")
	if err := os.Symlink(command[0], program); err != nil {
		t.Fatal(err)
	}
	s = &realSite{site: &site{folder: t.TempDir()}, storage: t.TempDir(), cfg: Config{
		Program: Program{Name: "test", Title: "Gemini", Command: []string{program}}, Environment: append(environment, "HOME="+store)}}
	s.start(t)
	return s, store
}

// asks sends a prompt, and fails the test unless the turn has this answer and this
// notice.
func (k *talk) asks(prompt, want, notice string) {
	k.t.Helper()
	k.prompt(prompt)
	k.end()
	got := k.last()
	if !strings.HasSuffix(got, "markdown: "+want) || strings.Contains(got, "notice: ") != (notice != "") || !strings.Contains(got, notice) {
		k.t.Errorf("the turn is\n%s\nwant %s, with the notice %q", got, want, notice)
	}
}

// TestGeminiKeepsItsConversations sends prompts and restarts the host between them. By
// itself, Gemini CLI would delete a conversation that was continued.
func TestGeminiKeepsItsConversations(t *testing.T) {
	s, _ := geminiSite(t)
	k := s.connect(t).begin(s.site, "s1", nil)
	other := s.connect(t).begin(s.site, "s2", nil) // at its start, this agent deletes conversations without messages
	other.asks("remember pink", "echo: remember pink", "")
	k.asks("remember red", "echo: remember red", "")
	for range 3 {
		k = s.restart(t, k)
		k.asks("recall", "remember red", "")
	}
	other = s.reopen(t, other)
	other.asks("recall", "remember pink", "")
	s.stop(t)
}

// TestGeminiReportsAPromptFromElsewhere adds a prompt without the host. The next prompt
// continues the conversation after it, and the turn mentions it.
func TestGeminiReportsAPromptFromElsewhere(t *testing.T) {
	s, store := geminiSite(t)
	k := s.connect(t).begin(s.site, "s1", nil)
	k.asks("remember red", "echo: remember red", "")
	k.asks("recall", "remember red", "")
	if err := acpagent.Continue(store, "remember green", time.Now()); err != nil {
		t.Fatal(err)
	}
	k.asks("recall", "remember red remember green", "This conversation went on outside of this page")
	k.asks("recall", "remember red remember green", "")
	s.stop(t)
}

// TestGeminiIsLoadedInALaterMinute computes how long the host must wait before it loads
// a conversation, so that Gemini CLI uses a new file.
func TestGeminiIsLoadedInALaterMinute(t *testing.T) {
	home := t.TempDir()
	const id = "0123abcd-rest"
	file := filepath.Join(home, "tmp", "p", "chats", "session-2026-03-04T05-06-0123abcd.jsonl")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 4, 5, 6, 50, 0, time.UTC)
	for _, c := range []struct {
		id   string
		at   time.Time
		want time.Duration
	}{
		{id, at, 10 * time.Second},
		{id, at.In(time.FixedZone("x", 5400)), 10 * time.Second},
		{id, at.Add(10 * time.Second), 0},
		{"9999abcd-rest", at, 0},
		{"../*", at, 0},
	} {
		if got := (&geminiKeeper{home: home, id: c.id}).untilMinute(c.at); got != c.want {
			t.Errorf("the wait for the conversation %s at %v is %v; want %v", c.id, c.at, got, c.want)
		}
	}
}

// TestOnlyEmptyCopiesAreRemoved removes files without messages. It keeps each file with
// a message, and the only file of a conversation.
func TestOnlyEmptyCopiesAreRemoved(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "tmp", "p", "chats")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const message = `{"id":"m","type":"user"}` + "\n"
	for name, c := range map[string]struct {
		text  string
		stays bool
	}{
		"session-1-aaaaaaaa.jsonl": {`{"sessionId":"aaaaaaaa-1"}` + "\n" + message, true},
		"session-2-aaaaaaaa.jsonl": {`{"sessionId":"aaaaaaaa-1"}` + "\n", false},
		"session-3-aaaaaaaa.jsonl": {`{"sessionId":"aaaaaaaa-2"}` + "\n", true},
		"session-4-aaaaaaaa.jsonl": {"not a record\n", true},
		"session-5-aaaaaaaa.jsonl": {`{"sessionId":"aaaaaaaa-1"}` + "\n" + strings.Repeat(" ", maxHeader) + message, true},
		"session-1-bbbbbbbb.jsonl": {`{"sessionId":"bbbbbbbb-1"}` + "\n", true},
		"other-1-aaaaaaaa.jsonl":   {`{"sessionId":"aaaaaaaa-1"}` + "\n", true},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := os.Stat(file); (err == nil) != c.stays {
				t.Errorf("the file %s exists after the cleanup: %v; want %v", name, err == nil, c.stays)
			}
		}()
	}
	sweepGemini(home)
}
