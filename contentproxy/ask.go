package contentproxy

import (
	"time"

	"ahprelay/ahp/view"
)

// What a canvas is, and whether it is still there for this client, the host says
// in its state. Who is not subscribed to the canvas's session is not told when it
// closes; and to who resumes with a replay the host says nothing of a canvas that
// has not changed. So before a read is served, the host is asked again, if it has
// said nothing of late: with the client's own subscribe, on its connection, which
// changes nothing where the client is subscribed already.

const (
	// fresh is for how long what the host has said of a canvas holds.
	fresh = 2 * time.Second

	// askTimeout is how long the host may take to say it.
	askTimeout = 10 * time.Second

	// maxAsked is of how many canvases the host is asked at once when a client
	// comes again. Of others it is when they are read.
	maxAsked = 16
)

// Asks returns what the host is to be asked after an answer of its own. The answer is
// shown to FromHost, like those that the client has asked for. Then, or if the host is not
// asked, Settle is called.
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

// Settle notes that the host has answered an [view.Ask], or will not. Those about other
// channels than canvases are nothing to this package.
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

// End notes that the connection has ended: the client is not subscribed to anything
// on it, and nobody waits for what the host was asked on it.
func (c *Conn) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for channel := range c.canvases {
		c.settle(channel)
	}
	clear(c.canvases)
}

// ask has the host asked about a canvas. It returns what is closed when it has
// answered.
func (c *Conn) ask(channel string, s *seen) <-chan struct{} {
	if s.asked == nil {
		s.asked = make(chan struct{})
		c.asks = append(c.asks, view.Ask{Channel: channel, Params: s.params})
	}
	return s.asked
}

// askUnknown has the host asked about those of the canvases of which nothing is
// known.
func (c *Conn) askUnknown(channels []string) {
	for _, channel := range channels {
		s := c.canvases[channel]
		if _, known := c.known.Canvas(channel); s != nil && !known && s.params != nil && len(c.asks) < maxAsked {
			c.ask(channel, s)
		}
	}
}

// stale reports whether what the host has said of a canvas since then will not
// do.
func (s *seen) stale(since time.Time) bool { return s.params != nil && s.told.Before(since) }
