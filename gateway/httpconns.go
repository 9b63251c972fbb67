package gateway

import (
	prio "container/heap"
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"

	"ahprelay/gateway/admission"
)

// Bounds of connections at HTTP whose requests have not shown a good token:
// that are in the TLS handshake, in a header, between requests, or at what
// everybody may read. One more takes the place of another: of its own address
// if that has as many as it may, else of the address that has most. There it is
// one between requests, or else the one that has been at its request for
// longest: whoever means no harm is done with it soon. So an address that opens
// connections and says nothing shuts out nobody, not even those that share it.
const (
	maxUnproven    = 512  // of one address
	maxAllUnproven = 4096 // of all of them

	// maxRequests is how many of one address may stand beside these, because
	// they have shown a good token: above, they count as if they had not.
	maxRequests = 512
)

// unprovenReason is why one gave way to another, for the audit.
const unprovenReason = "too many unauthenticated connections; the oldest is closed"

// httpConns keeps the connections that are at HTTP: those that are WebSockets
// are not any more.
type httpConns struct {
	exempt  func(address string) bool
	gaveWay func(address string) // a connection of that address was closed for another

	ofOne, ofAll, proven int // how many there may be: maxUnproven, maxAllUnproven, maxRequests

	mu       sync.Mutex // guards the fields below, and httpConn and httpGroup
	conns    map[net.Conn]*httpConn
	groups   map[string]*httpGroup
	most     httpGroups // a heap of the same
	unproven int        // of all groups
	turns    uint64     // were given out
}

// An httpConn is one of them.
type httpConn struct {
	conn    net.Conn
	address string
	group   *httpGroup
	at      *list.Element // in group.unproven; nil: has shown a token
	turn    uint64        // of those in at, the least gives way first; 0: is between requests
}

// An httpGroup is what one address has.
type httpGroup struct {
	name     string
	unproven list.List // of *httpConn, the next to give way first
	proven   int
	index    int // in the heap
}

func newHTTPConns(exempt func(address string) bool, gaveWay func(address string)) *httpConns {
	return &httpConns{
		exempt: exempt, gaveWay: gaveWay,
		ofOne: maxUnproven, ofAll: maxAllUnproven, proven: maxRequests,
		conns: map[net.Conn]*httpConn{}, groups: map[string]*httpGroup{},
	}
}

// forLongHeaders takes fewer connections, as headers may be canvas.MaxCookies longer: together they take no more than
// about three times the memory.
func (h *httpConns) forLongHeaders() { h.ofOne, h.ofAll = maxUnproven/4, maxAllUnproven/4 }

// httpConnKey is where the context of a request has its connection.
type httpConnKey struct{}

// context is a ConnContext of [http.Server].
func (h *httpConns) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, httpConnKey{}, conn)
}

// state is a ConnState of [http.Server].
func (h *httpConns) state(conn net.Conn, state http.ConnState) {
	var out *httpConn
	switch state {
	case http.StateNew:
		out = h.enter(conn)
	case http.StateActive:
		h.unproved(conn, false)
	case http.StateIdle:
		h.unproved(conn, true)
	case http.StateHijacked, http.StateClosed:
		h.leave(conn)
	}
	if out != nil {
		_ = kernelConn(out.conn).Close() // TLS would say goodbye, and wait for room
		h.gaveWay(out.address)
	}
}

// enter takes a new connection, and returns the one that gives way to it.
func (h *httpConns) enter(conn net.Conn) (out *httpConn) {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	name := admission.AddressGroup(host)
	if err != nil || name == "" || h.exempt(host) {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.groups[name]
	if g == nil {
		g = &httpGroup{name: name}
		h.groups[name] = g
		prio.Push(&h.most, g)
	}
	c := &httpConn{conn: conn, address: host, group: g}
	h.conns[conn] = c
	h.queueLocked(c, false)
	if g.unproven.Len() > h.ofOne {
		out = g.next()
	} else if h.unproven > h.ofAll {
		out = h.most[0].next()
	}
	if out != nil {
		h.removeLocked(out)
	}
	return out
}

// queueLocked puts a connection among those that may have to give way.
func (h *httpConns) queueLocked(c *httpConn, idle bool) {
	if idle {
		c.turn, c.at = 0, c.group.unproven.PushFront(c)
	} else {
		h.turns++
		c.turn, c.at = h.turns, c.group.unproven.PushBack(c)
	}
	h.unproven++
	prio.Fix(&h.most, c.group.index)
}

// unqueueLocked takes it from there.
func (h *httpConns) unqueueLocked(c *httpConn) {
	c.group.unproven.Remove(c.at)
	c.at = nil
	h.unproven--
	prio.Fix(&h.most, c.group.index)
}

// unproved notes that another request begins, or may begin.
func (h *httpConns) unproved(conn net.Conn, idle bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.conns[conn]
	switch {
	case c == nil:
		return
	case c.at == nil:
		c.group.proven--
	default:
		h.unqueueLocked(c)
	}
	h.queueLocked(c, idle)
}

// proved notes that the request on a connection has shown a good token.
func (h *httpConns) proved(r *http.Request) {
	conn, _ := r.Context().Value(httpConnKey{}).(net.Conn)
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.conns[conn]; c != nil && c.at != nil && c.group.proven < h.proven {
		h.unqueueLocked(c)
		c.group.proven++
	}
}

func (h *httpConns) leave(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.conns[conn]; c != nil {
		h.removeLocked(c)
	}
}

func (h *httpConns) removeLocked(c *httpConn) {
	delete(h.conns, c.conn)
	if c.at == nil {
		c.group.proven--
	} else {
		h.unqueueLocked(c)
	}
	if g := c.group; g.unproven.Len() == 0 && g.proven == 0 {
		prio.Remove(&h.most, g.index)
		delete(h.groups, g.name)
	}
}

// next is the connection that gives way next, nil for none.
func (g *httpGroup) next() *httpConn {
	front := g.unproven.Front()
	if front == nil {
		return nil
	}
	return front.Value.(*httpConn)
}

// httpGroups is a heap, with that on top of which one is to give way.
type httpGroups []*httpGroup

func (s httpGroups) Len() int { return len(s) }

// Less implements [prio.Interface].
func (s httpGroups) Less(i, j int) bool {
	if a, b := s[i].unproven.Len(), s[j].unproven.Len(); a != b || a == 0 {
		return a > b
	}
	return s[i].next().turn < s[j].next().turn
}

func (s httpGroups) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements [prio.Interface].
func (s *httpGroups) Push(x any) {
	g := x.(*httpGroup)
	g.index = len(*s)
	*s = append(*s, g)
}

// Pop implements [prio.Interface].
func (s *httpGroups) Pop() any {
	last := len(*s) - 1
	g := (*s)[last]
	*s = (*s)[:last]
	return g
}
