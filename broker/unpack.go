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
	unpackBuffer = 512 // between frames

	frameMagic  = 0xFD2FB528
	blockHeader = 3 // bytes
	checksum    = 4 // bytes
)

// decoders holds decoders outside of frames. Each needs some hundred KiB.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(compressWindow))
	if err != nil {
		return err
	}
	return d
}}

// An unpacker reads a host-agent's compressed stream. Between frames it has no
// decoder.
type unpacker struct {
	from    *bufio.Reader
	decoder *zstd.Decoder // nil between frames
	raw     int           // remaining bytes of a raw frame, which needs no decoder
}

// NewUnpacker returns a reader of a host-agent's compressed stream. Close frees it.
// Within a frame it needs some hundred KiB, whatever the input, and it never reads
// ahead. The compression ratio has no bound, because a host may repeat itself: the
// caller bounds the reader's share of time.
func NewUnpacker(from io.Reader) (io.ReadCloser, error) {
	return &unpacker{from: bufio.NewReaderSize(from, unpackBuffer)}, nil
}

// Read implements [io.Reader].
func (u *unpacker) Read(p []byte) (int, error) {
	for {
		if u.decoder == nil && u.raw == 0 {
			if err := u.begin(); err != nil {
				return 0, err
			}
			continue // a frame may be empty
		}
		if u.raw > 0 {
			n, err := u.from.Read(p[:min(len(p), u.raw)])
			u.raw -= n
			return n, unexpected(err)
		}
		n, err := u.decoder.Read(p)
		if errors.Is(err, io.EOF) { // of the frame
			u.release()
			err = nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// begin waits for the next frame, and takes a decoder if the frame needs one.
func (u *unpacker) begin() error {
	if _, err := u.from.Peek(1); err != nil {
		return err
	}
	if raw, err := u.isRaw(); raw || err != nil {
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

// isRaw reports whether the next frame is a raw block from writeLittle, and reads its
// header.
func (u *unpacker) isRaw() (bool, error) {
	head, err := u.from.Peek(5)
	if err != nil {
		return false, unexpected(err)
	}
	if binary.LittleEndian.Uint32(head) != frameMagic || head[4]&^(3<<6) != 1<<5 {
		return false, nil // or it has a checksum, a dictionary or a window
	}
	size := headerSize(head[4])
	if head, err = u.from.Peek(size + blockHeader); err != nil {
		return false, unexpected(err)
	}
	const lastRaw = 1
	if head[size]&7 != lastRaw {
		return false, nil
	}
	u.raw = (int(head[size]) | int(head[size+1])<<8 | int(head[size+2])<<16) >> 3
	_, err = u.from.Discard(size + blockHeader)
	return true, err
}

// release returns the decoder to the pool. A failed decoder is reusable.
func (u *unpacker) release() {
	if u.decoder != nil && u.decoder.Reset(nil) == nil {
		decoders.Put(u.decoder)
	}
	u.decoder = nil
}

// Close implements [io.Closer]. No Read may follow.
func (u *unpacker) Close() error {
	u.release()
	return nil
}

// A frame reads one Zstandard frame of a stream. It ends with the frame, where the
// decoder would wait for the next frame.
type frame struct {
	from   *bufio.Reader
	begun  bool
	last   bool // the current block is the last
	sums   bool // a checksum follows
	remain int  // bytes until the next header
}

// errNoFrame reports input that is not Zstandard.
var errNoFrame = errors.New("compression: not a Zstandard frame")

// Read implements [io.Reader].
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

// next reads a header, and leaves it for the decoder.
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
		const repeated = 1 // one byte, repeated
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

// headerSize returns the length of a frame header, from its descriptor: RFC 8878,
// section 3.1.1.1.
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

// unexpected converts io.EOF where more input must follow.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
