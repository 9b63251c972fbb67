package refclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

const rootChannel = "ahp-root://"

// InitializeParams are the params of initialize.
type InitializeParams struct {
	ClientID             string         `json:"clientId"`
	ProtocolVersions     []string       `json:"protocolVersions"` // default: 0.9.0
	InitialSubscriptions []string       `json:"initialSubscriptions,omitempty"`
	Capabilities         map[string]any `json:"capabilities,omitempty"`
	Locale               string         `json:"locale,omitempty"`
}

// InitializeResult holds the members of initialize's result that tests need.
type InitializeResult struct {
	ProtocolVersion string          `json:"protocolVersion"`
	ServerSeq       int64           `json:"serverSeq"`
	Snapshots       []Snapshot      `json:"snapshots"`
	Raw             json.RawMessage `json:"-"` // the whole result
}

// A Snapshot is the state of a channel after all actions up to FromSeq.
type Snapshot struct {
	Resource string          `json:"resource"`
	State    json.RawMessage `json:"state"`
	FromSeq  int64           `json:"fromSeq"`
}

// An Action holds the params of an action notification, or an entry of a replay.
type Action struct {
	Channel   string          `json:"channel"`
	Action    json.RawMessage `json:"action"`
	ServerSeq int64           `json:"serverSeq"`
	Origin    *struct {
		ClientID  string `json:"clientId"`
		ClientSeq int64  `json:"clientSeq"`
	} `json:"origin"`
	RejectionReason string `json:"rejectionReason"`
}

// Type returns the action's type.
func (a Action) Type() string {
	var action struct {
		Type string `json:"type"`
	}
	json.Unmarshal(a.Action, &action) // an action without a type has the type ""
	return action.Type
}

// ReadAction decodes an action notification. It returns false if the frame is something
// else.
func ReadAction(frame []byte) (Action, bool) {
	var msg struct {
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	var a Action
	if json.Unmarshal(frame, &msg) != nil || msg.Method != "action" || json.Unmarshal(msg.Params, &a) != nil {
		return Action{}, false
	}
	return a, true
}

// IsAction returns a function for [Client.WaitFor] that matches actions of a type on a
// channel, or on all channels if channel is "".
func IsAction(channel, actionType string) func(frame []byte) bool {
	return func(frame []byte) bool {
		a, ok := ReadAction(frame)
		return ok && a.Type() == actionType && (channel == "" || a.Channel == channel)
	}
}

// IsNotification returns a function for [Client.WaitFor] that matches notifications
// with this method.
func IsNotification(method string) func(frame []byte) bool {
	return func(frame []byte) bool {
		var msg message
		return json.Unmarshal(frame, &msg) == nil && msg.ID == nil && msg.Method == method
	}
}

// IsHostAgents reports whether a message is a request that a host-agent itself sends on
// a client's connection (package hostagent lists these requests), or the answer to such
// a request. A client sends no such request, and gets no such answer.
func IsHostAgents(message []byte) bool { return bytes.Contains(message, []byte(`"id":"host-agent-`)) }

// Initialize sends initialize and returns the result.
func (c *Client) Initialize(ctx context.Context, params InitializeParams) (InitializeResult, error) {
	if params.ProtocolVersions == nil {
		params.ProtocolVersions = []string{"0.9.0"}
	}
	return callInto(ctx, c, "initialize", onRoot[InitializeParams]{rootChannel, params},
		func(r *InitializeResult, raw json.RawMessage) { r.Raw = raw })
}

// ReconnectParams are the params of reconnect.
type ReconnectParams struct {
	ClientID          string   `json:"clientId"`
	LastSeenServerSeq int64    `json:"lastSeenServerSeq"`
	Subscriptions     []string `json:"subscriptions"`
}

// ReconnectResult is the result of reconnect. Type is replay or snapshot.
type ReconnectResult struct {
	Type      string            `json:"type"`
	Actions   []json.RawMessage `json:"actions"` // params of an action each
	Missing   []string          `json:"missing"`
	Snapshots []Snapshot        `json:"snapshots"`
	Raw       json.RawMessage   `json:"-"` // the whole result
}

// Reconnect sends reconnect for a clientId that was connected before, and returns the
// result.
func (c *Client) Reconnect(ctx context.Context, params ReconnectParams) (ReconnectResult, error) {
	return callInto(ctx, c, "reconnect", onRoot[ReconnectParams]{rootChannel, params},
		func(r *ReconnectResult, raw json.RawMessage) { r.Raw = raw })
}

// Subscribe subscribes to a channel and returns its snapshot. The snapshot is nil for a
// channel without state.
func (c *Client) Subscribe(ctx context.Context, channel string) (*Snapshot, error) {
	type subscribeResult struct {
		Snapshot *Snapshot `json:"snapshot"`
	}
	r, err := callInto(ctx, c, "subscribe", map[string]string{"channel": channel},
		func(*subscribeResult, json.RawMessage) {})
	return r.Snapshot, err
}

// Unsubscribe unsubscribes from a channel.
func (c *Client) Unsubscribe(channel string) error {
	return c.Notify("unsubscribe", map[string]string{"channel": channel})
}

// Dispatch sends an action and returns its clientSeq. The first call sends clientSeq 1,
// the next 2, and so on.
func (c *Client) Dispatch(channel string, action any) (clientSeq int64, err error) {
	c.mu.Lock()
	c.clientSeq++
	seq := c.clientSeq
	c.mu.Unlock()
	return seq, c.Notify("dispatchAction", struct {
		Channel   string `json:"channel"`
		ClientSeq int64  `json:"clientSeq"`
		Action    any    `json:"action"`
	}{channel, seq, action})
}

// An onRoot holds the params of a request on the root channel.
type onRoot[T any] struct {
	Channel string
	Params  T
}

// MarshalJSON implements [json.Marshaler].
func (p onRoot[T]) MarshalJSON() ([]byte, error) {
	rest, err := json.Marshal(p.Params)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, `{"channel":%q,`, p.Channel), rest[1:]...), nil
}

func callInto[T any](ctx context.Context, c *Client, method string, params any, keep func(*T, json.RawMessage)) (T, error) {
	var value T
	raw, err := c.Call(ctx, method, params)
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, fmt.Errorf("result of %s: %w", method, err)
	}
	keep(&value, raw)
	return value, nil
}
