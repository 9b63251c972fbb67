package acpdoor_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ahprelay/agenthost"
	agent "ahprelay/agenthost/acp"
	"ahprelay/ahp"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/acpdoor"
	"ahprelay/internal/connect/client"
	"ahprelay/test/acpagent"
	"ahprelay/test/natssite"
	"ahprelay/test/stack"
)

// newAgentSite starts a relay with a host from this repository, whose agent is the given program.
func newAgentSite(t *testing.T, folder string, command, environment []string) *site {
	t.Helper()
	return newSite(t, agenthost.Config{
		Agents:  []agenthost.Agent{agent.New(agent.Config{Program: agent.Program{Name: "test", Title: "Test", Command: command}, Environment: environment})},
		Folders: []string{folder}, Terminals: agenthost.ShellTerminals, Protocol: agenthost.NewestProtocol,
	})
}

// A driver is a client that sends prompts in a session and answers its questions, like a person.
type driver struct {
	*client.Client
	t             *testing.T
	session, chat string
	turns         int
}

func (s *site) drive(t *testing.T, folder string) *driver {
	t.Helper()
	c, err := client.Open(t.Context(), client.Config{Relay: s.relay, Host: stack.Host, Name: "driver", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	d := &driver{Client: c, t: t}
	if d.session, err = c.Create(t.Context(), "test", "file://"+folder); err != nil {
		t.Fatal(err)
	}
	at, err := c.Session(t.Context(), d.session)
	if err != nil {
		t.Fatal(err)
	}
	d.chat = at.DefaultChat
	return d
}

// run sends a prompt, answers each question in the turn with option, and returns when the turn has
// ended. It calls meanwhile, if set, with the chat's state until then.
func (d *driver) run(prompt string, attachments []client.Attachment, option string, meanwhile func(client.Chat)) {
	d.t.Helper()
	d.turns++
	turn := fmt.Sprint("turn-", d.turns)
	if err := d.Say(d.t.Context(), d.chat, turn, client.Message{Text: prompt, Attachments: attachments}, false); err != nil {
		d.t.Fatal(err)
	}
	answered := map[string]bool{}
	natssite.Eventually(d.t, "the turn "+prompt+" ends", func() bool {
		at, err := d.Session(d.t.Context(), d.session)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, q := range at.Questions(d.session) {
			if action, err := q.Action(watch.Reply{Option: option}); err == nil && !answered[q.Event.ID] {
				answered[q.Event.ID] = true
				if err := d.Dispatch(d.t.Context(), q.Chat, json.RawMessage(action)); err != nil {
					d.t.Fatal(err)
				}
			}
		}
		chat, err := d.Chat(d.t.Context(), d.chat)
		if err != nil {
			d.t.Fatal(err)
		}
		if meanwhile != nil {
			meanwhile(chat)
		}
		return chat.Active == nil && len(chat.Turns) == d.turns
	})
}

// history returns a text for each turn in a chat, to compare the chats of two hosts.
func history(chat client.Chat) []string {
	var list []string
	for _, turn := range chat.Turns {
		var b strings.Builder
		fmt.Fprintf(&b, "%s: %s\n", turn.State, turn.Message.Text)
		for _, a := range turn.Message.Attachments {
			fmt.Fprintf(&b, "  attachment %s %s %s\n", a.Type, a.ContentType, a.Data)
		}
		for _, part := range turn.Parts {
			switch call := part.ToolCall; {
			case call != nil:
				fmt.Fprintf(&b, "  tool %s %s: %s\n  input %s\n", call.Status, call.Display, ahp.WordsOf(call.Invocation), call.Input)
				for _, item := range ahp.ElementsOf(call.Content) {
					kind := ahp.TextOf(item.Raw, "type")
					fmt.Fprintf(&b, "    %s %q\n", kind, ahp.TextOf(item.Raw, "text"))
					if kind == "fileEdit" {
						fmt.Fprintf(&b, "    %s\n", item.Raw)
					}
				}
			case part.Kind == "error":
				fmt.Fprintf(&b, "  error %s\n", ahp.TextOf(part.Error, "message"))
			default:
				fmt.Fprintf(&b, "  %s %s\n", part.Kind, ahp.WordsOf(part.Content))
			}
		}
		list = append(list, b.String())
	}
	return list
}

// TestHistoriesAgree runs turns through a chain: the first host's agent is a door to the second
// host, and the second host's agent is a program. Both hosts must have the same history of all turns.
func TestHistoriesAgree(t *testing.T) {
	folder := t.TempDir()
	command, environment := acpagent.Command(acpagent.Options{})
	far := newAgentSite(t, folder, command, environment)
	near := newAgentSite(t, folder, []string{os.Args[0]}, []string{relayVariable + "=" + far.Relay.URL(), tokenVariable + "=" + far.token, folderVariable + "=" + folder})
	d := near.drive(t, folder)
	picture := []client.Attachment{{Type: "embeddedResource", Label: "picture", ContentType: "image/png", Data: []byte("pixels")}}
	for _, c := range []struct {
		prompt, option string
		attachments    []client.Attachment
	}{
		{"hello", "", nil}, {"think", "", nil}, {"run ls", "once", nil}, {"run ls", "no", nil}, {"write note.txt some text", "once", nil},
		{"shell pwd; exit 3", "", nil}, {"plan", "", nil}, {"notice", "", nil}, {"stream 300 100", "", nil}, {"image", "", picture}, {"anything else", "", nil},
	} {
		d.run(c.prompt, c.attachments, c.option, nil)
	}
	cancelled := false
	d.run("slow", nil, "", func(chat client.Chat) {
		if chat.Active != nil && len(chat.Active.Parts) > 0 && !cancelled {
			cancelled = true
			if err := d.Dispatch(t.Context(), d.chat, map[string]any{"type": "chat/turnCancelled", "turnId": chat.Active.ID, "duration": 1}); err != nil {
				t.Fatal(err)
			}
		}
	})
	if text, err := os.ReadFile(filepath.Join(folder, "note.txt")); err != nil || string(text) != "some text\n" {
		t.Errorf("the file has %q, %v; want some text", text, err)
	}
	chat, err := d.Chat(t.Context(), d.chat)
	if err != nil {
		t.Fatal(err)
	}
	here := history(chat)
	watcher, err := client.Open(t.Context(), client.Config{Relay: far.relay, Host: stack.Host, Name: "watcher", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	list, err := watcher.Sessions(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("the far host has %d sessions, %v; want 1", len(list), err)
	}
	at, err := watcher.Session(t.Context(), list[0].Session)
	if err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the far turn ends", func() bool {
		chat, err = watcher.Chat(t.Context(), at.DefaultChat)
		return err == nil && chat.Active == nil
	})
	there := history(chat)
	if len(here) != len(there) {
		t.Fatalf("%d turns here and %d at the far host; want the same", len(here), len(there))
	}
	for i := range here {
		if i == len(here)-1 { // the hosts may cancel the turn at different words
			if !strings.HasPrefix(here[i], "cancelled: slow") || !strings.HasPrefix(there[i], "cancelled: slow") {
				t.Errorf("the cancelled turn is\n%s\nin the first editor and\n%s\nin the second; want cancelled: slow", here[i], there[i])
			}
			continue
		}
		if here[i] != there[i] {
			t.Errorf("turn %d is\n%s\nin the first editor and\n%s\nin the second; want the same", i, here[i], there[i])
		}
	}
}

// TestOptionsFollow changes the mode and the model, from the editor and from the agent. The other
// side must get each change. The editor must also get slash commands, title, usage and plan.
func TestOptionsFollow(t *testing.T) {
	folder := t.TempDir()
	command, environment := acpagent.Command(acpagent.Options{With: "options"})
	s := newAgentSite(t, folder, command, environment)
	e := s.open(t, everything, func(c *acpdoor.Config) { c.Folder = folder })
	var made acp.NewSessionResponse
	e.call("session/new", acp.NewSessionRequest{Cwd: "/no/such/folder", McpServers: []acp.McpServer{}}, &made)
	if made.Modes == nil || made.Modes.CurrentModeID != "ask" || len(made.Modes.AvailableModes) != 3 || made.Modes.AvailableModes[1].Name != "Plan" {
		t.Errorf("the modes are %+v; want three, with ask chosen", made.Modes)
	}
	if len(made.ConfigOptions) != 2 || made.ConfigOptions[1].Category != acp.SessionConfigOptionCategoryModel || string(made.ConfigOptions[1].CurrentValue) != `"small"` {
		t.Errorf("the options are %+v; want two, with the model small", made.ConfigOptions)
	}
	e.call("session/set_mode", acp.SetSessionModeRequest{SessionID: made.SessionID, ModeID: "plan"}, nil)
	e.await("the mode", func() bool { return has(e.seen(), acp.UpdateCurrentModeUpdate, `"plan"`) })
	var changed acp.SetSessionConfigOptionResponse
	e.call("session/set_config_option", acp.SetSessionConfigOptionRequest{SessionID: made.SessionID, ConfigID: "model", Value: json.RawMessage(`"large"`)}, &changed)
	if len(changed.ConfigOptions) != 2 || string(changed.ConfigOptions[1].CurrentValue) != `"large"` {
		t.Errorf("after a change, the options are %+v; want two, with the model large", changed.ConfigOptions)
	}
	err := e.conn.Call(t.Context(), "session/set_config_option", acp.SetSessionConfigOptionRequest{SessionID: made.SessionID, ConfigID: "model", Value: json.RawMessage(`"huge"`)}, nil)
	if err == nil || !strings.Contains(err.Error(), "no option") {
		t.Errorf("setting an unknown model: %v; want no option", err)
	}
	e.prompt(made.SessionID, "mode ask") // the agent changes the mode
	e.await("the agent's mode", func() bool { return has(e.seen(), acp.UpdateCurrentModeUpdate, `"ask"`) })
	e.prompt(made.SessionID, "commands")
	e.await("the commands", func() bool {
		return has(e.seen(), acp.UpdateAvailableCommandsUpdate, `"review"`, "Reviews changes", "branch")
	})
	e.prompt(made.SessionID, "title A new title")
	e.await("the title", func() bool { return has(e.seen(), acp.UpdateSessionInfoUpdate, "A new title") })
	e.prompt(made.SessionID, "usage")
	e.await("the usage", func() bool { return has(e.seen(), acp.UpdateUsageUpdate, "200000", "USD") })
	updates, _ := e.prompt(made.SessionID, "plan")
	if i := slices.IndexFunc(updates, func(u update) bool { return u.kind == acp.UpdatePlan }); i < 0 || len(updates[i].entries) != 3 || updates[i].entries[1].Status != "in_progress" {
		t.Error("the updates lack the plan's three entries; want them")
	}
}

// has reports whether some update of a kind contains all words.
func has(updates []update, kind string, words ...string) bool {
	return slices.ContainsFunc(updates, func(u update) bool {
		return u.kind == kind && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(u.raw, w) })
	})
}

// TestPromptsCarryFiles sends a prompt with a file on the editor's machine, an embedded text, a
// picture and a link. The agent must get all of them, and an editor that loads the session must
// show them.
func TestPromptsCarryFiles(t *testing.T) {
	folder := t.TempDir()
	command, environment := acpagent.Command(acpagent.Options{})
	s := newAgentSite(t, folder, command, environment)
	e := s.open(t, everything, func(c *acpdoor.Config) { c.Folder = folder })
	id := e.create()
	e.call("session/prompt", acp.PromptRequest{SessionID: id, Prompt: []acp.ContentBlock{
		textBlock("image "),
		{Type: acp.ContentBlockResourceLink, Name: "main.go", URI: "file:///home/ada/main.go"},
		textBlock(" and"),
		{Type: acp.ContentBlockImage, MimeType: "image/png", Data: "cGl4ZWxz"},
		{Type: acp.ContentBlockResource, Resource: acp.EmbeddedResourceResource{URI: "file:///home/ada/notes.md", MimeType: "text/markdown", Text: "some notes"}},
		{Type: acp.ContentBlockResourceLink, Name: "page", URI: "https://example.com/page"},
	}}, nil)
	want := fmt.Sprintf("[text  0][resource  %d][image image/png 8][resource  %d][resource_link  24]",
		len("unsaved content of /home/ada/main.go"), len("some notes"))
	if got := said(e.seen(), acp.UpdateAgentMessageChunk); got != want {
		t.Errorf("the agent received the prompt %s; want %s", got, want)
	}
	other := s.open(t, everything, nil)
	other.call("session/load", acp.LoadSessionRequest{SessionID: id, Cwd: folder, McpServers: []acp.McpServer{}}, nil)
	var kinds []string
	for _, u := range other.seen() {
		if u.kind == acp.UpdateUserMessageChunk {
			kinds = append(kinds, u.block.Type)
		}
	}
	if got := fmt.Sprint(kinds); got != "[text resource image resource resource_link]" || !strings.Contains(said(other.seen(), acp.UpdateUserMessageChunk), "image @main.go and") {
		t.Errorf("the prompt has parts %s, and the history %q; want text, file, image, file and link", got, said(other.seen(), acp.UpdateUserMessageChunk))
	}
}
