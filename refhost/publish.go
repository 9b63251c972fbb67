package refhost

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// rootChannel is the channel of the connection itself and of the session list.
const rootChannel = "ahp-root://"

// An origin tells which client dispatched an action.
type origin struct {
	ClientID  string          `json:"clientId"`
	ClientSeq json.RawMessage `json:"clientSeq,omitempty"` // as it came
}

// An envelope is an action on its way to the clients.
type envelope struct {
	channel  string
	action   json.RawMessage // compact
	kind     string          // the action's type
	origin   *origin         // nil: the host's own
	rejected string          // why the host rejects it; "" if it does not
}

// encode returns the params of the action notification.
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

// A record is an envelope as it was published. Its bytes are encoded once and
// shared by all who get them.
type record struct {
	envelope
	seq    int64
	params json.RawMessage // the encoded envelope
	frame  []byte          // the encoded notification
	delta  *deltaAction    // the action, where it can be coalesced

	// For clients without mcpApps, where they get something else: the same
	// number with another action.
	plain *record
}

// as returns the record as a client that made this offer gets it.
func (rec *record) as(o offer) *record {
	if rec.plain != nil && !o.mcpApps {
		return rec.plain
	}
	return rec
}

// own is the envelope of an action that the host makes: one of the structs of
// this package, whose first field is its type.
func own(channel string, action any) envelope {
	raw := encode(action)
	kind, _, _ := bytes.Cut(bytes.TrimPrefix(raw, []byte(`{"type":"`)), []byte(`"`))
	return envelope{channel: channel, action: raw, kind: string(kind)}
}

// emitLocked publishes an action of the host's own.
func (h *Host) emitLocked(channel string, action any) {
	h.publishLocked(own(channel, action), action)
}

// emitVariantsLocked publishes an action of the host's own, and another in its
// place for clients without mcpApps; nil for the same.
func (h *Host) emitVariantsLocked(channel string, action, plain any) {
	rec := &record{envelope: own(channel, action)}
	if plain != nil {
		rec.plain = &record{envelope: own(channel, plain)}
	}
	h.publishRecordLocked(rec)
}

// publishLocked numbers the envelope, keeps it for replays, and sends it to
// every subscriber. The action is given again unencoded where the host made it.
func (h *Host) publishLocked(env envelope, action any) {
	rec := &record{envelope: env}
	if delta, ok := action.(deltaAction); ok {
		rec.delta = &delta
	}
	h.publishRecordLocked(rec)
}

func (h *Host) publishRecordLocked(rec *record) {
	h.seq++
	rec.number(h.seq)
	if rec.plain != nil {
		rec.plain.number(h.seq)
	}
	h.replay = append(h.replay, rec)
	if excess := len(h.replay) - h.cfg.ReplayBuffer; excess > 0 {
		clear(h.replay[:excess])
		h.replay = h.replay[excess:]
	}
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

// number encodes the record.
func (rec *record) number(seq int64) {
	rec.seq, rec.params = seq, rec.encode(seq)
	rec.frame = notificationFrame("action", rec.params)
}

// notifyAllLocked sends a notification to every initialized client, subscribed
// or not. It has no serverSeq, and is never replayed.
func (h *Host) notifyAllLocked(method string, params any) {
	frame := notificationFrame(method, encode(params))
	for _, cl := range h.clients {
		if c := cl.newest(); c != nil {
			c.queueLocked(frame)
		}
	}
}

// notifyEachLocked is notifyAllLocked for what differs by a client's offer; nil
// is not sent.
func (h *Host) notifyEachLocked(method string, params func(offer) any) {
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

// canReplayLocked reports whether a client that has seen everything up to seq
// can be brought up to date from the buffer.
func (h *Host) canReplayLocked(seq int64) bool {
	if len(h.replay) == 0 {
		return seq >= h.seq
	}
	return seq >= h.replay[0].seq
}

// replayLocked returns the envelopes after seq that c would have been sent, of
// the channels that are wanted.
func (h *Host) replayLocked(c *conn, seq int64, wanted func(channel string) bool) []json.RawMessage {
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

// actionType reads the type of an encoded action.
func actionType(action json.RawMessage) string {
	var fields message
	var kind string
	if json.Unmarshal(action, &fields) == nil {
		json.Unmarshal(fields["type"], &kind)
	}
	return kind
}

// family returns what stands before the slash of an action's type.
func family(kind string) string {
	name, _, _ := strings.Cut(kind, "/")
	return name
}
