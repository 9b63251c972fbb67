package acp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
	"ahprelay/test/acpagent"
)

// TestConversationGoesOnElsewhere adds a prompt to a session's conversation, as a user
// would in the agent's own terminal. The next turn must mention this prompt, and the
// agent must remember it, also after a restart of the host.
func TestConversationGoesOnElsewhere(t *testing.T) {
	store := t.TempDir()
	command, environment := acpagent.Command(acpagent.Options{Store: store, With: "list resume"})
	s := &realSite{site: &site{folder: t.TempDir()}, storage: t.TempDir(), cfg: Config{Program: Program{Name: "test", Title: "Test", Command: command}, Environment: environment}}
	s.start(t)
	k := s.connect(t).begin(s.site, "s1", nil)
	const notice = "notice: This conversation went on outside of this page"
	ask := func(want string, noticed bool) {
		t.Helper()
		k.prompt("recall")
		k.end()
		if got := k.last(); !strings.HasSuffix(got, "markdown: "+want) || strings.Contains(got, notice) != noticed {
			t.Errorf("the turn is\n%s\nwant %s, with a notice %v", got, want, noticed)
		}
	}
	elsewhere := func(prompt string) {
		t.Helper()
		if err := acpagent.Continue(store, prompt, time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	k.prompt("remember red")
	k.end()
	ask("remember red", false)
	elsewhere("remember green")
	ask("remember red remember green", true)
	ask("remember red remember green", false)
	k = s.restart(t, k)
	ask("remember red remember green", false)
	elsewhere("remember blue")
	k = s.restart(t, k)
	ask("remember red remember green remember blue", false)
	s.stop(t)
}

// TestAgentsThatRefuseASharedConversation: an agent refuses to open a conversation that
// another process uses, or that it cannot open at the moment. The host returns an error, and begins no other conversation.
func TestAgentsThatRefuseASharedConversation(t *testing.T) {
	agent := New(Config{Program: Program{Name: "x"}})
	for message, want := range map[string]error{
		"Session is already open in another process": agenthost.ErrBusy,
		"thread locked by pid 12":                    agenthost.ErrBusy,
		"no such session":                            agenthost.ErrUnknown,
		"file unlocked":                              agenthost.ErrUnknown,
		"Resource not found: 5f1c-502a":              agenthost.ErrUnknown,
		"Invalid session identifier":                 agenthost.ErrUnknown,
		"Session not found in /work/network":         agenthost.ErrUnknown,
		"TypeError: fetch failed":                    nil,
		"connect ECONNREFUSED 127.0.0.1:443":         nil,
		"ENOSPC: no space left on device, write":     nil,
		"API error 529: overloaded_error":            nil,
		"Request timed out.":                         nil,
		"MCP server did not start: Timeout":          nil,
		"503 Service Unavailable":                    nil,
	} {
		err := agent.openError(&acp.Error{Code: acp.CodeInternal, Message: message}, agenthost.Start{ID: "s"})
		if want == nil && (errors.Is(err, agenthost.ErrUnknown) || errors.Is(err, agenthost.ErrBusy)) || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", message, err, want)
		}
	}
}
