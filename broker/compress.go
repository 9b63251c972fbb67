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

// What a host-agent sends can be compressed where it leaves its machine: within
// the WebSocket to a relay. There everything is one stream, in order and without
// gaps: bodies, packets and the NATS protocol around them. So each message is
// compressed with what was sent before it, however often it was lost behind
// that. The client asks for it in the handshake, with the header Ahp-Compress
// and the name of a method; a relay that knows the method answers with the same
// header. From then on the stream from the client is Zstandard (RFC 8878), whose
// blocks end where a batch of messages does. A frame goes on for as long as there
// is something to be said; when there has not been for a while it ends, and with it what
// both ends have to remember.

// CompressHeader is the header of a WebSocket handshake with which a host-agent
// asks for the method by which it compresses what it sends, and a relay agrees.
const CompressHeader = "Ahp-Compress"

// Zstandard is the name of the method.
const Zstandard = "zstd"

// compressWindow is how far back a compressed stream refers, bytes: both
// ends keep that much for each frame that goes on.
const compressWindow = 64 << 10

// Compresses returns the method to answer a handshake with; "" is none.
func Compresses(asked string) string {
	if asked == Zstandard {
		return Zstandard
	}
	return ""
}

// Settings of a packer.
const (
	// frameIdle is how long nothing of some size was said until the frame ends: both ends
	// forget then what was said before, and need no memory for it.
	frameIdle = 10 * time.Second

	// someSize is more than a lease request, or an answer to a ping, which are frames of
	// their own when nothing else is said.
	someSize = 1 << 10
)

// A packer compresses what it is given, and writes each piece at once.
type packer struct {
	to io.Writer

	mu      sync.Mutex // guards the fields below, and writing
	encoder *zstd.Encoder
	little  []byte      // a frame of little
	open    bool        // a frame has begun
	idle    *time.Timer // until it ends
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

// writeLittle writes a frame that ends at once: one raw block, which costs neither end more than
// its bytes.
func (p *packer) writeLittle(b []byte) (int, error) {
	f := binary.LittleEndian.AppendUint32(p.little[:0], frameMagic)
	if len(b) < 256 {
		f = append(f, 1<<5, byte(len(b))) // one segment, whose length has one byte
	} else {
		f = binary.LittleEndian.AppendUint16(append(f, 1<<6|1<<5), uint16(len(b)-256))
	}
	head := len(b)<<3 | 1 // raw, and the last one
	p.little = append(append(f, byte(head), byte(head>>8), byte(head>>16)), b...)
	if _, err := p.to.Write(p.little); err != nil {
		return 0, err
	}
	return len(b), nil
}

// endFrame ends the frame, if one has begun. What is said next begins another.
func (p *packer) endFrame() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open && !p.closed {
		p.open = false
		_ = p.encoder.Close() // the next write fails, too
	}
}

// close has nothing more written.
func (p *packer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.idle.Stop()
}
