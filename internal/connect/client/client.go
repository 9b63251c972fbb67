// Package client is an AHP client for the doors of ahp-connect. It uses the same
// connection to the host as a local client of ahp-connect: the connection resumes,
// renews its token, and answers pings while the relay is unreachable.
//
// A [Client] is safe for concurrent use. It calls Config.Action in the goroutine which
// reads the host's messages, so no further message is read until Action returns.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/connect"
)

// Versions are the supported AHP versions, preferred first.
var Versions = []string{"1.0.0", "0.10.0", "0.9.0"}

// Config configures a [Client].
type Config struct {
	Relay *connect.Relay
	Host  string
	Level auth.Access // highest level to use; "": the person's own, at most operate
	Name  string      // name of the program, shown in the host's list of clients
	Log   *slog.Logger

	// Action is called with each action, in order. Default: none.
	Action func(Action)
}

// An Action is an action that the host has published. Raw is valid during the call.
type Action struct {
	Channel  string
	Seq      int64 // serverSeq
	Raw      []byte
	Mine     bool   // this client has dispatched it
	Rejected string // why the host has rejected it; "": it has not
}

// A Client is a connection to a host.
type Client struct {
	cfg    Config
	id     string // clientId
	out    chan []byte
	closed chan struct{} // closed by Close, or when the connection ends
	ended  chan struct{} // the connection has ended
	once   sync.Once
	cancel context.CancelFunc

	mu    sync.Mutex // guards the fields below
	calls map[string]chan reply
	last  int
	seq   int64
	why   *Ended
}

// A reply is a response's content.
type reply struct{ result, failure []byte }

// An Error is a host's or relay's error answer.
type Error struct {
	Code    ahp.Int
	Message string
}

func (e *Error) Error() string {
	if e.Code == ahp.CodePermissionDenied {
		return e.Message + ": use a higher --level, or sign in with more rights"
	}
	return e.Message
}

// An Ended is the error after the connection has ended.
type Ended struct {
	Code   ahp.CloseCode
	Reason string
}

func (e *Ended) Error() string { return e.Reason }

// Final reports whether reconnecting would fail in the same way.
func (e *Ended) Final() bool { return e.Code >= firstFinal }

// firstFinal is the lowest close code which means "do not reconnect".
const firstFinal ahp.CloseCode = 4500

// Open connects to a host, and initializes the connection.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Client{
		cfg: cfg, id: cfg.Name + "-" + rand.Text()[:8], out: make(chan []byte), closed: make(chan struct{}), ended: make(chan struct{}), cancel: cancel, calls: map[string]chan reply{},
	}
	go func() {
		why := connect.ServeLocal(life, (*messages)(c), cfg.Relay, cfg.Host, cfg.Level, cfg.Log)
		c.mu.Lock()
		c.why = &Ended{why.Code, why.Reason}
		c.mu.Unlock()
		close(c.ended)
	}()
	if _, err := c.Call(ctx, "initialize", map[string]any{
		"channel": RootChannel, "clientId": c.id, "protocolVersions": Versions, "clientInfo": map[string]string{"name": cfg.Name},
	}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection, and returns when it has ended.
func (c *Client) Close() {
	c.once.Do(func() { close(c.closed) })
	c.cancel()
	<-c.ended
}

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.ended }

// Err returns the reason for the connection's end, nil before it.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil {
		return nil
	}
	return c.why
}

// Call sends a request, and returns the result.
func (c *Client) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	c.mu.Lock()
	c.last++
	id := strconv.Itoa(c.last)
	answer := make(chan reply, 1)
	c.calls[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
	}()
	if err := c.send(ctx, map[string]any{"jsonrpc": "2.0", "id": json.Number(id), "method": method, "params": params}); err != nil {
		return nil, err
	}
	select {
	case r := <-answer:
		if r.failure != nil {
			var e Error
			if json.Unmarshal(r.failure, &e) != nil {
				e.Message = "the host answers with an unreadable error"
			}
			return nil, fmt.Errorf("%s: %w", method, &e)
		}
		return r.result, nil
	case <-c.ended:
		return nil, fmt.Errorf("%s: %w", method, c.Err())
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *Client) send(ctx context.Context, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	select {
	case c.out <- data:
		return nil
	case <-c.ended:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Subscribe subscribes to a channel, and returns its state.
func (c *Client) Subscribe(ctx context.Context, channel string) (state json.RawMessage, err error) {
	state, _, err = c.SubscribeAt(ctx, channel)
	return state, err
}

// SubscribeAt is Subscribe, and also returns the number of the last action in the
// state.
func (c *Client) SubscribeAt(ctx context.Context, channel string) (state json.RawMessage, seq int64, err error) {
	result, err := c.Call(ctx, "subscribe", map[string]any{"channel": channel})
	if err != nil {
		return nil, 0, err
	}
	snapshot := ahp.RawOf(result, "snapshot")
	if !ahp.IsObject(snapshot) {
		return nil, 0, fmt.Errorf("%s has no state", channel)
	}
	return ahp.RawOf(snapshot, "state"), ahp.IntegerOf(ahp.RawOf(snapshot, "fromSeq")), nil
}

// unsubscribeTime bounds the sending of an unsubscribe.
const unsubscribeTime = 10 * time.Second

// Unsubscribe ends a subscription, also if ctx has ended.
func (c *Client) Unsubscribe(ctx context.Context, channel string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unsubscribeTime)
	defer cancel()
	return c.send(ctx, map[string]any{"jsonrpc": "2.0", "method": "unsubscribe", "params": map[string]any{"channel": channel}})
}

// Dispatch sends an action.
func (c *Client) Dispatch(ctx context.Context, channel string, action any) error {
	c.mu.Lock()
	c.seq++
	seq := c.seq
	c.mu.Unlock()
	return c.send(ctx, map[string]any{"jsonrpc": "2.0", "method": "dispatchAction", "params": map[string]any{"channel": channel, "clientSeq": seq, "action": action}})
}

// messages is the Client's side of its pipe to the host.
type messages Client

func (m *messages) Read() ([]byte, error) {
	select {
	case b := <-m.out:
		return b, nil
	case <-m.closed:
		return nil, &connect.Closed{Code: 1000}
	}
}

func (m *messages) Close(ahp.CloseCode, string) { m.once.Do(func() { close(m.closed) }) }

// Write implements [connect.Messages]: it handles a message of the host.
func (m *messages) Write(message []byte) error {
	env, err := ahp.Peek(message)
	if err != nil {
		return nil // not readable, so ignored
	}
	switch env.Kind {
	case ahp.Response:
		if answer := (*Client)(m).callOf(env.ID); answer != nil {
			select {
			case answer <- reply{bytes.Clone(env.Result), bytes.Clone(env.Error)}:
			default: // a second answer
			}
		}
	case ahp.Request:
		refusal := ahp.AppendError(nil, env.ID, ahp.CodeMethodNotFound, "this client serves no requests", nil)
		go (*Client)(m).refuse(refusal)
	default:
		if string(env.Method) == "action" && m.cfg.Action != nil {
			(*Client)(m).action(string(env.Channel), env.Params)
		}
	}
	return nil
}

// callOf returns the channel for the answer to a call, or nil. A host may write the call's number in another
// notation, such as 7.0.
func (c *Client) callOf(id []byte) chan reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	for own, answer := range c.calls {
		if ahp.SameID([]byte(own), id) {
			return answer
		}
	}
	return nil
}

func (c *Client) action(channel string, params []byte) {
	m := [...]ahp.Member{{Name: "action"}, {Name: "serverSeq"}, {Name: "origin"}, {Name: "rejectionReason"}}
	if ahp.Members(params, m[:]) != nil || !ahp.IsObject(m[0].Raw) {
		return // the host-agent rejects messages with duplicate members
	}
	a := Action{Channel: channel, Raw: m[0].Raw, Seq: ahp.IntegerOf(m[1].Raw)} // a host may write 7.0 for 7
	a.Mine = m[2].Raw != nil && ahp.TextOf(m[2].Raw, "clientId") == c.id
	if !ahp.IsNone(m[3].Raw) {
		if a.Rejected, _ = ahp.Text(m[3].Raw); a.Rejected == "" {
			a.Rejected = "the host has rejected it"
		}
	}
	c.cfg.Action(a)
}

// refuse answers a request from the host with an error.
func (c *Client) refuse(message []byte) {
	select {
	case c.out <- message:
	case <-c.ended:
	}
}
