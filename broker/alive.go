package broker

import (
	"context"
	"net"
	"time"

	"ahprelay/ahp"
)

// A line is a network connection of a Conn, and how to ask the other side for a sign of
// life.
type line struct {
	*netConn
	ask   func(ctx context.Context) error // returns when it has answered, or the connection ends
	relay string                          // where it ends; "": not known
}

// Relay returns the instance of the relay whose port the connection goes through, "" if that
// is not known.
func (c *Conn) Relay() string {
	if l := c.line.Load(); l != nil && ahp.CheckName("relay", l.relay) == nil {
		return l.relay
	}
	return ""
}

// dialled notes the connection that is being made.
func (c *Conn) dialled(conn net.Conn) {
	switch conn := conn.(type) {
	case *netConn:
		c.line.Store(&line{netConn: conn, ask: func(context.Context) error { return c.nc.FlushTimeout(idleTimeout - askAfter) }})
	case *wsConn:
		// The relay answers where it takes the WebSocket: NATS hears nothing of it.
		c.line.Store(&line{netConn: conn.below, ask: conn.ws.Ping, relay: conn.relay})
	}
}

// askWhenSilent asks the other side for a sign of life whenever none has arrived for a
// while, until ctx ends.
func (c *Conn) askWhenSilent(ctx context.Context) {
	timer := time.NewTimer(askAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(c.askIfSilent(ctx))
		}
	}
}

// askIfSilent asks, if it is time to, and returns when to look again.
func (c *Conn) askIfSilent(ctx context.Context) time.Duration {
	l := c.line.Load()
	if l == nil || !l.live.Load() || !c.online.Load() {
		return askAfter
	}
	if rest := askAfter - l.silent(); rest > 0 {
		return rest
	}
	_ = l.ask(ctx) // without an answer the connection ends after idleTimeout
	return max(askAfter-l.silent(), time.Second)
}
