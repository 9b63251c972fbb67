package bench

import (
	"context"
	"errors"
	"time"
)

// readyTime limits the wait until something is ready.
const readyTime = 60 * time.Second

// A stopError makes await return at once.
type stopError struct{ error }

func stop(err error) error { return stopError{err} }

// await repeats ask until it returns no error. After readyTime, await returns the last
// error.
func await(ctx context.Context, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		err := ask()
		var final stopError
		if err == nil || errors.As(err, &final) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
