package acp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// Config configures an [Agent].
type Config struct {
	Program     Program
	Environment []string // additions to the agent's environment
	NoBypass    bool     // forbids modes and commands that skip permissions

	Version string       // version of this program, which the agent gets
	Stderr  io.Writer    // receives the agent's standard error; default: discarded
	Log     *slog.Logger // default: none

	// Changed is called when the agent's description has changed.
	Changed func()

	// Grace is how long a cancelled agent may take to end its turn. Default: 8 s.
	Grace time.Duration

	// Quiet is how long an agent that continues without a prompt may send nothing before
	// its turn ends. Default: 3 s.
	Quiet time.Duration

	// MaxLine bounds a message of the agent, in bytes. Default: 16 MiB.
	MaxLine int

	answer time.Duration // the time for the answer to a steering message behind its turn; default: answerTime
}

// An Agent runs a coding agent. It implements [agenthost.Agent].
type Agent struct {
	// Set by New, then read-only.
	cfg      Config
	gemini   string        // the directory of Gemini CLI's files; "" for other agents
	starting chan struct{} // capacity 1: full during a start of Gemini CLI

	mu       sync.Mutex // guards the fields below
	info     agenthost.AgentInfo
	signedIn string // the sign-in method that worked last
}

// Times for an agent's answers.
const (
	// startTime includes a first start, in which some agents download and migrate data.
	startTime = 2 * time.Minute

	// answerTime is for all requests except the start and prompts; for steering messages, it begins with the turn's end.
	answerTime = time.Minute
)

// New returns an Agent. It starts no process.
func New(cfg Config) *Agent {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	cfg.Grace = cmp.Or(cfg.Grace, 8*time.Second)
	cfg.Quiet = cmp.Or(cfg.Quiet, 3*time.Second)
	cfg.answer = cmp.Or(cfg.answer, answerTime)
	cfg.Log = cfg.Log.With("agent", cfg.Program.Name)
	a := &Agent{cfg: cfg, starting: make(chan struct{}, 1), info: agenthost.AgentInfo{Provider: cfg.Program.Name, Name: cfg.Program.Title}}
	if isGemini(cfg.Program) {
		a.gemini = geminiHome(environment(cfg.Environment))
	}
	return a
}

// Info implements [agenthost.Agent].
func (a *Agent) Info() agenthost.AgentInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := a.info
	info.Models, info.Options, info.SignIn = slices.Clone(info.Models), slices.Clone(info.Options), slices.Clone(info.SignIn)
	return info
}

// change changes the agent's description, and calls Config.Changed.
func (a *Agent) change(change func(*agenthost.AgentInfo)) {
	a.mu.Lock()
	change(&a.info)
	a.mu.Unlock()
	a.cfg.Changed()
}

// Probe starts the agent briefly to learn its capabilities and sign-in methods.
func (a *Agent) Probe(ctx context.Context, folder string) error {
	return a.briefly(ctx, folder, func(context.Context, *peer) error { return nil })
}

// briefly starts a process in a folder, initializes it, calls call and ends the process.
func (a *Agent) briefly(ctx context.Context, folder string, call func(context.Context, *peer) error) error {
	started, err := a.startAlone(ctx)
	if err != nil {
		return err
	}
	p, err := a.start(ctx, folder, refuser{})
	started()
	if err != nil {
		return err
	}
	defer p.end()
	ctx, cancel := within(ctx, answerTime)
	defer cancel()
	return call(ctx, p)
}

// A refuser refuses all requests of an agent that runs without a conversation.
type refuser struct{}

func (refuser) Notify(string, json.RawMessage) {}
func (refuser) Flush()                         {}
func (refuser) Request(r *acp.Request)         { r.Reply(nil, errNotHere) }

// errNotHere is the error for a method that this client does not have.
var errNotHere = &acp.Error{Code: acp.CodeMethodNotFound, Message: "this client does not have the method"}

// A peer is an initialized agent process.
type peer struct {
	*process
	can    acp.AgentCapabilities
	steers bool
}

// within returns a context for requests that the agent must answer in time. Their error names the time.
func within(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, most, fmt.Errorf("the agent has not answered within %.0f s", most.Seconds()))
}

// start starts a process and initializes it.
func (a *Agent) start(ctx context.Context, folder string, handler acp.Handler) (*peer, error) {
	proc, err := start(a.cfg, folder, handler)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(ctx, startTime)
	defer cancel()
	var result acp.InitializeResponse
	err = proc.conn.Call(ctx, "initialize", acp.InitializeRequest{
		ProtocolVersion:    version,
		ClientInfo:         &acp.Implementation{Name: "ahp-relay", Title: "AHP relay", Version: a.cfg.Version},
		ClientCapabilities: capabilities(),
	}, &result)
	if wrong := wrongVersion(result, err); wrong != nil {
		err = wrong
	}
	if err != nil {
		proc.end()
		return nil, fmt.Errorf("agent %s: %w", a.cfg.Program.Name, proc.because(err))
	}
	var meta struct {
		Steering struct {
			Supported bool `json:"supported"`
		} `json:"steering"`
	}
	if result.Meta != nil {
		_ = acp.Decode(result.Meta, &meta) // absent for most agents
	}
	a.learn(result)
	return &peer{process: proc, can: result.AgentCapabilities, steers: meta.Steering.Supported}, nil
}

// capabilities returns the capabilities of this client. The client serves
// fs/read_text_file without offering it: agents can read files themselves, because no
// file here has unsaved changes, and some agents misread the error for a missing file.
func capabilities() acp.ClientCapabilities {
	return acp.ClientCapabilities{
		Fs:       acp.FileSystemCapabilities{WriteTextFile: true},
		Terminal: true,
		Auth:     acp.AuthCapabilities{Terminal: true},
		Elicitation: &acp.ElicitationCapabilities{
			Form: &acp.Capability{}, URL: &acp.Capability{},
		},
		Session: &acp.ClientSessionCapabilities{
			ConfigOptions: &acp.SessionConfigOptionsCapabilities{Boolean: &acp.Capability{}},
			Notices:       &acp.Capability{}, Compaction: &acp.Capability{},
		},
		Meta: json.RawMessage(`{"terminal_output_delta":true,"terminal-auth":true}`),
	}
}

// because returns the reason for a failed call. If the process has ended, that is the
// reason.
func (p *process) because(err error) error {
	if !errors.Is(err, acp.ErrClosed) {
		return err
	}
	<-p.ended
	return p.err
}

// learn records the capabilities and sign-in methods that an agent declares.
func (a *Agent) learn(r acp.InitializeResponse) {
	can := r.AgentCapabilities
	var methods []agenthost.SignInMethod
	for _, m := range r.AuthMethods {
		methods = append(methods, a.signInMethod(m))
	}
	a.change(func(info *agenthost.AgentInfo) {
		if r.AgentInfo != nil && r.AgentInfo.Version != "" {
			info.Description = strings.TrimSpace(r.AgentInfo.Title + " " + r.AgentInfo.Version)
		}
		info.SignIn = methods
		info.Continues = can.LoadSession || can.SessionCapabilities.Resume != nil
		info.Replays = can.LoadSession
		info.Forks = can.SessionCapabilities.Fork != nil
		info.Images = can.PromptCapabilities.Image
	})
}

// signInMethod translates a sign-in method. A method for a terminal has a command: one
// of its own, or the agent's command with additional arguments.
func (a *Agent) signInMethod(m acp.AuthMethod) agenthost.SignInMethod {
	method := agenthost.SignInMethod{ID: m.ID, Name: m.Name, Description: m.Description}
	var meta struct {
		Terminal *struct {
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
		} `json:"terminal-auth"`
	}
	if m.Meta != nil {
		_ = acp.Decode(m.Meta, &meta)
	}
	env := m.Env
	switch {
	case meta.Terminal != nil && meta.Terminal.Command != "":
		method.Command, env = append([]string{meta.Terminal.Command}, meta.Terminal.Args...), meta.Terminal.Env
		if found, err := absolute(method.Command); err == nil {
			method.Command = found
		}
	case m.Type == acp.AuthMethodTerminal:
		method.Command = slices.Concat(a.cfg.Program.Command, m.Args)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		method.Env = append(method.Env, name+"="+env[name])
	}
	return method
}

// SignIn implements [agenthost.SignerIn].
func (a *Agent) SignIn(ctx context.Context, method string) error {
	err := a.briefly(ctx, "", func(ctx context.Context, p *peer) error { return p.authenticate(ctx, method) })
	if err == nil {
		a.mu.Lock()
		a.signedIn = method
		a.mu.Unlock()
	}
	return err
}

func (p *peer) authenticate(ctx context.Context, method string) error {
	return p.call(ctx, "authenticate", acp.AuthenticateRequest{MethodID: method}, nil)
}

// maxListed bounds the listed conversations.
const maxListed = 1000

// List implements [agenthost.Lister].
func (a *Agent) List(ctx context.Context, folder string) (list []agenthost.Past, err error) {
	err = a.briefly(ctx, folder, func(ctx context.Context, p *peer) (err error) {
		list, err = p.list(ctx, folder)
		return err
	})
	return list, err
}

// list returns the agent's conversations in a folder.
func (p *peer) list(ctx context.Context, folder string) (list []agenthost.Past, err error) {
	if p.can.SessionCapabilities.List == nil {
		return nil, nil
	}
	ask := acp.ListSessionsRequest{Cwd: folder}
	for len(list) < maxListed {
		var page acp.ListSessionsResponse
		if err := p.call(ctx, "session/list", ask, &page); err != nil {
			return list, err
		}
		for _, s := range page.Sessions {
			modified, _ := time.Parse(time.RFC3339, s.UpdatedAt) // an unknown time is zero
			list = append(list, agenthost.Past{ID: s.SessionID, Folder: s.Cwd, Title: s.Title, Modified: modified})
		}
		if page.NextCursor == "" || page.NextCursor == ask.Cursor || len(page.Sessions) == 0 {
			break
		}
		ask.Cursor = page.NextCursor
	}
	return list[:min(len(list), maxListed)], nil
}

// Delete implements [agenthost.Deleter].
func (a *Agent) Delete(ctx context.Context, id string) error {
	return a.briefly(ctx, "", func(ctx context.Context, p *peer) error {
		if p.can.SessionCapabilities.Delete == nil {
			return nil // the agent keeps the history
		}
		return p.conn.Call(ctx, "session/delete", acp.DeleteSessionRequest{SessionID: id}, nil)
	})
}
