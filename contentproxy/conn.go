package contentproxy

import (
	"bytes"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Conn is one client's connection to the host. One goroutine may show it
// what the client sends while another shows it what the host says.
type Conn struct {
	host  *Host
	known *view.Host

	mu       sync.Mutex
	canvases map[string]*seen // by channel; those that the client is subscribed to
	asks     []view.Ask       // to be taken by Asks
}

// seen is a canvas as this client sees it.
type seen struct {
	params []byte        // with which the client has subscribed; nil: the host may not be asked with these
	told   time.Time     // when the host has last said here what the canvas is
	asked  chan struct{} // closed when the host has answered an Ask; nil: it is not being asked
	vain   bool          // and it has been asked since told, by StillShows
}

// Conn returns a connection that has seen nothing yet, to a host process of
// which something may be known.
func (h *Host) Conn(known *view.Host) *Conn {
	return &Conn{host: h, known: known, canvases: map[string]*seen{}}
}

// Canvas channels begin with this.
const canvasChannel = "ahp-canvas:"

func isCanvas(channel string) bool { return strings.HasPrefix(channel, canvasChannel) }

// FromClient takes note of a message of the client's.
func (c *Conn) FromClient(env *ahp.Envelope) {
	if channel := string(env.Channel); isCanvas(channel) {
		switch string(env.Method) {
		case "dispatchAction":
			c.host.claimed(c.known, env)
		case "unsubscribe":
			c.mu.Lock()
			defer c.mu.Unlock()
			c.settle(channel)
			delete(c.canvases, channel)
		}
	}
}

// A Message is for the client. Its Bytes from From to To, if there are any, are
// content, which is likely to be the same for others.
type Message struct {
	Bytes    []byte
	From, To int
}

// FromHost takes what a message of the host's says, and mints addresses in it.
func (c *Conn) FromHost(said *view.Reading) {
	if said == nil || len(said.Granted)+len(said.Facts) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, channel := range said.Granted {
		if isCanvas(channel) && c.canvases[channel] == nil && len(c.canvases) < maxCanvases {
			c.canvases[channel] = &seen{params: view.PlainSubscribe(channel)}
		}
	}
	for i := range said.Facts {
		switch f := &said.Facts[i]; f.Kind {
		case view.CanvasIs:
			if s := c.canvases[f.Of]; s != nil {
				s.told, s.vain = time.Now(), false
			}
			c.mint(said, f)
		case view.CanvasChanges, view.CanvasSource:
			c.mint(said, f)
		case view.Lists:
			if f.What == view.CanvasRef {
				c.host.closed(c.known)
			}
		}
	}
	if s := c.canvases[said.Call.Channel]; s != nil && said.Call.Method == "subscribe" {
		s.params = said.Call.Params
	}
	if said.Call.Method == "reconnect" && !c.host.cfg.Off {
		c.askUnknown(said.Granted)
	}
}

// mint looks at the url and contentUri of a canvas's state, or of a change of
// it.
func (c *Conn) mint(said *view.Reading, f *view.Fact) {
	m := [...]ahp.Member{{Name: "url"}, {Name: "contentUri"}}
	if c.host.cfg.Off || ahp.Members(f.Raw, m[:]) != nil {
		return
	}
	canvas, _ := c.known.Canvas(f.Of)
	for i := range m {
		text, _ := ahp.Text(m[i].Raw)
		o, u, ok := c.host.loopback(canvas, text)
		if !ok || !f.Own && c.host.mayBeClients(c.known, f.Of, o) {
			continue
		}
		if f.At >= 0 {
			at := f.At + m[i].Offset()
			said.Edit.Replace(view.Place{At: at, End: at + len(m[i].Raw)}, quote(mint(canvas.Instance, u)))
		}
		c.host.vouch(c.known, f.Of, o)
	}
}

// Answer returns what the client gets for an answer to a request of its own
// that the host has given: the message, or the read that is to be served in its
// place. Said is what it says.
func (c *Conn) Answer(message []byte, env *ahp.Envelope, said *view.Reading) (Message, *Read) {
	if said == nil || said.Call.URI == "" || said.Call.Method != "canvasReadResource" && said.Call.Method != "resourceRead" {
		return Message{Bytes: message}, nil
	}
	if env.Error != nil && !c.host.cfg.Off && unserved(&said.Call, env.Error) {
		return Message{}, &Read{conn: c, id: bytes.Clone(env.ID), of: said.Call}
	}
	return withContent(message), nil
}

// each calls f with each element of an array.
func each(array *ahp.Member, at int, f func(raw []byte, at int)) {
	for _, e := range ahp.ElementsOf(array.Raw) {
		f(e.Raw, at+array.Offset()+e.Offset())
	}
}
