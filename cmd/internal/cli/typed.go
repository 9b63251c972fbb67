package cli

import (
	"context"
	"io"
	"os"

	"golang.org/x/term"
)

// Typed returns the result of a read from a terminal, or the cause of ctx's end if that is first. The read itself cannot be
// interrupted: it then ends with the process.
func Typed[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return *new(T), context.Cause(ctx)
	}
}

// Secret reads a line from a terminal, which does not show it.
func Secret(ctx context.Context, terminal *os.File) (string, error) {
	fd := int(terminal.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	text, err := Typed(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	if ctx.Err() != nil {
		_ = term.Restore(fd, before)
	}
	return string(text), err
}

// Stdin returns a reader of standard input that fails with the cause of ctx's end.
func Stdin(ctx context.Context) io.Reader {
	in := os.Stdin
	r, w := io.Pipe()
	go func() { // ends with the input, at the latest with the process
		_, err := io.Copy(w, in)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	return r
}
