package contentproxy

import (
	"time"

	"ahprelay/ahp/view"
)

// The host's states show what a canvas is, and whether this client may still see it. A
// client that is not subscribed to the canvas's session does not learn when the canvas
// closes, and a replay after reconnect omits unchanged canvases. So before a read is
// served, the host is asked again unless it has described the canvas recently: with
// the client's own subscribe on its connection, which changes nothing for a subscribed
// client.

const (
	// fresh is how long the host's description of a canvas is valid.
	fresh = 2 * time.Second

	// askTimeout bounds the host's answer.
	askTimeout = 10 * time.Second

	// maxAsked bounds the canvases that the host is asked about at once when a client
	// reconnects. For other canvases it is asked when they are read.
	maxAsked = 16
)

// Asks returns the requests for the host after one of its answers. The answers go to
// FromHost, like answers to the client. Afterwards, or if a request is not sent, the
// caller calls Settle.
func (c *Conn) Asks() []view.Ask {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takeAsks()
}

func (c *Conn) takeAsks() []view.Ask {
	asks := c.asks
	c.asks = nil
	return asks
}

// Settle records that the host has answered a [view.Ask], or will not. Requests about
// channels other than canvases are ignored.
func (c *Conn) Settle(a view.Ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(a.Channel)
}

func (c *Conn) settle(channel string) {
	if s := c.canvases[channel]; s != nil && s.asked != nil {
		close(s.asked)
		s.asked = nil
	}
}

// End records that the connection has ended: its subscriptions are gone, and pending
// requests will not be answered.
func (c *Conn) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for channel := range c.canvases {
		c.settle(channel)
	}
	clear(c.canvases)
}

// ask requests a canvas's state from the host. The returned channel is closed by the
// answer.
func (c *Conn) ask(channel string, s *seen) <-chan struct{} {
	if s.asked == nil {
		s.asked = make(chan struct{})
		c.asks = append(c.asks, view.Ask{Channel: channel, Params: s.params})
	}
	return s.asked
}

// askUnknown requests the state of unknown canvases.
func (c *Conn) askUnknown(channels []string) {
	for _, channel := range channels {
		s := c.canvases[channel]
		if _, known := c.known.Canvas(channel); s != nil && !known && s.params != nil && len(c.asks) < maxAsked {
			c.ask(channel, s)
		}
	}
}

// stale reports whether the host's latest description of a canvas is older than since.
func (s *seen) stale(since time.Time) bool { return s.params != nil && s.described.Before(since) }
