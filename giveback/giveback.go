// Package giveback has a process that has become quiet give its memory back to the system.
package giveback

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"ahprelay/without"
)

// When memory is given back.
const (
	lookEvery = 100 * time.Millisecond
	giveAgain = 10 * time.Second // after the last time, unless it is much

	quietBytes = 256 << 10 // allocated from one look to the next, at most
	worthBytes = 8 << 20   // allocated since memory was given back, at least

	worthAtOnce = 32 << 20 // the same, to be given back whenever it was last

	// From so much on that is in use, garbage is collected when there is half as
	// much of it; below, processor time is worth more, and that is when there is
	// as much again, Go's default, or as much as a large process has in use.
	largeHeap    = 24 << 20
	largePercent = 50
	smallPercent = 100
	mostPercent  = 800
)

// percentFor returns the headroom of garbage collection, in per cent of what is
// in use. It has few values, because changing it stops the process for a moment.
func percentFor(live uint64) (percent int) {
	if live >= largeHeap {
		return largePercent
	}
	percent = smallPercent
	for percent < mostPercent && live*uint64(percent)/100 < largeHeap/2 {
		percent *= 2
	}
	return percent
}

// Start gives memory back to the system whenever the process has become
// quiet, until it is stopped, and has a large process take less in the first
// place. Go itself keeps as much as it needed at its
// busiest for minutes, and collects no garbage while nothing new comes.
func Start() (stop func()) {
	if without.GiveBack {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { giveBack(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

func giveBack(ctx context.Context) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	setPercent, restore := gcPercent()
	defer restore()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var last, given uint64 // bytes allocated at the last look, and when memory was given back
	var givenAt time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		now, live := samples[0].Value.Uint64(), samples[1].Value.Uint64()
		setPercent(percentFor(live))
		soon := now-given >= worthAtOnce || time.Since(givenAt) >= giveAgain
		if now-last <= quietBytes && now-given >= worthBytes && soon {
			runtime.GC() // twice: pools keep what they have once, and stacks shrink by half each time
			debug.FreeOSMemory()
			given, givenAt = now, time.Now()
		}
		last = now
	}
}

// gcPercent returns what sets the headroom of garbage collection, in per cent of
// what is in use, and what puts it back. Where somebody has set it (GOGC), it
// stays.
func gcPercent() (set func(percent int), restore func()) {
	before := debug.SetGCPercent(smallPercent)
	if before != smallPercent {
		debug.SetGCPercent(before)
		return func(int) {}, func() {}
	}
	current := smallPercent
	set = func(percent int) {
		if percent != current {
			debug.SetGCPercent(percent)
			current = percent
		}
	}
	return set, func() { set(smallPercent) }
}
