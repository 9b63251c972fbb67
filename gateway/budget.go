package gateway

import (
	"sync/atomic"
	"time"

	"ahprelay/internal/signal"
	"ahprelay/routing"
)

// A budget counts the relay's memory that grows with the number of clients: queued
// messages, connections and kernel buffers. With a nil budget, add, charge, refund and hold
// do nothing.
type budget struct {
	limit int64
	over  chan struct{} // wakes relief when memory is short; capacity 1

	used   atomic.Int64 // queued bytes
	beside atomic.Int64 // bytes in connections, kernel buffers, and hosts' stored bodies and chunks
	conns  atomic.Int64 // part of beside: the minimum cost of all connections
	short  atomic.Bool  // memory is short, and relief cannot free enough
	lent   atomic.Int64 // credit granted by lend
	scarce atomic.Bool  // lend refused the last request

	held atomic.Pointer[holding] // nil: holdBack was never called

	uploads uploads
}

// A holding records how long holdBack has blocked data from hosts. It is immutable.
type holding struct {
	before time.Duration // total blocked time before since
	since  time.Time     // start of the latest block
	over   chan struct{} // closed when the block ends; nil: it has ended
}

// newBudget returns a budget with a limit in bytes, for messages up to longest bytes.
func newBudget(limit, longest int) *budget {
	b := &budget{limit: int64(limit), over: make(chan struct{}, 1)}
	b.uploads = uploads{budget: b, claim: int64(longest), eased: make(chan struct{}, 1)}
	return b
}

// add adds n, which may be negative, to the queued bytes.
func (b *budget) add(n int) {
	if b != nil {
		b.count(&b.used, n)
	}
}

// keep adds n, which may be negative, to the bytes other than queued messages.
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
		signal.Send(b.uploads.eased)
	}
}

// alarm wakes relief if memory is short.
func (b *budget) alarm() {
	if b.pressure() > 0 {
		signal.Send(b.over)
	}
}

// Minimum cost of an idle connection in bytes, in the relay and in the kernel.
const (
	connCost = 16 << 10
	tlsCost  = 32 << 10 // in addition, with TLS
)

// reserve counts a connection's minimum cost until the caller calls leave.
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

// full reports whether a new connection must be refused: conns exceeds half of the limit,
// or the limit is exceeded and relief cannot free enough.
func (b *budget) full() bool {
	return b.conns.Load() > b.limit/2 || b.short.Load() && b.excess() > 0
}

// charge counts frames added to a queue.
func (b *budget) charge(frames []routing.Frame) { b.add(costOf(frames, 1)) }

// refund counts frames removed from a queue.
func (b *budget) refund(frames []routing.Frame) { b.add(-costOf(frames, -1)) }

// costOf returns the bytes in frames that a queue gets (holders 1) or loses (-1). Memory
// shared by several queues counts for the first that gets it, and the last that loses it.
func costOf(frames []routing.Frame, holders int32) (n int) {
	for i := range frames {
		n += frameCost
		switch shared := frames[i].Shared; {
		case shared == nil:
			n += len(frames[i].Data)
		case shared.Holders.Add(holders) == max(holders, 0):
			n += shared.Size
		}
	}
	return n
}

// excess returns the bytes in use above the limit. It is negative while memory is
// available.
func (b *budget) excess() int64 { return b.used.Load() + b.beside.Load() - b.limit }

// lentShare divides the limit: this part is available for credit beyond clients' initial
// credit.
const lentShare = 4

// lend requests n bytes of credit beyond a client's initial credit, and reports whether
// the budget grants them. A negative n returns credit. 0 requests nothing, and reports
// whether the last request was granted.
func (b *budget) lend(n int) bool {
	switch {
	case n == 0:
		return !b.scarce.Load()
	case n < 0:
		b.lent.Add(int64(n))
		return true
	}
	granted := b.pressure() <= 0
	if granted && b.lent.Add(int64(n)) > b.limit/lentShare {
		b.lent.Add(-int64(n))
		granted = false
	}
	b.scarce.Store(!granted)
	return granted
}

// pressure returns the bytes in use above the threshold at which relief begins. The
// threshold is below the limit.
func (b *budget) pressure() int64 { return b.excess() + b.limit/reliefShare }

// hold blocks while holdBack is in effect.
func (b *budget) hold() {
	if b == nil {
		return
	}
	if held := b.held.Load(); held != nil && held.over != nil {
		<-held.over
	}
}

// holdBack stops data from hosts: hold blocks until the caller calls release.
// Only relieve may call it.
func (b *budget) holdBack() (release func()) {
	held := &holding{since: time.Now(), over: make(chan struct{})}
	if last := b.held.Load(); last != nil {
		held.before = last.before
	}
	b.held.Store(held)
	return func() {
		b.held.Store(&holding{before: held.before + time.Since(held.since)})
		close(held.over)
	}
}

// clockBegan is the origin of budget.clock.
var clockBegan = time.Now()

// clock returns the time in ns by the monotonic clock, so that no client counts as still when the
// system's clock is set. The time during which holdBack was in effect does not count: clients that
// wait for data cannot make progress then. Zero is long ago.
func (b *budget) clock(now time.Time) (ns int64) {
	ns = clockBegan.UnixNano() + int64(now.Sub(clockBegan))
	if held := b.held.Load(); held != nil {
		ns -= int64(held.before)
		if held.over != nil {
			ns -= max(0, int64(now.Sub(held.since)))
		}
	}
	return ns
}
