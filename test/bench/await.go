package bench

import (
	"context"
	"errors"
	"time"
)

// readyTime is how long anything may take to be ready.
const readyTime = 60 * time.Second

// A stopError ends await at once.
type stopError struct{ error }

func stop(err error) error { return stopError{err} }

// await asks again and again until there is no error, and returns the last if
// that takes too long.
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
