package routing

import (
	"time"

	"ahprelay/internal/ablation"
)

// maxRefs bounds the references in a packet, counted for each connection: so
// a packet stays far below 1 MiB, and what a few bytes can ask of a relay too.
const maxRefs = 1 << 15

// How long a reference waits for more of its kind, at most. A packet costs some
// 150 bytes: where the bodies that it refers to are few, and come to connections
// over a longer time, it is worth to wait longer for the rest of them: of 200 actions a
// second to 100 clients, that saves 6 % of the bytes that leave the host's machine.
const (
	linger     = time.Millisecond
	longLinger = 4 * time.Millisecond
	fewBytes   = 8 << 10 // sizes of the bodies
)

// A batch collects the references of one link that have not been sent yet. It
// is due when every body in it has been referred to by as many connections
// as the bodies before it on its channel were, or after linger; see there for
// when that is longer.
//
// Connections that are sent the same bodies in the same order share a node of
// a tree whose edges are bodies; a connection moves down the tree with each
// reference. So a reference costs the same however many connections there are.
type batch struct {
	root    batchNode
	streams []*stream    // with a node
	nodes   []*batchNode // all but the root
	joined  []*arrival   // of the bodies in here
	missing int          // bodies in here that more connections are expected for
	since   time.Time
	late    time.Duration // what longer waiting was last worth; 0: nothing
	floor   func() uint64 // no later record names a body below
	left    func() uint64 // how many bodies have been published
	newest  uint64        // of those in here, its place among them
	refs    int           // in here, counted for each connection
	packed  int           // the same, of records in the packet that is being made
	bytes   int           // sizes of the bodies of the nodes in here
	room    int           // bound of bytes plus spent; the body that crosses it still goes in
	spent   int           // sizes of the bodies of records that are in the packet already

	sent []*body // of the records that append made since the last takeSent
}

type batchNode struct {
	body     *body
	parent   *batchNode
	children []*batchNode
	conns    connSet // filled by append
}

// add notes that a connection is sent a body after all that is noted for it.
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

// expect notes that a reference to the body of a was added, of which as many
// are expected as a says.
func (t *batch) expect(a *arrival, now time.Time) {
	if len(t.joined) == 0 {
		t.since = now
	}
	satisfied := a.count >= a.on.expected()
	switch {
	case !a.joined:
		if a.count > 1 { // those before it have left already
			t.late = min(max(linger, 2*t.late), longLinger-linger)
		}
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

// full reports whether no more references fit into the packet, or no more of
// what they refer to is to be kept for the relay.
func (t *batch) full() bool { return t.refs+t.packed >= maxRefs || t.bytes+t.spent > t.room }

// held reports whether the batch waits for a body to be published: what comes
// before its references need not be asked for.
func (t *batch) held() bool { return len(t.streams) > 0 && t.newest > t.left() }

func (t *batch) due(now time.Time) bool {
	return len(t.streams) > 0 && !t.held() && (t.missing == 0 || t.full() || !now.Before(t.since.Add(t.patience())))
}

// patience is how long references wait.
func (t *batch) patience() time.Duration {
	if t.bytes > fewBytes || ablation.LateReferences {
		return linger
	}
	return linger + t.late
}

// deadline is when the batch is due at the latest; zero if it is empty, or
// waits for something else.
func (t *batch) deadline() time.Time {
	if len(t.streams) == 0 || t.held() {
		return time.Time{}
	}
	return t.since.Add(t.patience())
}

// append encodes the batch as a refs record and empties it.
func (t *batch) append(b []byte) []byte {
	t.late -= t.late / 8 // until some come late again
	entries := 0
	for _, s := range t.streams {
		if s.node.conns.count == 0 {
			entries++
		}
		s.node.conns.add(s.conn)
		s.node = nil
	}
	floor := t.floor()
	b = appendRecord(b, recordRefs, floor, uint64(entries))
	var list []uint64
	for _, n := range t.nodes {
		t.sent = append(t.sent, n.body)
		if n.conns.count == 0 {
			continue
		}
		list = list[:0]
		for up := n; up != &t.root; up = up.parent {
			list = append(list, up.body.number)
		}
		for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
			list[i], list[j] = list[j], list[i]
		}
		b, floor = appendBodyList(b, list, floor)
		b = n.conns.append(b)
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

// takeSent ends a packet. It returns the bodies that its records refer to, each
// as often as it was counted in use.
func (t *batch) takeSent() []*body {
	t.packed, t.spent = 0, 0
	sent := t.sent
	t.sent = nil
	return sent
}
