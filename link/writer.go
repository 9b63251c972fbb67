package link

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"ahprelay/lockorder"
)

// A writer sends what there is to send on one or more links: when it is woken,
// when something is due, or in the goroutine of who wants it sent now.
type writer struct {
	// flush sends some, and returns whether there may be more to send now, else
	// when to call it again at the latest. An error is the end.
	flush func() (more bool, again time.Time, err error)

	woken chan struct{} // holds a token after wake
	turn  chan struct{} // holds a token while somebody may flush; closed at the end
	began time.Time
	until atomic.Int64 // when run looks again by itself, ns since began; far off while it looks
	over  error        // of a flush by somebody else; whose turn it is owns it
}

func newWriter(flush func() (more bool, again time.Time, err error)) *writer {
	w := &writer{flush: flush, began: time.Now(), woken: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	w.turn <- struct{}{}
	return w
}

// wake has run look for work.
func (w *writer) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// sleepsBeyond reports whether run has to be woken to look at that time.
func (w *writer) sleepsBeyond(t time.Time) bool { return w.until.Load() > int64(t.Sub(w.began)) }

// flushNowRounds is how often flushNow flushes at most.
const flushNowRounds = 4

// flushNow flushes, if nobody else does, and has run do the rest.
func (w *writer) flushNow() {
	select {
	case _, open := <-w.turn:
		if !open {
			return
		}
	default:
		w.wake()
		return
	}
	lockorder.Enter[lockorder.Turn]()
	more, again := true, time.Time{}
	for i := 0; i < flushNowRounds && more && w.over == nil; i++ {
		more, again, w.over = w.flush()
	}
	if more || w.over != nil || w.sleepsBeyond(again) {
		w.wake()
	}
	lockorder.Leave[lockorder.Turn]()
	w.turn <- struct{}{}
}

// run flushes until ctx ends or a flush fails. Nobody flushes after it.
func (w *writer) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		<-w.turn
		err := w.over
		w.until.Store(math.MaxInt64)
		var more bool
		var again time.Time
		if err == nil {
			lockorder.Enter[lockorder.Turn]()
			more, again, err = w.flush()
			lockorder.Leave[lockorder.Turn]()
		}
		if err != nil {
			close(w.turn)
			return err
		}
		w.until.Store(int64(again.Sub(w.began)))
		w.turn <- struct{}{}
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
	<-w.turn
	close(w.turn)
	return context.Cause(ctx)
}
