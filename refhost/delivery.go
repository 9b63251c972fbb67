package refhost

import (
	"encoding/json"
	"time"
)

// A subscription is what one connection asked for on one channel.
type subscription struct {
	channel    string
	maxLatency time.Duration // 0: no coalescing
	frames     *frameWindow  // nil: plain action notifications
}

// deliverLocked sends an action the way the subscriber asked for.
func (c *conn) deliverLocked(sub *subscription, rec *record) {
	switch {
	case sub.frames != nil:
		c.frameLocked(sub, rec)
	case sub.maxLatency > 0 && rec.delta != nil:
		c.holdLocked(sub, rec)
	default:
		c.queueLocked(rec.frame)
	}
}

// A heldDelta is a chat/delta that waits for more of the same part. Whatever
// else goes to the connection goes after it, so that serverSeq keeps its order
// across channels.
type heldDelta struct {
	rec    *record
	action deltaAction // with the content of all that it stands for
	merged bool
	timer  *timer
}

// holdLocked merges a delta into the one that waits, or lets it wait.
func (c *conn) holdLocked(sub *subscription, rec *record) {
	if held := c.held; held != nil && held.rec.channel == rec.channel &&
		held.action.TurnID == rec.delta.TurnID && held.action.PartID == rec.delta.PartID {
		held.action.Content += rec.delta.Content
		held.rec = rec // the envelope is that of the latest delta
		held.merged = true
		return
	}
	c.flushHeldLocked()
	c.held = &heldDelta{rec: rec, action: *rec.delta}
	c.held.timer = c.host.afterLocked(sub.maxLatency, c.flushHeldLocked)
}

// flushHeldLocked sends the delta that waits, if there is one.
func (c *conn) flushHeldLocked() {
	held := c.held
	if held == nil {
		return
	}
	c.dropHeldLocked()
	frame := held.rec.frame
	if held.merged {
		env := held.rec.envelope
		env.action = encode(held.action)
		frame = notificationFrame("action", env.encode(held.rec.seq))
	}
	c.queueLocked(frame)
}

func (c *conn) dropHeldLocked() {
	if c.held != nil {
		c.held.timer.stopLocked()
		c.held = nil
	}
}

// A frameWindow is the state of a channel that is delivered privately: as
// numbered channel/frame notifications, of which only so many may be
// unacknowledged.
type frameWindow struct {
	size    int64 // 0: any number
	sent    int64 // number of the latest frame
	acked   int64 // number of the latest frame that the client has taken
	pending []json.RawMessage
	bytes   int // in pending; bounded like the send queue
}

func (c *conn) frameLocked(sub *subscription, rec *record) {
	w := sub.frames
	w.pending = append(w.pending, rec.params)
	w.bytes += len(rec.params)
	c.pumpFramesLocked(sub)
	if w.bytes > c.host.cfg.SendQueue {
		c.end(errSlow)
	}
}

// pumpFramesLocked sends what waits on the channel as one frame, if the window
// is open.
func (c *conn) pumpFramesLocked(sub *subscription) {
	w := sub.frames
	if len(w.pending) == 0 || w.size > 0 && w.sent-w.acked >= w.size {
		return
	}
	w.sent++
	c.queueLocked(notificationFrame("channel/frame", encode(struct {
		Channel string            `json:"channel"`
		Frame   int64             `json:"frame"`
		Actions []json.RawMessage `json:"actions"`
	}{sub.channel, w.sent, w.pending})))
	w.pending, w.bytes = nil, 0
}

// channelAck is the params of the notification with which a client takes
// frames, and all before them.
type channelAck struct {
	Channel string `json:"channel"`
	Frame   int64  `json:"frame"`
}

func (c *conn) ackFrameLocked(raw json.RawMessage) {
	ack, err := decodeParams[channelAck](raw)
	if err != nil {
		return
	}
	sub := c.subs[ack.Channel]
	if sub == nil || sub.frames == nil || ack.Frame > sub.frames.sent {
		return
	}
	sub.frames.acked = max(sub.frames.acked, ack.Frame)
	c.pumpFramesLocked(sub)
}
