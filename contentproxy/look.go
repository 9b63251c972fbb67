package contentproxy

import (
	"context"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Look is at a canvas that a client is shown as a page of its own: whether it
// still is, and where its content is.
type Look struct {
	conn              *Conn
	channel, instance string
	since             time.Time
	asked             <-chan struct{} // closed when the host has said more; nil: it need not be asked
}

// Look looks at an instance of a canvas. What the host has said within the given
// time will do; asks is what it is to be asked.
func (c *Conn) Look(channel, instance string, fresh time.Duration) (l *Look, asks []view.Ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l = &Look{conn: c, channel: channel, instance: instance, since: time.Now().Add(-fresh)}
	if s := c.canvases[channel]; s != nil && s.stale(l.since) {
		l.asked = c.ask(channel, s)
	}
	return l, c.takeAsks()
}

// Fresh is for how long what the host has said of a canvas will do for a request.
const Fresh = fresh

// Place waits until the host has said what it was asked, and returns where the
// canvas's content is, or why the client is not shown it.
func (l *Look) Place(ctx context.Context) (Place, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if l.asked != nil {
		select {
		case <-l.asked:
		case <-ctx.Done():
			return Place{}, refuse(ahp.CodeNotFound, "the host does not say what the canvas is")
		}
	}
	c := l.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	from, no := c.shows(l.channel, l.instance, l.since)
	if no != nil {
		return Place{}, no
	}
	if c.host.cfg.Off {
		from = origin{}
	}
	return Place{from}, nil
}

// keptFor is how long what the host has said of a canvas holds while a client is
// shown it all the time.
const keptFor = 10 * time.Second

// StillShows reports whether the client is subscribed to a canvas, and if so
// whether it is still shown that instance of it, as far as is known now. Asks is
// what the host is to be asked, so that more is known the next time.
func (c *Conn) StillShows(channel, instance string) (subscribed, shown bool, asks []view.Ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.canvases[channel]
	canvas, _ := c.known.Canvas(channel)
	switch {
	case s == nil:
		return false, false, nil
	case canvas.Closed || canvas.Instance != instance:
		return true, false, nil
	case s.asked != nil || !s.stale(time.Now().Add(-keptFor)):
		return true, true, nil
	case s.vain:
		return true, false, nil
	}
	c.ask(channel, s)
	s.vain = true
	return true, true, c.takeAsks()
}

// Views returns the canvases that the client is subscribed to.
func (c *Conn) Views() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for channel := range c.canvases {
		list = append(list, channel)
	}
	return list
}

// Code is the JSON-RPC code of an error of this package, 0 if it has none.
func Code(err error) int {
	if no, ok := err.(*refusal); ok {
		return no.code
	}
	return 0
}

// A Place is where the content of a canvas is: at an origin on the host's loopback
// interface, or, if it is the zero Place, with the host itself.
type Place struct{ at origin }

// AtHost reports whether the host itself is to be asked for the content.
func (p Place) AtHost() bool { return p.at == origin{} }
