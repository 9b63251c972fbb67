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

// A host-agent can compress the byte stream inside its WebSocket to a relay. It
// compresses the whole stream, which includes NATS protocol lines, packets and bodies,
// so all earlier bytes serve as compression context. To request compression, the
// host-agent sends the header Ahp-Compress with the name of a method in the handshake.
// A relay that supports the method answers with the same header. From then on the
// host-agent's stream is Zstandard (RFC 8878), with a block boundary after each batch
// of messages. When the stream becomes idle, the Zstandard frame ends, so both ends
// can free its memory.

// CompressHeader is the WebSocket handshake header by which a host-agent requests a
// compression method, and a relay accepts it.
const CompressHeader = "Ahp-Compress"

// Zstandard is the name of the only method.
const Zstandard = "zstd"

// compressWindow is the Zstandard window in bytes. For each open frame, both ends need
// at least that much memory.
const compressWindow = 64 << 10

// Compresses returns the requested method if relays support it, else "".
func Compresses(asked string) string {
	if asked == Zstandard {
		return Zstandard
	}
	return ""
}

// Bounds of a packer.
const (
	// A frame ends after frameIdle without a write of someSize bytes or more. Both ends
	// then free its memory.
	frameIdle = 10 * time.Second

	// Writes below someSize bytes do not open a frame. A lease request and the answer
	// to a ping are smaller.
	someSize = 1 << 10
)

// A packer compresses its input. Each Write is sent at once.
type packer struct {
	to io.Writer

	mu      sync.Mutex // guards the fields below, and writing
	encoder *zstd.Encoder
	little  []byte      // buffer of writeLittle, reused
	open    bool        // a frame has begun and not ended
	idle    *time.Timer // ends the frame after a time without larger writes
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

// writeLittle writes b as a complete frame with one uncompressed block. Such a frame
// needs no encoder.
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

// endFrame ends the open frame. The next write begins a new one.
func (p *packer) endFrame() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open && !p.closed {
		p.open = false
		_ = p.encoder.Close() // the next write fails too
	}
}

func (p *packer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.idle.Stop()
}
