// Package alike counts together what happens often and is all the same to who
// reads of it: the first of a kind is told at once, and those that follow within
// a time by one word at the end of it, with their number.
//
// So a log or an audit stays readable and bounded whatever one source does, and
// each kind from each source is in it.
//
// # Concurrency
//
// A [Table] is safe for concurrent use. What it is to tell is told without its
// lock held, by whoever calls Note, Run or Flush.
package alike

import (
	"context"
	"sync"
	"time"
)

// Max is how many kinds a [Table] tells apart at a time. With more, that which
// was noted first is told before its time, and forgotten.
const Max = 16384

// A Table counts.
type Table struct {
	every time.Duration

	mu    sync.Mutex // guards the fields below
	kinds map[any]*kind
	queue []*kind // the same, by end, the next first

	wake chan struct{} // has room for one: there is a first in the queue
}

// A kind is what has happened in the time that began with the first.
type kind struct {
	key  any
	end  time.Time
	told int            // at once
	more int            // not told
	tell func(more int) // the last of these
}

// New returns a Table that tells of each kind once in that time.
func New(every time.Duration) *Table {
	return &Table{every: every, kinds: map[any]*kind{}, wake: make(chan struct{}, 1)}
}

// Note notes that something has happened, of a kind that key names. The first
// atOnce of a kind are told at once, with tell(0). Those that follow are told
// together at the end of the time, by the tell of the last, with their number.
func (t *Table) Note(key any, atOnce int, tell func(more int)) {
	for _, due := range t.note(key, atOnce, tell) {
		due()
	}
}

// note returns what is to be told now.
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
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// makeRoomLocked drops the oldest kind if there are too many, and returns what
// is to be told of it.
func (t *Table) makeRoomLocked() (due []func()) {
	if len(t.kinds) < Max {
		return nil
	}
	k := t.queue[0]
	t.queue = t.queue[1:]
	delete(t.kinds, k.key)
	return k.due(nil)
}

// due adds what is to be told of what was not told.
func (k *kind) due(list []func()) []func() {
	if k.more == 0 {
		return list
	}
	tell, more := k.tell, k.more
	return append(list, func() { tell(more) })
}

// Run tells what is due, until ctx ends.
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

// next returns in what time something ends.
func (t *Table) next() (wait time.Duration, some bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return 0, false
	}
	return time.Until(t.queue[0].end), true
}

// takeDue takes what has ended by then. A kind of which there was more goes on
// for another time, with nothing told at once.
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

// Flush tells all that was not told yet, and forgets the kinds.
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
