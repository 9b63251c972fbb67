package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// TestQuietProcessGivesMemoryBack uses 64 MiB, and then no longer needs them. The process must give
// them back to the system when it allocates little, and not while they are in use.
func TestQuietProcessGivesMemoryBack(t *testing.T) {
	released := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/released:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	const many = 64 << 20
	used := make([]byte, many)
	for i := range used {
		used[i] = 1
	}
	before := released()
	stop := Start()
	time.Sleep(3 * lookEvery)
	stop()
	if got := released(); got >= before+many {
		t.Fatalf("%d bytes in use were returned; want none", got-before)
	}
	runtime.KeepAlive(used)
	used = nil
	defer Start()() // a new Start, which has not measured yet
	for deadline := time.Now().Add(time.Minute); released() < before+many/2; time.Sleep(lookEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes given back; want %d", released()-before, many)
		}
	}
}

// TestLargeProcessTakesLessHeadroom makes the heap large. The GC percentage must fall, and rise
// again with a small heap. A percentage that was set before must stay.
func TestLargeProcessTakesLessHeadroom(t *testing.T) {
	percent := func() int {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return int(s[0].Value.Uint64())
	}
	await := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); percent() != want; time.Sleep(lookEvery) {
			if time.Now().After(deadline) {
				t.Fatalf("GC percent is %d; want %d", percent(), want)
			}
		}
	}
	used := make([]byte, 2*largeHeap)
	stop := Start()
	defer func() { stop() }()
	runtime.GC()
	await(largePercent)
	runtime.KeepAlive(used)
	used = nil
	runtime.GC()
	await(mostPercent)
	stop()

	debug.SetGCPercent(77)
	defer debug.SetGCPercent(100)
	used = make([]byte, 2*largeHeap)
	stop = Start()
	runtime.GC()
	time.Sleep(3 * lookEvery)
	if got := percent(); got != 77 {
		t.Errorf("after Close, the GC percent is %d; want the earlier value", got)
	}
	runtime.KeepAlive(used)
}

// TestPercentFor computes the GC percentage for heap sizes. It must leave headroom for half of
// largeHeap, or for half of the heap in use if that is larger; and for more in a busy process.
func TestPercentFor(t *testing.T) {
	for live, want := range map[uint64]struct{ calm, busy int }{
		0: {mostPercent, mostPercent}, 1 << 20: {mostPercent, mostPercent}, 4 << 20: {400, 800}, 7 << 20: {200, 800}, 13 << 20: {100, 400},
		largeHeap - 1: {100, 200}, largeHeap: {largePercent, 200}, 1 << 40: {largePercent, busyPercent},
	} {
		if got := percentFor(live, false); got != want.calm {
			t.Errorf("percentFor(%d, false) = %d; want %d", live, got, want.calm)
		}
		if got := percentFor(live, true); got != want.busy {
			t.Errorf("percentFor(%d, true) = %d; want %d", live, got, want.busy)
		}
	}
}

// TestBusyProcessIsRecognized simulates a process whose collections take more than 1/busyShare of
// its processor time for a moment. It must count as busy from the next sample on, and until busyTime
// has passed. The collections that return memory must not count.
func TestBusyProcessIsRecognized(t *testing.T) {
	now := time.Now()
	var p pace
	var used, collected float64
	var allocated uint64
	sample := func(d time.Duration, user, gc float64) bool {
		now = now.Add(d)
		used += user
		collected += gc
		busy := p.busy(used, collected, now)
		p.look(allocated, now)
		return busy
	}
	if sample(0, 1, 9) {
		t.Error("busy = true at the first sample, which shows no share; want false")
	}
	if sample(time.Second, 0.95, 0.05) {
		t.Error("busy = true although collections took a twentieth; want false")
	}
	if !sample(time.Second, 0.8, 0.2) {
		t.Error("busy = false although collections took a fifth; want true")
	}
	if !sample(busyTime-1, 0.1, 0) {
		t.Error("busy = false before busyTime has passed without collections; want true")
	}
	if sample(1, 0.1, 0) {
		t.Error("busy = true after busyTime; want false")
	}
	allocated += worthAtOnce
	sample(lookEvery, 1, 0)
	if sample(lookEvery, 0, 0); p.givenAt != now {
		t.Fatal("a quiet process returns no memory after much garbage; want it returned")
	}
	if sample(lookEvery, 0, 1) {
		t.Error("busy = true after memory was returned; want false")
	}
}

// TestRestingProcessReturnsItsStart simulates a process that has worked for a moment. Once it
// rests, it must return its garbage and release its code once, and do so again only after further
// work.
func TestRestingProcessReturnsItsStart(t *testing.T) {
	now := time.Now()
	p := pace{wait: lookEvery}
	// rests passes the duration d, in which the process allocates perSecond bytes a second. It
	// returns how often the process returned memory and released code.
	allocated := uint64(0)
	rests := func(d time.Duration, perSecond uint64) (gave, released int) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(p.wait)
			allocated += uint64(p.wait.Seconds() * float64(perSecond))
			give, release := p.look(allocated, now)
			if give {
				gave++
			}
			if release {
				released++
			}
		}
		return gave, released
	}
	allocated = 2 << 20
	if gave, released := rests(30*time.Second, 0); gave != 1 || released != 1 {
		t.Errorf("a start of 2 MiB: memory returned %d times, code released %d times; want once each", gave, released)
	}
	if gave, released := rests(time.Hour, 0); gave != 0 || released != 0 {
		t.Errorf("an hour without work: memory returned %d times, code released %d times; want 0 and 0", gave, released)
	}
	if gave, released := rests(time.Hour, 10<<10); gave < 30 || gave > 40 || released != gave {
		t.Errorf("an hour at 10 KiB/s: memory returned %d times, code released %d times; want once for each MiB", gave, released)
	}
	allocated += 1 << 19
	if gave, released := rests(time.Minute, 0); gave > 1 || released != 1 {
		t.Errorf("after a moment of work: memory returned %d times, code released %d times; want code released once", gave, released)
	}
}
