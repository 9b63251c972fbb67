package idle

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// When memory is given back.
const (
	lookEvery = 100 * time.Millisecond
	lookAgain = 10 * time.Second // after memory was given back

	quietBytes = 128 << 10 // allocated from one look to the next, at most
	worthBytes = 8 << 20   // allocated since memory was given back, at least
)

// GiveBack gives memory back to the system whenever the process has become
// quiet, until it is stopped. Go itself keeps as much as it needed at its
// busiest for minutes, and collects no garbage while nothing new comes.
func GiveBack() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { giveBack(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

func giveBack(ctx context.Context) {
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	wait := time.NewTimer(lookEvery)
	defer wait.Stop()
	for last, given := uint64(0), uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		metrics.Read(allocated)
		now, again := allocated[0].Value.Uint64(), lookEvery
		if now-last <= quietBytes && now-given >= worthBytes {
			debug.FreeOSMemory()
			given, again = now, lookAgain
		}
		last = now
		wait.Reset(again)
	}
}
