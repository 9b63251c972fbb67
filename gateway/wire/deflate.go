package wire

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

// The relay compresses messages to clients that offer permessage-deflate (RFC 7692). Each
// message is compressed without the context of earlier messages. So a message's length
// reveals nothing about earlier messages, no connection needs a window of 32 KiB, and all
// viewers in an audience can share the same bytes. Each piece of a message is compressed
// separately and ends at a byte boundary, so a message can combine pieces from several
// sources.
//
// Messages to an audience (package audience) are compressed once for all viewers. On
// other connections, messages from 4 KiB are compressed for each client: a snapshot
// shrinks to a fifth. Shorter messages are not worth it: a delta of 0.3 KB would keep
// three quarters.

// A Compression selects which clients get compressed messages, among those that offer
// compression.
type Compression string

const (
	CompressFar Compression = "far" // clients at least farAway, or at an unknown distance; the default
	CompressAll Compression = "all"
	CompressOff Compression = "off"
)

func (c Compression) Check() error {
	switch c {
	case CompressFar, CompressAll, CompressOff:
		return nil
	}
	return fmt.Errorf("--compress-clients is %q; want %s, %s or %s", c, CompressFar, CompressAll, CompressOff)
}

// Mode returns the WebSocket library's compression mode for the handshake.
func (c Compression) Mode() websocket.CompressionMode {
	if c == CompressOff {
		return websocket.CompressionDisabled
	}
	return websocket.CompressionNoContextTakeover
}

const (
	// DeflateLeast is the smallest message in bytes that is compressed for a single
	// client.
	DeflateLeast = 4 << 10

	// farAway is the shortest round trip of a network that may be slower than
	// compression. Machines in the same room have a shorter one.
	farAway = 2 * time.Millisecond

	// deflateLevel is the lowest compression level with good results for short messages.
	// Messages of 300 bytes shrink to 0.73 (level 1: 0.81), and a session in pieces of
	// 128 KiB to 0.16, at 300 MB/s.
	deflateLevel = 3

	RSV1Bit = 0x40 // set in the first frame of a compressed message (RFC 7692, section 7.2.3.1)
)

// Pays reports whether messages to a client should be compressed. With CompressFar, a
// client whose distance is unknown, for instance behind a proxy, counts as far away.
func (c Compression) Pays(conn net.Conn, remote string) bool {
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

func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// deflateTurns limits concurrent compressions for single clients, so that processors
// remain for other work.
var deflateTurns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// A deflater compresses pieces independently.
type deflater struct {
	to bytes.Buffer
	w  *flate.Writer
}

var deflaters = sync.Pool{New: func() any {
	d := new(deflater)
	d.w, _ = flate.NewWriter(&d.to, deflateLevel) // fails only for an invalid level
	return d
}}

// syncTail is the length of the marker at the end of a flushed piece. The last piece
// omits the marker (RFC 7692, section 7.2.1).
const syncTail = 4

// DeflatePiece is [EncodePiece] with compression.
func DeflatePiece(piece []byte, first, last, binary bool) []byte {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.to.Reset()
	d.w.Reset(&d.to)
	_, _ = d.w.Write(piece) // cannot fail: writes to memory
	_ = d.w.Flush()
	packed := d.to.Bytes()
	if last {
		packed = packed[:len(packed)-syncTail]
	}
	frame := EncodePiece(packed, first, last, binary)
	if first {
		frame[0] |= RSV1Bit
	}
	if d.to.Cap() > KeepBuffer {
		d.to = bytes.Buffer{}
	}
	return frame
}

// A Packing is the state of the compression for a client's outgoing messages.
type Packing struct {
	On     bool // compress messages from DeflateLeast
	within bool // the current message is being compressed
}

// Alone reports whether a frame must be written alone, because it may be compressed.
func (p *Packing) Alone(frame []byte) bool {
	if !p.On {
		return false
	}
	op := frame[0] &^ (FinBit | RSV1Bit)
	return op < OpClose && (op == OpContinuation || len(frame) >= DeflateLeast)
}

// Pack returns the compressed frame, or nil if the frame is sent unchanged. The caller
// must pass frames in order.
func (p *Packing) Pack(frame []byte) []byte {
	if !p.On {
		return nil
	}
	op, fin := frame[0]&^(FinBit|RSV1Bit), frame[0]&FinBit != 0
	if op >= OpClose {
		return nil
	}
	payload, ok := wholePayload(frame)
	if op != OpContinuation { // a message begins
		p.within = false
		if !ok || frame[0]&RSV1Bit != 0 || len(payload) < DeflateLeast {
			return nil
		}
		select {
		case deflateTurns <- struct{}{}:
		default:
			return nil // skip compression when the processors are busy
		}
	} else if p.within {
		deflateTurns <- struct{}{}
	} else {
		return nil
	}
	defer func() { <-deflateTurns }()
	packed := DeflatePiece(payload, op != OpContinuation, fin, op == OpBinary)
	if op != OpContinuation && len(packed) > len(frame)*9/10 {
		return nil // the content hardly shrinks
	}
	p.within = !fin
	return packed
}

// wholePayload returns the payload, if the bytes are exactly one frame.
func wholePayload(frame []byte) ([]byte, bool) {
	head, size := frameSizes(frame)
	if len(frame) != head+size {
		return nil, false
	}
	return frame[head:], true
}
