package agenthost

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// rootChannel is the channel of connection messages and of the session list.
const rootChannel = "ahp-root://"

// An origin names the client that dispatched an action.
type origin struct {
	ClientID  string          `json:"clientId"`
	ClientSeq json.RawMessage `json:"clientSeq,omitempty"` // as received
}

// An envelope is an action to publish, before it has a number.
type envelope struct {
	channel  string
	action   json.RawMessage // compact
	kind     string          // the action's type
	origin   *origin         // nil: from the host
	rejected string          // rejection reason, or ""
}

// encode returns the action notification's params.
func (env envelope) encode(seq int64) json.RawMessage {
	b := make([]byte, 0, len(env.action)+len(env.channel)+128)
	b = append(append(b, `{"channel":`...), encode(env.channel)...)
	b = append(append(b, `,"action":`...), env.action...)
	b = strconv.AppendInt(append(b, `,"serverSeq":`...), seq, 10)
	if env.origin != nil {
		b = append(append(b, `,"origin":`...), encode(env.origin)...)
	}
	if env.rejected != "" {
		b = append(append(b, `,"rejectionReason":`...), encode(env.rejected)...)
	}
	return append(b, '}')
}

// A record is a published envelope. It is encoded once, and all receivers share the
// bytes.
type record struct {
	envelope
	seq    int64
	params json.RawMessage // the encoded envelope
	frame  []byte          // the encoded notification
	delta  *DeltaAction    // the action, if it can be merged

	// The form for clients without mcpApps, if it differs: another action with the
	// same number.
	plain *record
}

// as returns the record in the form for a client with this offer.
func (rec *record) as(o offer) *record {
	if rec.plain != nil && !o.mcpApps {
		return rec.plain
	}
	return rec
}

// own returns the envelope of an action of the host. action is a struct of this
// package whose first field is its type.
func own(channel string, action any) envelope {
	raw := encode(action)
	kind, _, _ := bytes.Cut(bytes.TrimPrefix(raw, []byte(`{"type":"`)), []byte(`"`))
	return envelope{channel: channel, action: raw, kind: string(kind)}
}

// emitLocked publishes a host action.
func (h *core) emitLocked(channel string, action any) {
	h.publishLocked(own(channel, action), action)
}

// emitVariantsLocked publishes an action of the host, and plain in its place for
// clients without mcpApps. If plain is nil, all clients get action.
func (h *core) emitVariantsLocked(channel string, action, plain any) {
	rec := &record{envelope: own(channel, action)}
	if plain != nil {
		rec.plain = &record{envelope: own(channel, plain)}
	}
	h.publishRecordLocked(rec)
}

// publishLocked numbers an envelope, keeps it for replays, and sends it to all
// subscribers. action is the decoded action, if it is the host's own.
func (h *core) publishLocked(env envelope, action any) {
	rec := &record{envelope: env}
	if delta, ok := action.(DeltaAction); ok {
		rec.delta = &delta
	}
	h.publishRecordLocked(rec)
}

func (h *core) publishRecordLocked(rec *record) {
	h.seq++
	rec.number(h.seq)
	if rec.plain != nil {
		rec.plain.number(h.seq)
	}
	h.keepLocked(rec)
	for _, cl := range h.clients {
		c := cl.newest()
		if c == nil || !c.offer.takes(rec.kind) {
			continue
		}
		if sub := c.subs[rec.channel]; sub != nil {
			c.deliverLocked(sub, rec.as(c.offer))
		}
	}
}

// keepLocked keeps a record for replays, and drops the oldest beyond the bounds.
func (h *core) keepLocked(rec *record) {
	h.replay = append(h.replay, rec)
	h.replayBytes += len(rec.frame)
	for len(h.replay) > h.cfg.ReplayBuffer || h.replayBytes > maxReplayBytes && len(h.replay) > 1 {
		h.replayBytes -= len(h.replay[0].frame)
		h.replay[0] = nil
		h.replay = h.replay[1:]
	}
}

// number sets the record's number and encodes it.
func (rec *record) number(seq int64) {
	rec.seq = seq
	params := rec.encode(seq)
	rec.frame = notificationFrame("action", params)
	end := len(rec.frame) - len("}")
	rec.params = json.RawMessage(rec.frame[end-len(params) : end : end]) // shared, because the record is kept
}

// notifyAllLocked sends a notification to every initialized client, subscribed or
// not. The notification has no serverSeq and is not replayed.
func (h *core) notifyAllLocked(method string, params any) {
	frame := notificationFrame(method, encode(params))
	for _, cl := range h.clients {
		if c := cl.newest(); c != nil {
			c.queueLocked(frame)
		}
	}
}

// notifyEachLocked is notifyAllLocked with params that depend on the client's offer.
// Clients for which params returns nil get nothing.
func (h *core) notifyEachLocked(method string, params func(offer) any) {
	for _, cl := range h.clients {
		c := cl.newest()
		if c == nil {
			continue
		}
		if p := params(c.offer); p != nil {
			c.queueLocked(notificationFrame(method, encode(p)))
		}
	}
}

// canReplayLocked reports whether the buffer has envelope seq and all later
// envelopes.
func (h *core) canReplayLocked(seq int64) bool {
	if len(h.replay) == 0 {
		return seq >= h.seq
	}
	return seq >= h.replay[0].seq
}

// replayLocked returns the envelopes after seq on the wanted channels, encoded for c.
func (h *core) replayLocked(c *conn, seq int64, wanted func(channel string) bool) []json.RawMessage {
	start, _ := slices.BinarySearchFunc(h.replay, seq+1, func(rec *record, seq int64) int {
		return cmp.Compare(rec.seq, seq)
	})
	missed := []json.RawMessage{}
	for _, rec := range h.replay[start:] {
		if c.subs[rec.channel] != nil && wanted(rec.channel) && c.offer.takes(rec.kind) {
			missed = append(missed, rec.as(c.offer).params)
		}
	}
	return missed
}

func actionType(action json.RawMessage) string {
	var fields message
	var kind string
	if json.Unmarshal(action, &fields) == nil {
		json.Unmarshal(fields["type"], &kind)
	}
	return kind
}

// family returns the part of an action's type before the slash.
func family(kind string) string {
	name, _, _ := strings.Cut(kind, "/")
	return name
}
