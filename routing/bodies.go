package routing

import (
	"bytes"
	"hash/maphash"
	"sort"
)

// A body is a frame that the host has sent on one or more connections.
// Bodies are numbered in the order in which they were first seen.
type body struct {
	number   uint64
	hash     uint64
	frame    []byte // nil when out of the window and out of use
	size     int    // of frame, and frameCost
	channel  *channel
	uses     int        // by queued items, batches and packets that are not released
	arrivals []*arrival // by link, of those with a connection that was sent it
	old      bool       // out of the window, kept for its uses
	place    uint64     // among all that were queued to be published; 0: it was not
}

// cost is what a reference to the body takes of credit: what the bytes would.
func (b *body) cost() int { return b.size - frameCost + pieceCost }

// An arrival counts the connections of one link on which the host has sent a
// body.
type arrival struct {
	on     *channelLink
	count  int
	shared bool // the link's relay hears the body: send it references

	joined  bool // in the link's batch
	missing bool // and more connections are expected there
}

// arrival returns the body's count for a link.
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

// receivers is on how many connections the host has sent the body so far.
func (b *body) receivers() (n int) {
	for _, a := range b.arrivals {
		n += a.count
	}
	return n
}

// A bodyTable holds the newest bodies, up to a number of bytes, and older
// ones that are in use.
type bodyTable struct {
	window int // bytes

	byHash map[uint64]*body // the window's
	recent fifo[*body]      // the window, oldest first
	bytes  int              // in the window
	old    fifo[*body]      // out of the window and in use, oldest first
	kept   int              // bytes in old
	last   uint64           // number of the newest body
}

func newBodyTable(window int) bodyTable {
	return bodyTable{window: window, byHash: map[uint64]*body{}}
}

var bodySeed = maphash.MakeSeed()

func bodyHash(frame []byte) uint64 { return maphash.Bytes(bodySeed, frame) }

// find returns the body in the window that has these bytes, or nil.
func (t *bodyTable) find(hash uint64, frame []byte) *body {
	if b := t.byHash[hash]; b != nil && bytes.Equal(b.frame, frame) {
		return b
	}
	return nil
}

// add numbers a new body and lets old ones go. The table keeps frame.
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

// release takes back one use of a body.
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

// floor is the number below which no body can be referred to any more.
func (t *bodyTable) floor() uint64 {
	if t.old.len() > 0 {
		return (*t.old.at(0)).number
	}
	if t.recent.len() > 0 {
		return (*t.recent.at(0)).number
	}
	return t.last + 1
}

// numbered returns the body with a number, or nil if it is gone.
func (t *bodyTable) numbered(number uint64) *body {
	for _, q := range []*fifo[*body]{&t.old, &t.recent} {
		i := sort.Search(q.len(), func(i int) bool { return (*q.at(i)).number >= number })
		if i < q.len() && (*q.at(i)).number == number {
			return *q.at(i)
		}
	}
	return nil
}
