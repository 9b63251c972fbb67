package broker

import (
	"context"
	"net"
	"time"

	"ahprelay/ahp"
)

// A line is a Conn's network connection, and the way to probe its peer.
type line struct {
	*netConn
	ask   func(ctx context.Context) error // sends a ping, and waits for the answer
	relay string                          // instance of the relay at the far end; "": unknown
}

// Relay returns the instance of the relay at the far end of the current or last connection,
// or "" if unknown.
func (c *Conn) Relay() string {
	if l := c.line.Load(); l != nil && ahp.CheckName("relay", l.relay) == nil {
		return l.relay
	}
	return ""
}

// dialled records the network connection that is being made.
func (c *Conn) dialled(conn net.Conn) {
	switch conn := conn.(type) {
	case *netConn:
		c.line.Store(&line{netConn: conn, ask: func(context.Context) error { return c.nc.FlushTimeout(answerTime) }})
	case *wsConn:
		// The relay's WebSocket layer answers, without NATS.
		c.line.Store(&line{netConn: conn.below, ask: conn.ws.Ping, relay: conn.relay})
	}
}

// askWhenSilent probes the peer whenever the connection has been silent for too long,
// until ctx ends.
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

// askIfSilent probes the peer if the connection has been silent for its patience. It
// returns the delay until the next check: at most askAfter, because a write shortens the
// patience.
func (c *Conn) askIfSilent(ctx context.Context) time.Duration {
	l := c.line.Load()
	if l == nil || !l.live.Load() || !c.online.Load() {
		return askAfter
	}
	if rest := l.patience() - l.silent(); rest > 0 {
		return min(rest, askAfter)
	}
	l.expectAnswer()
	_ = l.ask(ctx) // without an answer, the connection ends
	return max(askAfter-l.silent(), time.Second)
}
