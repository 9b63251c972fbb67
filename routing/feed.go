package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"ahprelay/broker/link"
)

// Readers of the NATS servers, such as an operator's tools, hear every notification on its
// channel's subject. A body is there already. A notification for a single connection travels
// in that connection's stream; the host-agent marks it, and the relay publishes it again.
// That costs nothing on the host's line. The relay publishes only if there may be a reader
// ([link.FeatureFeed]). If a notification travels in several streams, it is marked in a
// single stream. A message on a channel's subject that the relay publishes is
//
//	checksum (4 bytes), version 3, source, and for each piece: number, index, flags, bytes
//
// The source is the relay's instance. Source and bytes stand behind their length. The
// number counts the source's notifications, so a gap shows a loss. Long notifications are
// published in pieces, counted from 0; flag 1 marks the last one. Pieces of the same channel
// that wait together share a message.

// pieceLast marks the last piece of a published message.
const pieceLast = 1

// maxFed bounds the channels that a relay knows by number.
const maxFed = 2 * maxChannels

// longSeen are the last notifications that are too long for bodies.
type longSeen struct {
	hashes [8]uint64
	next   int
}

// isNew reports whether a message was not among the last, and adds it.
func (l *longSeen) isNew(message []byte) bool {
	hash := bodyHash(message)
	if slices.Contains(l.hashes[:], hash) {
		return false
	}
	l.hashes[l.next] = hash
	l.next = (l.next + 1) % len(l.hashes)
	return true
}

// feedOnce returns the channel's number for a notification that is no body, or 0 if it is
// not to be fed on this connection.
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

// feed returns a channel's number for a fed record, and tells the relay the channel's name
// before its first use. It returns 0 if the relay does not feed.
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
	Number uint64 // of the message
	Index  uint64 // of the piece in the message
	Last   bool
	Data   []byte
}

// AppendFeed appends the beginning of a message that publishes a source's pieces. Then come
// the pieces (AppendPiece), and at last the checksum of all (SealFeed).
func AppendFeed(b []byte, source string) []byte {
	b = append(b, 0, 0, 0, 0, pieceVersion)
	return append(binary.AppendUvarint(b, uint64(len(source))), source...)
}

// AppendPiece appends a piece. Its source is the message's.
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

// SealFeed writes the checksum of a message, and returns the message.
func SealFeed(message []byte) []byte { return sealBodies(message) }

// errNoFeed reports a message that is neither body nor piece.
var errNoFeed = errors.New("not a message of this version")

// ReadFeed decodes a message on a channel's subject. It calls take with each notification
// or piece, which aliases data; bodies are single pieces, with the host-agent as source.
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

// A feed publishes fed records, at the relay. Its mutex is the RelayEnd's.
type feed struct {
	publish func(token string, p Piece) // must not block; nil: there is no feed
	tokens  map[uint64]string           // by channel
	order   fifo[uint64]                // of tokens, oldest first
	number  uint64                      // of the last message
	parts   map[uint64]Piece            // by connection: the message in pieces that it receives
}

// name records a channel's name.
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

// take publishes a message, or a piece of one, that was marked for a channel; 0: it was
// not.
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

// feedRecord takes a channel's name.
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

// fedRecord takes a complete message for one client that is also published.
func (r *RelayEnd) fedRecord(conn uint64, f *link.Fields) error {
	channel := f.Uvarint()
	data := f.Bytes()
	if !f.Bad {
		r.feed.take(channel, conn, data, fragmentFirst|fragmentLast)
	}
	return r.frameFrom(conn, data, f)
}
