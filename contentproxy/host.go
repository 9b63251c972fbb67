package contentproxy

import (
	"bytes"
	"cmp"
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

// DefaultLimit is the default limit for the size of a resource, in bytes. Encoded in base64, such a
// resource fits into a frame of 32 MiB.
const DefaultLimit = 16 << 20

// Limits for remembered state.
const (
	maxCanvases = 1024 // of a connection
	maxClaims   = 4096 // canvases with addresses named by clients
	maxPorts    = 16   // ports that clients named for a canvas; with more, any port may be theirs
	maxVouched  = 1024 // addresses named by the host
)

// Config configures a [Host].
type Config struct {
	Off       bool            // addresses of canvases pass unchanged, and are not read
	DenyPorts []string        // ports that are never read
	Own       func() []string // the AHP host's current ports, never read either; may be nil
	Limit     int             // bytes of one resource; default DefaultLimit

	Allow    []Allowed           // readable origins beyond literal loopback
	Pins     [][sha256.Size]byte // certificates required from origins with TLS; none: as in browsers
	Insecure bool                // do not check origins' certificates
}

// A Host is the state that all connections to one AHP host share.
type Host struct {
	cfg     Config
	fetcher *fetcher
	proxy   *httputil.ReverseProxy // for content by URL

	mu      sync.Mutex
	claims  map[canvasKey][]string // ports that clients have named
	vouched map[claim]bool         // ports that the host itself has named
}

// A canvasKey identifies a canvas of a host process.
type canvasKey struct {
	of      *view.Host
	channel string
}

// A claim is a port in a canvas's address.
type claim struct {
	canvasKey
	port string
}

// NewHost returns the shared state for one AHP host.
func NewHost(cfg Config) *Host {
	cfg.Limit = cmp.Or(cfg.Limit, DefaultLimit)
	h := &Host{cfg: cfg, claims: map[canvasKey][]string{}, vouched: map[claim]bool{}}
	h.fetcher, h.proxy = newFetcher(&h.cfg), newProxy(&h.cfg)
	return h
}

// Close closes the idle connections to web servers.
func (h *Host) Close() {
	h.fetcher.client.CloseIdleConnections()
	h.proxy.Transport.(*http.Transport).CloseIdleConnections()
}

// loopback splits the address of a canvas's content into its origin and URL. ok is false if this
// package must not read the address, or if the canvas has no known instance or is not the host's.
func (h *Host) loopback(canvas view.Canvas, address string) (o origin, u *url.URL, ok bool) {
	o, u, ok = h.cfg.split(address)
	return o, u, ok && canvas.Hosted && canvas.Instance != "" && !h.denied(o.port)
}

// denied reports whether reads from a port are forbidden: the port is in Config.DenyPorts, or
// belongs to the AHP host itself.
func (h *Host) denied(port string) bool {
	return slices.Contains(h.cfg.DenyPorts, port) || h.cfg.Own != nil && slices.Contains(h.cfg.Own(), port)
}

// origin returns the origin of a canvas's content. It returns the zero origin if this package must
// not read the addresses (see loopback), or if they may come from a client.
func (h *Host) origin(known *view.Host, channel string, canvas view.Canvas) origin {
	for _, address := range []string{canvas.ContentURI, canvas.URL} {
		if o, _, ok := h.loopback(canvas, address); ok && !h.mayBeClients(known, channel, o) {
			return o
		}
	}
	return origin{}
}

func (h *Host) closed(known *view.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetLocked(func(c canvasKey) bool {
		is, _ := known.Canvas(c.channel)
		return c.of == known && is.Closed
	})
}

// Ended forgets all addresses that belong to a host process, which has ended.
func (h *Host) Ended(known *view.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetLocked(func(c canvasKey) bool { return c.of == known })
}

func (h *Host) forgetLocked(gone func(canvasKey) bool) {
	maps.DeleteFunc(h.claims, func(c canvasKey, _ []string) bool { return gone(c) })
	maps.DeleteFunc(h.vouched, func(c claim, _ bool) bool { return gone(c.canvasKey) })
}

// claimed records the addresses in an action that a client dispatches to a canvas.
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

// claimedPort returns the port of an address in an action, if the JSON member is url or contentUri.
func claimedPort(s ahp.StringAt) (string, bool) {
	if s.IsKey || !bytes.EqualFold(s.Key, []byte("url")) && !bytes.EqualFold(s.Key, []byte("contentUri")) {
		return "", false
	}
	return portOf(string(s.Text))
}

// vouch records that an address came from the host itself.
func (h *Host) vouch(known *view.Host, channel string, o origin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.vouched) < maxVouched {
		h.vouched[claim{canvasKey{known, channel}, o.port}] = true
	}
}

// mayBeClients reports whether an address in a canvas's state may come from a client: a client has
// named its port, and the host itself has not. If too many ports or canvases were named to
// remember them all, it returns true.
func (h *Host) mayBeClients(known *view.Host, channel string, o origin) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := claim{canvasKey{known, channel}, o.port}
	ports, there := h.claims[c.canvasKey]
	may := slices.Contains(ports, o.port) || len(ports) > maxPorts || !there && len(h.claims) >= maxClaims
	return may && !h.vouched[c]
}
