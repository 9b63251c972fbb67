package contentproxy

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// DefaultLimit is how large a resource may be, in bytes: in base64 it fits
// into a frame of 32 MiB.
const DefaultLimit = 16 << 20

// Bounds of what is remembered.
const (
	maxCanvases = 1024 // of a connection
	maxClaims   = 4096 // canvases of which clients have said where they are
	maxPorts    = 16   // that they have said of one; with more, any port may be theirs
	maxVouched  = 1024 // what the host has said of where canvases are
)

// Config says what a [Host] may do.
type Config struct {
	Off       bool            // loopback addresses pass as they are
	DenyPorts []string        // ports of origins that are never read
	Own       func() []string // the AHP host's own, as of now, which are not either; nil: none
	Limit     int             // bytes of one resource; default DefaultLimit

	Allow    []Allowed           // origins beyond literal loopback that may be read
	Pins     [][sha256.Size]byte // of certificates that origins with TLS must have; none: as browsers want it
	Insecure bool                // certificates of origins are not looked at
}

// A Host is what the connections to one AHP host have in common.
type Host struct {
	cfg     Config
	fetcher *fetcher
	proxy   *httputil.ReverseProxy // of what is shown by URL

	mu      sync.Mutex
	claims  map[canvasKey][]string // ports that clients have said
	vouched map[claim]bool         // what the host has said before a client has
}

// A canvasKey is a canvas of a host process.
type canvasKey struct {
	of      *view.Host
	channel string
}

// A claim is a port that a canvas's content is said to be at.
type claim struct {
	canvasKey
	port string
}

// NewHost returns what connects the connections to one AHP host.
func NewHost(cfg Config) *Host {
	if cfg.Limit == 0 {
		cfg.Limit = DefaultLimit
	}
	h := &Host{cfg: cfg, claims: map[canvasKey][]string{}, vouched: map[claim]bool{}}
	h.fetcher, h.proxy = newFetcher(&h.cfg), newProxy(&h.cfg)
	return h
}

// Close ends the idle connections to origins.
func (h *Host) Close() {
	h.fetcher.client.CloseIdleConnections()
	h.proxy.Transport.(*http.Transport).CloseIdleConnections()
}

// loopback takes the address of a canvas's content apart; ok is false if it is
// not to be read here.
func (h *Host) loopback(canvas view.Canvas, address string) (o origin, u *url.URL, ok bool) {
	o, u, ok = h.cfg.split(address)
	return o, u, ok && canvas.Hosted && canvas.Instance != "" && !h.denied(o.port)
}

// denied reports whether a port is never read: the host's owner says so, or it is
// the AHP host's own.
func (h *Host) denied(port string) bool {
	return slices.Contains(h.cfg.DenyPorts, port) || h.cfg.Own != nil && slices.Contains(h.cfg.Own(), port)
}

// origin returns where the content of a canvas is to be read, if the host vouches
// for that.
func (h *Host) origin(known *view.Host, channel string, canvas view.Canvas) origin {
	for _, address := range []string{canvas.ContentURI, canvas.URL} {
		if o, _, ok := h.loopback(canvas, address); ok && !h.mayBeClients(known, channel, o) {
			return o
		}
	}
	return origin{}
}

// closed forgets what was said of canvases that are closed.
func (h *Host) closed(known *view.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetLocked(func(c canvasKey) bool {
		is, _ := known.Canvas(c.channel)
		return c.of == known && is.Closed
	})
}

// Ended says that a host process has ended: what was said of its canvases means
// nothing any more.
func (h *Host) Ended(known *view.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetLocked(func(c canvasKey) bool { return c.of == known })
}

func (h *Host) forgetLocked(gone func(canvasKey) bool) {
	maps.DeleteFunc(h.claims, func(c canvasKey, _ []string) bool { return gone(c) })
	maps.DeleteFunc(h.vouched, func(c claim, _ bool) bool { return gone(c.canvasKey) })
}

// claimed takes note of the addresses that a client dispatches to a canvas.
func (h *Host) claimed(known *view.Host, env *ahp.Envelope) {
	of := canvasKey{known, string(env.Channel)}
	ahp.Strings(env.Params, func(s ahp.StringAt) bool {
		if port, ok := claimedPort(s); ok {
			h.mu.Lock()
			defer h.mu.Unlock()
			ports, there := h.claims[of]
			if !slices.Contains(ports, port) && len(ports) <= maxPorts && (there || len(h.claims) < maxClaims) {
				h.claims[of] = append(ports, port)
			}
		}
		return true
	})
}

// claimedPort returns the port of the web server that a member of an action names as
// that of a canvas's content.
func claimedPort(s ahp.StringAt) (string, bool) {
	if s.IsKey || !bytes.EqualFold(s.Key, []byte("url")) && !bytes.EqualFold(s.Key, []byte("contentUri")) {
		return "", false
	}
	return portOf(string(s.Text))
}

// vouch notes that the host has said an address.
func (h *Host) vouch(known *view.Host, channel string, o origin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.vouched) < maxVouched {
		h.vouched[claim{canvasKey{known, channel}, o.port}] = true
	}
}

// mayBeClients reports whether an address in the state of a canvas may have come
// there from a client: one has said it, and the host has not said it before.
// Of what there is no room for, any may.
func (h *Host) mayBeClients(known *view.Host, channel string, o origin) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := claim{canvasKey{known, channel}, o.port}
	ports, there := h.claims[c.canvasKey]
	may := slices.Contains(ports, o.port) || len(ports) > maxPorts || !there && len(h.claims) >= maxClaims
	return may && !h.vouched[c]
}
