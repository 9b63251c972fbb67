package agenthost

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A snapshot is a channel's state, including everything up to FromSeq.
type snapshot struct {
	Resource string          `json:"resource"`
	State    json.RawMessage `json:"state"`
	FromSeq  int64           `json:"fromSeq"`
}

// A view limits a snapshot. It does not affect later messages.
type view struct {
	// Turns limits a chat's snapshot to that many completed turns, the newest; nil means
	// all. fetchTurns loads older turns.
	Turns *int `json:"turns"`
}

type subscribeParams struct {
	Channel  string `json:"channel"`
	View     view   `json:"view"`
	Delivery struct {
		MaxLatencyMs int64 `json:"maxLatencyMs"`
	} `json:"delivery"`
	FlowControl *subscribeWindow `json:"flowControl"`
}

// A subscribeWindow requests flow control for a subscription, with the client's limits.
type subscribeWindow struct {
	Receive receiveLimits `json:"receive"`
}

// maxLatency bounds the delay that a subscriber may request for merged deltas.
const maxLatency = 10 * time.Second

type subscribeResult struct {
	Snapshot    *snapshot    `json:"snapshot,omitempty"`
	FlowControl *flowControl `json:"flowControl,omitempty"`
}

// subscribeLocked answers subscribe. A second subscribe for the same channel changes
// its options.
func (h *Host) subscribeLocked(c *conn, raw json.RawMessage) (any, error) {
	params, err := decodeParams[subscribeParams](raw)
	if err != nil {
		return nil, err
	}
	snap, err := c.snapshotLocked(params.Channel, params.View)
	if err != nil {
		return nil, err
	}
	w := c.subscribeLocked(params.Channel, params)
	if w == nil && snap != nil {
		return snap.result(), nil
	}
	if w == nil {
		return subscribeResult{}, nil
	}
	var bootstrap []string
	if snap != nil {
		bootstrap = append(bootstrap, snapshotText(snap))
	}
	c.openWindowLocked(w, bootstrap...)
	return subscribeResult{FlowControl: w.agreed()}, nil
}

// subscribeLocked subscribes the connection to a channel. It returns the window, or nil
// if none was requested or possible.
func (c *conn) subscribeLocked(channel string, params subscribeParams) *window {
	c.unsubscribeLocked(channel)
	sub := &subscription{
		channel:    channel,
		maxLatency: min(time.Duration(params.Delivery.MaxLatencyMs)*time.Millisecond, maxLatency),
	}
	if params.FlowControl != nil && c.host.dialect.windows && c.offer.version.compare(firstStable) >= 0 {
		sub.window = newWindow(channel, params.FlowControl.Receive)
	}
	c.client.rememberOptions(channel, sub.window, params.View)
	c.subs[channel] = sub
	if isLogChannel(channel) {
		c.host.logSubs++
	}
	return sub.window
}

func (c *conn) unsubscribeLocked(channel string) {
	c.flushHeldLocked()
	if c.subs[channel] != nil && isLogChannel(channel) {
		c.host.logSubs--
	}
	delete(c.subs, channel)
	c.opening = slices.DeleteFunc(c.opening, func(w *window) bool { return w.channel == channel })
}

func (h *Host) unsubscribeLocked(c *conn, raw json.RawMessage) {
	params, err := decodeParams[channelParams](raw)
	if err != nil {
		return
	}
	c.unsubscribeLocked(params.Channel)
	if ch := h.chats[params.Channel]; ch != nil {
		ch.unloadLocked()
	}
}

// snapshotLocked returns a channel's state for c, or nil for a channel without state.
func (c *conn) snapshotLocked(uri string, v view) (*snapshot, error) {
	state, err := c.stateLocked(uri, v)
	if state == nil || err != nil {
		return nil, err
	}
	return &snapshot{Resource: uri, State: encodeState(state), FromSeq: c.host.seq}, nil
}

// encodeState encodes a state. It inserts a chat's stored turns unchanged, because the
// encoder would check and copy each of them again.
func encodeState(state any) json.RawMessage {
	s, ok := state.(chatState)
	if !ok || len(s.Turns) == 0 {
		return encode(state)
	}
	turns, size := s.Turns, 0
	raw := make([]json.RawMessage, len(turns))
	for i, t := range turns {
		if raw[i] = t.raw; t.raw == nil {
			raw[i] = encode(t)
		}
		size += len(raw[i]) + 1
	}
	s.Turns = []*turn{}
	rest := encode(s)
	// The first match is the member turns: all members before it are strings, in which quotes
	// are escaped.
	const empty = `"turns":[]`
	at := bytes.Index(rest, []byte(empty)) + len(empty) - 1
	joined := append(make([]byte, 0, len(rest)+size), rest[:at]...)
	for i, r := range raw {
		if i > 0 {
			joined = append(joined, ',')
		}
		joined = append(joined, r...)
	}
	return append(joined, rest[at:]...)
}

// An encodedResult is a result in JSON.
type encodedResult json.RawMessage

// result is the answer to subscribe.
func (s *snapshot) result() encodedResult {
	head := fmt.Appendf(nil, `{"snapshot":{"resource":%s,"state":`, encode(s.Resource))
	return encodedResult(slices.Concat(head, s.State, fmt.Appendf(nil, `,"fromSeq":%d}}`, s.FromSeq)))
}

func (c *conn) stateLocked(uri string, v view) (any, error) {
	h := c.host
	switch {
	case uri == rootChannel:
		return h.rootStateLocked(), nil
	case strings.HasPrefix(uri, otlpScheme):
		return nil, nil
	case strings.HasPrefix(uri, watchPrefix):
		return watchState(uri)
	case strings.HasPrefix(uri, canvasPrefix):
		return h.canvases.canvasStateLocked(uri, c.offer)
	case strings.HasPrefix(uri, chatScheme):
		return h.sessions.chatStateLocked(uri, v, c.offer)
	}
	if s, ok := h.sessions.get(uri); ok {
		s.changed.countLocked()
		return s.state(c.offer), nil
	}
	if t, ok := h.terminals.get(uri); ok {
		return t.state(), nil
	}
	if c := h.changesets.open[uri]; c != nil {
		return c.state(), nil
	}
	if c := h.changesets.turnChangesetLocked(uri); c != nil {
		return c.state(), nil
	}
	return nil, h.sessions.noSessionLocked(uri)
}

func (ss *sessionTable) chatStateLocked(uri string, v view, o offer) (any, error) {
	if ch := ss.host.chats[uri]; ch != nil {
		ch.replayLocked()
		state := ch.state(v)
		if o.registers() && ch == ch.session.chat {
			state.Canvases = ch.session.resources()
		}
		return state, nil
	}
	return nil, ss.noSessionLocked(sessionOfChat(uri))
}

// noSessionLocked is the error for an unknown session URI.
func (ss *sessionTable) noSessionLocked(uri string) error {
	switch {
	case ss.deletedLocked(uri):
		return fail(ahp.CodeSessionNotFound, "%s", deleted(uri))
	case ss.providerOfLocked(uri):
		return fail(ahp.CodeSessionNotFound, "Session not found on backend: %s", uri)
	}
	return fail(ahp.CodeSessionNotFound, "No agent for session: %s", uri)
}

// chatScheme begins the URIs of all chats.
const chatScheme = "ahp-chat:"

// chatPrefix begins default chat URIs; the session's URI follows in base64url.
const chatPrefix = "ahp-chat://default/"

func defaultChat(session string) string {
	return chatPrefix + base64.RawURLEncoding.EncodeToString([]byte(session))
}

// sessionOfChat returns the session's URI that a default chat's URI contains, or
// any other URI unchanged.
func sessionOfChat(uri string) string {
	name, _ := strings.CutPrefix(uri, chatPrefix)
	session, err := base64.RawURLEncoding.DecodeString(name)
	if err != nil {
		return uri
	}
	return string(session)
}
