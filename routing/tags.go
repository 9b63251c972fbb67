package routing

import (
	"crypto/sha256"
	"slices"

	"ahprelay/broker/link"
)

// A sealed host's connections share bodies that neither this package nor a relay can
// read. The sealing layer gives each body as a [Notification] of [NewSealedBody], and each
// connection has a [Tagger]. A relay without [link.FeatureTags] gets the bodies in each connection's own stream. A connection's tag follows its bodies: it proves to that client
// alone that the host-agent sent exactly these bodies, at exactly this place in the
// connection's stream. A tag is made as its batch leaves, so one tag covers all bodies of
// the batch.

// A tag is delivered to its client as the binary message TagKind ‖ tag.
const (
	TagKind = 8
	TagSize = 16
)

// A Tagger makes the tags of a connection's sealed bodies. The [HostConn] of each
// connection to a sealed host is its Tagger.
type Tagger interface {
	// Tag returns the next tag, for bodies with a sum: the SHA-256 of the SHA-256 of
	// each body. Own is the number of messages in the connection's own stream that the
	// bodies follow. Tag is called under locks, and must not block.
	Tag(sum [32]byte, own uint64) [TagSize]byte
}

// NewSealedBody returns a notification for a message that a sealed host's connections
// share. Equal channels have equal receivers.
func NewSealedBody(message, channel []byte) *Notification {
	n := NewNotification(message, channel)
	sum := sha256.Sum256(message)
	n.sum = &sum
	return n
}

// queueSealed queues a sealed body and its tag in the connection's own stream.
func queueSealed(c *AgentConn, message []byte, sum *[32]byte) error {
	if err := c.queue(item{frame: message, whole: len(message), binary: true, aside: true}); err != nil {
		return err
	}
	tag := make([]byte, 1+TagSize) // filled as it leaves
	return c.queue(item{frame: tag, whole: len(tag), binary: true, aside: true, sum: sum})
}

// tag returns the message with the tag of bodies.
func (s *stream) tag(sum [32]byte) []byte {
	tag := s.tagger.Tag(sum, s.own)
	return append([]byte{TagKind}, tag[:]...)
}

// sumOf returns the sum of bodies.
func sumOf(sums ...*[32]byte) [32]byte {
	h := sha256.New()
	for _, sum := range sums {
		h.Write(sum[:])
	}
	return [32]byte(h.Sum(nil))
}

// appendTags appends the tags of a node's connections, in ascending order of their
// numbers. Bodies are the node's.
func (n *batchNode) appendTags(b []byte, bodies []*[32]byte) []byte {
	sum := sumOf(bodies...)
	slices.SortFunc(n.streams, func(a, b *stream) int { return int(a.conn) - int(b.conn) }) // below maxConns
	for _, s := range n.streams {
		tag := s.tagger.Tag(sum, s.own)
		b = append(b, tag[:]...)
	}
	return b
}

// entryTags are the tags of a refs record's entry, encoded for clients.
type entryTags struct {
	encoded []byte // nil: there are none
	size    int    // of each
	places  []int  // among the tags, for each connection that is still there
}

// read reads the tags of an entry with n connections.
func (t *entryTags) read(f *link.Fields, n int, encode func(b, message []byte, binary bool) []byte) {
	if n == 0 || n*TagSize > len(f.B) {
		f.Bad = f.Bad || n > 0
		return
	}
	message := [1 + TagSize]byte{TagKind}
	t.encoded = make([]byte, 0, n*(len(message)+maxFrameHead))
	for range n {
		f.B = f.B[copy(message[1:], f.B):]
		t.encoded = encode(t.encoded, message[:], true)
	}
	t.size = len(t.encoded) / n
}

// frames returns the output for a connection: its tag, if there are tags. A tag takes no
// credit, because its bodies pay for it.
func (t *entryTags) frames(conn int) []Frame {
	if t.encoded == nil {
		return nil
	}
	start := t.places[conn] * t.size
	return []Frame{{Data: t.encoded[start : start+t.size : start+t.size], Messages: 1}}
}
