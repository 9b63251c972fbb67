package routing

import (
	"crypto/sha256"
	"slices"

	"ahprelay/broker/link"
)

// At a sealed host, connections share bodies that are encrypted: neither this package nor
// a relay can read them. The sealing layer passes each body as a [Notification] from
// [NewSealedBody], and each connection has a [Tagger]. A tag is sent to one client, after
// its bodies. It proves to that client that the host-agent sent exactly these bodies at
// exactly this position in the connection's stream. Tags are made when the batch is sent,
// and one tag covers all the connection's bodies in it. In a connection's own stream each
// body has a tag.

// A client receives a tag as the binary message TagKind ‖ tag.
const (
	TagKind = 8
	TagSize = 16
)

// A Tagger makes the tags for a connection's sealed bodies. At a sealed host, each
// [HostConn] is a Tagger.
type Tagger interface {
	// Tag returns the next tag. Sum is the SHA-256 over the SHA-256 sums of the bodies.
	// Own is the number of messages in the connection's own stream before these bodies.
	// Tag is called under locks, and must not block.
	Tag(sum [32]byte, own uint64) [TagSize]byte
}

// NewSealedBody returns a notification for an encrypted message that several connections
// receive. All messages with equal channels must have the same receivers.
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
	tag := make([]byte, 1+TagSize) // filled when it is sent
	return c.queue(item{frame: tag, whole: len(tag), binary: true, aside: true, sum: sum})
}

// tag makes a tag, and returns the message for the client.
func (s *stream) tag(sum [32]byte) []byte {
	tag := s.tagger.Tag(sum, s.own)
	return append([]byte{TagKind}, tag[:]...)
}

// sumOf returns the SHA-256 over the sums of several bodies.
func sumOf(sums ...*[32]byte) [32]byte {
	h := sha256.New()
	for _, sum := range sums {
		h.Write(sum[:])
	}
	return [32]byte(h.Sum(nil))
}

// appendTags appends the tags for a node's connections, in ascending order of connection
// numbers. Bodies has the sums of the node's bodies.
func (n *batchNode) appendTags(b []byte, bodies []*[32]byte) []byte {
	sum := sumOf(bodies...)
	slices.SortFunc(n.streams, func(a, b *stream) int { return int(a.conn) - int(b.conn) }) // below maxConns
	for _, s := range n.streams {
		tag := s.tagger.Tag(sum, s.own)
		b = append(b, tag[:]...)
	}
	return b
}

// entryTags are the tags in an entry of a refs record, encoded for clients.
type entryTags struct {
	encoded []byte // nil: the entry has no tags
	size    int    // of each
	places  []int  // for each connection that still exists, the index of its tag
}

// read decodes the tags of an entry with n connections.
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

// frames returns the output with a connection's tag, or nil. A tag uses no credit; its
// bodies have paid for it.
func (t *entryTags) frames(conn int) []Frame {
	if t.encoded == nil {
		return nil
	}
	start := t.places[conn] * t.size
	return []Frame{{Data: t.encoded[start : start+t.size : start+t.size], Messages: 1}}
}
