package contentproxy

import (
	"context"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Look is a check of a canvas that a client sees as a separate page: whether the
// client may still see it, and where its content is.
type Look struct {
	conn              *Conn
	channel, instance string
	since             time.Time
	asked             <-chan struct{} // closed by the host's answer; nil: none is needed
}

// Look begins the check of a canvas instance. A description from the host is valid if
// it is younger than fresh; asks are requests for the host.
func (c *Conn) Look(channel, instance string, fresh time.Duration) (l *Look, asks []view.Ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l = &Look{conn: c, channel: channel, instance: instance, since: time.Now().Add(-fresh)}
	if s := c.canvases[channel]; s != nil && s.stale(l.since) {
		l.asked = c.ask(channel, s)
	}
	return l, c.takeAsks()
}

// Fresh is the longest age of a valid description for a request.
const Fresh = fresh

// Place waits for the host's answer, and returns the place of the canvas's content, or
// the reason why the client may not see it.
func (l *Look) Place(ctx context.Context) (Place, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if l.asked != nil {
		select {
		case <-l.asked:
		case <-ctx.Done():
			return Place{}, refuse(ahp.CodeNotFound, "no answer from the host about the canvas")
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

// keptFor is how long a description from the host is valid while a client continuously
// sees the canvas.
const keptFor = 10 * time.Second

// StillShows reports whether the client is subscribed to a canvas, and if so, whether
// it may still see that instance as far as known. Asks are requests for the host, for
// the next call's sake.
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
	case s.rechecked:
		return true, false, nil
	}
	c.ask(channel, s)
	s.rechecked = true
	return true, true, c.takeAsks()
}

// Views returns the client's subscribed canvases.
func (c *Conn) Views() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for channel := range c.canvases {
		list = append(list, channel)
	}
	return list
}

// Code returns the JSON-RPC code of an error from this package, 0 if it has none.
func Code(err error) int {
	if no, ok := err.(*refusal); ok {
		return no.code
	}
	return 0
}

// A Place is an origin on the host's loopback interface with a canvas's content. The
// zero Place means the AHP host itself.
type Place struct{ at origin }

// AtHost reports whether the AHP host itself serves the content.
func (p Place) AtHost() bool { return p.at == origin{} }
