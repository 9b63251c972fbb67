package routing

import (
	"bytes"
	"hash/maphash"
	"sort"
)

// A body is a message that the host has sent, on one or more connections, and that
// may be shared. Numbers follow the order of first appearance.
type body struct {
	number   uint64
	hash     uint64
	frame    []byte // nil after the body has left the window and its uses have ended
	size     int    // length of frame plus frameCost
	channel  *channel
	uses     int        // by queued items, batches and unreleased packets
	sum      *[32]byte  // of a sealed body
	arrivals []*arrival // one for each link with a connection that receives the body
	fed      bool       // a relay publishes the message, which is marked in a connection's stream
	old      bool       // has left the window, and is kept for its uses
	place    uint64     // position among all bodies ever queued for publication; 0: never queued
}

// cost is the credit that a reference uses: as much as the body's bytes would.
func (b *body) cost() int { return b.size - frameCost + pieceCost }

// An arrival counts the connections of one link for which the host has sent a body.
type arrival struct {
	on     *channelLink
	count  int
	shared bool // the relay receives the published body, so it gets references

	joined  bool // in the link's batch
	missing bool // more connections are expected in the batch
}

// arrival returns the body's arrival for a link, and creates it if necessary.
func (b *body) arrival(link *agentLink) *arrival {
	for _, a := range b.arrivals {
		if a.on.link == link {
			return a
		}
	}
	a := &arrival{on: b.channel.on(link)}
	b.arrivals = append(b.arrivals, a)
	return a
}

// receivers returns the number of connections for which the host has sent the body.
func (b *body) receivers() (n int) {
	for _, a := range b.arrivals {
		n += a.count
	}
	return n
}

// A bodyTable stores the newest bodies (the window, bounded in bytes) and older
// bodies in use.
type bodyTable struct {
	window int // bound in bytes

	byHash map[uint64]*body // bodies in the window
	recent fifo[*body]      // the window, oldest first
	bytes  int              // bytes in the window
	old    fifo[*body]      // bodies in use that have left the window, oldest first
	kept   int              // bytes in old
	last   uint64           // number of the newest body
}

func newBodyTable(window int) bodyTable {
	return bodyTable{window: window, byHash: map[uint64]*body{}}
}

var bodySeed = maphash.MakeSeed()

func bodyHash(frame []byte) uint64 { return maphash.Bytes(bodySeed, frame) }

// find returns the body in the window with these bytes, or nil.
func (t *bodyTable) find(hash uint64, frame []byte) *body {
	if b := t.byHash[hash]; b != nil && bytes.Equal(b.frame, frame) {
		return b
	}
	return nil
}

// add numbers a new body and evicts old bodies. The table keeps frame.
func (t *bodyTable) add(hash uint64, frame []byte, ch *channel) *body {
	t.last++
	b := &body{number: t.last, hash: hash, frame: frame, size: len(frame) + frameCost, channel: ch}
	t.byHash[hash] = b
	t.recent.push(b)
	t.bytes += b.size
	for t.bytes > t.window && t.recent.len() > 1 {
		t.evict(t.recent.pop())
	}
	return b
}

func (t *bodyTable) evict(b *body) {
	t.bytes -= b.size
	if t.byHash[b.hash] == b {
		delete(t.byHash, b.hash)
	}
	b.old = true
	if b.uses > 0 {
		t.old.push(b)
		t.kept += b.size
	} else {
		b.frame = nil
	}
}

func (t *bodyTable) release(b *body) {
	b.uses--
	if b.uses == 0 && b.old {
		b.frame = nil
		t.kept -= b.size
	}
	for t.old.len() > 0 && (*t.old.at(0)).uses == 0 {
		t.old.pop()
	}
}

// floor returns the lowest body number that a later record may contain.
func (t *bodyTable) floor() uint64 {
	if t.old.len() > 0 {
		return (*t.old.at(0)).number
	}
	if t.recent.len() > 0 {
		return (*t.recent.at(0)).number
	}
	return t.last + 1
}

// numbered returns the body with a number, or nil if the table no longer has it.
func (t *bodyTable) numbered(number uint64) *body {
	for _, q := range []*fifo[*body]{&t.old, &t.recent} {
		i := sort.Search(q.len(), func(i int) bool { return (*q.at(i)).number >= number })
		if i < q.len() && (*q.at(i)).number == number {
			return *q.at(i)
		}
	}
	return nil
}
