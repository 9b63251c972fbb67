package agenthost

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// ServeStdio serves AHP to a single client, one message per line, and returns when r
// ends or ctx ends. It then closes r and w if they implement [io.Closer]. If a Read
// cannot be interrupted, it delays ServeStdio and Close.
func (h *Host) ServeStdio(ctx context.Context, r io.Reader, w io.Writer) error {
	l := &lineLink{r: r, in: bufio.NewReaderSize(r, 64<<10), w: w, limit: h.cfg.MaxFrame}
	stop := context.AfterFunc(ctx, func() { l.Close(context.Cause(ctx)) })
	defer stop()
	err := h.serve(l)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// A lineLink is a link over a pair of byte streams.
type lineLink struct {
	r     io.Reader
	in    *bufio.Reader
	w     io.Writer
	limit int
}

func (l *lineLink) Send(msg []byte) error {
	line := make([]byte, 0, len(msg)+1)
	line = append(append(line, msg...), '\n')
	_, err := l.w.Write(line)
	return err
}

// Recv skips empty lines. The last line may lack its line feed.
func (l *lineLink) Recv() ([]byte, error) {
	for {
		line, err := l.readLine()
		if len(line) > 0 || err != nil {
			return line, err
		}
	}
}

func (l *lineLink) readLine() ([]byte, error) {
	var line []byte
	for {
		chunk, err := l.in.ReadSlice('\n')
		line = append(line, chunk...)
		switch {
		case len(line) > l.limit+1:
			return nil, fmt.Errorf("a line of more than %d bytes", l.limit)
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.ErrClosedPipe):
			return nil, io.EOF
		case errors.Is(err, io.EOF) && len(line) > 0:
			return bytes.TrimRight(line, "\r\n"), nil
		default:
			return nil, err
		}
	}
}

func (l *lineLink) Close(error) error {
	var errs []error
	for _, end := range []any{l.r, l.w} {
		if closer, ok := end.(io.Closer); ok {
			errs = append(errs, closer.Close())
		}
	}
	return errors.Join(errs...)
}
