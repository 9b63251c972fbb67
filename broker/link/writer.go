package link

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"ahprelay/internal/signal"
)

// A writer runs the sending side of one or more links. It calls flush when it is
// woken, and when a link is due.
type writer struct {
	// flush sends some data. It returns whether more may follow at once, or the
	// latest time of the next call. An error ends the writer.
	flush func() (more bool, again time.Time, err error)

	woken chan struct{} // wake puts a token in
	began time.Time
	until atomic.Int64 // when run next calls flush, in ns since began; MaxInt64 while it runs flush
}

func newWriter(flush func() (more bool, again time.Time, err error)) *writer {
	return &writer{flush: flush, began: time.Now(), woken: make(chan struct{}, 1)}
}

// wake makes run call flush.
func (w *writer) wake() { signal.Send(w.woken) }

// sleepsBeyond reports whether run would not call flush before t, and so must be
// woken.
func (w *writer) sleepsBeyond(t time.Time) bool { return w.until.Load() > int64(t.Sub(w.began)) }

// run flushes until ctx ends or a flush fails.
func (w *writer) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		w.until.Store(math.MaxInt64)
		more, again, err := w.flush()
		if err != nil {
			return err
		}
		w.until.Store(int64(again.Sub(w.began)))
		if more {
			continue
		}
		timer.Reset(max(time.Until(again), 0))
		select {
		case <-ctx.Done():
		case <-w.woken:
		case <-timer.C:
		}
	}
	return context.Cause(ctx)
}
