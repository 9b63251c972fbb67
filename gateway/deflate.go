package gateway

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/klauspost/compress/flate"
)

// Compression of what clients are sent: permessage-deflate (RFC 7692), which a client offers
// in its handshake, without context from message to message. So what one message says has
// no part in how long another is, no connection keeps a window of 32 KiB, and the same bytes
// serve all viewers of an audience. A piece of a message is compressed by itself, and ends
// at a byte: pieces of several sources make one message.
//
// Compressed are the messages of audiences (package audience), once for all, and of other
// connections those of 4 KiB and more, each for its client: a snapshot becomes a fifth, while of a
// delta of 0.3 KB three quarters stay.

// A Compression says to whom what is sent is compressed that offers it.
type Compression string

// The values of Compression.
const (
	CompressFar Compression = "far" // whose line is no local one: the default
	CompressAll Compression = "all"
	CompressOff Compression = "off"
)

func (c Compression) check() error {
	switch c {
	case CompressFar, CompressAll, CompressOff:
		return nil
	}
	return fmt.Errorf("compression is %q; want %s, %s or %s", c, CompressFar, CompressAll, CompressOff)
}

// mode is what is agreed to in a handshake.
func (c Compression) mode() websocket.CompressionMode {
	if c == CompressOff {
		return websocket.CompressionDisabled
	}
	return websocket.CompressionNoContextTakeover
}

const (
	// deflateLeast is from how many bytes on it pays to compress a message for one client.
	deflateLeast = 4 << 10

	// farAway is how long the way there and back to a client takes of which the line may be
	// slower than compression is. Machines in a room are nearer.
	farAway = 2 * time.Millisecond

	// deflateLevel is the first that finds much in short messages: of one with 300 bytes it leaves
	// 0.73, level 1 leaves 0.81; of a session in pieces of 128 KiB 0.16, at 300 MB/s.
	deflateLevel = 3

	rsv1Bit = 0x40 // of a compressed message's first frame (RFC 7692, section 7.2.3.1)
)

// pays reports whether to compress for a client that offers it. Through a proxy, nobody
// knows how far it is.
func (c Compression) pays(conn net.Conn, remote string) bool {
	if c != CompressFar {
		return c == CompressAll
	}
	peer := conn.RemoteAddr()
	if tcp := tcpConn(conn); tcp != nil && peer != nil && hostOf(peer.String()) == hostOf(remote) {
		if way, ok := roundTrip(tcp); ok {
			return way >= farAway
		}
	}
	return true
}

// hostOf returns an address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// deflateTurns is how many compress at a time what is one client's: others have the
// processors too.
var deflateTurns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// A deflater compresses pieces, each by itself.
type deflater struct {
	to bytes.Buffer
	w  *flate.Writer
}

var deflaters = sync.Pool{New: func() any {
	d := new(deflater)
	d.w, _ = flate.NewWriter(&d.to, deflateLevel) // fails only for levels that there are not
	return d
}}

// syncTail is how a piece ends that is flushed: an empty block, of which the last four bytes
// do not belong to the message (RFC 7692, section 7.2.1).
const syncTail = 4

// deflatePiece is [encodePiece], compressed.
func deflatePiece(piece []byte, first, last, binary bool) []byte {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.to.Reset()
	d.w.Reset(&d.to)
	_, _ = d.w.Write(piece) // to memory
	_ = d.w.Flush()
	packed := d.to.Bytes()
	if last {
		packed = packed[:len(packed)-syncTail]
	}
	frame := encodePiece(packed, first, last, binary)
	if first {
		frame[0] |= rsv1Bit
	}
	if d.to.Cap() > keepBuffer {
		d.to = bytes.Buffer{}
	}
	return frame
}

// A packing is what an outbox knows of the message that its client is being sent.
type packing struct {
	on     bool // messages are compressed if that pays
	within bool // the message of which a part was written is compressed here
}

// alone reports whether a frame is to be looked at by itself: it may be compressed.
func (p *packing) alone(frame []byte) bool {
	if !p.on {
		return false
	}
	op := frame[0] &^ (finBit | rsv1Bit)
	return op < opClose && (op == opContinuation || len(frame) >= deflateLeast)
}

// pack returns a frame compressed, or nil if it is to be sent as it is. Frames are
// given in their order.
func (p *packing) pack(frame []byte) []byte {
	if !p.on {
		return nil
	}
	op, fin := frame[0]&^(finBit|rsv1Bit), frame[0]&finBit != 0
	if op >= opClose {
		return nil
	}
	payload, ok := wholePayload(frame)
	if op != opContinuation { // a message begins
		p.within = false
		if !ok || frame[0]&rsv1Bit != 0 || len(payload) < deflateLeast {
			return nil
		}
		select {
		case deflateTurns <- struct{}{}:
		default:
			return nil // what is busy now is not to be busier
		}
	} else if p.within {
		deflateTurns <- struct{}{}
	} else {
		return nil
	}
	defer func() { <-deflateTurns }()
	packed := deflatePiece(payload, op != opContinuation, fin, op == opBinary)
	if op != opContinuation && len(packed) > len(frame)*9/10 {
		return nil // it is compressed already, or as good as
	}
	p.within = !fin
	return packed
}

// wholePayload returns the payload of what is one frame and no more.
func wholePayload(frame []byte) ([]byte, bool) {
	head, size := frameSizes(frame)
	if len(frame) != head+size {
		return nil, false
	}
	return frame[head:], true
}
