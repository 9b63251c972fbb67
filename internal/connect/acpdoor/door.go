package acpdoor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/acp"
	"ahprelay/internal/clock"
	"ahprelay/internal/connect"
	"ahprelay/internal/connect/client"
)

// Times and bounds.
const (
	callTime    = 3 * time.Minute // for an answer from the host; agents start slowly
	queueTime   = 2 * time.Second // after a failed turn, for the host to begin the next one
	readsTime   = 5 * time.Second // how long the end of a turn waits for terminals and files that are being read
	maxSessions = 64              // open sessions; also a session's files that are read at a time
	redialFirst = 500 * time.Millisecond
	redialMost  = 15 * time.Second
)

// Config configures a [Door].
type Config struct {
	Relays  *connect.Relays
	Host    string // HOST or RELAY/HOST
	Level   auth.Access
	Folder  string // working directory for new sessions, a path at the host; "": the editor's
	Session string // the session opened by session/new; "": a new one
	Agent   string // provider for new sessions; "": the host's first
	Version string
	Log     *slog.Logger
}

// A Door is an ACP agent.
type Door struct {
	cfg  Config
	conn *acp.Conn
	life context.Context // ends with conn
	work sync.WaitGroup

	dialing chan struct{} // full while a connection is being opened

	mu       sync.Mutex // guards the fields below; no other lock is taken while it is held
	can      acp.ClientCapabilities
	shows    shows
	client   *client.Client
	agents   []agentInfo
	sessions map[string]*session // by id
	channels map[string]*session // by channel
	closed   bool
}

// spawn runs f in a goroutine, and Serve waits for it. When the Door is closed, it does
// nothing.
func (d *Door) spawn(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.work.Go(f)
	}
}

// An agentInfo describes an agent at the host.
type agentInfo struct {
	Provider string `json:"provider"`
	Models   []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"models"`
}

// shows are the extensions declared by the editor.
type shows struct {
	Output bool `json:"terminal_output"`
	Delta  bool `json:"terminal_output_delta"`
}

// member returns the member of _meta for a terminal's output; "" if the editor
// supports none.
func (s shows) member() string {
	switch {
	case s.Output:
		return "terminal_output"
	case s.Delta:
		return "terminal_output_delta"
	}
	return ""
}

// Serve serves an editor until its input ends. When ctx ends, the caller must end the
// input too.
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

// session returns an open session, or nil.
func (d *Door) session(id string) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[id]
}

// follow passes a channel's actions to a session from now on; nil: to none.
func (d *Door) follow(channel string, s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == nil {
		delete(d.channels, channel)
	} else {
		d.channels[channel] = s
	}
}

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

// host returns the connection to the host. If there is none, it opens one and
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
	open := slices.Collect(maps.Values(d.sessions))
	d.mu.Unlock()
	for _, s := range open {
		if err := s.sync(ctx, c, showRest, func() {}); err != nil {
			if c.Err() != nil {
				return err
			}
			s.leave(fmt.Errorf("the session cannot be continued: %w", err))
		}
	}
	return nil
}

// watch reconnects when the connection has ended. If reconnecting is refused for good, it
// ends all sessions.
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
		if !clock.Sleep(d.life, pause) {
			return
		}
	}
}
