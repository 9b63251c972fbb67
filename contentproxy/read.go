package contentproxy

import (
	"context"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Read is a client's read request that this package answers because the host does not.
type Read struct {
	conn  *Conn
	id    []byte
	of    view.Call
	since time.Time         // older descriptions of canvases are invalid
	asked []<-chan struct{} // closed when the queries are settled
}

// Asks returns queries to send to the host before the read is answered. The caller calls it once,
// when it is this read's turn.
func (r *Read) Asks() []view.Ask {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	r.since = time.Now().Add(-fresh)
	for _, channel := range c.mayBeOf(&r.of) {
		if s := c.canvases[channel]; s.stale(r.since) {
			r.asked = append(r.asked, c.ask(channel, s))
		}
	}
	return c.takeAsks()
}

// unserved reports whether the host's error means that this package should serve the read. For
// canvasReadResource, only -32601 does. For resourceRead of a minted address, all errors do except
// -32009 and -32007: a host may implement resourceRead without knowing minted addresses.
func unserved(call *view.Call, failure []byte) bool {
	m := [...]ahp.Member{{Name: "code"}}
	if ahp.Members(failure, m[:]) != nil {
		return false
	}
	code := ahp.IntegerOf(m[0].Raw) // a host may write -32601.0
	if call.Method == "resourceRead" {
		return strings.HasPrefix(call.URI, Scheme+":") && code != ahp.CodePermissionDenied && code != ahp.CodeAuthRequired
	}
	return code == ahp.CodeMethodNotFound
}

// mayBeOf returns the canvases that a read may concern. For resourceRead, which names no channel,
// this is the canvas with the instance in the address or, if there is none, all canvases without a
// known instance.
func (c *Conn) mayBeOf(call *view.Call) (list []string) {
	if call.Method != "resourceRead" {
		if c.canvases[call.Channel] != nil {
			list = append(list, call.Channel)
		}
		return list
	}
	at, err := ParseAddress(call.URI)
	if err != nil {
		return nil
	}
	var unknown []string
	for channel := range c.canvases {
		switch canvas, _ := c.known.Canvas(channel); canvas.Instance {
		case at.Instance:
			return []string{channel}
		case "":
			unknown = append(unknown, channel)
		}
	}
	return unknown
}

// allow checks whether the client may read the content (Canvas proposal, §8).
func (r *Read) allow() (Address, origin, *refusal) {
	c, call := r.conn, &r.of
	at, err := ParseAddress(call.URI)
	if err != nil {
		return at, origin{}, refuse(ahp.CodeInvalidParams, "%v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	channel := call.Channel
	if call.Method == "resourceRead" { // its channel is the root
		channel = c.byInstance(at.Instance)
	} else if !isCanvas(channel) {
		return at, origin{}, refuse(ahp.CodeInvalidParams, "channel: want %s/<id>", canvasChannel)
	}
	from, no := c.shows(channel, at.Instance, r.since)
	if no == nil && from == (origin{}) {
		no = refuse(ahp.CodeNotFound, "the canvas has no content available here")
	}
	return at, from, no
}

// shows returns the origin of a canvas's content; the zero origin means the AHP host itself. It
// refuses unless the client is subscribed and the host has described the instance since the given
// time, or cannot be queried.
func (c *Conn) shows(channel, instance string, since time.Time) (origin, *refusal) {
	s := c.canvases[channel]
	canvas, _ := c.known.Canvas(channel)
	switch {
	case s == nil:
		return origin{}, refuse(ahp.CodePermissionDenied, "the client is not subscribed to that canvas")
	case canvas.Closed:
		return origin{}, refuse(ahp.CodeNotFound, "the canvas is closed")
	case s.stale(since):
		return origin{}, refuse(ahp.CodeNotFound, "the host no longer shows that canvas to the client")
	case canvas.Instance != instance:
		return origin{}, refuse(ahp.CodeInvalidParams, "the address names a different instance than the channel")
	}
	return c.host.origin(c.known, channel, canvas), nil
}

// byInstance returns the channel of the client's canvas with the given instance, or "".
func (c *Conn) byInstance(instance string) string {
	for channel := range c.canvases {
		if canvas, _ := c.known.Canvas(channel); canvas.Instance == instance {
			return channel
		}
	}
	return ""
}

// Answer reads the content, after waiting for its turn (package fair), and returns the response.
func (r *Read) Answer(ctx context.Context) Message {
	if !r.wait(ctx) {
		return r.failed(refuse(ahp.CodeNotFound, "no answer from the host about the canvas within %v", askTimeout))
	}
	at, from, no := r.allow()
	if no != nil {
		return r.failed(no)
	}
	c, no := r.conn.host.fetcher.read(ctx, r.conn, from, at)
	if no != nil {
		return r.failed(no)
	}
	return withContent(ahp.AppendResult(nil, r.id, r.result(c)))
}

// wait waits until all queries are settled. It returns false on timeout, or if ctx ends.
func (r *Read) wait(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, asked := range r.asked {
		select {
		case <-asked:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// TooMany returns an error response for a client with too many pending reads.
func (r *Read) TooMany() Message {
	return r.failed(refuse(ahp.CodeRateLimited, "too many concurrent reads of canvas content"))
}

func (r *Read) failed(no *refusal) Message {
	return Message{Bytes: ahp.AppendError(nil, r.id, no.code, no.message, nil)}
}

// result formats content as the result of the read's method.
func (r *Read) result(c *content) []byte {
	if r.of.Method == "resourceRead" {
		encoding := `"base64"`
		if c.text {
			encoding = `"utf-8"`
		}
		return slices.Concat([]byte(`{"data":`), c.data, []byte(`,"encoding":`+encoding+`,"contentType":`), c.mimeType, []byte("}"))
	}
	key := `,"blob":`
	if c.text {
		key = `,"text":`
	}
	return slices.Concat([]byte(`{"contents":[{"uri":`), quote(r.of.URI), []byte(`,"mimeType":`), c.mimeType, []byte(key), c.data, []byte("}]}"))
}
