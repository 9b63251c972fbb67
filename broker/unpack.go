package broker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Sizes for reading compressed streams.
const (
	unpackBuffer = 512 // bytes; all that an unpacker needs between frames

	frameMagic  = 0xFD2FB528
	blockHeader = 3 // bytes
	checksum    = 4 // bytes
)

// decoders are reused. Each needs several hundred KiB.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(compressWindow))
	if err != nil {
		return err
	}
	return d
}}

// An unpacker decompresses a host-agent's stream. It has a decoder only while a frame
// is open.
type unpacker struct {
	from    *bufio.Reader
	decoder *zstd.Decoder // nil between frames
}

// NewUnpacker returns a reader that decompresses a host-agent's stream, and never
// decompresses ahead. While a frame is open, the reader needs several hundred KiB, independent of the
// input; Close frees them. The compression ratio is unbounded, because a host may repeat
// itself, so the caller must bound the time spent on one reader.
func NewUnpacker(from io.Reader) io.ReadCloser {
	return &unpacker{from: bufio.NewReaderSize(from, unpackBuffer)}
}

func (u *unpacker) Read(p []byte) (int, error) {
	for {
		if u.decoder == nil {
			if err := u.begin(); err != nil {
				return 0, err
			}
		}
		n, err := u.decoder.Read(p)
		if errors.Is(err, io.EOF) { // the frame's end
			u.release()
			err = nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// begin waits for the next frame, and takes a decoder from the pool.
func (u *unpacker) begin() error {
	if _, err := u.from.Peek(1); err != nil {
		return err
	}
	taken := decoders.Get()
	d, ok := taken.(*zstd.Decoder)
	if !ok {
		return fmt.Errorf("compression: %w", taken.(error))
	}
	if err := d.Reset(&frame{from: u.from}); err != nil {
		return fmt.Errorf("compression: %w", err)
	}
	u.decoder = d
	return nil
}

// release returns the decoder to the pool. A decoder that failed can be reused.
func (u *unpacker) release() {
	if u.decoder != nil && u.decoder.Reset(nil) == nil {
		decoders.Put(u.decoder)
	}
	u.decoder = nil
}

// Close implements [io.Closer]. Read must not be called afterwards.
func (u *unpacker) Close() error {
	u.release()
	return nil
}

// A frame reads the bytes of one Zstandard frame, and then returns io.EOF. Without
// it, the decoder would wait for the next frame.
type frame struct {
	from   *bufio.Reader
	begun  bool
	last   bool // the current block is the frame's last
	sums   bool // a checksum follows the last block
	remain int  // bytes to read until the next header
}

var errNoFrame = errors.New("compression: not a Zstandard frame")

func (f *frame) Read(p []byte) (int, error) {
	for f.remain == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	n, err := f.from.Read(p[:min(len(p), f.remain)])
	f.remain -= n
	return n, unexpected(err)
}

// next parses the next header, and leaves its bytes for the decoder.
func (f *frame) next() error {
	switch {
	case !f.begun:
		f.begun = true
		head, err := f.from.Peek(5)
		if err != nil {
			return unexpected(err)
		}
		if binary.LittleEndian.Uint32(head) != frameMagic {
			return errNoFrame
		}
		f.remain, f.sums = headerSize(head[4]), head[4]&(1<<2) != 0
	case f.last:
		return io.EOF
	default:
		head, err := f.from.Peek(blockHeader)
		if err != nil {
			return unexpected(err)
		}
		v := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		const repeated = 1 // one byte that is to be repeated
		size := v >> 3
		if v>>1&3 == repeated {
			size = 1
		}
		f.last, f.remain = v&1 != 0, blockHeader+size
		if f.last && f.sums {
			f.remain += checksum
		}
	}
	return nil
}

// headerSize returns the length of a frame header with the given descriptor byte (RFC
// 8878, section 3.1.1.1).
func headerSize(descriptor byte) int {
	const magic, own = 4, 1
	single := descriptor&(1<<5) != 0
	window, content := 1, [...]int{0, 2, 4, 8}[descriptor>>6]
	if single {
		window = 0
		content = max(content, 1)
	}
	return magic + own + window + [...]int{0, 1, 2, 4}[descriptor&3] + content
}

// unexpected returns io.ErrUnexpectedEOF for io.EOF, because more input must follow.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
