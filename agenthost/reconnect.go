package agenthost

import (
	"encoding/json"
	"fmt"

	"ahprelay/ahp"
)

// reconnectParams has the fields of all forms of reconnect: one cursor for all
// channels, windowed channels beside it, or a cursor for each channel.
type reconnectParams struct {
	ClientID          string          `json:"clientId"`
	LastSeenServerSeq int64           `json:"lastSeenServerSeq"`
	Subscriptions     json.RawMessage `json:"subscriptions"`
	Windows           *struct {
		Items []windowCursor `json:"items"`
	} `json:"windows"`
}

// A windowCursor is the position at which a windowed channel resumes.
type windowCursor struct {
	Channel              string `json:"channel"`
	LastAppliedServerSeq *int64 `json:"lastAppliedServerSeq"`
}

// A channelCursor is the position at which a channel resumes, in the form with one
// cursor for each channel. 0 requests the channel's state.
type channelCursor struct {
	Channel           string `json:"channel"`
	LastSeenServerSeq int64  `json:"lastSeenServerSeq"`
}

type reconnectResult struct {
	Type      string            `json:"type,omitempty"`
	Actions   []json.RawMessage `json:"actions,omitzero"`
	Missing   []string          `json:"missing,omitzero"`
	Snapshots []snapshot        `json:"snapshots,omitzero"`
	Windows   *resumedWindows   `json:"windows,omitempty"`
	Channels  []resumedChannel  `json:"channels,omitzero"`
}

type resumedWindows struct {
	Items []resumedWindow `json:"items"`
}

type resumedWindow struct {
	Channel     string       `json:"channel"`
	FlowControl *flowControl `json:"flowControl"`
	Recovery    string       `json:"recovery"` // snapshot, replay or live
}

type resumedChannel struct {
	Kind     string            `json:"kind"` // replay, snapshot or missing
	Channel  string            `json:"channel"`
	Actions  []json.RawMessage `json:"actions,omitzero"`
	Snapshot *snapshot         `json:"snapshot,omitempty"`
}

// reconnectLocked makes the connection the newest of a known client, with the version
// and capabilities of the client's initialize. The answer covers all actions so far;
// later actions follow it.
func (c *conn) reconnectLocked(raw json.RawMessage) (any, error) {
	h := c.host
	params, err := decodeParams[reconnectParams](raw)
	if err != nil {
		return nil, err
	}
	h.logLocked(levelInfo, "Reconnect: clientId=%s, lastSeenSeq=%d", params.ClientID, params.LastSeenServerSeq)
	var uris []string
	var cursors []channelCursor
	if json.Unmarshal(params.Subscriptions, &uris) != nil && (!h.dialect.perChannel || json.Unmarshal(params.Subscriptions, &cursors) != nil) {
		return nil, fail(ahp.CodeInvalidParams, "Malformed subscriptions")
	}
	if h.clients[params.ClientID] == nil {
		return nil, fail(ahp.CodeNotFound, "Reconnect client not found: %s", params.ClientID)
	}
	c.offer = h.joinLocked(c, params.ClientID).offer
	h.goLocked(func() { h.canvases.providerBack(params.ClientID) })
	if len(cursors) > 0 {
		return c.resumeEachLocked(cursors), nil
	}
	return c.resumeAllLocked(uris, params), nil
}

// resumeAllLocked resumes with one cursor for all channels. Windowed channels have
// cursors of their own, and are only in the result's windows.
func (c *conn) resumeAllLocked(uris []string, params reconnectParams) reconnectResult {
	h := c.host
	windows := map[string]windowCursor{}
	if params.Windows != nil && h.dialect.windows {
		for _, item := range params.Windows.Items {
			windows[item.Channel] = item
		}
	}
	result := reconnectResult{Type: "snapshot", Snapshots: []snapshot{}}
	replay := h.canReplayLocked(params.LastSeenServerSeq)
	missing := []string{}
	var resumed []resumedWindow
	room := h.cfg.MaxFrame - maxEnvelope
	for _, uri := range uris {
		if c.subs[uri] != nil {
			continue
		}
		if item, ok := windows[uri]; ok {
			if w, ok := c.resumeWindowLocked(item); ok {
				resumed = append(resumed, w)
			}
			continue
		}
		snap, err := c.resumeLocked(uri, replay, &room)
		switch {
		case err != nil:
			missing = append(missing, uri)
		case snap != nil && !replay:
			result.Snapshots = append(result.Snapshots, *snap)
		}
	}
	if replay {
		inline := func(uri string) bool { return c.windowOf(uri) == nil }
		result = reconnectResult{Type: "replay", Actions: h.replayLocked(c, params.LastSeenServerSeq, inline), Missing: missing}
	}
	if params.Windows != nil && h.dialect.windows {
		result.Windows = &resumedWindows{append([]resumedWindow{}, resumed...)}
	}
	return result
}

// resumeLocked subscribes to a channel again if it still exists, and returns its
// state, with as many turns as the client's earlier subscription. Unless the client gets a replay
// in its place, the state must fit into the room that the answer's frame has left.
func (c *conn) resumeLocked(uri string, replay bool, room *int) (*snapshot, error) {
	params := subscribeParams{View: c.client.options[uri].view}
	snap, err := c.snapshotLocked(uri, params.View)
	if err == nil && snap != nil && !replay {
		if size := len(snap.State) + len(uri); size > *room {
			err = fmt.Errorf("its state of %d bytes does not fit", size)
		} else {
			*room -= size
		}
	}
	if err != nil {
		c.host.logLocked(levelInfo, "Reconnect: failed to restore subscription %s: %v", uri, err)
		return nil, err
	}
	c.subscribeLocked(uri, params)
	return snap, nil
}

// resumeEachLocked resumes each channel from its own cursor.
func (c *conn) resumeEachLocked(cursors []channelCursor) reconnectResult {
	h := c.host
	result, room := reconnectResult{Channels: []resumedChannel{}}, h.cfg.MaxFrame-maxEnvelope
	for _, cursor := range cursors {
		if c.subs[cursor.Channel] != nil {
			continue
		}
		one := resumedChannel{Kind: "missing", Channel: cursor.Channel}
		replay := cursor.LastSeenServerSeq > 0 && h.canReplayLocked(cursor.LastSeenServerSeq)
		if snap, err := c.resumeLocked(cursor.Channel, replay, &room); err == nil {
			this := func(uri string) bool { return uri == cursor.Channel }
			one.Kind = "replay"
			switch {
			case snap == nil:
				one.Actions = []json.RawMessage{}
			case replay:
				one.Actions = h.replayLocked(c, cursor.LastSeenServerSeq, this)
			default:
				one.Kind, one.Snapshot = "snapshot", snap
			}
		}
		result.Channels = append(result.Channels, one)
	}
	return result
}

// resumeWindowLocked resumes a windowed channel with its earlier limits. It returns
// false if the channel was not windowed or no longer exists.
func (c *conn) resumeWindowLocked(item windowCursor) (resumedWindow, bool) {
	h := c.host
	had := c.client.options[item.Channel]
	snap, err := c.snapshotLocked(item.Channel, had.view)
	if had.window == nil || err != nil {
		return resumedWindow{}, false
	}
	params := subscribeParams{View: had.view, FlowControl: &subscribeWindow{*had.window}}
	w := c.subscribeLocked(item.Channel, params)
	resumed := resumedWindow{Channel: item.Channel, FlowControl: w.agreed(), Recovery: "live"}
	var bootstrap []string
	switch {
	case snap == nil:
	case item.LastAppliedServerSeq != nil && h.canReplayLocked(*item.LastAppliedServerSeq):
		resumed.Recovery = "replay"
		for _, params := range h.replayLocked(c, *item.LastAppliedServerSeq, func(uri string) bool { return uri == item.Channel }) {
			bootstrap = append(bootstrap, string(notificationFrame("action", params)))
		}
	default:
		resumed.Recovery = "snapshot"
		bootstrap = []string{snapshotText(snap)}
	}
	c.openWindowLocked(w, bootstrap...)
	return resumed, true
}
