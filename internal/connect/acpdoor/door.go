package acpdoor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect"
	"ahprelay/internal/connect/client"
)

// Times and bounds.
const (
	callTime    = 3 * time.Minute // for a host's answer; agents start slowly
	maxSessions = 64              // open at once
	redialFirst = 500 * time.Millisecond
	redialMost  = 15 * time.Second
)

// Config configures a [Door].
type Config struct {
	Relays  *connect.Relays
	Host    string // HOST or RELAY/HOST
	Level   auth.Access
	Folder  string // of new sessions, a path at the host; "": the editor's
	Session string // the session that session/new opens; "": a new one
	Agent   string // the provider of new sessions; "": the host's first
	Version string
	Log     *slog.Logger
}

// A Door is an ACP agent.
type Door struct {
	cfg  Config
	conn *acp.Conn
	life context.Context // ends with Run
	work sync.WaitGroup

	dialing chan struct{} // full while a connection is being opened

	mu       sync.Mutex // guards the fields below; taken before no other lock
	can      acp.ClientCapabilities
	shows    shows
	client   *client.Client
	agents   []agentInfo
	sessions map[string]*session // by id
	channels map[string]*session // by channel
	closed   bool
}

// spawn runs f in a goroutine for which Serve waits. After the end it does nothing.
func (d *Door) spawn(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.work.Go(f)
	}
}

// An agentInfo is an agent of the host.
type agentInfo struct {
	Provider string `json:"provider"`
	Models   []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"models"`
}

// shows are extensions that the editor declares.
type shows struct {
	Output bool `json:"terminal_output"`
	Delta  bool `json:"terminal_output_delta"`
}

// member returns the member of _meta with a terminal's output, "" without support.
func (s shows) member() string {
	switch {
	case s.Output:
		return "terminal_output"
	case s.Delta:
		return "terminal_output_delta"
	}
	return ""
}

// Serve serves an editor until its input or ctx ends.
func Serve(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	d := &Door{cfg: cfg, life: ctx, dialing: make(chan struct{}, 1), sessions: map[string]*session{}, channels: map[string]*session{}}
	d.conn = acp.NewConn(in, out, d, acp.Limits{})
	unlink := context.AfterFunc(ctx, func() { d.conn.Fail(context.Cause(ctx)) })
	err := d.conn.Run()
	unlink()
	stop()
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.work.Wait()
	d.mu.Lock()
	c := d.client
	d.mu.Unlock()
	if c != nil {
		c.Close()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Flush implements [acp.Handler].
func (d *Door) Flush() {}

// Notify implements [acp.Handler].
func (d *Door) Notify(method string, params json.RawMessage) {
	var p acp.CancelNotification
	if method != "session/cancel" || acp.Decode(params, &p) != nil {
		return
	}
	if s := d.session(p.SessionID); s != nil {
		d.spawn(s.cancel)
	}
}

// Request implements [acp.Handler].
func (d *Door) Request(r *acp.Request) {
	if r.Method == "session/prompt" {
		d.prompt(r)
		return
	}
	d.spawn(func() {
		result, err := d.answer(r)
		if err != nil {
			d.cfg.Log.Debug("request failed", "method", r.Method, "error", err)
		}
		if result != answered || err != nil {
			r.Reply(result, err)
		}
	})
}

// answered is the result of a request that has its answer.
var answered any = new(struct{ _ int })

// params are the parameters of the requests.
type params struct {
	SessionID string          `json:"sessionId"`
	Cwd       string          `json:"cwd"`
	ModeID    string          `json:"modeId"`
	ConfigID  string          `json:"configId"`
	Value     json.RawMessage `json:"value"`
}

// answer answers a request of the editor. Each method has its branch.
func (d *Door) answer(r *acp.Request) (any, error) {
	if r.Method == "initialize" {
		return d.initialize(r.Params)
	}
	var p params
	if acp.Decode(r.Params, &p) != nil {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "the parameters are not readable"}
	}
	ctx, cancel := context.WithTimeout(d.life, callTime)
	defer cancel()
	switch r.Method {
	case "authenticate":
		return struct{}{}, nil
	case "session/new":
		return d.create(ctx, r, p)
	case "session/load":
		return d.open(ctx, r, p.SessionID, showAll)
	case "session/resume":
		return d.open(ctx, r, p.SessionID, showLive)
	case "session/list":
		return d.list(ctx, p.Cwd)
	}
	s := d.session(p.SessionID)
	if s == nil {
		if r.Method == "session/close" || r.Method == "session/set_mode" || r.Method == "session/set_config_option" {
			return nil, errNoSession
		}
		return nil, &acp.Error{Code: acp.CodeMethodNotFound, Message: "this agent does not have the method"}
	}
	switch r.Method {
	case "session/close":
		return struct{}{}, s.close(ctx)
	case "session/set_mode":
		return struct{}{}, s.setMode(ctx, p.ModeID)
	case "session/set_config_option":
		err := s.setOption(ctx, p.ConfigID, p.Value)
		list := s.configOptions()
		for i := range list {
			if list[i].ID == p.ConfigID {
				list[i].CurrentValue = p.Value // the host may repeat former values before this one
			}
		}
		return acp.SetSessionConfigOptionResponse{ConfigOptions: list}, err
	}
	return nil, &acp.Error{Code: acp.CodeMethodNotFound, Message: "this agent does not have the method"}
}

// errNoSession reports an unknown session.
var errNoSession = &acp.Error{Code: acp.CodeNotFound, Message: "the session is not open: load or resume it first"}

func (d *Door) initialize(raw json.RawMessage) (any, error) {
	var p acp.InitializeRequest
	if acp.Decode(raw, &p) != nil {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "the parameters are not readable"}
	}
	if p.ClientInfo != nil && p.ClientInfo.Name != "" {
		for _, relay := range d.cfg.Relays.All() {
			relay.ForProgram("acp: " + p.ClientInfo.Name) // in the relay's audit
		}
	}
	d.mu.Lock()
	d.can = p.ClientCapabilities
	_ = acp.Decode(p.ClientCapabilities.Meta, &d.shows) // most editors have none
	d.mu.Unlock()
	return acp.InitializeResponse{
		ProtocolVersion: 1,
		AgentInfo:       &acp.Implementation{Name: "ahp-connect", Title: d.cfg.Host, Version: d.cfg.Version},
		AgentCapabilities: acp.AgentCapabilities{
			LoadSession:        true,
			PromptCapabilities: acp.PromptCapabilities{Image: true, EmbeddedContext: true},
			SessionCapabilities: acp.SessionCapabilities{
				List: &acp.SessionListCapabilities{}, Resume: &acp.SessionResumeCapabilities{}, Close: &acp.SessionCloseCapabilities{},
			},
		},
	}, nil
}

// session returns an open session, nil if there is none.
func (d *Door) session(id string) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[id]
}

// follow gives a channel's actions to a session; nil: to none.
func (d *Door) follow(channel string, s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == nil {
		delete(d.channels, channel)
	} else {
		d.channels[channel] = s
	}
}

// action handles an action of the host.
func (d *Door) action(a client.Action) {
	d.mu.Lock()
	s := d.channels[a.Channel]
	if a.Channel == client.RootChannel {
		var changed struct {
			Type   string      `json:"type"`
			Agents []agentInfo `json:"agents"`
		}
		if json.Unmarshal(a.Raw, &changed) == nil && changed.Type == "root/agentsChanged" {
			d.agents = changed.Agents
		}
	}
	d.mu.Unlock()
	if s != nil {
		s.take(a)
	}
}

// host returns the connection to the host. It opens one if there is none, and then
// continues all sessions on it.
func (d *Door) host(ctx context.Context) (*client.Client, error) {
	select {
	case d.dialing <- struct{}{}:
		defer func() { <-d.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	d.mu.Lock()
	c := d.client
	d.mu.Unlock()
	if c != nil {
		select {
		case <-c.Done():
		default:
			return c, nil
		}
	}
	relay, host, err := d.cfg.Relays.FindHost(ctx, d.cfg.Host)
	if err != nil {
		return nil, err
	}
	next, err := client.Open(ctx, client.Config{Relay: relay, Host: host, Level: d.cfg.Level, Name: "ahp-connect-acp", Log: d.cfg.Log, Action: d.action})
	if err != nil {
		return nil, err
	}
	if err := d.begin(ctx, next); err != nil {
		next.Close()
		return nil, err
	}
	if c != nil {
		c.Close()
	}
	d.spawn(func() { d.watch(next) })
	return next, nil
}

// begin subscribes to the channels of a new connection.
func (d *Door) begin(ctx context.Context, c *client.Client) error {
	state, err := c.Subscribe(ctx, client.RootChannel)
	if err != nil {
		return err
	}
	var root struct {
		Agents []agentInfo `json:"agents"`
	}
	if err := json.Unmarshal(state, &root); err != nil {
		return fmt.Errorf("the host's state is not readable: %w", err)
	}
	d.mu.Lock()
	d.client, d.agents = c, root.Agents
	var open []*session
	for _, s := range d.sessions {
		open = append(open, s)
	}
	d.mu.Unlock()
	for _, s := range open {
		if err := s.sync(ctx, c, showRest, func() {}); err != nil {
			if c.Err() != nil {
				return err
			}
			s.lose(fmt.Errorf("the session cannot be continued: %w", err))
		}
	}
	return nil
}

// watch connects again after the end of a connection, while sessions are open.
func (d *Door) watch(c *client.Client) {
	select {
	case <-c.Done():
	case <-d.life.Done():
		return
	}
	for pause := redialFirst; ; pause = min(2*pause, redialMost) {
		_, err := d.host(d.life)
		var ended *client.Ended
		var refused *connect.Refusal
		switch {
		case err == nil || d.life.Err() != nil:
			return
		case errors.As(err, &ended) && ended.Final(), errors.As(err, &refused):
			d.mu.Lock()
			open := d.sessions
			d.sessions, d.channels = map[string]*session{}, map[string]*session{}
			d.mu.Unlock()
			for _, s := range open {
				s.lose(err)
			}
			return
		}
		d.cfg.Log.Info("host not reached", "error", err)
		select {
		case <-time.After(pause):
		case <-d.life.Done():
			return
		}
	}
}

// list lists the host's sessions; with a folder, those in that folder.
func (d *Door) list(ctx context.Context, cwd string) (any, error) {
	c, err := d.host(ctx)
	if err != nil {
		return nil, err
	}
	all, err := c.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	if cwd != "" && d.cfg.Folder != "" {
		cwd = d.cfg.Folder
	}
	response := acp.ListSessionsResponse{Sessions: []acp.SessionInfo{}}
	for _, s := range all {
		info := acp.SessionInfo{SessionID: s.Session, Title: s.Title, UpdatedAt: s.Modified, Cwd: "/"}
		if len(s.Folders) > 0 {
			if path := filePath(s.Folders[0]); path != "" {
				info.Cwd = path
			}
		}
		if cwd == "" || cwd == info.Cwd {
			response.Sessions = append(response.Sessions, info)
		}
	}
	return response, nil
}
