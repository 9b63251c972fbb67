package broker

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A host-agent can compress its stream inside the WebSocket to a relay. The whole
// stream is in order and complete there: bodies, packets and the NATS protocol around
// them. Earlier messages are therefore always available as context, even those lost
// beyond the relay. The host-agent requests compression in the handshake, with the
// header Ahp-Compress and the name of a method. A relay that supports the method
// answers with the same header. The client's stream is then Zstandard (RFC 8878), with
// a block boundary after each batch of messages. A frame ends when the stream has been
// idle, so both ends can free its state.

// CompressHeader is the WebSocket handshake header by which a host-agent requests a
// compression method, and a relay accepts it.
const CompressHeader = "Ahp-Compress"

// Zstandard names the only method.
const Zstandard = "zstd"

// compressWindow is a compressed stream's window in bytes. Both ends keep that much
// for each open frame.
const compressWindow = 64 << 10

// Compresses returns the method that a relay accepts, or "".
func Compresses(asked string) string {
	if asked == Zstandard {
		return Zstandard
	}
	return ""
}

// A packer's bounds.
const (
	// frameIdle is the time without larger writes after which a frame ends. Both ends
	// then free its memory.
	frameIdle = 10 * time.Second

	// someSize exceeds a lease request or the answer to a ping. Smaller writes do not
	// open a frame.
	someSize = 1 << 10
)

// A packer compresses its input and writes each piece at once.
type packer struct {
	to io.Writer

	mu      sync.Mutex // guards the fields below, and writing
	encoder *zstd.Encoder
	little  []byte      // buffer of a raw frame
	open    bool        // a frame is open
	idle    *time.Timer // ends the frame
	closed  bool
}

func newPacker(to io.Writer) (*packer, error) {
	e, err := zstd.NewWriter(to,
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(compressWindow), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("compression: %w", err)
	}
	p := &packer{to: to, encoder: e}
	p.idle = time.AfterFunc(time.Hour, p.endFrame)
	p.idle.Stop()
	return p, nil
}

// Write implements [io.Writer].
func (p *packer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return 0, net.ErrClosed
	case !p.open && len(b) < someSize:
		return p.writeLittle(b)
	case !p.open:
		p.encoder.Reset(p.to)
		p.open = true
	}
	if len(b) >= someSize {
		p.idle.Reset(frameIdle)
	}
	n, err := p.encoder.Write(b)
	if err != nil {
		return n, err
	}
	return n, p.encoder.Flush()
}

// writeLittle writes a complete frame with one raw block, which costs neither end more
// than its bytes.
func (p *packer) writeLittle(b []byte) (int, error) {
	f := binary.LittleEndian.AppendUint32(p.little[:0], frameMagic)
	if len(b) < 256 {
		f = append(f, 1<<5, byte(len(b))) // single segment, with a length of one byte
	} else {
		f = binary.LittleEndian.AppendUint16(append(f, 1<<6|1<<5), uint16(len(b)-256))
	}
	head := len(b)<<3 | 1 // raw, last block
	p.little = append(append(f, byte(head), byte(head>>8), byte(head>>16)), b...)
	if _, err := p.to.Write(p.little); err != nil {
		return 0, err
	}
	return len(b), nil
}

// endFrame ends the open frame. The next write begins another.
func (p *packer) endFrame() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open && !p.closed {
		p.open = false
		_ = p.encoder.Close() // the next write fails too
	}
}

// close ends writing.
func (p *packer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.idle.Stop()
}
