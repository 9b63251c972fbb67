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
)

// An addressed connection says where it comes from.
type addressed struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (a *addressed) RemoteAddr() net.Addr { return a.from }
func (a *addressed) Close() error         { a.closed = true; return nil }

// A httpModel is what httpConns promises, said plainly.
type httpModel struct {
	*rapid.T
	h      *httpConns
	told   map[string]int
	conns  []*addressed
	proven map[*addressed]bool
	since  map[*addressed]int // the step in which its request began; 0: is between requests
	step   int
}

// unproven returns how many of each address have shown no token.
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

// enter opens a connection, and judges which one gave way.
func (m *httpModel) enter(address string) {
	c := &addressed{from: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}}
	m.conns = append(m.conns, c)
	m.since[c] = m.step
	told := m.told[address]
	of, all := m.unproven()
	before := maps.Clone(m.told)
	m.h.state(c, http.StateNew)
	from := ""
	switch {
	case of[c.from.String()] > m.h.ofOne:
		from = c.from.String()
	case all > m.h.ofAll:
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
		m.Fatalf("%d were closed; of %q one was to be", len(out), from)
	case out[0] == c:
		m.Fatalf("the one that came was closed; %d told before", told)
	case of[out[0].from.String()] != of[from] || m.proven[out[0]]:
		m.Fatalf("one of %v was closed, proven: %v; of unproven %v", out[0].from, m.proven[out[0]], of)
	}
	for _, other := range m.conns {
		if other.from.String() == out[0].from.String() && !m.proven[other] && m.since[other] < m.since[out[0]] {
			m.Fatalf("one of step %d was closed, and another is of step %d", m.since[out[0]], m.since[other])
		}
	}
	if ip := out[0].from.(*net.TCPAddr).IP.String(); m.told[ip] != before[ip]+1 {
		m.Fatalf("nobody heard that one of %s gave way", ip)
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

// TestWhoGivesWay opens, uses and ends connections of some addresses at random.
// Whoever comes has a place, and it is that of who has most.
func TestWhoGivesWay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &httpModel{T: rt, told: map[string]int{}, proven: map[*addressed]bool{}, since: map[*addressed]int{}}
		m.h = newHTTPConns(func(string) bool { return false }, func(address string) { m.told[address]++ })
		m.h.ofOne, m.h.ofAll, m.h.proven = rapid.IntRange(1, 5).Draw(rt, "of one"), rapid.IntRange(2, 12).Draw(rt, "of all"), 2
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
			if !m.proven[c] && of < m.h.proven {
				m.proven[c] = true
			}
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			m.h.proved(r.WithContext(m.h.context(context.Background(), c)))
		})
		on("hijack", func(c *addressed) { m.end(c, http.StateHijacked) })
		on("close", func(c *addressed) { m.end(c, http.StateClosed) })
		m.step = 1
		// A request that becomes active may bring back a proven one above the
		// bounds: it stays until the next comes.
		rt.Repeat(actions)
		for len(m.conns) > 0 {
			m.end(m.conns[0], http.StateClosed)
		}
		if len(m.h.groups) != 0 || len(m.h.conns) != 0 || len(m.h.most) != 0 || m.h.unproven != 0 {
			rt.Errorf("%d addresses, %d connections, %d on the heap, %d unproven left", len(m.h.groups), len(m.h.conns), len(m.h.most), m.h.unproven)
		}
	})
}

// TestSilentConnectionsShutNobodyOut has one address open connections and send
// nothing, and somebody with that address, another and a proxy come then.
func TestSilentConnectionsShutNobodyOut(t *testing.T) {
	told := 0
	h := newHTTPConns(func(address string) bool { return address == "192.0.2.9" }, func(string) { told++ })
	open := func(address string) *addressed {
		c := &addressed{from: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}}
		h.state(c, http.StateNew)
		return c
	}
	var silent []*addressed
	for range maxUnproven {
		silent = append(silent, open("192.0.2.1"))
	}
	for _, address := range []string{"192.0.2.1", "192.0.2.2", "127.0.0.1", "192.0.2.9"} {
		if open(address).closed {
			t.Errorf("one of %s is closed", address)
		}
	}
	for i, c := range silent {
		if want := i == 0; c.closed != want {
			t.Errorf("silent connection %d is closed: %v; want %v", i, c.closed, want)
		}
	}
	if told != 1 {
		t.Errorf("told %d times that one gave way; want 1", told)
	}
}
