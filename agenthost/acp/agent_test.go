package acp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/internal/acp"
	"ahprelay/test/acpagent"
)

func TestUpdatesBecomeATurnsParts(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	if err := os.WriteFile(filepath.Join(s.folder, "in.txt"), []byte("content of the file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ prompt, want string }{
		{"hello", "markdown: Hello, world!"},
		{"think", "reasoning: Let me think.\nmarkdown: Done thinking."},
		{"read " + filepath.Join(s.folder, "in.txt"), "markdown: content of the file"},
		{"read " + filepath.Join(s.folder, "absent.txt"), "markdown: cannot read: fs/read_text_file: Resource not found: " + filepath.Join(s.folder, "absent.txt") + " (-32002)"},
		{"notice", "notice: **Careful**\n\nA notice"},
		{"plan", "tool completed Plan - [x] Look\n- [>] Change\n- [ ] Test"},
		{"anything else", "markdown: echo: anything else"},
	} {
		k.prompt(c.prompt)
		if end := k.end(); end != "turnComplete" {
			t.Errorf("%s: the turn ends with %s; want turnComplete", c.prompt, end)
		}
		if got := k.last(); got != c.want {
			t.Errorf("%s: the answer is\n%s\nwant\n%s", c.prompt, got, c.want)
		}
	}
}

func TestUsageHasTheLimitsOfThePlan(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	k.prompt("limits")
	k.end()
	turns := k.state(k.chat)["turns"].([]any)
	usage := turns[len(turns)-1].(map[string]any)["usage"].(map[string]any)["_meta"].(map[string]any)
	if got, want := fmt.Sprint(usage["quotaSnapshots"]), "map[five_hour:map[remainingPercentage:25 resetDate:2027-01-15T08:00:00Z] seven_day:map[remainingPercentage:0]]"; got != want {
		t.Errorf("the limits are %s; want %s", got, want)
	}
}

func TestFilesOutsideTheFolderAreRefused(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(s.folder, "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{outside, filepath.Join(s.folder, "link"), filepath.Join(s.folder, "..", filepath.Base(filepath.Dir(outside)), "secret")} {
		k.prompt("read " + path)
		k.end()
		if got := k.last(); !strings.HasPrefix(got, "markdown: cannot read") || strings.Contains(got, "secret content") {
			t.Errorf("reading %s outside the folder: %s; want cannot read", path, got)
		}
	}
}

func TestPermissionFollowsTheClientsAnswer(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	other := s.connect(t).open(k.session)
	for _, c := range []struct {
		approved     bool
		option, want string
	}{
		{true, "once", "tool completed ls ran ls\nmarkdown: done: ls"},
		{true, "always", "tool completed ls ran ls\nmarkdown: done: ls"},
		{false, "no", "tool cancelled ls\nmarkdown: not allowed: no"},
	} {
		turn := k.prompt("run ls")
		ready := k.asked()
		if got := fmt.Sprint(ready["options"]); !strings.Contains(got, "label:Yes, once") || !strings.Contains(got, "label:Always allow") {
			t.Errorf("the options are %s; want the agent's own", got)
		}
		other.asked()
		other.confirm(turn, ready, c.approved, c.option)
		other.until("chat/toolCallConfirmed")   // the host must get the first answer before the second
		k.confirm(turn, ready, !c.approved, "") // the second answer must not change anything
		k.end()
		if got := k.last(); got != c.want {
			t.Errorf("after %s, the turn is\n%s\nwant\n%s", c.option, got, c.want)
		}
	}
}

// TestEditIsShownBeforeItIsAllowed lets an agent ask for permission for an edit. The
// request begins the tool call. The client sees the edit before it allows it.
func TestEditIsShownBeforeItIsAllowed(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	turn := k.prompt("write note.txt written by the agent")
	ready := k.asked()
	if got := fmt.Sprint(ready["edits"]); !strings.Contains(got, filepath.Join(s.folder, "note.txt")) {
		t.Errorf("the tool call's edits are %s; want note.txt", got)
	}
	if _, err := os.Stat(filepath.Join(s.folder, "note.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before the answer, Stat of the edited file = %v; want ErrNotExist", err)
	}
	k.confirm(turn, ready, true, "once")
	k.end()
	if got, want := k.last(), "tool completed Write note.txt <fileEdit>\nmarkdown: done: <nil>"; got != want {
		t.Errorf("the turn is\n%s\nwant\n%s", got, want)
	}
	if text, err := os.ReadFile(filepath.Join(s.folder, "note.txt")); err != nil || string(text) != "written by the agent\n" {
		t.Errorf("the file has %q, %v; want written by the agent", text, err)
	}
}

func TestAgentsCommandsShowTheirOutput(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	k.prompt("shell pwd; exit 3")
	k.end()
	if got, want := k.last(), fmt.Sprintf("tool completed pwd; exit 3 %s\nmarkdown: exit 3: %s", s.folder, s.folder); got != want {
		t.Errorf("the turn is\n%s\nwant\n%s", got, want)
	}
}

func TestAgentsQuestionGetsTheClientsAnswer(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	k.prompt("ask")
	request := k.until("chat/inputRequested")["request"].(map[string]any)
	k.dispatch(k.chat, map[string]any{"type": "chat/inputCompleted", "requestId": request["id"], "response": "accept", "answers": map[string]any{
		"colour": map[string]any{"state": "submitted", "value": map[string]any{"kind": "selected", "value": "b"}},
		"size":   map[string]any{"state": "submitted", "value": map[string]any{"kind": "number", "value": 7}},
	}})
	k.end()
	if got := k.last(); !strings.HasSuffix(got, `accept {"colour":"b","size":7}`) {
		t.Errorf("the turn is\n%s\nwant it to end with the answer colour b and size 7", got)
	}
	k.prompt("ask url")
	request = k.until("chat/inputRequested")["request"].(map[string]any)
	if request["url"] != "https://example.com/sign-in" {
		t.Errorf("the question is %v; want the address https://example.com/sign-in", request)
	}
	k.dispatch(k.chat, map[string]any{"type": "chat/inputCompleted", "requestId": request["id"], "response": "decline"})
	k.end()
	if got := k.last(); !strings.Contains(got, "decline null") {
		t.Errorf("the turn is\n%s\nwant the answer decline", got)
	}
}

func TestAttachmentsReachTheAgent(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	k.prompt("image", map[string]any{"type": "embeddedResource", "label": "p.png", "displayKind": "image", "data": "AAAA", "contentType": "image/png"})
	k.end()
	if got := k.last(); !strings.Contains(got, "[image image/png 4]") {
		t.Errorf("the turn is\n%s\nwant the picture of 4 bytes", got)
	}
}

func TestAgentsOptionsAreTheSessionsConfiguration(t *testing.T) {
	s := newSite(t, acpagent.Options{With: "options"}, nil)
	c := s.connect(t)
	k := c.begin(s, "s1", nil)
	config := func() string { return fmt.Sprint(c.state(k.session)["config"].(map[string]any)["values"]) }
	if got := config(); got != "map[mode:ask model:small]" {
		t.Errorf("the options are %s; want mode ask and model small", got)
	}
	k.dispatch(k.session, map[string]any{"type": "session/configChanged", "config": map[string]any{"model": "large"}})
	k.until("session/configChanged") // echo of the client's own action
	k.until("session/configChanged")
	k.prompt("mode plan") // makes the agent change its mode by itself
	k.until("session/configChanged")
	k.end()
	if got := config(); got != "map[mode:plan model:large]" {
		t.Errorf("the options are %s; want mode plan and model large", got)
	}
	// A new session begins with the options that the client has chosen.
	if k = c.begin(s, "s2", map[string]any{"model": "large"}); config() != "map[mode:ask model:large]" {
		t.Errorf("the options of a new session are %s; want the client's mode ask and model large", config())
	}
}

func TestSwitchThatSkipsPermissionsIsMarked(t *testing.T) {
	s := newSite(t, acpagent.Options{With: "switch"}, nil)
	c := s.connect(t)
	schema := c.state(c.begin(s, "s1", nil).session)["config"].(map[string]any)["schema"].(map[string]any)["properties"].(map[string]any)
	if got := fmt.Sprint(schema["allow_all"]); !strings.Contains(got, "bypass:[true]") || !strings.Contains(got, "type:boolean") {
		t.Errorf("the option allow_all is %s; want a boolean that skips permissions when true", got)
	}
}

func TestBypassCanBeForbidden(t *testing.T) {
	s := newSite(t, acpagent.Options{}, func(c *Config) { c.NoBypass = true })
	c := s.connect(t)
	k := c.begin(s, "s1", nil)
	if got := fmt.Sprint(c.state(k.session)["config"]); strings.Contains(got, "bypassPermissions") {
		t.Errorf("the options are %s; want no bypassPermissions", got)
	}
	k.prompt("mode bypassPermissions") // makes the agent change its mode by itself
	k.end()
	c.awaits("return to the mode ask", func() bool {
		return fmt.Sprint(c.state(k.session)["config"].(map[string]any)["values"]) == "map[mode:ask]"
	})
	k.prompt("/yolo")
	if end := k.end(); end != "error" || !strings.Contains(k.last(), "--no-bypass") {
		t.Errorf("a forbidden command ends the turn with %s: %s; want an error that names --no-bypass", end, k.last())
	}
	if err := (&conversation{agent: s.agent, options: options{modes: nil}}).leaveBypass(t.Context()); err != nil {
		t.Error(err)
	}
	// The agent asks for a permission that would also change its mode to
	// bypassPermissions. The host does not offer this option.
	turn := k.prompt("later")
	ready := k.asked()
	if got := fmt.Sprint(ready["options"]); strings.Contains(got, "bypass") {
		t.Errorf("the options of a permission are %s; want none with bypass", got)
	}
	k.confirm(turn, ready, true, "bypassPermissions")
	if k.end(); !strings.Contains(k.last(), "markdown: once <nil>") {
		t.Errorf("the turn is %s; want the answer once", k.last())
	}
	// A client sets the forbidden mode. The host rejects this.
	k.dispatch(k.session, map[string]any{"type": "session/configChanged", "config": map[string]any{"mode": "bypassPermissions"}})
	refused := k.next("the echo", func(f map[string]any) bool { return actionOf(f)["type"] == "session/configChanged" })
	if reason, _ := refused["params"].(map[string]any)["rejectionReason"].(string); reason == "" {
		t.Errorf("the echo of the forbidden mode is %v; want a rejection reason", refused)
	}
	if answer := c.ask("createSession", map[string]any{"channel": "test:/s2", "provider": "test", "workingDirectories": []string{"file://" + s.folder}, "config": map[string]any{"mode": "bypassPermissions"}}); answer["error"] == nil {
		t.Errorf("a session begins in the forbidden mode: %v; want an error", c.state("test:/s2")["config"])
	}
	modes := &acp.SessionModeState{CurrentModeID: "ask", AvailableModes: []acp.SessionMode{{ID: "ask"}, {ID: "bypassPermissions"}}}
	if err := (&conversation{agent: s.agent, options: options{modes: modes}}).SetOption(t.Context(), modeOption, "bypassPermissions"); !errors.Is(err, errBypass) {
		t.Errorf("SetOption with the forbidden mode = %v; want errBypass", err)
	}
}

// TestForbiddenModeIsLeftAtTheStart starts a session whose agent begins in a mode that
// skips permissions. If the mode is forbidden, the host changes it at once.
func TestForbiddenModeIsLeftAtTheStart(t *testing.T) {
	for noBypass, want := range map[bool]string{true: "map[mode:ask]", false: "map[mode:bypassPermissions]"} {
		s := newSite(t, acpagent.Options{With: "bypass"}, func(c *Config) { c.NoBypass = noBypass })
		c := s.connect(t)
		k := c.begin(s, "s1", nil)
		if got := fmt.Sprint(c.state(k.session)["config"].(map[string]any)["values"]); got != want {
			t.Errorf("with NoBypass %v, the session begins with %s; want %s", noBypass, got, want)
		}
	}
}

func TestSessionsRunInTheFoldersOnly(t *testing.T) {
	s := newSite(t, acpagent.Options{}, nil)
	c := s.connect(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(s.folder, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.folder, "inner"), 0o700); err != nil {
		t.Fatal(err)
	}
	for folder, ok := range map[string]bool{
		s.folder: true, filepath.Join(s.folder, "inner"): true, outside: false, filepath.Join(s.folder, "link"): false, filepath.Join(s.folder, "absent"): false, filepath.Dir(s.folder): false,
	} {
		answer := c.ask("createSession", map[string]any{"channel": "test:/" + filepath.Base(folder) + fmt.Sprint(ok), "provider": "test", "workingDirectories": []string{"file://" + folder}})
		if (answer["error"] == nil) != ok {
			t.Errorf("a session in %s: %v; want ok %v", folder, answer["error"], ok)
		}
	}
	// The list of a folder above shows only the folders that lead to a permitted folder.
	list := c.call("resourceList", map[string]any{"channel": "ahp-root://", "uri": "file://" + filepath.Dir(s.folder)})
	if got := fmt.Sprint(list["entries"]); got != fmt.Sprintf("[map[name:%s type:directory]]", filepath.Base(s.folder)) {
		t.Errorf("the list of the parent folder is %s; want only the permitted folder", got)
	}
}

// TestSignIn signs in by each kind of method: by a request to the agent, which counts
// until its process ends, and by a command in a terminal.
func TestSignIn(t *testing.T) {
	for _, method := range []string{"key", "terminal"} {
		t.Run(method, func(t *testing.T) {
			s := newSite(t, acpagent.Options{Store: t.TempDir(), With: "auth"}, nil)
			k := s.connect(t).begin(s, "s1", nil)
			k.prompt("hello")
			request := k.until("chat/inputRequested")["request"].(map[string]any)
			if got := fmt.Sprint(request); !strings.Contains(got, "needs a sign-in") || !strings.Contains(got, "Use a key") {
				t.Errorf("the question is %s; want that the agent needs a sign-in, and both ways", got)
			}
			k.dispatch(k.chat, map[string]any{"type": "chat/inputCompleted", "requestId": request["id"], "response": "accept", "answers": map[string]any{
				"method": map[string]any{"state": "submitted", "value": map[string]any{"kind": "selected", "value": method}},
			}})
			if method == "terminal" {
				shown := k.until("chat/toolCallContentChanged")["content"].([]any)[0].(map[string]any)
				terminal := fmt.Sprint(shown["resource"])
				k.state(terminal)
				k.dispatch(terminal, map[string]any{"type": "terminal/input", "data": "secret\r"})
			}
			if end := k.end(); end != "turnComplete" || !strings.HasSuffix(k.last(), "markdown: Hello, world!") {
				t.Fatalf("the turn after the sign-in ends with %s: %s; want turnComplete, Hello, world!", end, k.last())
			}
			s.connect(t).begin(s, "s2", nil).works() // the new session has its own process
		})
	}
}

// TestASignInThatIsDeclined declines the sign-in. The turn ends with this reason.
func TestASignInThatIsDeclined(t *testing.T) {
	s := newSite(t, acpagent.Options{Store: t.TempDir(), With: "auth"}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	k.prompt("hello")
	request := k.until("chat/inputRequested")["request"].(map[string]any)
	k.dispatch(k.chat, map[string]any{"type": "chat/inputCompleted", "requestId": request["id"], "response": "decline"})
	if end := k.end(); end != "error" || !strings.Contains(k.last(), "needs a sign-in") {
		t.Errorf("the turn after a declined sign-in ends with %s: %s; want error, needs a sign-in", end, k.last())
	}
}

// TestSteeredMessageJoinsTheTurn sends a message during a turn. An agent that can be
// steered gets it during the turn. For any other agent, and for one whose turn has just ended, it becomes the next prompt.
func TestSteeredMessageJoinsTheTurn(t *testing.T) {
	for with, steers := range map[string]bool{"steer": true, "": false, "steer late": false} {
		s := newSite(t, acpagent.Options{Store: t.TempDir(), With: with}, nil)
		k := s.connect(t).begin(s, "s1", nil)
		turn := k.prompt("slow")
		k.until("chat/delta")
		k.dispatch(k.chat, map[string]any{"type": "chat/pendingMessageSet", "kind": "steering", "id": "p1", "message": map[string]any{"text": "hello", "origin": map[string]any{"kind": "user"}}})
		if !steers {
			k.cancel(turn)
			k.until("chat/turnCancelled")
			if end := k.end(); end != "turnComplete" || k.last() != "markdown: Hello, world!" {
				t.Errorf("the next message's turn ends with %s: %s; want turnComplete, Hello, world!", end, k.last())
			}
			continue
		}
		for got := ""; !strings.Contains(got, "steered: hello"); {
			action := k.until("chat/delta", "chat/responsePart")
			got = fmt.Sprint(action["content"], action["part"])
		}
		k.cancel(turn)
		k.end()
		if turns := k.history(); turns != 1 {
			t.Errorf("%d turns; want 1", turns)
		}
	}
}

// TestBusyAgentGetsASteeringMessageOnce steers an agent that takes the message later than agents answer other requests, as behind a
// long tool call. The message must not wait again, because the agent would get it twice.
func TestBusyAgentGetsASteeringMessageOnce(t *testing.T) {
	s := newSite(t, acpagent.Options{Store: t.TempDir(), With: "steer busy"}, func(c *Config) { c.answer = time.Millisecond })
	k := s.connect(t).begin(s, "s1", nil)
	turn := k.prompt("slow")
	k.until("chat/delta")
	k.dispatch(k.chat, map[string]any{"type": "chat/pendingMessageSet", "kind": "steering", "id": "p1", "message": map[string]any{"text": "hello", "origin": map[string]any{"kind": "user"}}})
	k.until("chat/pendingMessageRemoved")
	for got := ""; !strings.Contains(got, "The agent has this message now"); {
		action := k.until("chat/pendingMessageSet", "chat/responsePart")
		if got = fmt.Sprint(action); action["type"] == "chat/pendingMessageSet" {
			t.Fatalf("before the agent has answered, %v waits again; want that the host waits for the answer", action)
		}
	}
	k.cancel(turn)
	k.end()
	if turns := k.history(); turns != 1 {
		t.Errorf("%d turns; want 1", turns)
	}
}

// TestSteeringCannotBypass steers an agent with a command that skips permissions, at a host whose owner has forbidden that. The agent
// must not get it, and the command is refused as a prompt.
func TestSteeringCannotBypass(t *testing.T) {
	s := newSite(t, acpagent.Options{Store: t.TempDir(), With: "steer"}, func(c *Config) { c.NoBypass = true })
	k := s.connect(t).begin(s, "s1", nil)
	turn := k.prompt("slow")
	k.until("chat/delta")
	k.dispatch(k.chat, map[string]any{"type": "chat/pendingMessageSet", "kind": "steering", "id": "p1", "message": map[string]any{"text": "/yolo"}})
	k.until("chat/pendingMessageRemoved")
	if got := fmt.Sprint(k.until("chat/pendingMessageSet", "chat/responsePart")); !strings.Contains(got, "pendingMessageSet") {
		t.Fatalf("the command leads to %s; want that it waits", got)
	}
	k.cancel(turn)
	k.until("chat/turnCancelled")
	if end := k.end(); end != "error" || !strings.Contains(k.last(), "--no-bypass") {
		t.Errorf("the turn of the command ends with %s: %s; want an error that names --no-bypass", end, k.last())
	}
}

// TestCopiedConversationsGoOnApart copies a conversation. Both conversations then
// continue at the same time, and neither has the other's messages.
func TestCopiedConversationsGoOnApart(t *testing.T) {
	s := newSite(t, acpagent.Options{Store: t.TempDir(), With: "load fork"}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	turn := k.prompt("remember blue")
	k.end()
	copied := k.chat + "-copy"
	k.call("createChat", map[string]any{"channel": k.session, "chat": copied, "source": map[string]any{"chat": k.chat, "turnId": turn}})
	k.prompt("remember red")
	k.end()
	other := &talk{client: k.client, session: k.session, chat: copied, turns: 10}
	other.state(copied)
	other.prompt("recall")
	other.end()
	if got := other.last(); got != "markdown: remember blue" {
		t.Errorf("asked what it remembers, the copied conversation answers %s; want only blue", got)
	}
	k.prompt("recall")
	k.end()
	if got := k.last(); got != "markdown: remember blue remember red" {
		t.Errorf("asked what it remembers, the source conversation answers %s; want only its own messages, blue and red", got)
	}
	if turns := other.history(); turns != 2 {
		t.Errorf("the copy has %d turns; want 2", turns)
	}
}

// TestSilentAgentIsNamed sends a request to an agent that never answers. The error must say so, and
// after which time.
func TestSilentAgentIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, end := io.Pipe()
		conn := acp.NewConn(in, io.Discard, refuser{}, acp.Limits{})
		go func() { _ = conn.Run() }()
		defer end.Close()
		ctx, cancel := within(t.Context(), startTime)
		defer cancel()
		err := conn.Call(ctx, "initialize", struct{}{}, nil)
		if want := "initialize: the agent has not answered within 120 s"; err == nil || err.Error() != want {
			t.Errorf("Call = %v; want %s", err, want)
		}
	})
}
