package gateway

import (
	"context"
	"net"
	"net/http"
	"sync"

	"ahprelay/gateway/admission"
	"ahprelay/gateway/wire"
	"ahprelay/internal/unauthenticated"
)

// httpBounds limit the HTTP connections that have not shown a valid token: connections in
// a TLS handshake, while reading a request header, between requests, or at a public page.
// A group is an IP address or prefix ([admission.AddressGroup]).
var httpBounds = unauthenticated.Bounds{Group: 512, Total: 4096, Authenticated: 512}

// longHeaderBounds replace httpBounds if there is a canvas domain. They allow fewer
// connections, because request headers may then be longer by canvas.MaxCookies. The
// headers of all connections use at most about three times the memory as with httpBounds.
var longHeaderBounds = unauthenticated.Bounds{Group: httpBounds.Group / 4, Total: httpBounds.Total / 4, Authenticated: httpBounds.Authenticated}

// evictedReason is the reason in the audit log when a connection is closed for a newer
// one.
const evictedReason = "too many unauthenticated connections; the oldest is closed"

// httpConns tracks HTTP connections until they become WebSockets.
type httpConns struct {
	exempt  func(address string) bool
	evicted func(address string) // after a connection from the address was evicted
	table   *unauthenticated.Table
	conns   sync.Map // net.Conn to *unauthenticated.Entry
}

func newHTTPConns(exempt func(address string) bool, evicted func(address string), bounds unauthenticated.Bounds) *httpConns {
	return &httpConns{exempt: exempt, evicted: evicted, table: unauthenticated.New(bounds)}
}

// httpConnKey is the context key for a request's connection.
type httpConnKey struct{}

func (h *httpConns) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, httpConnKey{}, conn)
}

func (h *httpConns) state(conn net.Conn, state http.ConnState) {
	if state == http.StateNew {
		h.enter(conn)
		return
	}
	c, ok := h.of(conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive:
		c.Next(false)
	case http.StateIdle:
		c.Next(true)
	case http.StateHijacked, http.StateClosed:
		h.conns.Delete(conn)
		c.Leave()
	}
}

func (h *httpConns) of(conn net.Conn) (*unauthenticated.Entry, bool) {
	c, ok := h.conns.Load(conn)
	if !ok {
		return nil, false
	}
	return c.(*unauthenticated.Entry), true
}

func (h *httpConns) enter(conn net.Conn) {
	address, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	group := admission.AddressGroup(address)
	if err != nil || group == "" || h.exempt(address) {
		return
	}
	h.conns.Store(conn, h.table.Enter(group, func() {
		_ = wire.KernelConn(conn).Close() // closing TLS would send an alert, which may block
		h.evicted(address)
	}))
}

// proved records that a request on the connection had a valid token.
func (h *httpConns) proved(r *http.Request) {
	conn, _ := r.Context().Value(httpConnKey{}).(net.Conn)
	if c, ok := h.of(conn); ok {
		c.Authenticated()
	}
}
