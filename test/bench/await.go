package bench

import (
	"context"
	"errors"
	"time"

	"ahprelay/test/must"
)

// readyTime limits the wait until something is ready.
const readyTime = 60 * time.Second

// await repeats ask until it returns no error. After readyTime, await fails with the last
// error.
func await(ctx context.Context, ask func() error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			must.Do(errors.Join(ctx.Err(), err))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
