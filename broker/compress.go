package broker

import (
	"errors"
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

const (
	// compressWindow is how far back a compressed stream refers, bytes: both
	// ends keep that much for each connection.
	compressWindow = 64 << 10

	// maxRatio is how many times longer than itself a compressed stream may
	// become, beside maxAhead bytes: real ones stay far below.
	maxRatio = 200
	maxAhead = 4 << 20
)

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

// ErrExpands reports a compressed stream that is longer than real ones can be.
var ErrExpands = errors.New("compressed stream expands too much")

// NewUnpacker returns a reader of what a host-agent has compressed. Close frees
// it. It needs some hundred KiB, however the stream is made.
func NewUnpacker(from io.Reader) (io.ReadCloser, error) {
	u := &unpacker{from: from}
	d, err := zstd.NewReader(u.counted(), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(compressWindow))
	if err != nil {
		return nil, fmt.Errorf("compression: %w", err)
	}
	u.decoder = d
	return u, nil
}

type unpacker struct {
	from    io.Reader
	decoder *zstd.Decoder
	in, out int64
}

// counted is where the decoder reads.
func (u *unpacker) counted() io.Reader { return readFunc(u.read) }

type readFunc func(p []byte) (int, error)

// Read implements [io.Reader].
func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func (u *unpacker) read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	u.in += int64(n)
	return n, err
}

// Read implements [io.Reader].
func (u *unpacker) Read(p []byte) (int, error) {
	n, err := u.decoder.Read(p)
	if u.out += int64(n); u.out > maxRatio*u.in+maxAhead {
		return 0, ErrExpands
	}
	return n, err
}

// Close implements [io.Closer].
func (u *unpacker) Close() error {
	u.decoder.Close()
	return nil
}
