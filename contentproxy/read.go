package contentproxy

import (
	"context"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Read is a request that is served here because the host does not serve it.
type Read struct {
	conn  *Conn
	id    []byte
	of    view.Call
	since time.Time         // older descriptions of canvases are invalid
	asked []<-chan struct{} // closed by the host's answers
}

// Asks returns the requests for the host before the read is answered. The caller calls
// it once, at the read's turn.
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

// unserved reports whether an error means that the host does not serve such reads. A
// host serves resourceRead but does not know minted addresses, so only its
// prohibitions stand.
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

// mayBeOf returns the channels that a read may concern: the named canvas, or the
// canvases that have or may have the instance.
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
		no = refuse(ahp.CodeNotFound, "the canvas has no content available here")
	}
	return at, from, no
}

// shows returns the origin of a canvas's content, or the reason why the client may not
// see the instance according to the host's descriptions since the given time. The zero
// origin means the AHP host itself.
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

// byInstance returns the channel of the canvas with an instance, "" if the client is
// not subscribed to it.
func (c *Conn) byInstance(instance string) string {
	for channel := range c.canvases {
		if canvas, _ := c.known.Canvas(channel); canvas.Instance == instance {
			return channel
		}
	}
	return ""
}

// Answer reads the content at the client's turn (package fair), and returns the
// response.
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

// wait waits for the host's answers, and reports whether they came.
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

// TooMany returns the response that refuses the read because the client has too many
// pending reads.
func (r *Read) TooMany() Message {
	return r.failed(refuse(ahp.CodeRateLimited, "too many concurrent reads of canvas content"))
}

func (r *Read) failed(no *refusal) Message {
	return Message{Bytes: ahp.AppendError(nil, r.id, no.code, no.message, nil)}
}

// result formats the content as the method's result.
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
