package contentproxy

import (
	"context"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Read is a request that is served here because the host does not.
type Read struct {
	conn  *Conn
	id    []byte
	of    view.Call
	since time.Time         // what the host has said of canvases before then is too old
	asked []<-chan struct{} // closed when it has said more
}

// Asks returns what the host is to be asked before the read is answered. It is
// called once, when it is the read's turn.
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

// unserved reports whether an error says that the host does not serve such
// reads. resourceRead it does serve, but knows nothing of minted addresses: only
// what it forbids stays forbidden.
func unserved(call *view.Call, failure []byte) bool {
	m := [...]ahp.Member{{Name: "code"}}
	if ahp.Members(failure, m[:]) != nil {
		return false
	}
	code := string(m[0].Raw)
	if call.Method == "resourceRead" {
		return strings.HasPrefix(call.URI, Scheme+":") && code != "-32009" && code != "-32007"
	}
	return code == "-32601"
}

// mayBeOf returns the channels of the canvases that a read may be of: that
// which it names, or those that have the instance, or may have it.
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

// allow checks a read (Canvas proposal, §8).
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
		no = refuse(ahp.CodeNotFound, "the canvas has no content that can be read here")
	}
	return at, from, no
}

// shows reports why the client is not shown an instance of a canvas, as the host
// has said since then, or where its content is: nowhere, if the host itself is to
// be asked for it.
func (c *Conn) shows(channel, instance string, since time.Time) (origin, *refusal) {
	s := c.canvases[channel]
	canvas, _ := c.known.Canvas(channel)
	switch {
	case s == nil:
		return origin{}, refuse(ahp.CodePermissionDenied, "the client is not subscribed to that canvas")
	case canvas.Closed:
		return origin{}, refuse(ahp.CodeNotFound, "the canvas is closed")
	case s.stale(since):
		return origin{}, refuse(ahp.CodeNotFound, "the host does not show the client that canvas any more")
	case canvas.Instance != instance:
		return origin{}, refuse(ahp.CodeInvalidParams, "the address is of another instance than the channel")
	}
	return c.host.origin(c.known, channel, canvas), nil
}

// byInstance returns the channel of the canvas with an instance, "" if the client
// is subscribed to none.
func (c *Conn) byInstance(instance string) string {
	for channel := range c.canvases {
		if canvas, _ := c.known.Canvas(channel); canvas.Instance == instance {
			return channel
		}
	}
	return ""
}

// Answer reads the content, and returns the response for the client, when it is
// this client's turn: see package fair.
func (r *Read) Answer(ctx context.Context) Message {
	if !r.wait(ctx) {
		return r.failed(refuse(ahp.CodeNotFound, "the host does not say what the canvas is: no answer within %v", askTimeout))
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

// wait waits until the host has said what the canvases are that it was asked
// of, and reports whether it has.
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

// TooMany returns the response that refuses the read because others of the
// client are under way.
func (r *Read) TooMany() Message {
	return r.failed(refuse(ahp.CodeRateLimited, "too many reads of canvas content at a time"))
}

func (r *Read) failed(no *refusal) Message {
	return Message{Bytes: ahp.AppendError(nil, r.id, no.code, no.message, nil)}
}

// result puts the content into the form of the method's result.
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
