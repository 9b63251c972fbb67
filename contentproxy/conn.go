package contentproxy

import (
	"bytes"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Conn is one client's connection to the host. One goroutine may record the client's messages
// while another records the host's.
type Conn struct {
	host  *Host
	known *view.Host

	mu       sync.Mutex
	canvases map[string]*seen // subscribed canvases by channel
	asks     []view.Ask       // returned by the next Asks
}

// seen is this client's subscription to a canvas.
type seen struct {
	params    []byte        // parameters of the client's subscribe request; nil: unknown, so the request cannot be repeated
	described time.Time     // when the host last described the canvas on this connection
	asked     chan struct{} // closed when the pending Ask is settled; nil: none is pending
	rechecked bool          // StillShows has queried the host since described
}

// Conn returns a new connection to the host process known.
func (h *Host) Conn(known *view.Host) *Conn {
	return &Conn{host: h, known: known, canvases: map[string]*seen{}}
}

const canvasChannel = "ahp-canvas:"

func isCanvas(channel string) bool { return strings.HasPrefix(channel, canvasChannel) }

// FromClient records a message from the client.
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

// A Message is a message for the client. Bytes[From:To], if not empty, is content that other
// clients probably receive too, so its bytes can be shared.
type Message struct {
	Bytes    []byte
	From, To int
}

// FromHost records a message from the host. Through said.Edit, it replaces addresses in the message
// by minted ones (see mint). Each branch handles a kind of fact.
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
				s.described, s.rechecked = time.Now(), false
			}
			c.mint(said, f)
		case view.CanvasChanges, view.CanvasSource:
			c.mint(said, f)
		case view.Lists:
			if f.Thing == view.CanvasRef {
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

// mint replaces the url and contentUri in a canvas's state or in a change by minted addresses, if
// the proxy serves them (see loopback). It leaves an address that a client may have made up, unless
// the host's own action contains it (see mayBeClients).
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

// Answer handles the host's response to a client's request. It returns the message for the client
// or, if the host does not serve this kind of read, the read that the caller must serve instead.
// said is the parsed response.
func (c *Conn) Answer(message []byte, env *ahp.Envelope, said *view.Reading) (Message, *Read) {
	if said == nil || said.Call.URI == "" || said.Call.Method != "canvasReadResource" && said.Call.Method != "resourceRead" {
		return Message{Bytes: message}, nil
	}
	if env.Error != nil && !c.host.cfg.Off && unserved(&said.Call, env.Error) {
		return Message{}, &Read{conn: c, id: bytes.Clone(env.ID), of: said.Call}
	}
	return withContent(message), nil
}

// each calls f for each element of a JSON array, with the element's offset in the message. at is
// the offset of the array's parent.
func each(array *ahp.Member, at int, f func(raw []byte, at int)) {
	for _, e := range ahp.ElementsOf(array.Raw) {
		f(e.Raw, at+array.Offset()+e.Offset())
	}
}
