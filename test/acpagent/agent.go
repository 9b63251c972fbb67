// Package acpagent is a coding agent for tests that speaks the Agent Client Protocol on
// standard input and output. It has no model: the prompt selects what it does, and some
// prompts are hostile. It also replays recordings of real agents.
//
// A test binary becomes the agent: its TestMain calls [RunIfAsked], and the test starts
// the binary with the environment of [Command], [Recorder] or [Replayer].
//
//	hello              says "Hello, world!" in pieces
//	stream N SIZE      N pieces of SIZE bytes, as fast as possible
//	clock N            says the time N times, in nanoseconds, every 5 ms
//	think              thinks aloud, then speaks
//	recall             says the prompts that began with "remember"
//	run COMMAND        asks for permission, then "runs" the command: its output is the text
//	write FILE TEXT    asks for permission with a diff, then writes through the client
//	read FILE          reads through the client, and says the content
//	shell COMMAND…     runs the command in a terminal of the client
//	plan, usage, limits, title TEXT, commands, notice
//	ask                asks a form; ask url
//	mode ID            changes the mode itself
//	image              says the prompt's attachments
//	slow               speaks until it is cancelled
//	behind PROMPT      ends the turn, waits for [Go], and then does what the rest says
//	anything else      is repeated
//
//	garbage            prints lines without JSON, then answers
//	long N             says a text of N bytes in one line
//	twice              asks for the same permission in two requests at once
//	again              asks for permission, withdraws the request, and asks the same again at once
//	late               ignores session/cancel for a while, and then speaks on
//	never              ignores session/cancel, and never ends the turn
//	die                exits during a tool call
//	quit               closes its output when it is cancelled, and exits a little later
//	deaf               no longer reads
//	unknown            sends updates of unknown kinds, sessions and tool calls
//	unended            shows the output of a command, and never says that the command has ended
//	later              uses values unknown to its client
//	children           leaves a child process that holds the pipes open, and dies
package acpagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/internal/acp"
)

// Variables of the agent's environment.
const (
	scriptVariable = "ACPAGENT_SCRIPT" // "agent", or "record:" or "replay:" before a directory
	storeVariable  = "ACPAGENT_STORE"  // directory in which the agent stores its sessions; "": none
	withVariable   = "ACPAGENT_WITH"   // see Options.With
)

// Options are the directory for an agent's sessions, and the agent's capabilities.
type Options struct {
	Store string // the agent stores its sessions in this directory
	With  string // capabilities: load, list, resume, fork, steer, auth, options, switch; faults: gemini;
	// stays: the agent refuses each change of its model;
	// late: the agent takes no message during a turn, because its turn has just ended;
	// busy: the agent takes a message during a turn only after busyTime;
	// bypass: sessions begin in the mode bypassPermissions;
	// later: each message has members unknown to its client
}

// busyTime is how long a busy agent leaves a message during a turn.
const busyTime = 300 * time.Millisecond

// Command returns the command that runs the agent, and the variables to add to its
// environment. The command is this test binary.
func Command(o Options) (command, environment []string) {
	return []string{os.Args[0]}, []string{
		scriptVariable + "=agent", storeVariable + "=" + o.Store, withVariable + "=" + o.With,
	}
}

// Go creates the file for which the prompt "behind" waits in the agent with this store.
func Go(store string) error {
	return os.WriteFile((&agent{store: store}).file("go"), nil, 0o600)
}

// Continue adds a prompt at a given time to the only session in a store. The session
// then looks as if a user had continued it in the agent's own terminal.
func Continue(store, prompt string, at time.Time) error {
	files, _ := filepath.Glob(filepath.Join(store, "*.json"))
	if len(files) != 1 {
		return fmt.Errorf("the agent's store has the sessions %q; want one", files)
	}
	var kept saved
	text, err := os.ReadFile(files[0])
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil {
		return err
	}
	update, err := acp.Update(acp.UpdateUserMessageChunk, acp.ContentChunk{Content: acp.ContentBlock{Type: acp.ContentBlockText, Text: prompt}})
	if err != nil {
		return err
	}
	kept.Updates = append(kept.Updates, update)
	if text, err = json.Marshal(kept); err != nil {
		return err
	}
	(&chatFiles{store}).said(strings.TrimSuffix(filepath.Base(files[0]), ".json"))
	return errors.Join(os.WriteFile(files[0], text, 0o600), os.Chtimes(files[0], at, at))
}

// RunIfAsked runs the agent and exits, if [Command], [Recorder] or [Replayer] started
// this process. Otherwise it returns.
func RunIfAsked() {
	var err error
	kind, dir, _ := strings.Cut(os.Getenv(scriptVariable), ":")
	switch kind {
	case "":
		return
	case "agent":
		if len(os.Args) == 2 && os.Args[1] == signInArgument {
			err = signIn()
			break
		}
		serve(os.Stdin, os.Stdout)
	case "record":
		err = record(dir)
	case "replay":
		err = replay(dir, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

type agent struct {
	conn  *acp.Conn
	out   io.Writer
	store string
	with  []string
	chats *chatFiles // nil, unless the agent imitates Gemini CLI's faults

	mu       sync.Mutex // guards the fields below
	deaf     bool
	signedIn bool
	count    int
	sessions map[string]*session
}

type session struct {
	agent *agent
	id    string

	mu     sync.Mutex // guards the fields below
	cancel context.CancelFunc
	behind *work // what the last prompt does after its turn, or nil
	saved  saved
}

// work is what a prompt does after its turn, until done is closed.
type work struct {
	ctx  context.Context
	done chan struct{}
}

// saved is the content of a session's file in the store.
type saved struct {
	Cwd     string
	Title   string
	Mode    string
	Model   string
	Updates []json.RawMessage // all updates, the user's messages included
}

func serve(in io.Reader, out io.Writer) {
	a := &agent{out: out, store: os.Getenv(storeVariable), with: strings.Fields(os.Getenv(withVariable)), sessions: map[string]*session{}}
	if a.can("gemini") {
		a.chats = &chatFiles{a.store}
		a.chats.clean()
	}
	if a.can("later") {
		out = laterWriter{out}
	}
	a.conn = acp.NewConn(in, out, a, acp.Limits{})
	_ = a.conn.Run()
}

func (a *agent) can(what string) bool { return slices.Contains(a.with, what) }

// Flush implements acp.Handler. After the prompt "deaf", it never returns, so the agent
// reads nothing more.
func (a *agent) Flush() {
	a.mu.Lock()
	deaf := a.deaf
	a.mu.Unlock()
	if deaf {
		rest()
	}
}

// Notify implements acp.Handler.
func (a *agent) Notify(method string, params json.RawMessage) {
	var p acp.CancelNotification
	if method != "session/cancel" || acp.Decode(params, &p) != nil {
		return
	}
	if s := a.session(p.SessionID); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cancel != nil {
			s.cancel()
		}
	}
}

// Request implements acp.Handler.
func (a *agent) Request(r *acp.Request) {
	switch r.Method {
	case "session/prompt":
		a.prompt(r)
	default:
		r.Reply(a.answer(r.Method, r.Params))
	}
}

func (a *agent) answer(method string, params json.RawMessage) (any, error) {
	var p struct {
		acp.NewSessionRequest
		SessionID string          `json:"sessionId"`
		ModeID    string          `json:"modeId"`
		ConfigID  string          `json:"configId"`
		Value     json.RawMessage `json:"value"`
	}
	if err := acp.Decode(params, &p); err != nil {
		return nil, err
	}
	switch method {
	case "initialize":
		return a.initialize(), nil
	case "authenticate":
		a.mu.Lock()
		defer a.mu.Unlock()
		a.signedIn = true
		return struct{}{}, nil
	case "session/new":
		if a.can("auth") && !a.signedIn && !exists(a.file("signed-in")) {
			return nil, &acp.Error{Code: acp.CodeAuthRequired, Message: "Authentication required"}
		}
		mode := "ask"
		if a.can("bypass") {
			mode = "bypassPermissions"
		}
		s := a.add(newID(a), saved{Cwd: p.Cwd, Mode: mode, Model: "small"})
		a.chats.begin(s.id, begunMinute)
		return a.created(s), nil
	case "session/list":
		return a.list(), nil
	case "session/load", "session/resume", "session/fork":
		return a.open(method, p.SessionID)
	}
	s := a.session(p.SessionID)
	if s == nil {
		return nil, &acp.Error{Code: acp.CodeNotFound, Message: "no such session"}
	}
	switch method {
	case "session/set_mode":
		s.setMode(p.ModeID)
		return struct{}{}, nil
	case "session/set_config_option":
		if a.can("stays") {
			return nil, &acp.Error{Code: acp.CodeInternal, Message: "the model stays"}
		}
		s.mu.Lock()
		_ = json.Unmarshal(p.Value, &s.saved.Model)
		s.mu.Unlock()
		s.keep()
		return acp.SetSessionConfigOptionResponse{ConfigOptions: s.options()}, nil
	case "_session/steering":
		var p acp.PromptRequest
		_ = acp.Decode(params, &p)
		if a.can("late") {
			return map[string]string{"outcome": "promptRequired"}, nil
		}
		if a.can("busy") {
			time.Sleep(busyTime)
		}
		s.say("steered: %s", p.Prompt[0].Text)
		return struct{}{}, nil
	case "session/close":
		return struct{}{}, nil
	case "session/delete":
		return struct{}{}, os.Remove(a.file(p.SessionID))
	}
	return nil, &acp.Error{Code: acp.CodeMethodNotFound, Message: "no such method"}
}

func (a *agent) initialize() acp.InitializeResponse {
	can := acp.AgentCapabilities{LoadSession: a.can("load"), PromptCapabilities: acp.PromptCapabilities{Image: true, EmbeddedContext: true}}
	if a.can("list") {
		can.SessionCapabilities.List = &acp.Capability{}
	}
	if a.can("resume") {
		can.SessionCapabilities.Resume = &acp.Capability{}
	}
	if a.can("fork") {
		can.SessionCapabilities.Fork = &acp.Capability{}
	}
	result := acp.InitializeResponse{ProtocolVersion: 1, AgentCapabilities: can, AgentInfo: &acp.Implementation{Name: "acpagent", Title: "Test agent", Version: "1"}}
	if a.can("auth") {
		result.AuthMethods = []acp.AuthMethod{
			{ID: "key", Name: "Key", Description: "Use a key"},
			{ID: "terminal", Name: "Terminal", Type: acp.AuthMethodTerminal, Args: []string{signInArgument}, Env: map[string]string{scriptVariable: "agent", storeVariable: a.store}},
		}
	}
	if a.can("steer") {
		result.Meta = json.RawMessage(`{"steering":{"supported":true}}`)
	}
	return result
}

// signInArgument is the command-line argument with which the program performs a sign-in
// in a terminal.
const signInArgument = "sign-in"

// signIn asks for a key in the terminal, and stores it.
func signIn() error {
	fmt.Print("Key: ")
	var key string
	if _, err := fmt.Scanln(&key); err != nil {
		return err
	}
	a := &agent{store: os.Getenv(storeVariable)}
	return os.WriteFile(a.file("signed-in"), []byte(key), 0o600)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func newID(a *agent) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count++
	if a.chats != nil {
		return fmt.Sprintf("%08d-%d", os.Getpid(), a.count)
	}
	return fmt.Sprintf("s%d-%d", os.Getpid(), a.count)
}

func (a *agent) add(id string, kept saved) *session {
	s := &session{agent: a, id: id, saved: kept}
	a.mu.Lock()
	a.sessions[id] = s
	a.mu.Unlock()
	s.keep()
	return s
}

func (a *agent) session(id string) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sessions[id]
}

func (a *agent) file(id string) string { return filepath.Join(a.store, filepath.Base(id)+".json") }

// keep writes the session to its file in the store.
func (s *session) keep() {
	if s.agent.store == "" {
		return
	}
	s.mu.Lock()
	text, _ := json.Marshal(s.saved)
	s.mu.Unlock()
	_ = os.WriteFile(s.agent.file(s.id), text, 0o600)
}

func (a *agent) created(s *session) acp.NewSessionResponse {
	return acp.NewSessionResponse{SessionID: s.id, Modes: s.modes(), ConfigOptions: s.options()}
}

func (s *session) modes() *acp.SessionModeState {
	return &acp.SessionModeState{CurrentModeID: s.saved.Mode, AvailableModes: []acp.SessionMode{
		{ID: "ask", Name: "Ask"}, {ID: "plan", Name: "Plan"}, {ID: "bypassPermissions", Name: "Bypass Permissions", Description: "Allows everything"},
	}}
}

func (s *session) options() []acp.SessionConfigOption {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []acp.SessionConfigOption
	if s.agent.can("switch") {
		list = append(list, acp.SessionConfigOption{ID: "allow_all", Name: "Allow all", Type: "boolean", CurrentValue: json.RawMessage("false")})
	}
	if !s.agent.can("options") {
		return list
	}
	current, _ := json.Marshal(s.saved.Model)
	return append(list, acp.SessionConfigOption{
		ID: "model", Name: "Model", Category: acp.SessionConfigOptionCategoryModel, Type: acp.SessionConfigOptionSelect, CurrentValue: current,
		Options: []acp.SessionConfigSelectOptionsItem{{Value: "small", Name: "Small"}, {Value: "large", Name: "Large"}},
	})
}

func (s *session) setMode(mode string) {
	s.mu.Lock()
	s.saved.Mode = mode
	s.mu.Unlock()
	s.update(acp.UpdateCurrentModeUpdate, acp.CurrentModeUpdate{CurrentModeID: mode})
}

func (a *agent) list() acp.ListSessionsResponse {
	files, _ := filepath.Glob(a.file("*"))
	result := acp.ListSessionsResponse{Sessions: []acp.SessionInfo{}}
	for _, file := range files {
		var kept saved
		text, _ := os.ReadFile(file)
		_ = json.Unmarshal(text, &kept)
		info, err := os.Stat(file)
		if err != nil {
			continue
		}
		result.Sessions = append(result.Sessions, acp.SessionInfo{
			SessionID: strings.TrimSuffix(filepath.Base(file), ".json"), Cwd: kept.Cwd, Title: kept.Title, UpdatedAt: info.ModTime().UTC().Format(time.RFC3339Nano),
		})
	}
	return result
}

// open loads, resumes or forks a stored session.
func (a *agent) open(method, id string) (any, error) {
	var kept saved
	if a.chats != nil && !a.chats.load(id) {
		return nil, &acp.Error{Code: acp.CodeInternal, Message: "No previous sessions found for this project."}
	}
	text, err := os.ReadFile(a.file(id))
	if err != nil || json.Unmarshal(text, &kept) != nil {
		return nil, &acp.Error{Code: acp.CodeNotFound, Message: "no such session"}
	}
	if method == "session/fork" {
		return a.created(a.add(newID(a), kept)), nil
	}
	s := a.add(id, kept)
	if method == "session/load" {
		for _, update := range kept.Updates {
			_ = a.conn.Notify("session/update", acp.SessionNotification{SessionID: id, Update: update})
		}
	}
	return acp.LoadSessionResponse{Modes: s.modes(), ConfigOptions: s.options()}, nil
}

// update sends an update to the client, and adds it to the stored session.
func (s *session) update(kind string, v any) {
	update, err := acp.Update(kind, v)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	s.saved.Updates = append(s.saved.Updates, update)
	s.mu.Unlock()
	_ = s.agent.conn.Notify("session/update", acp.SessionNotification{SessionID: s.id, Update: update})
}

func text(t string) acp.ContentBlock { return acp.ContentBlock{Type: acp.ContentBlockText, Text: t} }

func (s *session) say(format string, args ...any) {
	s.update(acp.UpdateAgentMessageChunk, acp.ContentChunk{Content: text(fmt.Sprintf(format, args...))})
}

// prompt runs a turn as the prompt demands, and answers the request at the end of the
// turn.
func (a *agent) prompt(r *acp.Request) {
	var p acp.PromptRequest
	if err := acp.Decode(r.Params, &p); err != nil {
		r.Reply(nil, err)
		return
	}
	s := a.session(p.SessionID)
	if s == nil {
		r.Reply(nil, &acp.Error{Code: acp.CodeNotFound, Message: "no such session"})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var words []string
	for _, block := range p.Prompt {
		if block.Type == acp.ContentBlockText {
			words = append(words, block.Text)
		}
		update, _ := acp.Update(acp.UpdateUserMessageChunk, acp.ContentChunk{Content: block})
		s.saved.Updates = append(s.saved.Updates, update)
	}
	prompt, behind := strings.CutPrefix(strings.Join(words, " "), "behind ")
	own := &work{ctx, make(chan struct{})}
	s.mu.Lock()
	former := s.behind
	s.cancel, s.behind = cancel, nil
	if behind {
		s.behind = own
	}
	s.mu.Unlock()
	a.chats.said(s.id)
	go func() {
		defer close(own.done)
		defer cancel()
		if former != nil && former.ctx.Err() != nil {
			<-former.done // cancelled work says nothing in the next turn
		}
		reason := ""
		if !behind {
			reason = s.play(ctx, prompt, p.Prompt)
		}
		if reason == "" && ctx.Err() != nil {
			reason = acp.StopReasonCancelled
		}
		s.keep()
		r.Reply(acp.PromptResponse{StopReason: cmp.Or(reason, acp.StopReasonEndTurn), Usage: &acp.Usage{InputTokens: 1000, OutputTokens: 50, TotalTokens: 1050}}, nil)
		if behind {
			for !exists(a.file("go")) {
				time.Sleep(time.Millisecond)
			}
			s.play(ctx, prompt, p.Prompt)
			s.keep()
		}
	}()
}

// child starts a process that keeps the agent's pipes open.
func child() (pid int) {
	cmd := exec.Command("sleep", "3600")
	cmd.Stdout, cmd.Stderr, cmd.Stdin = os.Stdout, os.Stderr, os.Stdin
	if cmd.Start() != nil {
		return 0
	}
	return cmd.Process.Pid
}

// quit closes the output, and ends the process a little later. Nothing is read meanwhile.
func quit() {
	_ = os.Stdout.Close()
	time.Sleep(300 * time.Millisecond)
	os.Exit(0)
}

// rest blocks for longer than any test.
func rest() { time.Sleep(time.Hour) }
