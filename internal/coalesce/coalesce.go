// Package coalesce merges repeated events. It reports the first events of a kind at
// once, and the number of later ones at the end of an interval. A log thus stays
// readable and bounded during a flood, and still shows each kind of event from each
// source.
//
// # Concurrency
//
// A [Table] is safe for concurrent use. Reports run without its lock held, in the
// goroutine that calls Note, Run or Flush.
package coalesce

import (
	"context"
	"sync"
	"time"

	"ahprelay/internal/signal"
)

// Max bounds the kinds in a [Table]. Beyond it, the oldest kind is reported early and
// forgotten.
const Max = 16384

// A Table counts events by kind.
type Table struct {
	every time.Duration

	mu    sync.Mutex // guards the fields below
	kinds map[any]*kind
	queue []*kind // the kinds of the map, ordered by end

	wake chan struct{} // capacity 1: the queue is no longer empty
}

// A kind counts the events of one key in the current interval. The first interval begins
// with the first event.
type kind struct {
	key  any
	end  time.Time
	told int            // events reported at once
	more int            // events not reported yet
	tell func(more int) // reports the last event
}

// New returns a Table with the interval every.
func New(every time.Duration) *Table {
	return &Table{every: every, kinds: map[any]*kind{}, wake: make(chan struct{}, 1)}
}

// Note records an event whose kind is key. The first atOnce events in an interval are
// reported at once with tell(0), but none if the previous interval had more events than
// were reported at once. At the end of the interval, the last event's tell is
// called with the number of all later events.
func (t *Table) Note(key any, atOnce int, tell func(more int)) {
	for _, due := range t.note(key, atOnce, tell) {
		due()
	}
}

func (t *Table) note(key any, atOnce int, tell func(more int)) (due []func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.kinds[key]
	if k == nil {
		due = t.makeRoomLocked()
		k = &kind{key: key, end: time.Now().Add(t.every)}
		t.kinds[key] = k
		t.enqueueLocked(k)
	}
	if k.told < atOnce {
		k.told++
		return append(due, func() { tell(0) })
	}
	k.more++
	k.tell = tell
	return due
}

func (t *Table) enqueueLocked(k *kind) {
	t.queue = append(t.queue, k)
	if len(t.queue) == 1 {
		signal.Send(t.wake)
	}
}

// makeRoomLocked drops the oldest kind if the table is full, and returns its report.
func (t *Table) makeRoomLocked() (due []func()) {
	if len(t.kinds) < Max {
		return nil
	}
	k := t.queue[0]
	t.queue = t.queue[1:]
	delete(t.kinds, k.key)
	return k.due(nil)
}

// due appends the report of the events that were not reported.
func (k *kind) due(list []func()) []func() {
	if k.more == 0 {
		return list
	}
	tell, more := k.tell, k.more
	return append(list, func() { tell(more) })
}

// Run reports the kinds that are due, until ctx ends.
func (t *Table) Run(ctx context.Context) {
	for {
		var timer <-chan time.Time
		if wait, some := t.next(); some {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer:
			for _, tell := range t.takeDue(time.Now()) {
				tell()
			}
		}
	}
}

// next returns the time until the first kind is due.
func (t *Table) next() (wait time.Duration, some bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return 0, false
	}
	return time.Until(t.queue[0].end), true
}

// takeDue returns the reports of all due kinds. If a kind had unreported events, its
// next interval begins at once, and no event in it is reported at once.
func (t *Table) takeDue(now time.Time) (due []func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) > 0 && !t.queue[0].end.After(now) {
		k := t.queue[0]
		t.queue = t.queue[1:]
		if k.more == 0 {
			delete(t.kinds, k.key)
			continue
		}
		due = k.due(due)
		k.end, k.more, k.tell = now.Add(t.every), 0, nil
		t.enqueueLocked(k)
	}
	return due
}

// Flush reports all events that were not reported, and forgets the kinds.
func (t *Table) Flush() {
	t.mu.Lock()
	var due []func()
	for _, k := range t.queue {
		due = k.due(due)
	}
	t.kinds, t.queue = map[any]*kind{}, nil
	t.mu.Unlock()
	for _, tell := range due {
		tell()
	}
}
