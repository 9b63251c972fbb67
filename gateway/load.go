package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/gateway/wire"
	"ahprelay/internal/clock"
	"ahprelay/internal/fair"
)

// A load tracks the memory that a client uses for messages to its host, and when these
// messages last made progress.
type load struct {
	// Set by newClient, then read-only; join sets ofHost.
	budget *budget
	conn   *wire.Conn
	ctx    context.Context // the client's context
	ofHost *atomic.Int64   // the host's hostEntry.moved

	stuck   atomic.Bool  // the reader waits for anything but bytes from the client
	slowed  atomic.Bool  // the client's messages wait for rate limits or for its tenant's share of the processors
	whole   atomic.Int64 // bytes beyond wire.KeepBuffer of a complete message that is not being sent yet
	sending atomic.Int64 // the value of whole while the message is being sent, which blocks until the host accepts it
	moved   atomic.Int64 // last progress of the client's messages, by budget.clock
	kernel  atomic.Int64 // estimated memory of the connection's kernel buffers
	unread  atomic.Int64 // part of kernel, for received bytes not yet read
	cut     atomic.Bool  // the client is being closed because memory is short
	upload  upload       // the large message being read

	mu       sync.Mutex // guards the fields below
	written  uint64     // wire.Conn.Written at the last noteLoad
	received uint64     // wire.Conn.Taken at the last noteLoad
	read     uint64     // wire.Conn.Taken at the last noteMoved
	queued   int        // bytes queued for the host at the last noteMoved
}

// weigh adds this load to a burden, with the bytes pending until the host connection is
// open and the bytes queued for the client. If the client's data waits only because the
// busy relay has not read it yet, the client counts as inTurns.
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
		b.since = clock.Earlier(b.since, moved)
		b.inTurns = in > wire.KeepBuffer && now.Sub(moved) < stillTime
	}
	coming, moved, stopped := l.budget.uploads.state(&l.upload, now)
	if !moved.IsZero() {
		b.since = clock.Earlier(b.since, moved)
		b.stopped = now.Sub(stopped)
		b.inTurns = b.inTurns || b.stopped < stopTime
	}
	if in == 0 && out == 0 && moved.IsZero() && l.unread.Load() > 0 && !l.stuck.Load() {
		b.inTurns = true
	}
	if since := l.conn.StandsSince(); !since.IsZero() {
		b.since = clock.Earlier(b.since, since)
		b.unread = now.Sub(since)
	}
	b.bytes = in + coming + out + int(l.kernel.Load())
}

// lastMoved returns when the client's messages last made progress. Progress of another
// client's large message to the same host counts too, because this client's messages may
// wait behind that one. Time during which holdBack was in effect does not count.
func (l *load) lastMoved(now time.Time, queued int) time.Time {
	moved := l.moved.Load()
	if queued > wire.KeepBuffer {
		moved = max(moved, l.ofHost.Load())
	}
	return now.Add(min(0, time.Duration(moved-l.budget.clock(now))))
}

func (l *load) progressed(now time.Time) { l.moved.Store(l.budget.clock(now)) }

// noteMoved checks whether the client's messages made progress since the last call.
// Callers use it before they close clients without progress.
func (l *load) noteMoved(now time.Time, host upstream) {
	queued := 0
	if host != nil {
		queued = host.Queued()
	}
	read := l.conn.Taken.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	if read != l.read || queued != l.queued {
		l.progressed(now)
	}
	if l.queued > wire.KeepBuffer && queued < l.queued {
		l.ofHost.Store(l.budget.clock(now))
	}
	l.read, l.queued = read, queued
}

// noteLoad measures the client's kernel buffers, and reports the client's progress to the
// host-agent.
func (l *load) noteLoad(host upstream) {
	conn := l.conn
	l.mu.Lock()
	defer l.mu.Unlock()
	written, heard := conn.Written.Load(), conn.Taken.Load()
	if written != l.written || heard != l.received || l.kernel.Load() > 0 {
		l.setKernel(wire.Queued(conn.Conn))
	}
	if host != nil && written != l.written {
		host.Progress()
	}
	l.written, l.received = written, heard
}

// kernelCost estimates the kernel memory for a number of queued bytes.
func kernelCost(bytes int) int { return bytes + bytes/4 }

// setKernel records the bytes in the kernel: written but not sent, and received but not
// read.
func (l *load) setKernel(written, unread int) {
	unread = kernelCost(unread)
	n := kernelCost(written) + unread
	l.unread.Store(int64(unread))
	l.budget.keep(n - int(l.kernel.Swap(int64(n))))
}

// readMore waits until the uploads scheduler permits reading n more bytes.
func (l *load) readMore(n int) error {
	l.stuck.Store(true)
	defer l.stuck.Store(false)
	return l.budget.uploads.more(l.ctx, &l.upload, n)
}

// hasCome ends the upload of a complete message. Its bytes still count until doneReading.
func (l *load) hasCome() {
	l.progressed(time.Now())
	l.whole.Add(l.budget.uploads.end(&l.upload))
}

// doneReading stops counting the current message's bytes.
func (l *load) doneReading() {
	held := l.budget.uploads.end(&l.upload) + l.whole.Swap(0)
	l.budget.add(-int(held))
}

// longestStep is the longest processing time charged for a message. A message that took
// longer was waiting for credit, not working.
const longestStep = 100 * time.Microsecond

// rest delays the client's next message while its tenant uses more than its share of the
// processors. worked is the processing time of the last message.
func (l *load) rest(shares *fair.Shares, tenant string, worked time.Duration) {
	d := shares.Spend(tenant, min(worked, longestStep))
	if d == 0 {
		return
	}
	l.stuck.Store(true)
	l.slowed.Store(true)
	wait(l.ctx, time.After(d))
	l.slowed.Store(false)
	l.stuck.Store(false)
}
