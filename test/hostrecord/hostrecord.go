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

// To returns an [agenthost.Config.Recorder] that writes every frame to w with one Write: a
// line with the connection's number, < for received or > for sent, and the length in
// bytes; the frame; a line feed. Write errors are ignored.
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

// Read reads a record written by [To]. It omits an incomplete last frame,
// which a killed host leaves behind.
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
