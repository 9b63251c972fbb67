package gateway

import (
	"sync/atomic"
	"time"

	"ahprelay/routing"
)

// A budget counts the bytes that wait in the relay, for all clients and from
// all clients, and what else takes memory with their number. Its nil pointer
// counts nothing.
type budget struct {
	limit int64
	over  chan struct{} // holds one: memory is short

	used   atomic.Int64 // what waits
	beside atomic.Int64 // connections, what kernels hold of them, bodies and chunks
	conns  atomic.Int64 // of those, what connections take that do nothing
	short  atomic.Bool  // nothing is left that could be given up

	held atomic.Pointer[holding] // nil: sources have never been held back

	uploads uploads
}

// A holding is what is known of holding sources back. It does not change.
type holding struct {
	before time.Duration // for how long they were held back, in all
	since  time.Time     // when they began to be held back once more
	over   chan struct{} // and until when: closed then; nil: they are not held back
}

// newBudget returns a budget of so many bytes, for messages of at most longest.
func newBudget(limit, longest int) *budget {
	b := &budget{limit: int64(limit), over: make(chan struct{}, 1)}
	b.uploads = uploads{budget: b, claim: int64(longest), eased: make(chan struct{}, 1)}
	return b
}

// add counts n bytes more, or less, that wait.
func (b *budget) add(n int) {
	if b != nil {
		b.count(&b.used, n)
	}
}

// keep counts n bytes more, or less, that are in use otherwise.
func (b *budget) keep(n int) { b.count(&b.beside, n) }

func (b *budget) count(what *atomic.Int64, n int) {
	if n == 0 {
		return
	}
	what.Add(int64(n))
	switch {
	case n > 0:
		b.alarm()
	case b.uploads.waits.Load() > 0:
		select {
		case b.uploads.eased <- struct{}{}:
		default:
		}
	}
}

// alarm calls for relief if memory is short.
func (b *budget) alarm() {
	if b.pressure() > 0 {
		select {
		case b.over <- struct{}{}:
		default:
		}
	}
}

// What a connection takes that does nothing, at least, in bytes: in the process
// and in the kernel.
const (
	connCost = 16 << 10
	tlsCost  = 32 << 10 // besides
)

// reserve counts a connection, until leave is called.
func (b *budget) reserve(tls bool) (leave func()) {
	cost := connCost
	if tls {
		cost += tlsCost
	}
	b.conns.Add(int64(cost))
	b.keep(cost)
	return func() {
		b.conns.Add(-int64(cost))
		b.keep(-cost)
	}
}

// full reports whether there is no memory for another connection: those that are
// there take half of it, or all is in use and nothing of that can be given up.
func (b *budget) full() bool {
	return b.conns.Load() > b.limit/2 || b.short.Load() && b.excess() > 0
}

// charge counts frames that were put into a queue. Memory of which several queues
// hold parts counts once.
func (b *budget) charge(frames []routing.Frame) {
	n := 0
	for i := range frames {
		n += frameCost
		switch shared := frames[i].Shared; {
		case shared == nil:
			n += len(frames[i].Data)
		case shared.Holders.Add(1) == 1:
			n += shared.Size
		}
	}
	b.add(n)
}

// refund takes back what charge counted.
func (b *budget) refund(frames []routing.Frame) {
	n := 0
	for i := range frames {
		n += frameCost
		switch shared := frames[i].Shared; {
		case shared == nil:
			n += len(frames[i].Data)
		case shared.Holders.Add(-1) == 0:
			n += shared.Size
		}
	}
	b.add(-n)
}

// excess is how many bytes more are in use than may be; negative if there is
// room.
func (b *budget) excess() int64 { return b.used.Load() + b.beside.Load() - b.limit }

// pressure is how many bytes more are in use than should be: memory is short
// before all of it is in use.
func (b *budget) pressure() int64 { return b.excess() + b.limit/reliefShare }

// hold waits while sources are held back.
func (b *budget) hold() {
	if b == nil {
		return
	}
	if held := b.held.Load(); held != nil && held.over != nil {
		<-held.over
	}
}

// holdBack holds sources back until the returned function is called. Only relieve
// may call it.
func (b *budget) holdBack() (release func()) {
	held := &holding{since: time.Now(), over: make(chan struct{})}
	if former := b.held.Load(); former != nil {
		held.before = former.before
	}
	b.held.Store(held)
	return func() {
		b.held.Store(&holding{before: held.before + time.Since(held.since)})
		close(held.over)
	}
}

// clock is the time in ns, but stands while sources are held back: who waits for what
// they say cannot show meanwhile that it goes on.
func (b *budget) clock(now time.Time) (ns int64) {
	ns = now.UnixNano()
	if held := b.held.Load(); held != nil {
		ns -= int64(held.before)
		if held.over != nil {
			ns -= max(0, int64(now.Sub(held.since)))
		}
	}
	return ns
}
