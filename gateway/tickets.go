package gateway

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/contentproxy"
	"ahprelay/fair"
	"ahprelay/routing"
)

// Canvas content by URL. A client that renders in a browser asks the relay, on
// its connection, for an origin of the canvas's own:
//
//	→ {"id":1,"method":"relay/canvasTicket","params":{"channel":"ahp-canvas:/<id>","uri":"ahp-canvas-content:/<instanceId>/<path>"}}
//	← {"id":1,"result":{"url":"https://<ticket>.<canvas domain>/<path>"}}
//
// A GET of that origin is a canvasReadResource on the client's own connection,
// so the host decides about each; the ticket is good for that instance alone,
// and ends with the connection. Whoever has the URL can read: it is a secret of
// the client's, of 128 bits. Without a canvas domain, the method is the host's
// to answer.

// ticketMethod is answered by the relay.
const ticketMethod = "relay/canvasTicket"

// Bounds of tickets.
const (
	maxTickets  = 64               // of a client
	readTimeout = 30 * time.Second // of one

	// Reads at a time. More wait in turn, so many of a client, until the browser
	// gives up.
	tenantReads = 64
	hostReads   = 32
	clientReads = 16
	readsWait   = 256
)

// A canvasOrigin is where tickets are used.
type canvasOrigin struct {
	scheme, domain, port string
}

// parseCanvasDomain reads "canvas.example.com", which means https, or an
// origin such as "http://localhost:8484".
func parseCanvasDomain(text string) (canvasOrigin, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || net.ParseIP(u.Hostname()) != nil ||
		u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return canvasOrigin{}, fmt.Errorf("canvas domain %q: want a name such as canvas.example.com, or an origin such as http://localhost:8484", text)
	}
	return canvasOrigin{u.Scheme, strings.ToLower(u.Hostname()), u.Port()}, nil
}

// url returns the base URL of a ticket.
func (o canvasOrigin) url(ticket string) string {
	host := ticket + "." + o.domain
	if o.port != "" {
		host += ":" + o.port
	}
	return o.scheme + "://" + host + "/"
}

// ticketOf returns the ticket that a request is for; ok is false if the host
// is none below the canvas domain.
func (o canvasOrigin) ticketOf(host string) (ticket string, ok bool) {
	if o.domain == "" {
		return "", false
	}
	name := strings.ToLower((&url.URL{Host: host}).Hostname())
	return strings.CutSuffix(name, "."+o.domain)
}

// A ticket lets its holder read the content of one canvas.
type ticket struct {
	client            *client
	channel, instance string
}

// tickets are those of all clients.
type tickets struct {
	origin canvasOrigin
	reads  *fair.Turns // of tenants, hosts and clients

	mu       sync.Mutex
	byID     map[string]ticket
	byClient map[*client][]string // the same, of each client that has any
}

func newTickets(origin canvasOrigin) *tickets {
	return &tickets{origin: origin, reads: fair.New(readsWait, tenantReads, hostReads, clientReads), byID: map[string]ticket{}, byClient: map[*client][]string{}}
}

// issue returns the ticket for a canvas of a client.
func (t *tickets) issue(want ticket) (id string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := t.byClient[want.client]
	for _, id := range held {
		if t.byID[id] == want {
			return id, nil
		}
	}
	if len(held) >= maxTickets {
		return "", fmt.Errorf("more than %d canvases", maxTickets)
	}
	id = strings.ToLower(rand.Text())
	t.byID[id] = want
	t.byClient[want.client] = append(held, id)
	return id, nil
}

func (t *tickets) find(id string) (ticket, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.byID[id]
	return found, ok
}

// endOf ends the tickets of a client.
func (t *tickets) endOf(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.byClient[c] {
		delete(t.byID, id)
	}
	delete(t.byClient, c)
}

// answerTicket answers a client's request for a ticket, and reports whether
// that is what the message was.
func (c *client) answerTicket(env *ahp.Envelope) bool {
	if c.tickets.origin.domain == "" || env.Kind != ahp.Request || string(env.Method) != ticketMethod {
		return false
	}
	address, err := c.ticketURL(env)
	if err != nil {
		c.answer(ahp.AppendError(nil, env.ID, ahp.CodeInvalidParams, err.Error(), nil))
		return true
	}
	result, err := json.Marshal(map[string]string{"url": address})
	if err != nil {
		return false // a string can always be encoded
	}
	c.answer(ahp.AppendResult(nil, env.ID, result))
	return true
}

func (c *client) ticketURL(env *ahp.Envelope) (string, error) {
	uri := [...]ahp.Member{{Name: "uri"}}
	if err := ahp.Members(env.Params, uri[:]); err != nil {
		return "", errors.New("params: want {channel, uri}")
	}
	text, _ := ahp.Text(uri[0].Raw)
	at, err := contentproxy.ParseAddress(text)
	if err != nil {
		return "", err
	}
	channel := string(env.Channel)
	if !strings.HasPrefix(channel, "ahp-canvas:") {
		return "", errors.New("channel: want ahp-canvas:/<id>")
	}
	id, err := c.tickets.issue(ticket{c, channel, at.Instance})
	if err != nil {
		return "", err
	}
	_, place, _ := strings.Cut(at.String(), "/") // instance, path and query
	_, place, _ = strings.Cut(place, "/")
	if _, fragment, ok := strings.Cut(text, "#"); ok {
		place += "#" + fragment
	}
	return c.tickets.origin.url(id) + place, nil
}

// onCanvasDomain serves requests for tickets, and passes on all others.
func (s *Server) onCanvasDomain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := s.tickets.origin.ticketOf(r.Host)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		s.serveCanvas(w, r, id)
	})
}

// canvasHeaders isolate what is shown: the origin is the canvas's own, nothing
// of it is kept or told to others, and it cannot leave its frame. Content may be
// anything, so it is never guessed what it is.
var canvasHeaders = map[string]string{
	"Content-Security-Policy":      "sandbox allow-scripts allow-same-origin allow-forms allow-modals allow-downloads",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "no-referrer",
	"Cache-Control":                "no-store",
	"Cross-Origin-Resource-Policy": "cross-origin", // frames of the console are elsewhere
	"Access-Control-Allow-Origin":  "*",            // in a sandbox without an origin, module scripts and fetch ask for that
	"Origin-Agent-Cluster":         "?1",
	"Permissions-Policy":           "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

// serveCanvas serves a piece of a canvas's content.
func (s *Server) serveCanvas(w http.ResponseWriter, r *http.Request, id string) {
	for name, value := range canvasHeaders {
		w.Header().Set(name, value)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "canvas content can only be read", http.StatusMethodNotAllowed)
		return
	}
	t, ok := s.tickets.find(id)
	if !ok {
		http.Error(w, "this canvas is not shown any more", http.StatusGone)
		return
	}
	s.asking.proved(r)
	done, err := s.tickets.reads.Take(r.Context(), t.client.host.tenant, t.client.host.name, t.client)
	if err != nil {
		// The browser is gone, or has many more reads waiting than pages have.
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer done()
	content, status, err := t.read(r)
	if err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	s.budget.keep(len(content.data))
	defer s.budget.keep(-len(content.data))
	w.Header().Set("Content-Type", content.contentType())
	_, _ = w.Write(content.data) // the browser may be gone
}

// canvasContent is an element of the contents of a canvasReadResource.
type canvasContent struct {
	mimeType string
	data     []byte
}

// contentType is the type to serve content as.
func (c *canvasContent) contentType() string {
	if _, _, err := mime.ParseMediaType(c.mimeType); err != nil {
		return "application/octet-stream"
	}
	return c.mimeType
}

var errCanvasGone = errors.New("this canvas is not shown any more")

// read asks the host on the client's connection.
func (t ticket) read(r *http.Request) (canvasContent, int, error) {
	at := contentproxy.Address{Instance: t.instance, Path: strings.TrimPrefix(r.URL.EscapedPath(), "/"), Query: r.URL.RawQuery}
	if _, err := contentproxy.ParseAddress(at.String()); err != nil {
		return canvasContent{}, http.StatusBadRequest, err
	}
	request, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": "ahp-relay-" + rand.Text(), "method": "canvasReadResource",
		"params": map[string]string{"channel": t.channel, "uri": at.String()},
	})
	if err != nil {
		return canvasContent{}, http.StatusInternalServerError, err
	}
	got := make(chan []byte, 1)
	if err := t.client.ask(request, func(response []byte) { got <- response }); err != nil {
		if errors.Is(err, routing.ErrTooManyAsks) || errors.Is(err, routing.ErrQueueFull) {
			return canvasContent{}, http.StatusServiceUnavailable, err
		}
		return canvasContent{}, http.StatusGone, errCanvasGone
	}
	timeout := time.NewTimer(readTimeout)
	defer timeout.Stop()
	select {
	case response := <-got:
		if response == nil {
			return canvasContent{}, http.StatusGone, errCanvasGone
		}
		return readContent(response)
	case <-timeout.C:
		return canvasContent{}, http.StatusGatewayTimeout, errors.New("the host does not answer")
	case <-r.Context().Done():
		return canvasContent{}, http.StatusServiceUnavailable, r.Context().Err()
	}
}

// ask sends a request of the relay's own on the client's connection.
func (c *client) ask(request []byte, answer func(response []byte)) error {
	c.mu.Lock()
	conn := c.conn
	open := c.phase == phaseOpen
	c.mu.Unlock()
	if !open {
		return routing.ErrConnClosed
	}
	return conn.Ask(request, answer)
}

// readContent reads the host's answer.
func readContent(response []byte) (canvasContent, int, error) {
	var answer struct {
		Result struct {
			Contents []struct {
				MimeType string
				Text     *string
				Blob     *string
			}
		}
		Error *struct {
			Code    int
			Message string
		}
	}
	err := json.Unmarshal(response, &answer)
	switch {
	case err != nil:
	case answer.Error != nil:
		return canvasContent{}, statusOf(answer.Error.Code), errors.New(answer.Error.Message)
	case len(answer.Result.Contents) == 0:
	case answer.Result.Contents[0].Text != nil:
		c := answer.Result.Contents[0]
		return canvasContent{c.MimeType, []byte(*c.Text)}, 0, nil
	case answer.Result.Contents[0].Blob != nil:
		c := answer.Result.Contents[0]
		data, err := base64.StdEncoding.DecodeString(*c.Blob)
		if err == nil {
			return canvasContent{c.MimeType, data}, 0, nil
		}
	}
	return canvasContent{}, http.StatusBadGateway, errors.New("the host's answer holds no content")
}

// statusOf is the HTTP status for an AHP error code.
func statusOf(code int) int {
	switch code {
	case ahp.CodeInvalidParams:
		return http.StatusBadRequest
	case ahp.CodePermissionDenied, ahp.CodeAuthRequired:
		return http.StatusForbidden
	case ahp.CodeNotFound, ahp.CodeContentNotFound:
		return http.StatusNotFound
	case ahp.CodeRateLimited:
		return http.StatusTooManyRequests
	case ahp.CodeMethodNotFound:
		return http.StatusNotImplemented
	}
	return http.StatusBadGateway
}
