package hostagent

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A clientIndex has the connections of clients. And it knows which a client
// has, by the clientId that it says, through whatever relays they come. A phone that has changed networks
// leaves a connection behind that nobody has closed, and comes again with the
// same clientId. But two connections may also be meant so: the older is asked
// whether it is still there, and stays if it is.
type clientIndex struct {
	mu    sync.Mutex // guards the fields below
	byID  map[string][]*hostConn
	conns map[*hostConn]bool
	open  atomic.Int32  // how many those are
	none  chan struct{} // closed when there are none; nil: more may come
	ended traffic       // of connections that have left
}

// traffic is what connections have carried: messages from clients and from the
// host, their bytes, and those of clients that were refused.
type traffic struct{ conns, in, out, inBytes, outBytes, refused int64 }

func (t *traffic) add(c *hostConn) {
	t.conns++
	t.in += c.counts.in.Load()
	t.out += c.counts.out.Load()
	t.inBytes += c.counts.inBytes.Load()
	t.outBytes += c.counts.outBytes.Load()
	t.refused += c.counts.refused.Load()
}

// total is what all connections have carried, those that are open included.
func (x *clientIndex) total() traffic {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.ended
	for c := range x.conns {
		t.add(c)
	}
	return t
}

// enter counts a connection, unless no more may come.
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

// several reports whether there is more than one connection.
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

// close lets no more connections enter. It returns a channel that is closed
// when all have left.
func (x *clientIndex) close() (none <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.none = make(chan struct{})
	if len(x.conns) == 0 {
		close(x.none)
	}
	return x.none
}

// maxProbed is how many earlier connections of a client are probed at most,
// the latest ones.
const maxProbed = 16

// move notes that a connection is that of a client, and no more that of the
// former one, if there is one. The client's other connections are probed.
func (x *clientIndex) move(c *hostConn, former, id string) {
	x.forget(c, former)
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
		other.log.Debug("client has connected again; looking whether this connection is still there")
		other.conn.Probe()
	}
}

// forget drops a connection that was a client's.
func (x *clientIndex) forget(c *hostConn, id string) {
	if id == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// What move has in hand is not to be changed.
	rest := slices.DeleteFunc(slices.Clone(x.byID[id]), func(o *hostConn) bool { return o == c })
	if len(rest) == 0 {
		delete(x.byID, id)
		return
	}
	x.byID[id] = rest
}

// of returns the connections of a client, the latest first.
func (x *clientIndex) of(id string) []*hostConn {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.Clone(x.byID[id])
	slices.Reverse(list)
	return list
}

// every returns all connections, also those that have not said a clientId.
func (x *clientIndex) every() []*hostConn {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.conns))
}

// lastHeard returns when the host last said something to any client.
func (x *clientIndex) lastHeard() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	latest := int64(0)
	for c := range x.conns {
		latest = max(latest, c.lastHeard.Load())
	}
	return time.Unix(0, latest)
}
