package contentproxy

import (
	"time"

	"ahprelay/ahp/view"
)

// A read is served only if the host has recently described the canvas on this connection. Such a
// description proves that the canvas is still open and that the client may still see it. But hosts
// do not report a closed canvas to clients that are not subscribed to its session, and a replay
// after a reconnect omits unchanged canvases. If the description is too old, the host-agent
// therefore repeats the client's own subscribe request on the client's connection. For a client
// that is already subscribed, the host treats this request as a query.

const (
	// fresh is how long a description is valid.
	fresh = 2 * time.Second

	// askTimeout limits the wait for the host's answer.
	askTimeout = 10 * time.Second

	// maxAsked is the number of canvases that are queried at once when a client reconnects. Further
	// canvases are queried when the client reads them.
	maxAsked = 16
)

// Asks returns the queries that the caller must send to the host. The caller calls Asks after each
// response of the host. It passes the host's responses to the queries to FromHost, and then calls
// Settle. If it cannot send a query, it calls Settle at once.
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

// Settle ends the wait for a query, with or without an answer. It ignores channels other than
// canvases.
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

// End ends a connection: it removes the client's subscriptions and unblocks all waiting reads.
func (c *Conn) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for channel := range c.canvases {
		c.settle(channel)
	}
	clear(c.canvases)
}

// ask queues a query for a canvas, and returns a channel that is closed when the query is settled.
func (c *Conn) ask(channel string, s *seen) <-chan struct{} {
	if s.asked == nil {
		s.asked = make(chan struct{})
		c.asks = append(c.asks, view.Ask{Channel: channel, Params: s.params})
	}
	return s.asked
}

// askUnknown queues queries for canvases that the host has not described yet, up to maxAsked.
func (c *Conn) askUnknown(channels []string) {
	for _, channel := range channels {
		s := c.canvases[channel]
		if _, known := c.known.Canvas(channel); s != nil && !known && s.params != nil && len(c.asks) < maxAsked {
			c.ask(channel, s)
		}
	}
}

// stale reports whether the host can be queried about a canvas and last described it before since.
func (s *seen) stale(since time.Time) bool { return s.params != nil && s.described.Before(since) }
