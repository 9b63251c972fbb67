package gateway

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// An outboxEnd is an outbox with the far end of its connection. It records the outbox's
// reports.
type outboxEnd struct {
	*outbox
	conn net.Conn

	mu      sync.Mutex
	credits []int
	ends    []closing
	running int
	most    int // highest number of concurrent writers
	wg      sync.WaitGroup
}

func newOutboxEnd(t *testing.T, limit int) *outboxEnd {
	t.Helper()
	near, far := net.Pipe()
	e := &outboxEnd{conn: far}
	e.outbox = &outbox{
		sock:    &wire.Socket{Conn: wire.NewConn(context.Background(), near, 8*time.Second)},
		limit:   limit,
		written: func(credit int) { e.note(func() { e.credits = append(e.credits, credit) }) },
		ended:   func(end closing) { e.note(func() { e.ends = append(e.ends, end) }) },
		writers: newWriters(func(run func()) bool {
			e.wg.Go(func() {
				e.note(func() { e.running++; e.most = max(e.most, e.running) })
				run()
				e.note(func() { e.running-- })
			})
			return true
		}, alone),
	}
	t.Cleanup(func() {
		_ = far.Close()
		e.wg.Wait()
	})
	return e
}

func (e *outboxEnd) note(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// read reads n bytes at the far end.
func (e *outboxEnd) read(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	for at := 0; at < n; {
		m, err := e.conn.Read(b[at:])
		if err != nil {
			t.Fatalf("reading the client's bytes: %v after %d of %d bytes; want all", err, at, n)
		}
		at += m
	}
	return b
}

func (e *outboxEnd) wantEnd(t *testing.T, want ...closing) {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.ends, want) {
		t.Errorf("outbox ended with %v; want %v", e.ends, want)
	}
}

func (e *outboxEnd) wantCredit(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	got := 0
	for _, c := range e.credits {
		got += c
	}
	if got != want {
		t.Errorf("credit given: %d; want %d", got, want)
	}
}

func frames(n, size, credit int) (list []routing.Frame, bytes []byte) {
	for i := range n {
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(i)
		}
		list = append(list, routing.Frame{Data: data, Credit: credit})
		bytes = append(bytes, data...)
	}
	return list, bytes
}

// The outbox writes frames of all sizes complete and in order, returns each frame's
// credit once, and writes from a single goroutine.
func TestOutboxWritesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newOutboxEnd(t, 100<<20)
		var want []byte
		credit := 0
		for _, size := range []int{1, 100, wire.WritePiece - 100, 1, wire.WritePiece, wire.WritePiece + 1, 3 * wire.WritePiece, 10, 10} {
			for _, n := range []int{1, 3, 300} {
				if size > 1000 && n > 3 {
					continue
				}
				list, bytes := frames(n, size, size)
				want = append(want, bytes...)
				credit += n * size
				e.push(list...)
			}
		}
		e.wantCredit(t, 0) // the far end has read nothing
		if got := e.read(t, len(want)); !bytes.Equal(got, want) {
			t.Error("the far end reads different bytes; want those pushed")
		}
		e.wantCredit(t, credit)
		if e.queued() != 0 {
			t.Errorf("queued = %d when all is written; want 0", e.queued())
		}
		// The outbox starts a writer for frames that come after the queue was empty.
		list, bytes1 := frames(2, 10, 1)
		e.push(list...)
		if got := e.read(t, len(bytes1)); !bytes.Equal(got, bytes1) {
			t.Error("the far end reads different bytes; want those pushed")
		}
		e.wantCredit(t, credit+2)
		e.wantEnd(t)
		if e.most != 1 {
			t.Errorf("%d goroutines wrote at a time; want 1", e.most)
		}
	})
}

// An outbox is closed while frames wait. It writes these frames, drops frames that come
// later, and ends with the reason of the first close.
func TestOutboxClosesBehindItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newOutboxEnd(t, 100<<20)
		list, want := frames(5, 40<<10, 7)
		e.push(list...)
		first := closing{code: ahp.CloseHostOffline, reason: "first"}
		if got := e.close(first.code, first.reason); got != first {
			t.Errorf("close = %v; want %v", got, first)
		}
		if got := e.close(ahp.CloseResync, "second"); got != first {
			t.Errorf("second close = %v; want %v", got, first)
		}
		e.push(list...)
		e.wantEnd(t)
		if got := e.read(t, len(want)); !bytes.Equal(got, want) {
			t.Error("the far end reads different bytes; want those pushed")
		}
		e.wantEnd(t, first)
		e.wantCredit(t, 5*7)
		e.push(list...)
		e.close(ahp.CloseResync, "third")
		e.wantEnd(t, first)
	})
}

// The outbox takes frames up to its limit. A frame above the limit closes it, and drops
// all but the frame being written.
func TestFullOutboxCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 200 << 10
		e := newOutboxEnd(t, limit)
		large, _ := frames(1, 3*limit, 1) // one frame always fits
		rest, _ := frames(2, limit/2-frameCost, 1)
		e.push(append(large, rest...)...)
		synctest.Wait()
		if e.queued() != limit {
			t.Errorf("queued = %d behind the frame being written; want %d", e.queued(), limit)
		}
		one, _ := frames(1, 1, 1)
		e.push(one...) // accepted at the limit
		e.push(one...) // refused above the limit
		full := closing{code: ahp.CloseOverloaded, reason: "slow consumer: too much is queued"}
		if got := e.close(ahp.CloseResync, ""); got != full {
			t.Errorf("close = %v; want %v", got, full)
		}
		if e.queued() != 0 {
			t.Errorf("queued = %d of a client that was given up; want 0", e.queued())
		}
		e.read(t, 3*limit) // the frame being written
		e.wantEnd(t, full) // without a further byte
		e.wantCredit(t, 1)
	})
}

// A client reads slowly, and then nothing. The outbox keeps the connection while the
// client reads, and closes it 8 s after the last read.
func TestStalledOutboxCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newOutboxEnd(t, 100<<20)
		list, _ := frames(10, 60<<10, 1)
		e.push(list...)
		for range 10 { // the client is slow, but does not stall
			time.Sleep(7 * time.Second)
			e.read(t, 10<<10)
		}
		e.wantEnd(t)
		e.wantCredit(t, 1)
		time.Sleep(7 * time.Second)
		e.wantEnd(t)
		time.Sleep(3 * time.Second) // 8 s without a read, and the outbox checks every 2 s
		e.wantEnd(t, closing{code: ahp.CloseOverloaded, reason: "slow consumer: accepts no data", lost: true})
		if e.queued() != 0 {
			t.Errorf("queued = %d; want 0", e.queued())
		}
		e.push(list...)
		e.wantEnd(t, closing{code: ahp.CloseOverloaded, reason: "slow consumer: accepts no data", lost: true})
	})
}

// The connection breaks during a write. The outbox reports the loss, and returns no
// credit.
func TestOutboxReportsALostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newOutboxEnd(t, 100<<20)
		list, _ := frames(10, 60<<10, 1)
		e.push(list...)
		e.read(t, 100)
		_ = e.conn.Close()
		e.wantEnd(t, closing{code: wire.CloseLost, reason: "connection lost", lost: true})
		e.wantCredit(t, 0)
	})
}

// A frame's delay counts from its arrival in the queue until the kernel has accepted
// it, with the time for frames before it. The outbox measures each eighth frame.
func TestDeliveryDelayIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newOutboxEnd(t, 1<<20)
		var delays []float64
		e.outbox.delayed = func(seconds float64) { e.note(func() { delays = append(delays, seconds) }) }
		first, _ := frames(1, 100, 0)
		e.push(first...)
		time.Sleep(3 * time.Second)
		e.read(t, 100)
		synctest.Wait()
		for range 7 { // frames that are not measured
			e.push(first...)
			e.read(t, 100)
			synctest.Wait()
		}
		e.push(first...)
		time.Sleep(time.Second)
		e.read(t, 100)
		synctest.Wait()
		if !slices.Equal(delays, []float64{3, 1}) {
			t.Errorf("the reported delivery delays are %v s; want 3 and 1", delays)
		}
	})
}
