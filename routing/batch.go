package routing

import (
	"slices"
	"time"
)

// maxRefs bounds the references in a packet; a body for n connections counts n times.
// It keeps packets far below 1 MiB, and limits the work that a short packet can cause
// at a relay.
const maxRefs = 1 << 15

// linger is how long a reference waits to share its packet with later references, because
// a packet costs about 150 bytes.
const linger = time.Millisecond

// A batch collects a link's unsent references. It is due when it is full, when every
// body in it has as many references as earlier bodies of the same channel had, or after
// linger.
//
// The batch is a tree whose edges are bodies. Each connection is at a node, and each
// reference moves it to a child. Connections that receive the same bodies in the same
// order are at the same node. The batch is encoded node by node, so its size hardly
// depends on the number of connections.
type batch struct {
	root    batchNode
	streams []*stream    // streams with a node
	nodes   []*batchNode // all nodes except the root
	joined  []*arrival   // the arrivals of the bodies in the batch
	missing int          // bodies in the batch that more connections will probably receive
	since   time.Time
	floor   func() uint64 // lower bound of body numbers in later records
	left    func() uint64 // the number of bodies published so far
	newest  uint64        // the highest position in the publish queue among the batch's bodies
	refs    int           // references in the batch, counted for each connection
	packed  int           // references in the current packet's records
	bytes   int           // sizes of the batch's bodies, once for each node
	tagged  bool          // each connection's bodies have a tag
	room    int           // bound for bytes plus spent; only the last body added may exceed it
	spent   int           // sizes of the bodies referenced by the current packet's records

	sent []*body // bodies of the records that append made since the last takeSent
}

type batchNode struct {
	body     *body
	parent   *batchNode
	children []*batchNode
	conns    connSet   // filled by append
	streams  []*stream // of conns; filled by append if the batch is tagged
}

// add records that a connection receives a body after its earlier references.
func (t *batch) add(s *stream, b *body) {
	at := s.node
	if at == nil {
		at = &t.root
		t.streams = append(t.streams, s)
	}
	s.node = t.child(at, b)
	t.newest = max(t.newest, b.place)
	t.refs++
}

func (t *batch) child(at *batchNode, b *body) *batchNode {
	for i := len(at.children) - 1; i >= 0; i-- { // most likely the newest
		if c := at.children[i]; c.body == b {
			return c
		}
	}
	c := &batchNode{body: b, parent: at}
	b.uses++
	t.bytes += b.size
	at.children = append(at.children, c)
	t.nodes = append(t.nodes, c)
	return c
}

// expect records that a, the arrival of a body on this link, has one more reference.
// It updates whether more connections will probably receive the body.
func (t *batch) expect(a *arrival, now time.Time) {
	if len(t.joined) == 0 {
		t.since = now
	}
	satisfied := a.count >= a.on.expected()
	switch {
	case !a.joined:
		a.joined, a.missing = true, !satisfied
		t.joined = append(t.joined, a)
		if a.missing {
			t.missing++
		}
	case a.missing && satisfied:
		a.missing = false
		t.missing--
	}
}

// full reports whether the packet may hold no more references, or its bodies would
// exceed the bytes that the link may have unreleased.
func (t *batch) full() bool { return t.refs+t.packed >= maxRefs || t.bytes+t.spent > t.room }

// held reports whether a body in the batch is not yet published. If its reference
// were sent first, relays would request a body that is about to arrive.
func (t *batch) held() bool { return len(t.streams) > 0 && t.newest > t.left() }

func (t *batch) due(now time.Time) bool {
	return len(t.streams) > 0 && !t.held() && (t.missing == 0 || t.full() || !now.Before(t.since.Add(linger)))
}

// deadline returns the latest time when the batch is due. It is zero if the batch is
// empty or held.
func (t *batch) deadline() time.Time {
	if len(t.streams) == 0 || t.held() {
		return time.Time{}
	}
	return t.since.Add(linger)
}

// append encodes the batch as a refs record and empties it.
func (t *batch) append(b []byte) []byte {
	entries := 0
	for _, s := range t.streams {
		if s.node.conns.count == 0 {
			entries++
		}
		s.node.conns.add(s.conn)
		if t.tagged {
			s.node.streams = append(s.node.streams, s)
		}
		s.node = nil
	}
	floor := t.floor()
	kind := recordRefs
	if t.tagged {
		kind = recordTagged
	}
	b = appendRecord(b, kind, floor, uint64(entries))
	var list []uint64
	var sums []*[32]byte
	for _, n := range t.nodes {
		t.sent = append(t.sent, n.body)
		if n.conns.count == 0 {
			continue
		}
		list, sums = list[:0], sums[:0]
		for up := n; up != &t.root; up = up.parent {
			list, sums = append(list, up.body.number), append(sums, up.body.sum)
		}
		slices.Reverse(list)
		b, floor = appendBodyList(b, list, floor)
		b = n.conns.append(b)
		if t.tagged {
			slices.Reverse(sums)
			b = n.appendTags(b, sums)
		}
	}
	t.packed += t.refs
	t.spent += t.bytes
	t.reset()
	return b
}

func (t *batch) reset() {
	for _, a := range t.joined {
		a.joined, a.missing = false, false
	}
	clear(t.joined)
	clear(t.streams)
	clear(t.nodes)
	t.root.children = nil
	t.joined, t.streams, t.nodes, t.missing = t.joined[:0], t.streams[:0], t.nodes[:0], 0
	t.newest, t.refs, t.bytes = 0, 0, 0
}

// takeSent ends a packet. It returns the bodies referenced by the packet's records; a
// body with several uses is listed several times.
func (t *batch) takeSent() []*body {
	t.packed, t.spent = 0, 0
	sent := t.sent
	t.sent = nil
	return sent
}
