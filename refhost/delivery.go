package refhost

import "time"

// A subscription is what one connection asked for on one channel.
type subscription struct {
	channel    string
	maxLatency time.Duration // 0: no coalescing
	window     *window       // nil: plain action notifications
}

// deliverLocked sends an action the way the subscriber asked for.
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
