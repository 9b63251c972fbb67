package routing

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
)

// A recordKind is the first byte of a record. The package documentation specifies each
// kind's fields.
type recordKind byte

const (
	// Both directions.
	recordFrame    recordKind = iota + 1 // conn, frame: a complete text message
	recordFragment                       // conn, flags, bytes: a piece of a message
	recordClose                          // conn, code, reason: nothing follows in this direction
	recordCredit                         // conn, n: n more bytes may be sent

	// Relay to host-agent.
	recordOpen
	recordWatching
	recordNeed

	// Host-agent to relay.
	recordOpened
	recordWatch
	recordUnwatch
	recordRefs
	recordBody
	recordGone
	recordReady
	recordProbe
	recordFlushed

	// Relay to host-agent.
	recordFlush

	// Host-agent to relay: see chunks.go.
	recordChunk
	recordDrop
	recordChunkRef

	// Host-agent to relay: see feed.go.
	recordFeed
	recordFed

	// Host-agent to relay.
	recordReport
	recordTagged

	recordMove  // relay to host-agent
	recordMoved // host-agent to relay

	// Host-agent to relay: see crowd.go.
	recordPlace
	recordTold

	recordKinds // one more than the last kind
)

// Flags of a fragment.
const (
	fragmentFirst = 1 << iota
	fragmentLast
	fragmentBinary
	fragmentFed // a channel follows the flags; the relay publishes the message
)

// A host-agent's message on a channel's NATS subject begins with a CRC-32C of the remaining
// bytes (four bytes, big-endian), a version, and the host-agent's instance with its length.
// Then follows
//   - one body: its number and its bytes; or
//   - several bodies that were sent together: their count, all their numbers, and then the
//     bytes of each body behind a length of four bytes. A WebSocket frame header for such
//     a size has four bytes, or two below 126 bytes. Relays overwrite the length with that header, and so can
//     send adjacent bodies to clients without copying.
const (
	bodyVersion   = 1
	bodiesVersion = 2
	pieceVersion  = 3 // see feed.go
)

// Sizes of bodies that leave together, in bytes.
const (
	mostTogether = 32 << 10 // bound for all bodies together
	bodySlot     = 4        // of each body's length
)

// bodySum is the size of the checksum in front of bodies.
const bodySum = 4

// sealBodies writes the checksum of a message into its first bodySum bytes, which the
// caller has reserved.
func sealBodies(message []byte) []byte {
	binary.BigEndian.PutUint32(message, link.Sum(message[bodySum:]))
	return message
}

// openBodies strips the checksum from a message, and reports whether the checksum matches.
func openBodies(message []byte) (rest []byte, intact bool) {
	if len(message) < bodySum {
		return nil, false
	}
	rest = message[bodySum:]
	return rest, binary.BigEndian.Uint32(message) == link.Sum(rest)
}

// Open describes the connection to the host that a relay asks the host-agent to open.
type Open struct {
	ID       string     `json:"id"`                 // the connection's id in all logs
	Subject  string     `json:"subject"`            // the token's subject
	Token    string     `json:"token"`              // the token's jti
	DeviceID string     `json:"deviceId,omitempty"` // the device for which the token was issued
	Access   string     `json:"access"`             // an [auth.Access]
	Expires  *time.Time `json:"expires,omitempty"`
	Remote   string     `json:"remote,omitempty"` // the client's network address
	Device   string     `json:"device,omitempty"` // the name of the person's device, for display
	Strict   bool       `json:"strict,omitempty"` // refuse all MCP methods that host and client have not declared, see package mcpgate

	// Channels and Methods limit the client: patterns, see package auth.
	Channels []string `json:"channels,omitempty"`
	Methods  []string `json:"methods,omitempty"`

	Files   bool `json:"files,omitempty"`   // the client may also read files in the working directories of sessions that it may see
	Reverse bool `json:"reverse,omitempty"` // the host may ask the client for the client's files at any time

	// Origins are the grants from which the token is derived. When one of them is revoked,
	// the host-agent renews the keys that the client has received.
	Origins []auth.Origin `json:"origins,omitempty"`

	// Sealed makes the connection carry binary messages that only the client and the
	// host-agent can read (docs/sealed.md). The host-agent then ignores the permissions in
	// this Open. Relays send it only to host-agents with [link.FeatureSealed].
	Sealed bool `json:"sealed,omitempty"`

	// Ticket names a connection to the host that the host-agent has kept for this client,
	// see [RelayConn.Move]. Relays send it only to host-agents with [link.FeatureMove].
	Ticket string `json:"ticket,omitempty"`

	// Trace is the W3C traceparent of the client's handshake. Relays with tracing send it
	// only for clients with full authority.
	Trace string `json:"trace,omitempty"`

	// Canvas makes the connection carry bytes to and from a canvas that a client has on
	// its screen. Relays send it only to host-agents with [link.FeatureCanvas].
	Canvas *Canvas `json:"canvas,omitempty"`
}

// A Canvas names a canvas that a client has on its screen.
type Canvas struct {
	Channel   string `json:"channel"`
	Instance  string `json:"instance"`
	ClientID  string `json:"clientId"`  // from the client's connection to the host
	Authority string `json:"authority"` // Open.Authority of that connection

	Check bool `json:"check,omitempty"` // only report whether the client may see the canvas, and how

	// Preview selects a port of the host's machine that the client has opened, instead of
	// a canvas. Channel is then the session, and Instance the preview.
	Preview bool `json:"preview,omitempty"`
}

// Full reports whether the client's token permits everything at the host.
func (o *Open) Full() bool {
	return !auth.Client{Access: auth.Access(o.Access), Channels: o.Channels, Methods: o.Methods}.Restricted()
}

// Authority returns a digest of the client's permissions. Equal digests mean equal
// permissions.
func (o *Open) Authority() string {
	sum := sha256.New()
	for _, list := range [][]string{{o.Access}, {strconv.FormatBool(o.Files)}, {strconv.FormatBool(o.Reverse)}, o.Channels, o.Methods} {
		_ = json.NewEncoder(sum).Encode(slices.Sorted(slices.Values(list))) // never fails
	}
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:16])
}

func appendRecord(b []byte, kind recordKind, numbers ...uint64) []byte {
	b = append(b, byte(kind))
	for _, n := range numbers {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func appendBytes(b, data []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(data)))
	return append(b, data...)
}

func appendClose(b []byte, conn uint64, code ahp.CloseCode, reason string) []byte {
	b = appendRecord(b, recordClose, conn, uint64(code))
	return appendBytes(b, []byte(reason))
}

// MaxTicket is the longest ticket of a move, in bytes.
const MaxTicket = 64

// maxHolder bounds a move's holder, in bytes of JSON.
const maxHolder = 8 << 10

// Times that JSON can represent (RFC 3339).
var (
	firstTime = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// writable returns the time nearest to t that JSON can represent. A token's issuer may
// choose times beyond that range.
func writable(t time.Time) time.Time {
	switch t = t.UTC(); {
	case t.Before(firstTime):
		return firstTime
	case t.After(lastTime):
		return lastTime
	}
	return t
}

// appendMove appends a move record. Its time is in Unix seconds.
func appendMove(b []byte, conn uint64, m Move) []byte {
	m.Holder.At = writable(m.Holder.At)
	var holder bytes.Buffer
	encoder := json.NewEncoder(&holder)
	encoder.SetEscapeHTML(false) // escaping would turn < into six bytes, and long subjects would exceed maxHolder
	if err := encoder.Encode(m.Holder); err != nil {
		panic(err) // only times can fail, and writable excludes that
	}
	b = appendBytes(appendRecord(b, recordMove, conn), []byte(m.Ticket))
	return appendBytes(binary.AppendUvarint(b, uint64(max(m.Until.Unix(), 0))), holder.Bytes())
}

func appendOpen(b []byte, conn uint64, open Open) []byte {
	if open.Expires != nil {
		expires := writable(*open.Expires)
		open.Expires = &expires
	}
	data, err := json.Marshal(open)
	if err != nil {
		panic(err) // only times can fail, and writable excludes that
	}
	return appendBytes(appendRecord(b, recordOpen, conn), data)
}

func encodeBody(agent string, number uint64, frame []byte) []byte {
	b := append(make([]byte, bodySum, bodySum+1+2*binary.MaxVarintLen64+len(agent)+len(frame)), bodyVersion)
	b = appendBytes(b, []byte(agent))
	b = binary.AppendUvarint(b, number)
	return sealBodies(append(b, frame...))
}

func encodeBodies(agent string, bodies []*body) []byte {
	size := bodySum + 1 + 2*binary.MaxVarintLen64 + len(agent)
	for _, body := range bodies {
		size += binary.MaxVarintLen64 + bodySlot + len(body.frame)
	}
	b := append(make([]byte, bodySum, size), bodiesVersion)
	b = appendBytes(b, []byte(agent))
	b = binary.AppendUvarint(b, uint64(len(bodies)))
	for _, body := range bodies {
		b = binary.AppendUvarint(b, body.number)
	}
	for _, body := range bodies {
		b = binary.BigEndian.AppendUint32(b, uint32(len(body.frame)))
		b = append(b, body.frame...)
	}
	return sealBodies(b)
}

// readBodies decodes a message from openBodies. For every body it calls each with the
// body's number and range in data. data[free:start] are bytes before the body that may be
// overwritten. It returns false and calls nothing if the message comes from a different
// host-agent instance, has an unknown version, or is cut short.
func readBodies(data []byte, agent string, each func(number uint64, free, start, end int)) bool {
	f := link.Fields{B: data}
	version := f.Byte()
	if string(f.Bytes()) != agent {
		return false
	}
	switch version {
	case bodyVersion:
		if number := f.Uvarint(); !f.Bad {
			each(number, 0, len(data)-len(f.B), len(data))
		}
	case bodiesVersion:
		numbers, frames, ok := splitBodies(f)
		if !ok {
			return false
		}
		for at := len(data) - len(frames); at < len(data); {
			start := at + bodySlot
			at = start + int(binary.BigEndian.Uint32(data[at:]))
			each(numbers.Uvarint(), start-bodySlot, start, at)
		}
	default:
		return false
	}
	return !f.Bad
}

// splitBodies returns the numbers and the frames of several bodies. It reports whether
// there are as many frames as numbers.
func splitBodies(f link.Fields) (numbers link.Fields, frames []byte, ok bool) {
	count := f.Uvarint()
	numbers = f
	for n := count; n > 0 && !f.Bad; n-- {
		f.Uvarint()
	}
	if f.Bad {
		return numbers, nil, false
	}
	frames = f.B
	for rest := frames; count > 0; count-- {
		if len(rest) < bodySlot {
			return numbers, nil, false
		}
		size := int(binary.BigEndian.Uint32(rest))
		if rest = rest[bodySlot:]; size > len(rest) {
			return numbers, nil, false
		}
		if rest = rest[size:]; count == 1 && len(rest) > 0 {
			return numbers, nil, false
		}
	}
	return numbers, frames, len(frames) > 0
}
