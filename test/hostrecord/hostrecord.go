// Package hostrecord writes and reads the frames of an agenthost.
package hostrecord

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"

	"ahprelay/agenthost"
)

// To returns an [agenthost.Config.Recorder] that writes each frame to w, with one Write
// for each: a line with the connection's number, < for a received frame or > for a sent
// frame, and the length in bytes; then the frame and a line feed. Errors of w are
// ignored.
func To(w io.Writer) func(agenthost.Frame) {
	var mu sync.Mutex
	var buf []byte
	return func(f agenthost.Frame) {
		mu.Lock()
		defer mu.Unlock()
		direction := '>'
		if f.Received {
			direction = '<'
		}
		buf = fmt.Appendf(buf[:0], "%d %c %d\n", f.Conn, direction, len(f.Data))
		buf = append(append(buf, f.Data...), '\n')
		_, _ = w.Write(buf)
	}
}

// Read reads all frames of a record that [To] has written. It omits an incomplete last
// frame, as in the record of a host that was killed.
func Read(r io.Reader) ([]agenthost.Frame, error) {
	in := bufio.NewReader(r)
	var frames []agenthost.Frame
	for {
		var f agenthost.Frame
		var direction rune
		var size int
		if _, err := fmt.Fscanf(in, "%d %c %d\n", &f.Conn, &direction, &size); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return frames, nil
			}
			return frames, fmt.Errorf("frame %d of the record: %w", len(frames), err)
		}
		f.Received = direction == '<'
		f.Data = make([]byte, size+1)
		if _, err := io.ReadFull(in, f.Data); err != nil {
			return frames, nil
		}
		f.Data = f.Data[:size]
		frames = append(frames, f)
	}
}
