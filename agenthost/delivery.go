package agenthost

import "time"

// A subscription holds a connection's options for a channel.
type subscription struct {
	channel    string
	maxLatency time.Duration // 0: deltas are not merged
	window     *window       // nil: plain action notifications
}

// deliverLocked sends an action according to the subscription's options.
func (c *conn) deliverLocked(sub *subscription, rec *record) {
	switch {
	case sub.window != nil:
		c.pushLocked(sub.window, string(rec.frame))
	case sub.maxLatency > 0 && rec.delta != nil:
		c.holdLocked(sub, rec)
	default:
		c.queueLocked(rec.frame)
	}
}

// A heldDelta is a chat/delta that waits to be merged with the next delta of the
// same part. All other messages for the connection are sent after it, so that
// serverSeq stays in order across channels.
type heldDelta struct {
	rec    *record
	action DeltaAction // with the merged content
	merged bool
	timer  *timer
}

// holdLocked merges a delta into the held delta, or holds it.
func (c *conn) holdLocked(sub *subscription, rec *record) {
	if held := c.held; held != nil && held.rec.channel == rec.channel &&
		held.action.TurnID == rec.delta.TurnID && held.action.PartID == rec.delta.PartID {
		held.action.Content += rec.delta.Content
		held.rec = rec // a merged delta has the envelope of the last delta in it
		held.merged = true
		return
	}
	c.flushHeldLocked()
	c.held = &heldDelta{rec: rec, action: *rec.delta}
	c.held.timer = c.host.afterLocked(sub.maxLatency, c.flushHeldLocked)
}

// flushHeldLocked sends the held delta, if any.
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
