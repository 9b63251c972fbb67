package resume

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"time"

	"ahprelay/broker/link"
)

const wireVersion = 1

// Subprotocol is the WebSocket subprotocol of carriers.
const Subprotocol = "ahp-resume.v1"

// Path is the relay's path for carriers.
const Path = "/resume"

// When a relay stops gracefully, the connection inside a stream can move to a different relay.
// In each WebSocket handshake, the client announces support and names a ticket (MoveHeader).
// If the relay later closes with 1001 and MoveReason, it still takes everything the client
// sends before the client's close frame, and the host-agent keeps the connection to the host. In
// its next handshake, the client names the ticket again (MovedHeader). If the new relay
// continues the connection, its response repeats that header.
const (
	MoveHeader  = "Ahp-Move"  // request: the ticket for the next move
	MovedHeader = "Ahp-Moved" // request: the ticket of the connection to continue; response: "yes"
	MoveReason  = "relay shutting down: this connection may move"
	maxTicket   = 64
)

// TicketOf returns the ticket in a request's header, or "" if its length is invalid.
func TicketOf(header http.Header, name string) string {
	ticket := header.Get(name)
	if len(ticket) < 16 || len(ticket) > maxTicket {
		return ""
	}
	return ticket
}

// Kinds of handshake packets.
const (
	kindHello byte = iota + 1
	kindWelcome
	kindRefuse
)

// maxReason bounds the reason of a refusal, in bytes.
const maxReason = 256

// none is the id in a hello which asks for a new stream.
var none [32]byte

func hello(id [32]byte) []byte { return append([]byte{wireVersion, kindHello}, id[:]...) }

func readHello(packet []byte) (id [32]byte, err error) {
	if len(packet) != 2+len(id) || packet[0] != wireVersion || packet[1] != kindHello {
		return id, fmt.Errorf("%w: no hello", ErrBroken)
	}
	copy(id[:], packet[2:])
	return id, nil
}

// welcome returns the relay's answer to a hello.
func welcome(id [32]byte, window int, resume time.Duration) []byte {
	b := append([]byte{wireVersion, kindWelcome}, id[:]...)
	b = binary.AppendUvarint(b, uint64(window))
	return binary.AppendUvarint(b, uint64(resume/time.Second))
}

// refuse returns the relay's answer to a hello that it refuses.
func refuse(reason string) []byte {
	return append([]byte{wireVersion, kindRefuse}, reason[:min(len(reason), maxReason)]...)
}

type welcomed struct {
	id     [32]byte
	window int
	resume time.Duration
}

// Bounds for the values a client accepts from a relay.
const (
	maxWindow = 64 << 20
	maxTime   = 24 * time.Hour
)

func readWelcome(packet []byte) (w welcomed, err error) {
	r := link.Fields{B: packet}
	version, kind := r.Byte(), r.Byte()
	switch {
	case r.Bad || version != wireVersion:
		return w, fmt.Errorf("%w: no welcome", ErrBroken)
	case kind == kindRefuse:
		return w, fmt.Errorf("%w: %.*q", ErrGone, maxReason, r.B)
	case kind != kindWelcome || len(r.B) < len(w.id):
		return w, fmt.Errorf("%w: no welcome", ErrBroken)
	}
	copy(w.id[:], r.B)
	r.B = r.B[len(w.id):]
	window, seconds := r.Uvarint(), r.Uvarint()
	if r.Bad || len(r.B) > 0 || window == 0 || window > maxWindow || seconds == 0 || seconds > uint64(maxTime/time.Second) || w.id == none {
		return w, fmt.Errorf("%w: bad welcome", ErrBroken)
	}
	w.window, w.resume = int(window), time.Duration(seconds)*time.Second
	return w, nil
}

func newID() (id [32]byte) {
	rand.Read(id[:]) // never fails
	return id
}

// errLate reports that the carrier ended during the handshake, perhaps because
// handshakeTime has passed.
var errLate = errors.New("no answer in the handshake")
