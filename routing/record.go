package routing

import (
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

// A record is one step of the stream between a relay and a host-agent: a
// kind, then the fields named here, numbers as varints, texts and frames
// behind their length. A packet's payload is a row of records.
type recordKind byte

const (
	// Both directions.
	recordFrame    recordKind = iota + 1 // conn, frame: a whole text message
	recordFragment                       // conn, flags, bytes: a piece of a message
	recordClose                          // conn, code, reason: nothing follows in this direction
	recordCredit                         // conn, n: n more bytes have been written, so many more may be sent

	// Relay to host-agent.
	recordOpen     // conn, JSON of Open
	recordWatching // watch: bodies of that channel will be heard from now on
	recordNeed     // body: it was not heard

	// Host-agent to relay.
	recordOpened  // conn: the host takes messages
	recordWatch   // watch, token: bodies will come on that channel
	recordUnwatch // watch
	recordRefs    // floor, entries: see refs.go
	recordBody    // body, bytes: the answer to need
	recordGone    // body: the other answer
	recordReady   // conn: the host has answered initialize or reconnect
	recordProbe   // conn: its client has come again; is it still there?
	recordFlushed // conn: the answer to flush, behind what the host has said by then

	// Relay to host-agent.
	recordFlush // conn: say so when what came before has been written to the host

	// Host-agent to relay: see chunks.go.
	recordChunk    // chunk, flags, bytes: a piece of a chunk, all in a row
	recordDrop     // chunk: nothing refers to it any more
	recordChunkRef // conn, chunk: that chunk comes next in the message

	recordAsk   // relay to host-agent. conn, ask, frame: a request of the relay's own
	recordAside // host-agent to relay. conn, ask: the next message on this connection answers that

	recordReport // host-agent to relay. 0, JSON of Report
)

// Flags of a fragment.
const (
	fragmentFirst = 1 << iota
	fragmentLast
	fragmentBinary
)

// A message on the subject of a channel is a version, the host-agent instance behind
// its length, and
//
//   - one body: its number, and the frame; or
//   - several that left together, if all relays take that: how many, the number of each,
//     and their frames, each behind its length in four bytes. That is as long as the head
//     of a WebSocket frame of that size, which relays put in its place: so the frames stand
//     one behind the other as clients get them.
const (
	bodyVersion   = 1
	bodiesVersion = 2
)

// Bounds of bodies that leave together, in bytes.
const (
	mostTogether = 32 << 10 // of all of them
	bodySlot     = 4        // of the length of each
)

// Open is what a host-agent is told of a connection that it is to open.
type Open struct {
	ID      string     `json:"id"`      // of the connection, in all logs
	Subject string     `json:"subject"` // of the client's token
	Token   string     `json:"token"`   // its jti
	Access  string     `json:"access"`  // read, write or admin
	Expires *time.Time `json:"expires,omitempty"`
	Remote  string     `json:"remote,omitempty"` // network address of the client
	Strict  bool       `json:"strict,omitempty"` // what host and client have not declared is refused, see package mcpgate

	// What the client may do is less if these are set: patterns, see package
	// auth. Relays send them only to host-agents that see to them
	// ([link.FeatureAuthority]).
	Channels []string `json:"channels,omitempty"`
	Methods  []string `json:"methods,omitempty"`

	Files   bool `json:"files,omitempty"`   // the client also reaches files in the working directories of sessions that it may see
	Reverse bool `json:"reverse,omitempty"` // the host may ask the client for the client's files

	// Trace is the W3C traceparent of the client's handshake. Relays that trace send it of
	// clients that may do everything.
	Trace string `json:"trace,omitempty"`

	// Canvas says that the connection is no client's: it carries bytes, to a
	// canvas that a client is shown. Relays send it only to host-agents that know
	// of it ([link.FeatureCanvas]).
	Canvas *Canvas `json:"canvas,omitempty"`
}

// A Canvas is a canvas in view of a client.
type Canvas struct {
	Channel   string `json:"channel"`
	Instance  string `json:"instance"`
	ClientID  string `json:"clientId"`  // that the client has said on its connection to the host
	Authority string `json:"authority"` // what that connection's Open allows, as Authority tells it

	Check bool `json:"check,omitempty"` // it is only asked whether and how the canvas may be seen

	// Preview says that it is none, but a port of the host's machine that the client
	// has opened: channel is of a session, instance of the preview. Only to
	// host-agents with [link.FeaturePreview].
	Preview bool `json:"preview,omitempty"`
}

// Full reports whether the client may do everything at the host, as far as its token says.
func (o *Open) Full() bool {
	return !auth.Client{Access: auth.Access(o.Access), Channels: o.Channels, Methods: o.Methods}.Restricted()
}

// Authority is a name for what the client may do: those of which it is the same
// may do the same.
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

func appendOpen(b []byte, conn uint64, open Open) []byte {
	data, err := json.Marshal(open)
	if err != nil {
		panic(err) // no field can fail
	}
	return appendBytes(appendRecord(b, recordOpen, conn), data)
}

// appendBody encodes the message that publishes a body.
func appendBody(b []byte, agent string, number uint64, frame []byte) []byte {
	b = append(b, bodyVersion)
	b = appendBytes(b, []byte(agent))
	b = binary.AppendUvarint(b, number)
	return append(b, frame...)
}

// encodeBodies encodes the message that publishes several bodies.
func encodeBodies(agent string, bodies []*body) []byte {
	size := 1 + 2*binary.MaxVarintLen64 + len(agent)
	for _, body := range bodies {
		size += binary.MaxVarintLen64 + bodySlot + len(body.frame)
	}
	b := append(make([]byte, 0, size), bodiesVersion)
	b = appendBytes(b, []byte(agent))
	b = binary.AppendUvarint(b, uint64(len(bodies)))
	for _, body := range bodies {
		b = binary.AppendUvarint(b, body.number)
	}
	for _, body := range bodies {
		b = binary.BigEndian.AppendUint32(b, uint32(len(body.frame)))
		b = append(b, body.frame...)
	}
	return b
}

// readBodies decodes a message that publishes bodies: each is told of where in data its
// frame begins and ends, and from where on what is before that is of no more use. It
// returns false, and tells of none, if the message is not one of this host-agent instance
// and version, and if it is cut short.
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

// splitBodies returns the numbers of several bodies, and their frames; ok says that
// there are as many of both.
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
