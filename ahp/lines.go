package ahp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
)

// A LineReader reads frames, one per line.
type LineReader struct {
	In    *bufio.Reader
	Limit int // bytes of the longest frame

	// Room is called before a line of have bytes grows by more bytes. Its error ends
	// Next. May be nil.
	Room func(have, more int) error

	rest bool // the rest of a long line is still to be read
}

// A LongLine reports a line above the limit, of which only the envelope was read.
type LongLine struct {
	Skimmer
	limit int
}

// Error includes the limit.
func (e *LongLine) Error() string { return fmt.Sprintf("line of more than %d bytes", e.limit) }

// Whole reports whether Next returns without waiting.
func (r *LineReader) Whole() bool {
	buffered, _ := r.In.Peek(r.In.Buffered()) // buffered bytes, so Peek does not wait
	return !r.rest && bytes.IndexByte(buffered, '\n') >= 0
}

// Next returns the next line that is not empty, without its line break. The caller owns
// it. Input that ends without a line break is an incomplete frame, and is dropped. A line
// above the limit is skipped; the error is then a [*LongLine].
func (r *LineReader) Next() ([]byte, error) {
	if err := r.readRest(); err != nil {
		return nil, err
	}
	var line []byte
	for {
		piece, err := r.In.ReadSlice('\n')
		text := piece
		if err == nil {
			text = bytes.TrimRight(piece, "\r\n")
		}
		if len(line)+len(text) > r.Limit+len("\r") {
			return nil, r.skip(line, piece, err)
		}
		if r.Room != nil {
			if err := r.Room(len(line), len(piece)); err != nil {
				return nil, err
			}
		}
		line = append(line, piece...)
		if err == nil {
			line = bytes.TrimRight(line, "\r\n")
		}
		switch {
		case len(line) > r.Limit && err == nil:
			return nil, r.skip(line, nil, nil)
		case err == nil && len(line) > 0:
			return line, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// readRest reads a long line to its end.
func (r *LineReader) readRest() error {
	for r.rest {
		_, err := r.In.ReadSlice('\n')
		if r.rest = errors.Is(err, bufio.ErrBufferFull); err != nil && !r.rest {
			return err
		}
	}
	return nil
}

// skip reads a line above the limit to its end, or until its envelope is invalid. piece
// is the part already read, and err is the error of that read.
func (r *LineReader) skip(line, piece []byte, err error) error {
	long := &LongLine{limit: r.Limit}
	_, _ = long.Write(line)
	_, _ = long.Write(bytes.TrimRight(piece, "\r\n"))
	for errors.Is(err, bufio.ErrBufferFull) && !long.Over() {
		piece, err = r.In.ReadSlice('\n')
		_, _ = long.Write(bytes.TrimRight(piece, "\r\n"))
	}
	r.rest = errors.Is(err, bufio.ErrBufferFull)
	if err != nil && !long.Over() {
		return err
	}
	return long
}

// LineOf returns a frame as one line: it replaces line breaks, which JSON permits as
// white space.
func LineOf(frame []byte) []byte {
	line := make([]byte, 0, len(frame)+1)
	line = append(append(line, frame...), '\n')
	for i, c := range frame {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	return line
}
