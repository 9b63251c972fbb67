package broker

import (
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// What a host-agent sends can be compressed where it leaves its machine: within
// the WebSocket to a relay. There everything is one stream, in order and without
// gaps: bodies, packets and the NATS protocol around them. So each message is
// compressed with what was sent before it, however often it was lost behind
// that. The client asks for it in the handshake, with the header Ahp-Compress
// and the name of a method; a relay that knows the method answers with the same
// header. From then on the stream from the client is one Zstandard frame (RFC
// 8878), whose blocks end where a batch of messages does.

// CompressHeader is the header of a WebSocket handshake with which a host-agent
// asks for the method by which it compresses what it sends, and a relay agrees.
const CompressHeader = "Ahp-Compress"

// Zstandard is the name of the method.
const Zstandard = "zstd"

// compressWindow is how far back a compressed stream refers, bytes: both
// ends keep that much for each connection.
const compressWindow = 64 << 10

// Compresses returns the method to answer a handshake with; "" is none.
func Compresses(asked string) string {
	if asked == Zstandard {
		return Zstandard
	}
	return ""
}

// A packer compresses what it is given, and writes each piece at once.
type packer struct{ to *zstd.Encoder }

func newPacker(to io.Writer) (*packer, error) {
	e, err := zstd.NewWriter(to,
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(compressWindow), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("compression: %w", err)
	}
	return &packer{e}, nil
}

// Write implements [io.Writer].
func (p *packer) Write(b []byte) (int, error) {
	n, err := p.to.Write(b)
	if err != nil {
		return n, err
	}
	return n, p.to.Flush()
}

// NewUnpacker returns a reader of what a host-agent has compressed. Close frees
// it. It needs some hundred KiB, however the stream is made, and reads no
// further than it is read. How much longer a stream becomes has no bound: a host
// may say the same again and again. Who passes it on bounds its share of time.
func NewUnpacker(from io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(compressWindow))
	if err != nil {
		return nil, fmt.Errorf("compression: %w", err)
	}
	return d.IOReadCloser(), nil
}
