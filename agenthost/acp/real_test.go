package acp

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
	"ahprelay/test/acpagent"
	"ahprelay/test/agents"
)

var (
	record = flag.Bool("record", false, "TestRealAgents writes its recordings to testdata")
	update = flag.Bool("update", false, "TestRecordedAgents writes the table of docs/agents.md")
)

// features describe what an agent can do, as seen in the scenario. They are a row in
// docs/agents.md.
type features map[string]string

// modes names, for each agent that needs it, the mode in which the agent asks for
// permission.
var modes = map[string]map[string]any{"claude": {"mode": "default"}, "codex": {"mode": "read-only"}}

// columns are the columns of the table in docs/agents.md.
var columns = []string{"text", "shell command", "terminal", "permission", "diff", "question", "cancel", "resume", "modes", "models", "usage", "commands"}

// A realSite is a site whose host a test can stop and start again.
type realSite struct {
	*site
	storage string
	cfg     Config
}

func (s *realSite) start(t *testing.T) {
	t.Helper()
	cfg := s.cfg
	cfg.Changed = func() { s.host.AgentChanged("test") }
	s.agent = New(cfg)
	host, err := agenthost.New(agenthost.Config{
		Agents: []agenthost.Agent{s.agent}, Folders: []string{s.folder}, Storage: s.storage, Terminals: agenthost.ShellTerminals, Protocol: agenthost.NewestProtocol,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.host = host
}

func (s *realSite) stop(t *testing.T) {
	t.Helper()
	if err := s.host.Close(); err != nil {
		t.Error(err)
	}
}

// restart restarts the host and opens a session there.
func (s *realSite) restart(t *testing.T, k *talk) *talk {
	t.Helper()
	s.stop(t)
	s.start(t)
	return s.reopen(t, k)
}

// reopen opens a session on a new connection.
func (s *realSite) reopen(t *testing.T, k *talk) *talk {
	t.Helper()
	again := s.connect(t).open(k.session)
	again.turns = k.turns
	return again
}

// scenario runs several turns with an agent, and returns its features. It leaves out
// what an agent cannot do, and fails the test if the agent answers wrongly. A replayed
// agent changes no files by itself.
func scenario(t *testing.T, name string, cfg Config, folder string, mode map[string]any, replayed bool) features {
	s := &realSite{site: &site{folder: folder}, storage: t.TempDir(), cfg: cfg}
	s.start(t)
	defer func() { s.stop(t) }()
	f := features{}
	k := s.connect(t).begin(s.site, "s1", mode)

	k.prompt("hello there friend")
	k.end()
	if got := k.last(); strings.Contains(got, "markdown: echo: hello there friend") {
		f["text"] = "yes"
	} else {
		t.Errorf("the answer is %s; want the echo of the prompt", got)
	}

	shell, asked, terminal := k.allow("run printf from-%s-shell 42 | tee shell.txt")
	if !strings.Contains(shell, "from-42-shell") {
		t.Logf("the command's output is not shown: %s", shell)
	} else {
		f["shell command"] = "yes"
	}
	if terminal {
		f["terminal"] = "yes"
	}
	if asked != "" {
		f["permission"] = asked
	}
	note := filepath.Join(folder, "note.txt")
	written, _, _ := k.allow("write " + note + " written-by-the-agent")
	if strings.Contains(written, "<fileEdit>") {
		f["diff"] = "yes"
	} else {
		t.Logf("no diff is shown: %s", written)
	}
	if text, err := os.ReadFile(note); f["diff"] != "" && !replayed && (err != nil || string(text) != "written-by-the-agent\n") {
		t.Errorf("the file has %q, %v; want written-by-the-agent", text, err)
	}

	if said := k.answer(); strings.Contains(said, "Blue") {
		f["question"] = "yes"
	} else {
		t.Logf("no question is asked: %s", said)
	}

	turn := k.prompt("please repeat " + strings.Repeat("many words ", 40))
	k.until("chat/responsePart")
	k.dispatch(k.chat, map[string]any{"type": "chat/turnCancelled", "turnId": turn, "duration": 1})
	if k.end() == "turnCancelled" {
		f["cancel"] = "yes"
	}
	k.options(f)
	if usage := fmt.Sprint(k.state(k.chat)["turns"]); strings.Contains(usage, "inputTokens:") {
		f["usage"] = "tokens"
		if strings.Contains(usage, "contextSize:") {
			f["usage"] = "tokens, context"
		}
		if strings.Contains(usage, "cost:") {
			f["usage"] += ", cost"
		}
	}
	if items, _ := k.call("completions", map[string]any{"channel": k.chat, "text": "/", "offset": 1})["items"].([]any); len(items) > 0 {
		f["commands"] = "yes"
	}

	// The host restarts. It shows the session's history, and the conversation continues.
	before := k.history()
	k2 := s.restart(t, k)
	if after := k2.history(); after != before {
		t.Errorf("after a restart, the history has %d turns; want %d as before", after, before)
	}
	k2.prompt("are you there")
	if end := k2.end(); end == "turnComplete" && strings.Contains(k2.last(), "echo: are you there") && !strings.Contains(k2.last(), "does not have this conversation") {
		f["resume"] = "yes"
	} else {
		t.Logf("after a restart, the turn ends with %s: %s", end, k2.last())
	}
	return f
}

// history returns the number of completed turns in a session.
func (k *talk) history() int {
	k.t.Helper()
	turns, _ := k.state(k.chat)["turns"].([]any)
	return len(turns)
}

// allow runs a turn, and allows every request of the agent once. It returns the turn's
// parts, the options that the agent offered, and whether the turn showed a terminal.
func (k *talk) allow(prompt string) (parts, options string, terminal bool) {
	k.t.Helper()
	turn := k.prompt(prompt)
	for {
		action := k.until("chat/toolCallReady", "chat/toolCallContentChanged", "chat/turnComplete", "chat/turnCancelled", "chat/error")
		switch action["type"] {
		case "chat/toolCallReady":
		case "chat/toolCallContentChanged":
			terminal = terminal || strings.Contains(contents(action["content"]), "<terminal>")
			continue
		default:
			return k.last(), options, terminal
		}
		offered, _ := action["options"].([]any)
		if len(offered) == 0 {
			continue
		}
		var labels []string
		for _, o := range offered {
			labels = append(labels, fmt.Sprint(o.(map[string]any)["label"]))
		}
		options = strings.Join(labels, " · ")
		k.confirm(turn, action, true, fmt.Sprint(offered[0].(map[string]any)["id"]))
	}
}

// answer runs a turn in which the agent asks a question. It answers "Blue", and returns
// the turn's parts.
func (k *talk) answer() string {
	k.t.Helper()
	k.prompt("ask")
	for {
		action := k.until("chat/inputRequested", "chat/turnComplete", "chat/turnCancelled", "chat/error")
		if action["type"] != "chat/inputRequested" {
			return k.last()
		}
		request := action["request"].(map[string]any)
		answers := map[string]any{}
		questions, _ := request["questions"].([]any)
		for _, q := range questions {
			question := q.(map[string]any)
			options, _ := question["options"].([]any)
			for _, o := range options {
				if option := o.(map[string]any); option["label"] == "Blue" {
					answers[question["id"].(string)] = map[string]any{"state": "submitted", "value": map[string]any{"kind": "selected", "value": option["id"]}}
				}
			}
		}
		k.dispatch(k.chat, map[string]any{"type": "chat/inputCompleted", "requestId": request["id"], "response": "accept", "answers": answers})
	}
}

// options changes the agent's model, if the agent has several models.
func (k *talk) options(f features) {
	k.t.Helper()
	config, _ := k.state(k.session)["config"].(map[string]any)
	schema, _ := config["schema"].(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	values, _ := config["values"].(map[string]any)
	var models []any
	var model string
	for id, p := range properties {
		property := p.(map[string]any)
		choices, _ := property["enum"].([]any)
		switch property["category"] {
		case "mode":
			f["modes"] = fmt.Sprint(len(choices))
		case "model":
			model, models = id, choices
		}
	}
	at := slices.IndexFunc(models, func(choice any) bool { return choice == "fake/other" }) // OpenCode's second model
	if at < 0 {
		at = slices.IndexFunc(models, func(choice any) bool { return choice != values[model] })
	}
	if at < 0 {
		return
	}
	k.dispatch(k.session, map[string]any{"type": "session/configChanged", "config": map[string]any{model: models[at]}})
	k.until("session/configChanged") // echo of the client's own action
	k.until("session/configChanged") // action with the agent's answer
	after, _ := k.state(k.session)["config"].(map[string]any)
	if now := after["values"].(map[string]any)[model]; now == models[at] {
		f["models"] = "yes"
	} else {
		k.t.Logf("the model is %v after a change to %v", now, models[at])
	}
}

// TestRealAgents runs the scenario with each installed agent. make agents runs it.
func TestRealAgents(t *testing.T) {
	agents.Dir(t)
	for _, name := range agents.Names {
		t.Run(name, func(t *testing.T) {
			folder, home := t.TempDir(), t.TempDir()
			real := agents.Prepare(t, name, home, folder, agents.StartModel(t))
			cfg := Config{Program: Program{Name: "test", Title: name, Command: real.Command}, Environment: real.Environment, Stderr: os.Stderr, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
			if *record {
				dir := filepath.Join("testdata", name)
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				full, err := filepath.Abs(dir)
				if err != nil {
					t.Fatal(err)
				}
				var more []string
				cfg.Program.Command, more = acpagent.Recorder(full, folder, home, real.Command)
				cfg.Environment = append(cfg.Environment, more...)
			}
			f := scenario(t, name, cfg, folder, modes[name], false)
			for _, column := range columns {
				t.Logf("%-14s %s", column, f[column])
			}
		})
	}
}

// TestRealGeminiKeepsItsConversations starts the host three times, with Gemini CLI. By
// itself, Gemini CLI would delete the conversation. make agents runs it.
func TestRealGeminiKeepsItsConversations(t *testing.T) {
	agents.Dir(t)
	folder, home := t.TempDir(), t.TempDir()
	real := agents.Prepare(t, "gemini", home, folder, agents.StartModel(t))
	s := &realSite{site: &site{folder: folder}, storage: t.TempDir(), cfg: Config{
		Program: Program{Name: "test", Title: "Gemini CLI", Command: real.Command}, Environment: real.Environment, Stderr: os.Stderr}}
	s.start(t)
	k := s.connect(t).begin(s.site, "s1", nil)
	s.connect(t).begin(s.site, "s2", nil) // at its start, this agent deletes conversations without messages
	k.asks("remember blue", "echo: remember blue", "")
	for range 3 {
		k = s.restart(t, k)
		k.asks("recall", "recalled: remember blue", "")
	}
	s.stop(t)
}

// TestRealAgentsFork copies a conversation of each installed agent that can fork,
// without help from the host. Both conversations continue. Each remembers the messages
// before the copy, and its own messages. make agents runs it.
func TestRealAgentsFork(t *testing.T) {
	agents.Dir(t)
	for _, name := range []string{"opencode", "claude", "codex"} {
		t.Run(name, func(t *testing.T) {
			folder, home := t.TempDir(), t.TempDir()
			real := agents.Prepare(t, name, home, folder, agents.StartModel(t))
			s := &realSite{site: &site{folder: folder}, storage: t.TempDir(), cfg: Config{
				Program: Program{Name: "test", Title: name, Command: real.Command}, Environment: real.Environment, Stderr: os.Stderr}}
			s.start(t)
			defer s.stop(t)
			k := s.connect(t).begin(s.site, "s1", modes[name])
			turn := k.prompt("remember blue")
			k.end()
			copied := k.chat + "-copy"
			k.call("createChat", map[string]any{"channel": k.session, "chat": copied, "source": map[string]any{"chat": k.chat, "turnId": turn}})
			k.prompt("remember red")
			k.end()
			other := &talk{client: k.client, session: k.session, chat: copied, turns: 10}
			other.state(copied)
			other.prompt("remember green")
			other.end()
			for c, want := range map[*talk]string{k: "recalled: remember blue remember red", other: "recalled: remember blue remember green"} {
				c.prompt("recall")
				c.end()
				if got := c.last(); !strings.Contains(got, want) {
					t.Errorf("%s answers %s; want %s", c.chat, got, want)
				}
			}
		})
	}
}

// TestRecordedAgents runs the scenario with the recordings that TestRealAgents has
// made. The table in docs/agents.md must have the same features.
func TestRecordedAgents(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "| agent | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, name := range agents.Names {
		t.Run(name, func(t *testing.T) {
			dir, err := filepath.Abs(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			folder := t.TempDir()
			command, environment := acpagent.Replayer(dir, folder, filepath.Join(t.TempDir(), "counter"))
			f := scenario(t, name, Config{Program: Program{Name: "test", Title: name, Command: command}, Environment: environment, Stderr: os.Stderr}, folder, modes[name], true)
			fmt.Fprintf(&table, "| %s |", versionOf(t, dir))
			for _, column := range columns {
				fmt.Fprintf(&table, " %s |", cmp.Or(f[column], "–"))
			}
			table.WriteString("\n")
		})
	}
	const document, begin, end = "../../docs/agents.md", "<!-- table -->\n", "<!-- end of table -->"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), begin)
	now, tail, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("the document %s has no table of agents; want one", document)
	}
	if *update {
		if err := os.WriteFile(document, []byte(head+begin+table.String()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if now != table.String() {
		t.Errorf("%s has the table\n%s\nwant\n%s\ngo test ./agenthost/acp -run TestRecordedAgents -update writes it", document, now, table.String())
	}
}

// versionOf returns the name and version of the agent in a recording.
func versionOf(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "1.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/tmp/", "/root/", "/home/", "/work/", "/Users/"} {
		if bytes.Contains(text, []byte(path)) {
			t.Errorf("the recording in %s contains a path of the recording machine: %s", dir, path)
		}
	}
	for line := range strings.Lines(string(text)) {
		var m struct{ Result acp.InitializeResponse }
		if strings.HasPrefix(line, "< ") && acp.Decode([]byte(line[2:]), &m) == nil && m.Result.AgentInfo != nil {
			return cmp.Or(m.Result.AgentInfo.Title, m.Result.AgentInfo.Name) + " " + m.Result.AgentInfo.Version
		}
	}
	t.Fatalf("no agent is named in the recording %s; want agentInfo", dir)
	return ""
}
