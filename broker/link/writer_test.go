package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A work is the work that a writer does by calls of flush.
type work struct {
	mu      sync.Mutex
	waiting int           // number of pieces that remain
	takes   time.Duration // time for each piece
	again   time.Duration // after which the next flush is due without a wake
	fail    error

	flushing atomic.Bool
	twice    atomic.Bool // two flushes ran at once
	last     time.Time   // time of the latest flush
}

func (w *work) flush() (more bool, again time.Time, err error) {
	if w.flushing.Swap(true) {
		w.twice.Store(true)
	}
	defer w.flushing.Store(false)
	time.Sleep(w.takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
	if w.waiting > 0 {
		w.waiting--
	}
	return w.waiting > 0, time.Now().Add(w.again), w.fail
}

func (w *work) state() (waiting int, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting, w.last
}

func (w *work) add(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting += n
}

// TestWriterFinishesAllWork adds work from several goroutines, which then wake the writer. All work
// must be done long before the writer's timer, never by two flushes at once, and none after the
// writer has ended.
func TestWriterFinishesAllWork(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 0))
			k := &work{again: time.Hour, takes: time.Duration(dice.IntN(2)) * time.Millisecond}
			w := newWriter(k.flush)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- w.run(ctx) }()
			var all sync.WaitGroup
			for range 1 + dice.IntN(4) {
				plan := dice.Perm(1 + dice.IntN(10))
				all.Go(func() {
					for _, n := range plan {
						time.Sleep(time.Duration(n%4) * time.Millisecond)
						k.add(n%3*4 + 1)
						w.wake()
					}
				})
			}
			all.Wait()
			time.Sleep(time.Minute)
			if n, _ := k.state(); n > 0 || k.twice.Load() {
				t.Errorf("seed %d: %d pieces were not flushed, and two goroutines flushed at once: %v; want 0 and false", seed, n, k.twice.Load())
			}
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("run = %v; want context.Canceled", err)
			}
			k.add(1)
			w.wake()
			synctest.Wait()
			if n, _ := k.state(); n != 1 {
				t.Error("a flush ran after the writer's end; want none")
			}
		})
	}
}

// TestWriterChecksOnTime lets a flush return an earlier time than the flush before. The writer must
// flush at the earlier time.
func TestWriterChecksOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &work{again: time.Hour}
		w := newWriter(k.flush)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.run(ctx) }()
		synctest.Wait()
		k.mu.Lock()
		k.again = time.Second
		k.mu.Unlock()
		w.wake()
		began := time.Now()
		time.Sleep(1500 * time.Millisecond)
		if _, last := k.state(); last.Sub(began) != time.Second {
			t.Errorf("the writer's last check for work came after %v; want 1 s", last.Sub(began))
		}
		stop()
		<-ended
	})
}

// TestFlushErrorEndsTheWriter lets flush return an error. The writer's run must return it.
func TestFlushErrorEndsTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &work{again: time.Hour}
		w := newWriter(k.flush)
		ended := make(chan error)
		go func() { ended <- w.run(t.Context()) }()
		synctest.Wait()
		k.mu.Lock()
		k.fail = errors.New("no")
		k.mu.Unlock()
		w.wake()
		if err := <-ended; !errors.Is(err, k.fail) {
			t.Errorf("run: %v; want %v", err, k.fail)
		}
		w.wake()
	})
}
