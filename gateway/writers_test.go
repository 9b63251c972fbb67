package gateway

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// tell returns a frame with a text.
func tell(text string) routing.Frame {
	return routing.Frame{Data: frame(wire.FinBit|wire.OpText, []byte(text)), Messages: 1}
}

// alone is the contention of a tenant without other active tenants.
func alone(string) bool { return false }

// writersWith returns writers with a number of places for each tenant, and a function that
// returns an outbox of a tenant with a connection. The test waits for their goroutines.
func writersWith(t *testing.T, places int) (w *writers, open func(tenant string, conn net.Conn) *outbox) {
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	w = newWriters(func(run func()) bool { running.Go(run); return true }, alone)
	w.places = places
	return w, func(tenant string, conn net.Conn) *outbox {
		o := &outbox{
			sock: &wire.Socket{Conn: wire.NewConn(t.Context(), conn, 8*time.Second)}, limit: 1 << 20, budget: newBudget(1<<30, 128<<20),
			writers: w, tenant: tenant, written: func(int) {}, ended: func(closing) {},
		}
		o.sock.Conn.OnBlock(o.leavePlace)
		return o
	}
}

// over returns two ends of a TCP connection.
func over(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err == nil {
		far, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// TestStalledClientKeepsNoPlace fills the connections of two clients that read nothing. A third client of the
// same tenant gets its frames although the tenant has a single place. The others get everything when they
// read.
func TestStalledClientKeepsNoPlace(t *testing.T) {
	w, open := writersWith(t, 1)
	type end struct {
		*outbox
		far  net.Conn
		sent int
	}
	var stalled []end
	for range 2 {
		near, far := over(t)
		e := end{outbox: open("t", near), far: far}
		big := tell(string(make([]byte, 60000)))
		for e.sock.Conn.StandsSince().IsZero() {
			if !e.isWriting() {
				e.push(big)
				e.sent += len(big.Data)
			}
			time.Sleep(time.Millisecond)
		}
		e.push(big)
		e.sent += len(big.Data)
		stalled = append(stalled, e)
	}
	near, far := over(t)
	third := open("t", near)
	for i := range 100 {
		f := tell(fmt.Sprint("frame ", i))
		third.push(f)
		if got := readAll(t, far, len(f.Data)); got != string(f.Data) {
			t.Fatalf("the third client reads %q; want %q", got, f.Data)
		}
	}
	for _, e := range stalled {
		readAll(t, e.far, e.sent)
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		left := len(w.tenants)
		w.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatal("after all frames, the tenant still has places in use; want none")
		}
	}
}

// TestOutboxBehindABlockedWriteKeepsNoPlace blocks a write that is not the outbox's own, such as a close frame of
// the library. The outbox waits for it, and a second outbox of the tenant gets the only place.
func TestOutboxBehindABlockedWriteKeepsNoPlace(t *testing.T) {
	_, open := writersWith(t, 1)
	near, far := over(t)
	behind := open("t", near)
	conn := behind.sock.Conn
	conn.OnBlock(func() {
		if conn.StandsSince().IsZero() {
			t.Error("OnBlock's function runs before the write counts as blocked; an outbox that gets a place in between keeps it")
		}
		behind.leavePlace()
	})
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		_, _ = conn.Write(make([]byte, 16<<20)) // fails when the test ends
	}()
	for conn.StandsSince().IsZero() {
		time.Sleep(time.Millisecond)
	}
	behind.push(tell("behind"))
	near, reads := over(t)
	f := tell("beside")
	open("t", near).push(f)
	readAll(t, reads, len(f.Data))
	select {
	case <-blocked:
		t.Error("the second outbox got a place only after the blocked write; want during it")
	default:
	}
	_ = far.Close()
	<-blocked
}

// TestTurnsForgetOutboxes checks that the queue keeps no outbox that has had its turn.
func TestTurnsForgetOutboxes(t *testing.T) {
	var q writing
	for range 4 * keepQueue {
		q.queue = append(q.queue, &outbox{})
	}
	for range 4 * keepQueue {
		slot := &q.queue[0]
		if q.firstLocked(); *slot != nil {
			t.Fatalf("%d outboxes wait, and the slot before them holds one too; want none", len(q.queue))
		}
	}
}

func readAll(t *testing.T, c net.Conn, n int) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, n)
	for at := 0; at < n; {
		m, err := c.Read(b[at:])
		if err != nil {
			t.Fatalf("reading: %v after %d of %d bytes; want all", err, at, n)
		}
		at += m
	}
	return string(b)
}

// A gatedConn counts the writes that run at the same time. Each waits until the barrier opens.
type gatedConn struct {
	sinkConn
	of   *barrier
	sent []byte
}

type barrier struct {
	open chan struct{}

	mu         sync.Mutex
	busy, most int
	began      chan struct{}
}

func (c *gatedConn) Write(b []byte) (int, error) {
	g := c.of
	g.mu.Lock()
	g.busy++
	g.most = max(g.most, g.busy)
	g.mu.Unlock()
	g.began <- struct{}{}
	<-g.open
	g.mu.Lock()
	g.busy--
	c.sent = append(c.sent, b...)
	g.mu.Unlock()
	return len(b), nil
}

// TestTenantWritesAtItsPlaces lets 20 outboxes of a tenant with three places write. Three write at a time, a
// different tenant's outbox writes meanwhile, and each connection gets its frames in order. While a different tenant
// is active, two write at a time.
func TestTenantWritesAtItsPlaces(t *testing.T) {
	t.Run("alone", func(t *testing.T) { testPlaces(t, 3, alone) })
	t.Run("contended", func(t *testing.T) { testPlaces(t, 2, func(string) bool { return true }) })
}

func testPlaces(t *testing.T, want int, contended func(tenant string) bool) {
	w, open := writersWith(t, 3)
	w.contended = contended
	g := &barrier{open: make(chan struct{}), began: make(chan struct{}, 1000)}
	other := &barrier{open: make(chan struct{}), began: make(chan struct{}, 1000)}
	close(other.open)
	var conns []*gatedConn
	var sent []byte
	var all []*outbox
	for range 20 {
		c := &gatedConn{of: g}
		o := open("busy", c)
		o.sock.Conn.OnBlock(nil) // this connection has no kernel that could block
		conns, all = append(conns, c), append(all, o)
	}
	for i := range 3 {
		f := tell(fmt.Sprint(i))
		sent = append(sent, f.Data...)
		for _, o := range all {
			o.push(f)
		}
	}
	for range want {
		<-g.began
	}
	open("quiet", &gatedConn{of: other}).push(tell("x"))
	<-other.began
	close(g.open)
	for _, o := range all {
		for o.isWriting() {
			time.Sleep(time.Millisecond)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.most != want {
		t.Errorf("%d outboxes wrote at a time; want %d", g.most, want)
	}
	for i, c := range conns {
		if string(c.sent) != string(sent) {
			t.Errorf("connection %d got %q; want %q", i, c.sent, sent)
		}
	}
}

// TestPlaceIsFreedForAnotherTenant lets all places of a tenant write. When a different tenant becomes active, one of them
// is freed, although outboxes wait, and the others write everything.
func TestPlaceIsFreedForAnotherTenant(t *testing.T) {
	w, open := writersWith(t, 2)
	var active atomic.Bool
	w.contended = func(string) bool { return active.Load() }
	g := &barrier{open: make(chan struct{}), began: make(chan struct{}, 1000)}
	var all []*outbox
	for range 20 {
		o := open("busy", &gatedConn{of: g})
		o.sock.Conn.OnBlock(nil) // this connection has no kernel that could block
		all = append(all, o)
		o.push(tell("x"))
	}
	<-g.began
	<-g.began
	active.Store(true)
	for writes := 0; w.used("busy") == 2 && writes < 2*yieldAfter; time.Sleep(time.Millisecond) {
		select {
		case g.open <- struct{}{}:
			writes++
		default:
		}
	}
	if n := w.used("busy"); n != 1 {
		t.Errorf("after some writes, the tenant has %d places; want one", n)
	}
	g.mu.Lock()
	g.most = 0
	g.mu.Unlock()
	close(g.open)
	for _, o := range all {
		for o.isWriting() {
			time.Sleep(time.Millisecond)
		}
	}
	if g.mu.Lock(); g.most > 1 {
		t.Errorf("with one place, %d outboxes wrote at a time; want one", g.most)
	}
	g.mu.Unlock()
}

// used returns the number of a tenant's places in use.
func (w *writers) used(tenant string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.tenants[tenant]; t != nil {
		return t.busy
	}
	return 0
}

func (o *outbox) isWriting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writing
}

// TestOutboxesAreLostWithTheServer ends the server while outboxes wait for a place. They discard their
// frames, and accept no more.
func TestOutboxesAreLostWithTheServer(t *testing.T) {
	var starts []func()
	w := newWriters(func(run func()) bool {
		if starts != nil {
			return false
		}
		starts = append(starts, run)
		return true
	}, alone)
	w.places = 1
	near, far := net.Pipe()
	defer far.Close()
	open := func(conn net.Conn) *outbox {
		return &outbox{sock: &wire.Socket{Conn: wire.NewConn(context.Background(), conn, time.Minute)}, limit: 1 << 20, budget: newBudget(1<<30, 128<<20), writers: w, ended: func(closing) {}}
	}
	first, second := open(near), open(sinkConn{})
	first.push(tell("a"))
	second.push(tell("b"))
	_ = near.Close()
	starts[0]() // the write fails, and the second outbox gets no goroutine
	if second.push(tell("c")); second.queued() != 0 || len(w.tenants) != 0 {
		t.Errorf("after the end, %d bytes are queued, and %d tenants write; want none", second.queued(), len(w.tenants))
	}
}
