package hostagent

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/internal/clock"
)

// A clientIndex holds the clients' connections through all relays, and finds
// them by clientId. A phone that changes networks returns with the same
// clientId, while its previous connection is still open here. A clientId may
// also have two live connections, so the index probes the earlier connection and
// does not close it.
type clientIndex struct {
	mu    sync.Mutex // guards the fields below
	byID  map[string][]*hostConn
	conns map[*hostConn]bool
	open  atomic.Int32  // length of conns
	none  chan struct{} // closed when the last connection leaves; nil while connections may enter
	ended traffic       // traffic of ended connections
}

// traffic counts connections, messages and bytes in each direction, and refused client
// messages.
type traffic struct{ conns, in, out, inBytes, outBytes, refused int64 }

func (t *traffic) add(c *hostConn) {
	t.conns++
	t.in += c.counts.in.Load()
	t.out += c.counts.out.Load()
	t.inBytes += c.counts.inBytes.Load()
	t.outBytes += c.counts.outBytes.Load()
	t.refused += c.counts.refused.Load()
}

// total returns the traffic of all connections, ended and open.
func (x *clientIndex) total() traffic {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.ended
	for c := range x.conns {
		t.add(c)
	}
	return t
}

// enter adds a connection. It returns false after close.
func (x *clientIndex) enter(c *hostConn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.none != nil {
		return false
	}
	if x.conns == nil {
		x.conns = map[*hostConn]bool{}
	}
	x.conns[c] = true
	x.open.Store(int32(len(x.conns)))
	return true
}

// several reports whether more than one connection is open.
func (x *clientIndex) several() bool { return x.open.Load() > 1 }

func (x *clientIndex) leave(c *hostConn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.conns, c)
	x.ended.add(c)
	x.open.Store(int32(len(x.conns)))
	if x.none != nil && len(x.conns) == 0 {
		close(x.none)
	}
}

// close stops new connections from entering. The returned channel is closed when all
// have left.
func (x *clientIndex) close() (none <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.none = make(chan struct{})
	if len(x.conns) == 0 {
		close(x.none)
	}
	return x.none
}

// maxProbed is how many earlier connections with the same clientId are probed,
// the latest first.
const maxProbed = 16

// move enters the connection under its new clientId instead of its previous
// clientId. It probes earlier connections that have the new clientId.
func (x *clientIndex) move(c *hostConn, previous, id string) {
	x.forget(c, previous)
	if id == "" {
		return
	}
	x.mu.Lock()
	others := x.byID[id]
	if x.byID == nil {
		x.byID = map[string][]*hostConn{}
	}
	x.byID[id] = append(others[:len(others):len(others)], c)
	x.mu.Unlock()
	for _, other := range others[max(0, len(others)-maxProbed):] {
		other.log.Debug("older connection with this clientId probed")
		other.conn.Probe()
	}
}

// forget removes a connection from the entry of its clientId.
func (x *clientIndex) forget(c *hostConn, id string) {
	if id == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// move may still use the previous slice, so forget changes a copy.
	rest := slices.DeleteFunc(slices.Clone(x.byID[id]), func(o *hostConn) bool { return o == c })
	if len(rest) == 0 {
		delete(x.byID, id)
		return
	}
	x.byID[id] = rest
}

// of returns a client's connections, the latest first.
func (x *clientIndex) of(id string) []*hostConn {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.Clone(x.byID[id])
	slices.Reverse(list)
	return list
}

// every returns all connections, including those without a clientId.
func (x *clientIndex) every() []*hostConn {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.conns))
}

// lastHeard returns the time of the host's last message to any client, or the zero time.
func (x *clientIndex) lastHeard() (latest time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.conns {
		latest = clock.Later(latest, c.lastHeard())
	}
	return latest
}
