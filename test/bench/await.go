package bench

import (
	"context"
	"time"

	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// readyTime limits the wait until something is ready.
const readyTime = 60 * time.Second

// await repeats ask until it returns no error. After readyTime, await fails with the last
// error.
func await(ctx context.Context, ask func() error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	must.Do(procs.Until(ctx, 5*time.Millisecond, ask))
}
