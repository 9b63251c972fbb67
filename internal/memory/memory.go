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
	"ahprelay/internal/signal"
)

// When memory is returned:
const (
	lookEvery = 100 * time.Millisecond // interval of samples after activity; it doubles while the process rests
	restEvery = 5 * time.Second        // largest interval
	giveAgain = 10 * time.Second       // shortest time between two returns, unless worthAtOnce is reached

	quietBytes  = 256 << 10 // most allocation between two samples of a quiet process
	worthBytes  = 8 << 20   // least allocation since the last return that is worth another
	worthAtRest = 1 << 20   // the same for a process at rest

	worthAtOnce = 32 << 20 // allocation since the last return from which giveAgain does not apply

	// If the live heap has at least largeHeap bytes, garbage is collected when it reaches
	// half of the heap. A smaller heap saves processor time instead: garbage may grow to half
	// of largeHeap and up to twice that, but to at most mostPercent of the heap.
	largeHeap    = 24 << 20
	largePercent = 50
	smallPercent = 100
	mostPercent  = 800

	// If collections take more than 1/busyShare of the processor time that the process uses,
	// garbage may grow to twice the size of the heap, or to busyGarbage and up to twice that,
	// until the share was lower for busyTime.
	busyShare   = 10
	busyGarbage = 32 << 20
	busyPercent = 200
	busyTime    = 2 * time.Second
)

// percentFor returns the GC percentage for a live heap. It returns only few values, because
// each change stops the process for a moment.
func percentFor(live uint64, busy bool) (percent int) {
	percent, garbage := largePercent, uint64(largeHeap/2)
	if busy && !ablation.BusyGarbage {
		percent, garbage = busyPercent, busyGarbage
	}
	for percent < mostPercent && live*uint64(percent)/100 < garbage {
		percent *= 2
	}
	return percent
}

// Start returns memory to the system whenever the process becomes quiet, until stop is
// called. It also limits the garbage of a large process. Without it, Go keeps the memory of
// the busiest moment for minutes, because it collects no garbage while nothing is allocated.
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

// giveBack takes samples at intervals which grow while the process rests. After a garbage
// collection, the interval is the shortest again.
func giveBack(ctx context.Context) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		// These change at collections.
		{Name: "/cpu/classes/user:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/assist:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"},
	}
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
			if p.wait > lookEvery { // otherwise frequent collections would prevent all samples
				p.wait = lookEvery
				timer.Reset(p.wait)
			}
			continue
		case <-timer.C:
		}
		metrics.Read(samples)
		allocated, now := samples[0].Value.Uint64(), time.Now()
		busy := p.busy(samples[2].Value.Float64(), samples[3].Value.Float64()+samples[4].Value.Float64(), now)
		setPercent(percentFor(samples[1].Value.Uint64(), busy))
		give, release := p.look(allocated, now)
		if give {
			runtime.GC() // with FreeOSMemory twice, because pools survive one collection, and stacks shrink by half each time
			debug.FreeOSMemory()
		}
		if release {
			ReleaseCode() // last, because garbage collection uses much code
		}
		timer.Reset(p.wait)
	}
}

// A pace decides when memory is returned.
type pace struct {
	wait        time.Duration // time until the next sample
	last, given uint64        // bytes allocated in total, at the last sample and at the last return
	givenAt     time.Time
	atRest      bool // there was no activity since the last sample of rest

	used, collected float64 // processor seconds of the process and of collections, at the last collection
	busyUntil       time.Time
}

// busy takes a sample of the processor seconds that the program and the collections have used
// since the start. It reports whether the collections take much of them.
func (p *pace) busy(used, collected float64, now time.Time) bool {
	if p.used > 0 && (collected-p.collected)*busyShare > used-p.used+collected-p.collected {
		p.busyUntil = now.Add(busyTime)
	}
	p.used, p.collected = used, collected
	return now.Before(p.busyUntil)
}

// look takes a sample of the bytes allocated since the start. It reports whether to return
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
		p.used = 0 // the next sample contains these collections
	}
	return give, release
}

// signalCollections sends to collected after each garbage collection, until ctx ends. It
// never blocks.
func signalCollections(ctx context.Context, collected chan<- struct{}) {
	garbage := new([16]byte) // not a tiny object, because those are collected in blocks
	runtime.AddCleanup(garbage, func(ctx context.Context) {
		if ctx.Err() != nil {
			return
		}
		signal.Send(collected)
		signalCollections(ctx, collected)
	}, ctx)
}

// gcPercent returns functions which set and restore the GC percentage. If GOGC has changed
// it, they do nothing.
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
