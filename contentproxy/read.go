package contentproxy

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A Read is a request that is served here because the host does not.
type Read struct {
	conn  *Conn
	id    []byte
	of    waiting
	since time.Time         // what the host has said of canvases before then is too old
	asked []<-chan struct{} // closed when it has said more
}

// read returns what to do about the answer to a read: nil if it stands.
func (c *Conn) read(w waiting, env *ahp.Envelope) *Read {
	if w.uri == "" || env.Error == nil || c.host.cfg.Off || !c.unserved(w, env.Error) {
		return nil
	}
	return &Read{conn: c, id: bytes.Clone(env.ID), of: w}
}

// Asks returns what the host is to be asked before the read is answered. It is
// called once, when it is the read's turn.
func (r *Read) Asks() []Ask {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	r.since = time.Now().Add(-fresh)
	for _, channel := range c.mayBeOf(r.of) {
		if s := c.canvases[channel]; s.stale(r.since) {
			r.asked = append(r.asked, c.ask(channel, s))
		}
	}
	return c.takeAsks()
}

// unserved reports whether an error says that the host does not serve such
// reads. resourceRead it does serve, but knows nothing of minted addresses: only
// what it forbids stays forbidden.
func (c *Conn) unserved(w waiting, failure []byte) bool {
	m := [...]ahp.Member{{Name: "code"}}
	if ahp.Members(failure, m[:]) != nil {
		return false
	}
	code := string(m[0].Raw)
	if w.method == "resourceRead" {
		return strings.HasPrefix(w.uri, Scheme+":") && code != "-32009" && code != "-32007"
	}
	return code == "-32601"
}

// mayBeOf returns the channels of the canvases that a read may be of: that
// which it names, or those that have the instance, or may have it.
func (c *Conn) mayBeOf(w waiting) (list []string) {
	if w.method != "resourceRead" {
		if c.canvases[w.channel] != nil {
			list = append(list, w.channel)
		}
		return list
	}
	at, err := ParseAddress(w.uri)
	if err != nil {
		return nil
	}
	var unknown []string
	for channel, s := range c.canvases {
		switch s.instance {
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
	c, w := r.conn, &r.of
	at, err := ParseAddress(w.uri)
	if err != nil {
		return at, origin{}, refuse(ahp.CodeInvalidParams, "%v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.canvases[w.channel]
	if w.method == "resourceRead" { // its channel is the root
		s = c.byInstance(at.Instance)
	} else if !strings.HasPrefix(w.channel, canvasChannel) {
		return at, origin{}, refuse(ahp.CodeInvalidParams, "channel: want %s/<id>", canvasChannel)
	}
	switch {
	case s == nil:
		return at, origin{}, refuse(ahp.CodePermissionDenied, "the client is not subscribed to that canvas")
	case s.closed:
		return at, origin{}, refuse(ahp.CodeNotFound, "the canvas is closed")
	case s.stale(r.since):
		return at, origin{}, refuse(ahp.CodeNotFound, "the host does not show the client that canvas any more")
	case s.instance != at.Instance:
		return at, origin{}, refuse(ahp.CodeInvalidParams, "the address is of another instance than the channel")
	case s.origin == origin{}:
		return at, origin{}, refuse(ahp.CodeNotFound, "the canvas has no content that can be read here")
	}
	return at, s.origin, nil
}

func (c *Conn) byInstance(instance string) *seen {
	for _, s := range c.canvases {
		if s.instance == instance {
			return s
		}
	}
	return nil
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
	if r.of.method == "resourceRead" {
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
	return slices.Concat([]byte(`{"contents":[{"uri":`), quote(r.of.uri), []byte(`,"mimeType":`), c.mimeType, []byte(key), c.data, []byte("}]}"))
}
