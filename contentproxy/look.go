package contentproxy

import (
	"context"
	"maps"
	"slices"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Look checks a canvas that a browser shows as a page of its own: whether the client may still
// see the canvas, and where its content is.
type Look struct {
	conn              *Conn
	channel, instance string
	since             time.Time
	asked             <-chan struct{} // closed when the query is settled; nil: none is needed
}

// Look begins a check. The host's description of the canvas is valid if it is younger than fresh;
// otherwise the host is queried. The caller sends asks to the host.
func (c *Conn) Look(channel, instance string, fresh time.Duration) (l *Look, asks []view.Ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l = &Look{conn: c, channel: channel, instance: instance, since: time.Now().Add(-fresh)}
	if s := c.canvases[channel]; s != nil && s.stale(l.since) {
		l.asked = c.ask(channel, s)
	}
	return l, c.takeAsks()
}

// Fresh is the longest age of a valid description when a page is requested.
const Fresh = fresh

// Place waits for the host's answer, at most askTimeout, and returns the place of the canvas's
// content. The error is the reason why the client may not see the canvas.
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

// keptFor is the longest age of a valid description while a browser keeps a page open.
const keptFor = 10 * time.Second

// StillShows reports whether the client is subscribed to a canvas, and whether the client may still
// see the instance according to the host's last description. If that description is older than
// keptFor, asks contains a query for the host. If the query ends without a new description, the
// next call returns false for shown.
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

// Views returns the channels of the canvases to which the client is subscribed.
func (c *Conn) Views() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.canvases))
}

// Code returns the JSON-RPC error code of an error from this package, or 0.
func Code(err error) int {
	if no, ok := err.(*refusal); ok {
		return no.code
	}
	return 0
}

// A Place is the source of a canvas's content: a web server or an allowed folder. The zero Place
// means that the AHP host serves the content.
type Place struct{ at origin }

// AtHost reports whether the AHP host serves the content.
func (p Place) AtHost() bool { return p.at == origin{} }
