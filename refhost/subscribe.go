package refhost

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A snapshot is the state of a channel, with everything up to FromSeq in it.
type snapshot struct {
	Resource string          `json:"resource"`
	State    json.RawMessage `json:"state"`
	FromSeq  int64           `json:"fromSeq"`
}

// A view shapes a snapshot, and nothing that follows it.
type view struct {
	// Turns is how many completed turns a chat's snapshot holds at most, nil
	// meaning all. The older ones come with fetchTurns.
	Turns *int `json:"turns"`
}

type subscribeParams struct {
	Channel  string `json:"channel"`
	View     view   `json:"view"`
	Delivery struct {
		MaxLatencyMs int64 `json:"maxLatencyMs"`
	} `json:"delivery"`
	FlowControl *struct {
		Window int64 `json:"window"`
	} `json:"flowControl"`
}

// maxLatency is the longest that a subscriber can have deltas held back.
const maxLatency = 10 * time.Second

type subscribeResult struct {
	Snapshot *snapshot `json:"snapshot,omitempty"`
}

// subscribeLocked answers subscribe. A second one for the same channel changes
// the options.
func (h *Host) subscribeLocked(c *conn, raw json.RawMessage) (any, error) {
	params, err := decodeParams[subscribeParams](raw)
	if err != nil {
		return nil, err
	}
	snap, err := h.snapshotLocked(c, params.Channel, params.View)
	if err != nil {
		return nil, err
	}
	c.subscribeLocked(params.Channel, params)
	return subscribeResult{snap}, nil
}

func (c *conn) subscribeLocked(channel string, params subscribeParams) {
	c.unsubscribeLocked(channel)
	sub := &subscription{
		channel:    channel,
		maxLatency: min(time.Duration(params.Delivery.MaxLatencyMs)*time.Millisecond, maxLatency),
	}
	if params.FlowControl != nil {
		sub.frames = &frameWindow{size: params.FlowControl.Window}
	}
	c.subs[channel] = sub
	if isLogChannel(channel) {
		c.host.logSubs++
	}
}

func (c *conn) unsubscribeLocked(channel string) {
	c.flushHeldLocked()
	if c.subs[channel] != nil && isLogChannel(channel) {
		c.host.logSubs--
	}
	delete(c.subs, channel)
}

func (h *Host) unsubscribeLocked(c *conn, raw json.RawMessage) {
	params, err := decodeParams[channelParams](raw)
	if err != nil {
		return
	}
	c.unsubscribeLocked(params.Channel)
}

// snapshotLocked returns the state of a channel as c may see it, nil for a
// channel without state.
func (h *Host) snapshotLocked(c *conn, uri string, v view) (*snapshot, error) {
	state, err := h.stateLocked(c, uri, v)
	if state == nil || err != nil {
		return nil, err
	}
	return &snapshot{Resource: uri, State: encode(state), FromSeq: h.seq}, nil
}

func (h *Host) stateLocked(c *conn, uri string, v view) (any, error) {
	switch {
	case uri == rootChannel:
		return h.rootStateLocked(), nil
	case strings.HasPrefix(uri, otlpScheme):
		return nil, nil
	case strings.HasPrefix(uri, watchPrefix):
		return watchState(uri)
	case strings.HasPrefix(uri, canvasPrefix):
		return h.canvasStateLocked(uri, c.offer)
	case strings.HasPrefix(uri, chatPrefix):
		return h.chatStateLocked(uri, v)
	}
	if s, ok := h.sessions.get(uri); ok {
		return s.state(c.offer), nil
	}
	if t, ok := h.terminals.get(uri); ok {
		return t.state(), nil
	}
	return nil, h.noSessionLocked(uri)
}

func (h *Host) chatStateLocked(uri string, v view) (any, error) {
	if ch := h.chats[uri]; ch != nil {
		return ch.state(v), nil
	}
	return nil, h.noSessionLocked(sessionOfChat(uri))
}

// noSessionLocked is the error for a URI that is not a session.
func (h *Host) noSessionLocked(uri string) error {
	switch {
	case h.deletedLocked(uri):
		return fail(ahp.CodeSessionNotFound, "Session was explicitly deleted: %s", uri)
	case strings.HasPrefix(uri, providerName+":"):
		return fail(ahp.CodeSessionNotFound, "Session not found on backend: %s", uri)
	}
	return fail(ahp.CodeSessionNotFound, "No agent for session: %s", uri)
}

// chatPrefix begins the URIs of default chats; the session's URI follows in
// base64url.
const chatPrefix = "ahp-chat://default/"

func defaultChat(session string) string {
	return chatPrefix + base64.RawURLEncoding.EncodeToString([]byte(session))
}

// sessionOfChat returns the session whose default chat has this URI, or the
// URI where there is no such session.
func sessionOfChat(uri string) string {
	name, _ := strings.CutPrefix(uri, chatPrefix)
	session, err := base64.RawURLEncoding.DecodeString(name)
	if err != nil {
		return uri
	}
	return string(session)
}
