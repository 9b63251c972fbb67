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

// wireVersion is the version of hello, welcome and all packets.
const wireVersion = 1

// Subprotocol is the WebSocket subprotocol of carriers.
const Subprotocol = "ahp-resume.v1"

// Path is the relay's path for carriers.
const Path = "/resume"

// A relay that stops gracefully may let the connection above a stream move to a different
// relay. The client asks for that in each WebSocket handshake, and names a ticket. A relay
// that closes with 1001 and MoveReason has received everything that the client had sent before
// its own close frame, and lets the host-agent keep the connection to the host. The client
// then names the ticket in its next handshake. The relay's answer repeats that header: a relay
// that cannot continue connections does not.
const (
	MoveHeader  = "Ahp-Move"  // in requests: the ticket for the next move
	MovedHeader = "Ahp-Moved" // in requests: the ticket of the connection that goes on; in answers: "yes"
	MoveReason  = "relay shutting down: this connection may move"
	maxTicket   = 64
)

// TicketOf returns a request's ticket in MoveHeader or MovedHeader, or "".
func TicketOf(header http.Header, name string) string {
	ticket := header.Get(name)
	if len(ticket) < 16 || len(ticket) > maxTicket {
		return ""
	}
	return ticket
}

// The kinds of handshake packets.
const (
	kindHello byte = iota + 1
	kindWelcome
	kindRefuse
)

// maxReason bounds a refusal's reason, in bytes.
const maxReason = 256

// none is the id in the hello for a new stream.
var none [32]byte

// hello returns the first packet of a carrier.
func hello(id [32]byte) []byte { return append([]byte{wireVersion, kindHello}, id[:]...) }

// readHello reads a carrier's first packet.
func readHello(packet []byte) (id [32]byte, err error) {
	if len(packet) != 2+len(id) || packet[0] != wireVersion || packet[1] != kindHello {
		return id, fmt.Errorf("%w: no hello", ErrBroken)
	}
	copy(id[:], packet[2:])
	return id, nil
}

// welcome returns the answer to a hello.
func welcome(id [32]byte, window int, resume time.Duration) []byte {
	b := append([]byte{wireVersion, kindWelcome}, id[:]...)
	b = binary.AppendUvarint(b, uint64(window))
	return binary.AppendUvarint(b, uint64(resume/time.Second))
}

// refuse returns the answer to a hello for an unknown stream.
func refuse(reason string) []byte {
	return append([]byte{wireVersion, kindRefuse}, reason[:min(len(reason), maxReason)]...)
}

// A welcomed stream is the relay's answer.
type welcomed struct {
	id     [32]byte
	window int
	resume time.Duration
}

// Largest values that a client accepts from a relay.
const (
	maxWindow = 64 << 20
	maxTime   = 24 * time.Hour
)

// readWelcome reads the answer to a hello.
func readWelcome(packet []byte) (w welcomed, err error) {
	r := link.Fields{B: packet}
	version, kind := r.Byte(), r.Byte()
	switch {
	case r.Bad || version != wireVersion:
		return w, fmt.Errorf("%w: no welcome", ErrBroken)
	case kind == kindRefuse:
		return w, ErrGone
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

// newID returns a stream's id.
func newID() (id [32]byte) {
	rand.Read(id[:]) // never fails
	return id
}

// errLate reports a peer that does not finish the handshake in time.
var errLate = errors.New("no answer in the handshake")
