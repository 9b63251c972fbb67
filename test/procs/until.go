package procs

import (
	"context"
	"errors"
	"time"
)

// retryTime is a pause between two looks at a process.
const retryTime = 20 * time.Millisecond

// Until repeats step, with pauses, until it returns no error. When ctx ends, Until returns
// the reason and the last error.
func Until(ctx context.Context, pause time.Duration, step func() error) error {
	for {
		err := step()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}
