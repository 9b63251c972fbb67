package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"ahprelay/broker/link"
)

// Programs that are connected to the NATS servers, such as an operator's tools, can read
// every notification of an unsealed host on its channel's NATS subject. Bodies are
// published there anyway. A notification for a single connection is not: it is sent in
// that connection's stream. The host-agent marks it with its channel (fed), and the relay
// publishes a copy. The host's network line carries no additional bytes. Relays publish
// copies only if there may be readers ([link.FeatureFeed]). A notification in several
// streams is marked in only one of them. The message that a relay publishes on a channel's
// subject is
//
//	checksum (4 bytes), version 3, source, and for each piece: number, index, flags, bytes
//
// The source is the relay's instance. A length precedes source and bytes. The number
// counts the source's notifications of that host, so a reader of all channels can detect a
// loss. Long notifications are published in pieces with an index from 0; flag 1 marks the
// last piece. Waiting pieces of one channel share a message.

// pieceLast marks the last piece of a published message.
const pieceLast = 1

// maxFed bounds the channel names that a relay keeps for fed records.
const maxFed = 2 * maxChannels

// longSeen remembers the last notifications that were too long for bodies.
type longSeen struct {
	hashes [8]uint64
	next   int
}

// isNew reports whether a message differs from all remembered messages, and remembers it.
func (l *longSeen) isNew(message []byte) bool {
	hash := bodyHash(message)
	if slices.Contains(l.hashes[:], hash) {
		return false
	}
	l.hashes[l.next] = hash
	l.next = (l.next + 1) % len(l.hashes)
	return true
}

// feedOnce returns the channel number with which to mark a notification that is not a body.
// It returns 0 if the notification must not be marked on this connection.
func (a *AgentEnd) feedOnce(l *agentLink, uri, message []byte) uint64 {
	if !l.feeds || len(uri) == 0 || a.conns > 1 && !a.long.isNew(message) {
		return 0
	}
	ch, forgotten := a.channels.channel(uri)
	if forgotten != nil {
		forgotten.forget()
	}
	return a.feed(ch.on(l), ch)
}

// feed returns a channel's number for fed records. Before the first use, it sends the
// channel's name to the relay. It returns 0 if the relay publishes no copies.
func (a *AgentEnd) feed(on *channelLink, ch *channel) uint64 {
	if !on.link.feeds || on.link.ended {
		return 0
	}
	if !on.named {
		on.named = true
		on.link.mux.sendControl(appendBytes(appendRecord(nil, recordFeed, ch.number), []byte(ch.token)))
	}
	return ch.number
}

// A Piece is a part of a notification that a relay publishes.
type Piece struct {
	Source string // the relay's instance
	Number uint64 // rises with the source's messages
	Index  uint64 // of this piece within the message, from 0
	Last   bool
	Data   []byte
}

// AppendFeed appends the head of a message that publishes pieces. The pieces follow
// (AppendPiece), then SealFeed completes the message.
func AppendFeed(b []byte, source string) []byte {
	b = append(b, 0, 0, 0, 0, pieceVersion)
	return append(binary.AppendUvarint(b, uint64(len(source))), source...)
}

// AppendPiece appends a piece. Its Source is not written, because AppendFeed has written it.
func AppendPiece(b []byte, p Piece) []byte {
	b = binary.AppendUvarint(slices.Grow(b, 1+3*binary.MaxVarintLen64+len(p.Data)), p.Number)
	b = binary.AppendUvarint(b, p.Index)
	var flags byte
	if p.Last {
		flags = pieceLast
	}
	b = binary.AppendUvarint(append(b, flags), uint64(len(p.Data)))
	return append(b, p.Data...)
}

// SealFeed writes the checksum into a complete message, and returns the message.
func SealFeed(message []byte) []byte { return sealBodies(message) }

// errNoFeed reports a message that is neither body nor piece.
var errNoFeed = errors.New("not a message of this version")

// ReadFeed decodes a message from a channel's subject. It calls take with each notification
// or piece. A body is passed as a single piece whose source is the host-agent. Data of
// pieces aliases data.
func ReadFeed(data []byte, take func(Piece)) error {
	data, intact := openBodies(data)
	if !intact {
		return fmt.Errorf("%w: checksum", errNoFeed)
	}
	f := link.Fields{B: data}
	version, source := f.Byte(), string(f.Bytes())
	switch {
	case f.Bad:
	case version == pieceVersion:
		var pieces []Piece
		for len(f.B) > 0 && !f.Bad {
			pieces = append(pieces, Piece{Source: source, Number: f.Uvarint(), Index: f.Uvarint(), Last: f.Byte()&pieceLast != 0, Data: f.Bytes()})
		}
		if !f.Bad && len(pieces) > 0 {
			for _, p := range pieces {
				take(p)
			}
			return nil
		}
	case readBodies(data, source, func(number uint64, _, start, end int) {
		take(Piece{Source: source, Number: number, Last: true, Data: data[start:end]})
	}):
		return nil
	}
	return errNoFeed
}

// A feed publishes copies of marked notifications, at the relay. The RelayEnd's mutex guards
// it.
type feed struct {
	publish func(token string, p Piece) // must not block; nil: no copies are published
	tokens  map[uint64]string           // by channel number
	order   fifo[uint64]                // of tokens, oldest first
	number  uint64                      // of the last message
	parts   map[uint64]Piece            // by connection: the fragmented message that is being published
}

func (d *feed) name(channel uint64, token string) {
	if d.publish == nil {
		return
	}
	if d.tokens == nil {
		d.tokens, d.parts = map[uint64]string{}, map[uint64]Piece{}
	}
	if _, known := d.tokens[channel]; !known {
		d.order.push(channel)
	}
	d.tokens[channel] = token
	for d.order.len() > maxFed {
		delete(d.tokens, d.order.pop())
	}
}

// take publishes a message, or a piece, that is marked with a channel. It does nothing if
// channel is 0.
func (d *feed) take(channel, conn uint64, data []byte, flags uint64) {
	token, known := d.tokens[channel]
	if channel == 0 || !known {
		return
	}
	p, more := d.parts[conn]
	if !more || flags&fragmentFirst != 0 {
		d.number++
		p = Piece{Number: d.number}
	}
	p.Data, p.Last = data, flags&fragmentLast != 0
	d.publish(token, p)
	if p.Index, p.Data = p.Index+1, nil; p.Last {
		delete(d.parts, conn)
	} else {
		d.parts[conn] = p
	}
}

func (r *RelayEnd) feedRecord(channel uint64, f *link.Fields) error {
	token := string(f.Bytes())
	switch {
	case f.Bad:
		return nil
	case !validToken(token):
		return fmt.Errorf("%w: channel token of %d bytes", link.ErrBadPacket, len(token))
	}
	r.feed.name(channel, token)
	return nil
}

// fedRecord delivers a complete message to one client, and publishes a copy.
func (r *RelayEnd) fedRecord(conn uint64, f *link.Fields) error {
	channel := f.Uvarint()
	data := f.Bytes()
	if !f.Bad {
		r.feed.take(channel, conn, data, fragmentFirst|fragmentLast)
	}
	return r.frameFrom(conn, data, f)
}
