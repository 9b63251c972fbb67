package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A load is what waits on a client's account of what it sends, and since when nothing of
// that has moved.
type load struct {
	// Set by newClient, then read-only, but for ofHost, which join sets.
	budget *budget
	conn   *lockedConn
	ctx    context.Context // the client's
	ofHost *atomic.Int64   // hostEntry.moved

	stuck   atomic.Bool  // the reader waits for the host, and hears nothing of the client
	slowed  atomic.Bool  // what it sends waits for the limits of its rate
	whole   atomic.Int64 // bytes of the message that has come, beyond keepBuffer, until it waits for the host
	sending atomic.Int64 // of the message that waits for those before it to leave
	moved   atomic.Int64 // when something of what it sends last moved, by budget.clock
	kernel  atomic.Int64 // what the kernel holds of the connection, in bytes
	unread  atomic.Int64 // of that, what the client has sent
	cut     atomic.Bool  // too much waited for all clients together, and this one is closed
	upload  upload       // the message that is being read, if it is large

	mu       sync.Mutex // guards all that follows
	written  uint64     // lockedConn.written, by noteLoad
	received uint64     // lockedConn.taken, by noteLoad
	read     uint64     // the same, by noteMoved
	queued   int        // bytes for the host, by noteMoved
}

// weigh adds to a burden what waits of what the client sends, with so many bytes that wait for its
// host to be there, and so many for the client. Who only waits to be read, by a relay that is
// busy, takes turns too.
func (l *load) weigh(b *burden, pending, out int, now time.Time) {
	l.mu.Lock()
	queued := l.queued
	l.mu.Unlock()
	in := pending + queued + int(l.whole.Load()+l.sending.Load())
	switch {
	case in == 0:
	case l.slowed.Load():
		b.inTurns = true
	default:
		moved := l.lastMoved(now, queued)
		b.standsFrom(moved)
		b.inTurns = in > keepBuffer && now.Sub(moved) < stillTime
	}
	coming, moved := l.budget.uploads.state(&l.upload, now)
	if !moved.IsZero() {
		b.standsFrom(moved)
		b.inTurns = b.inTurns || now.Sub(moved) < turnTime
	}
	if in == 0 && out == 0 && moved.IsZero() && l.unread.Load() > 0 && !l.stuck.Load() {
		b.inTurns = true
	}
	if since := l.conn.standsSince(); !since.IsZero() {
		b.standsFrom(since)
	}
	b.bytes = in + coming + out + int(l.kernel.Load())
}

// lastMoved is since when nothing has moved of what a client has sent, so many
// bytes of which are queued for the host. While a host takes another large
// message, those that wait for their turn there do not stand still, nor does
// anything while the relay takes no host's word that more may come.
func (l *load) lastMoved(now time.Time, queued int) time.Time {
	moved := l.moved.Load()
	if queued > keepBuffer {
		moved = max(moved, l.ofHost.Load())
	}
	return now.Add(min(0, time.Duration(moved-l.budget.clock(now))))
}

// progressed notes that something has moved of what a client sends.
func (l *load) progressed(now time.Time) { l.moved.Store(l.budget.clock(now)) }

// noteMoved looks whether anything moves of what a client sends: who judges that
// looks first.
func (l *load) noteMoved(now time.Time, host upstream) {
	queued := 0
	if host != nil {
		queued = host.Queued()
	}
	read := l.conn.taken.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	if read != l.read || queued != l.queued {
		l.progressed(now)
	}
	if l.queued > keepBuffer && queued < l.queued {
		l.ofHost.Store(l.budget.clock(now))
	}
	l.read, l.queued = read, queued
}

// noteLoad looks how much of a client's the kernel holds, and tells the host-agent
// if it takes what it is sent. The sweeper calls it, and who is to judge that.
func (l *load) noteLoad(host upstream) {
	conn := l.conn
	l.mu.Lock()
	defer l.mu.Unlock()
	written, heard := conn.written.Load(), conn.taken.Load()
	if written != l.written || heard != l.received || l.kernel.Load() > 0 {
		l.setKernel(kernelQueued(conn.Conn))
	}
	if host != nil && written != l.written {
		host.Progress()
	}
	l.written, l.received = written, heard
}

// kernelCost is what bytes in its queues cost the kernel: it keeps them in
// pieces.
func kernelCost(bytes int) int { return bytes + bytes/4 }

// setKernel notes what the kernel holds of what was written to the connection, and of what is
// not read.
func (l *load) setKernel(written, unread int) {
	unread = kernelCost(unread)
	n := kernelCost(written) + unread
	l.unread.Store(int64(unread))
	l.budget.keep(n - int(l.kernel.Swap(int64(n))))
}

// readMore waits until n bytes more of a message may be read.
func (l *load) readMore(n int) error {
	l.stuck.Store(true)
	defer l.stuck.Store(false)
	return l.budget.uploads.more(l.ctx, &l.upload, n)
}

// hasCome takes a message out of the line that is whole. It still counts.
func (l *load) hasCome() {
	l.progressed(time.Now())
	l.whole.Add(l.budget.uploads.end(&l.upload))
}

// doneReading counts the message no more that was being read.
func (l *load) doneReading() {
	held := l.budget.uploads.end(&l.upload) + l.whole.Swap(0)
	l.budget.add(-int(held))
}
