package gateway

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/internal/unauthenticated"
)

// An addressed is a connection with the remote address from. It records its Close.
type addressed struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (a *addressed) RemoteAddr() net.Addr { return a.from }
func (a *addressed) Close() error         { a.closed = true; return nil }

// A httpModel keeps a record of the connections in an httpConns, and checks each
// eviction by it.
type httpModel struct {
	*rapid.T
	h       *httpConns
	bounds  unauthenticated.Bounds
	evicted map[string]int
	conns   []*addressed
	proven  map[*addressed]bool
	since   map[*addressed]int // the step at which the connection's request began; 0: idle
	step    int
}

// unproven counts the unauthenticated connections, per address and in all.
func (m *httpModel) unproven() (of map[string]int, all int) {
	of = map[string]int{}
	for _, c := range m.conns {
		if !m.proven[c] {
			of[c.from.String()]++
			all++
		}
	}
	return of, all
}

// enter opens a connection. If the connections exceed a bound, it fails unless
// httpConns evicts exactly one: an unauthenticated connection from the busiest address,
// and there the idle connection or that with the oldest request.
func (m *httpModel) enter(address string) {
	c := &addressed{from: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}}
	m.conns = append(m.conns, c)
	m.since[c] = m.step
	of, all := m.unproven()
	before := maps.Clone(m.evicted)
	m.h.state(c, http.StateNew)
	from := ""
	switch {
	case of[c.from.String()] > m.bounds.Group:
		from = c.from.String()
	case all > m.bounds.Total:
		for name, n := range of {
			if n > of[from] {
				from = name
			}
		}
	}
	var out []*addressed
	for _, one := range m.conns {
		if one.closed {
			out = append(out, one)
		}
	}
	switch {
	case from == "" && len(out) == 0:
		return
	case len(out) != 1 || from == "":
		m.Fatalf("%d connections were closed; want one of %q", len(out), from)
	case out[0] == c:
		m.Fatalf("the table closed the new connection; want an older one")
	case of[out[0].from.String()] != of[from] || m.proven[out[0]]:
		m.Fatalf("a connection of %v was closed, proven: %v; want an unproven one of the busiest address: %v", out[0].from, m.proven[out[0]], of)
	}
	for _, other := range m.conns {
		if other.from.String() == out[0].from.String() && !m.proven[other] && m.since[other] < m.since[out[0]] {
			m.Fatalf("a connection from step %d was closed before one from step %d; want the oldest first", m.since[out[0]], m.since[other])
		}
	}
	if ip := out[0].from.(*net.TCPAddr).IP.String(); m.evicted[ip] != before[ip]+1 {
		m.Fatalf("the eviction of a connection of %s is not reported; want it counted", ip)
	}
	m.end(out[0], http.StateClosed)
}

func (m *httpModel) end(c *addressed, state http.ConnState) {
	m.h.state(c, state)
	m.h.state(c, http.StateClosed)
	for i, one := range m.conns {
		if one == c {
			m.conns = append(m.conns[:i], m.conns[i+1:]...)
			break
		}
	}
	delete(m.proven, c)
	delete(m.since, c)
}

// TestBusiestAddressIsEvicted opens, uses and ends connections from several addresses
// at random. A new connection always gets a place: httpConns evicts a connection from
// the busiest address.
func TestBusiestAddressIsEvicted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &httpModel{T: rt, evicted: map[string]int{}, proven: map[*addressed]bool{}, since: map[*addressed]int{}}
		m.bounds = unauthenticated.Bounds{
			Group: rapid.IntRange(1, 5).Draw(rt, "group"), Total: rapid.IntRange(2, 12).Draw(rt, "total"), Authenticated: 2,
		}
		m.h = newHTTPConns(func(string) bool { return false }, func(address string) { m.evicted[address]++ }, m.bounds)
		pick := func() *addressed { return rapid.SampledFrom(m.conns).Draw(rt, "connection") }
		actions := map[string]func(*rapid.T){
			"enter": func(rt *rapid.T) { m.enter(fmt.Sprintf("192.0.2.%d", rapid.IntRange(1, 6).Draw(rt, "address"))) },
			"":      func(*rapid.T) { m.step++ },
		}
		on := func(name string, do func(c *addressed)) {
			actions[name] = func(rt *rapid.T) {
				if len(m.conns) == 0 {
					rt.Skip()
				}
				do(pick())
			}
		}
		on("active", func(c *addressed) {
			m.h.state(c, http.StateActive)
			delete(m.proven, c)
			m.since[c] = m.step
		})
		on("idle", func(c *addressed) {
			m.h.state(c, http.StateIdle)
			delete(m.proven, c)
			m.since[c] = 0
		})
		on("proved", func(c *addressed) {
			of := 0
			for other := range m.proven {
				if other.from.String() == c.from.String() {
					of++
				}
			}
			if !m.proven[c] && of < m.bounds.Authenticated {
				m.proven[c] = true
			}
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			m.h.proved(r.WithContext(m.h.context(context.Background(), c)))
		})
		on("hijack", func(c *addressed) { m.end(c, http.StateHijacked) })
		on("close", func(c *addressed) { m.end(c, http.StateClosed) })
		m.step = 1
		// With a new request, an authenticated connection counts as unauthenticated
		// again. The bounds may then be exceeded until the next connection comes.
		rt.Repeat(actions)
		for len(m.conns) > 0 {
			m.end(m.conns[0], http.StateClosed)
		}
		if waiting, groups := m.h.table.Len(); waiting != 0 || groups != 0 {
			rt.Errorf("%d unauthenticated connections from %d addresses are counted; want none", waiting, groups)
		}
	})
}

// TestSilentConnectionsExcludeNoClient: silent connections take all places for one
// address. New connections from that address, from a different address and from a proxy
// still get places, and only the oldest silent connection is evicted.
func TestSilentConnectionsExcludeNoClient(t *testing.T) {
	evicted := 0
	h := newHTTPConns(func(address string) bool { return address == "192.0.2.9" }, func(string) { evicted++ }, httpBounds)
	open := func(address string) *addressed {
		c := &addressed{from: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}}
		h.state(c, http.StateNew)
		return c
	}
	var silent []*addressed
	for range httpBounds.Group {
		silent = append(silent, open("192.0.2.1"))
	}
	for _, address := range []string{"192.0.2.1", "192.0.2.2", "127.0.0.1", "192.0.2.9"} {
		if open(address).closed {
			t.Errorf("the new connection of %s is closed; want it open", address)
		}
	}
	for i, c := range silent {
		if want := i == 0; c.closed != want {
			t.Errorf("silent connection %d is closed: %v; want %v", i, c.closed, want)
		}
	}
	if evicted != 1 {
		t.Errorf("%d evictions reported; want 1", evicted)
	}
}
