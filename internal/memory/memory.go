// Package memory returns memory to the system when the process is quiet.
package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"ahprelay/internal/ablation"
)

// The conditions under which memory is returned.
const (
	lookEvery = 100 * time.Millisecond // interval of samples after activity; it doubles at rest
	restEvery = 5 * time.Second        // largest interval
	giveAgain = 10 * time.Second       // after the last time, unless worthAtOnce is reached

	quietBytes  = 256 << 10 // allocated between two samples, at most
	worthBytes  = 8 << 20   // allocated since memory was returned, at least
	worthAtRest = 1 << 20   // the same of a process at rest

	worthAtOnce = 32 << 20 // allocated since memory was returned: enough to ignore giveAgain

	// A live heap of largeHeap or more is collected when garbage reaches half of it. A
	// smaller heap saves processor time: its garbage may grow to the size of the live
	// heap (Go's default), or to half of largeHeap.
	largeHeap    = 24 << 20
	largePercent = 50
	smallPercent = 100
	mostPercent  = 800
)

// percentFor returns the headroom of garbage collection as a percentage of the live
// heap. It has few values, because each change stops the process for a moment.
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

// Start returns memory to the system whenever the process becomes quiet, until stop is
// called. It also keeps the garbage of a large process small. Go alone keeps the
// memory of the busiest moment for minutes, and collects no garbage while nothing is
// allocated.
func Start() (stop func()) {
	if ablation.GiveBack {
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

// giveBack takes a sample soon after each garbage collection, and at intervals that grow
// while the process is at rest.
func giveBack(ctx context.Context) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	setPercent, restore := gcPercent()
	defer restore()
	collected := make(chan struct{}, 1)
	signalCollections(ctx, collected)
	p := pace{wait: lookEvery}
	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			p.wait = lookEvery
			timer.Reset(p.wait)
			continue
		case <-timer.C:
		}
		metrics.Read(samples)
		setPercent(percentFor(samples[1].Value.Uint64()))
		give, release := p.look(samples[0].Value.Uint64(), time.Now())
		if give {
			giveAll()
		}
		if release {
			ReleaseCode() // last, because collections use much of it
		}
		timer.Reset(p.wait)
	}
}

// A pace decides when memory is returned.
type pace struct {
	wait        time.Duration // until the next sample
	last, given uint64        // bytes allocated at the last sample, and when memory was returned
	givenAt     time.Time
	atRest      bool // since the last activity
}

// look takes a sample: the bytes allocated since the start. It reports whether to return
// memory, and whether to release code.
func (p *pace) look(allocated uint64, now time.Time) (give, release bool) {
	since, quiet := allocated-p.given, allocated-p.last <= quietBytes
	p.last = allocated
	again := now.Sub(p.givenAt) >= giveAgain
	give = quiet && since >= worthBytes && (again || since >= worthAtOnce)
	if p.wait = min(2*p.wait, restEvery); !quiet || since >= worthBytes && !give {
		p.wait, p.atRest = lookEvery, false
	}
	if p.wait == restEvery {
		give = again && since >= worthAtRest
		release = give || !p.atRest
		p.atRest = true
	}
	if give {
		p.given, p.givenAt = allocated, now
	}
	return give, release
}

// giveAll collects twice: pools survive one collection, and stacks shrink by half each time.
func giveAll() {
	runtime.GC()
	debug.FreeOSMemory()
}

// signalCollections sends to collected after each garbage collection, until ctx ends. It
// never blocks.
func signalCollections(ctx context.Context, collected chan<- struct{}) {
	garbage := new([16]byte) // not a tiny object: those are collected in blocks
	runtime.AddCleanup(garbage, func(ctx context.Context) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		signalCollections(ctx, collected)
	}, ctx)
}

// gcPercent returns functions that set and restore the headroom of garbage collection.
// Both do nothing if GOGC is set.
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
