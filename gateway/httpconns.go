package gateway

import (
	"net"
	"net/http"
	"sync"
)

// maxRequests is how many connections of one address may be at HTTP at a time:
// those that are WebSockets do not count any more. Each has its time for the
// header and the rest of a request, and the address limits how many there are
// to take that time.
const maxRequests = 512

// httpConns counts the connections of each address that are at HTTP.
type httpConns struct {
	exempt func(address string) bool

	mu    sync.Mutex // guards the fields below
	conns map[net.Conn]string
	by    map[string]int
}

func newHTTPConns(exempt func(address string) bool) *httpConns {
	return &httpConns{exempt: exempt, conns: map[net.Conn]string{}, by: map[string]int{}}
}

// state is a ConnState of [http.Server]: it closes a new connection that is one
// too many.
func (h *httpConns) state(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if !h.enter(conn) {
			_ = conn.Close()
		}
	case http.StateHijacked, http.StateClosed:
		h.leave(conn)
	}
}

func (h *httpConns) enter(conn net.Conn) bool {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	group := addressGroup(host)
	if err != nil || group == "" || h.exempt(host) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by[group] >= maxRequests {
		return false
	}
	h.by[group]++
	h.conns[conn] = group
	return true
}

func (h *httpConns) leave(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	group, ok := h.conns[conn]
	if !ok {
		return
	}
	delete(h.conns, conn)
	if h.by[group]--; h.by[group] == 0 {
		delete(h.by, group)
	}
}
