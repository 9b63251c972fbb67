package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// uploader connects a client, and has the host accept it as connection n. The client
// has completed initialize, and reads all messages.
func (w *world) uploader(n int) (net.Conn, *hostEnd) {
	w.Helper()
	conn := w.mute()
	writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"initialize"}`))
	h := w.hostConn(n)
	synctest.Wait()
	h.accept(1)
	synctest.Wait()
	return conn, h
}

// largeMessage returns a notification with size bytes, as a client's frame and as text.
// n tells it from other messages.
func largeMessage(n, size int) (frame []byte, message string) {
	begin := fmt.Sprintf(`{"method":"x","n":%d,"pad":"`, n)
	message = begin + strings.Repeat("x", size-len(begin)-2) + `"}`
	return append(frameHeader(wire.FinBit|wire.OpText, size), message...), message
}

// quarter is the unit for memory and message sizes; only their ratio matters. It is small,
// because the race detector makes each copied byte expensive.
const quarter = mib / 16

// slowWrite writes quarter bytes every 50 ms, so the writes of several clients overlap.
func slowWrite(conn net.Conn, data []byte) {
	const step = quarter / 4
	for len(data) > 0 {
		n := min(step, len(data))
		if _, err := conn.Write(data[:n]); err != nil {
			return
		}
		data = data[n:]
		time.Sleep(50 * time.Millisecond / 4)
	}
}

// wantUploads waits up to a minute until the host has a large message on each
// connection, and compares them. It fails if queued bytes make memory short meanwhile.
func (w *world) wantUploads(ends []*hostEnd, messages []string) {
	w.Helper()
	there := func(h *hostEnd) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.got) >= 2
	}
	for range 6000 {
		if !slices.ContainsFunc(ends, func(h *hostEnd) bool { return !there(h) }) {
			break
		}
		time.Sleep(10 * time.Millisecond)
		if b := w.server.budget; b.used.Load() > b.limit-b.limit/reliefShare {
			w.Fatalf("%d bytes wait; want at most three quarters of %d", b.used.Load(), b.limit)
		}
	}
	time.Sleep(time.Second) // time for the relay to finish the messages
	synctest.Wait()
	for i, h := range ends {
		if got := h.messages(); len(got) != 2 || got[1] != messages[i] {
			w.Errorf("the host got %d messages on connection %d; want its initialize and the large one", len(got), i)
		}
	}
}

// Four clients together send more than the relay's memory, and take turns. All messages
// arrive, and the relay closes no client. Only if kernels hold too much of the memory,
// it closes clients.
func TestLargeUploadsTakeTurns(t *testing.T) {
	var frames [4][]byte
	var messages [4]string
	for i := range messages {
		frames[i], messages[i] = largeMessage(i, 20*quarter+i)
	}
	for _, c := range []struct {
		name       string
		hostQueued int
		slow       time.Duration // the host's time per message
		beside     int           // bytes that kernels hold for waiting clients
		after      time.Duration // delay before the kernels hold them
		closed     bool
	}{
		{"host-agent with memory", 512 * quarter, 0, 0, 0, false},
		{"host-agent without", 50 * quarter, 0, 0, 0, false},
		{"less than when they began", 512 * quarter, 0, 8 * quarter, time.Second / 2, false},
		{"slow host, and less", 50 * quarter, 7 * time.Second, 12 * quarter, 4 * time.Second, false},
		{"too little", 512 * quarter, 0, 17 * quarter, time.Second / 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Config{MaxQueued: 50 * quarter, MaxFrame: 24 * quarter, QueueLimit: quarter}, func(w *world) {
				w.startAgent(routing.AgentEndConfig{MaxQueued: c.hostQueued, MaxFrame: 24 * quarter, Credit: 8 * quarter})
				var ends []*hostEnd
				for i, frame := range frames {
					conn, h := w.uploader(i + 1)
					defer conn.Close()
					h.slow = c.slow
					ends = append(ends, h)
					w.running.Go(func() { slowWrite(conn, frame) })
				}
				time.Sleep(c.after)
				w.server.budget.keep(c.beside)
				if c.closed {
					time.Sleep(2 * time.Minute)
				} else {
					w.wantUploads(ends, messages[:])
				}
				w.server.budget.keep(-c.beside)
				if n := w.closedWith(ahp.CloseOverloaded); c.closed != (n > 0) || n > 3 {
					t.Errorf("%d clients were closed; want at least one: %v", n, c.closed)
				}
				if n := len(w.server.budget.uploads.line); n > 0 {
					t.Errorf("%d uploads still wait for their turn; want 0", n)
				}
				for _, h := range ends {
					h.mu.Lock()
					h.got = nil
					h.mu.Unlock()
				}
			})
		})
	}
}

// A client stalls in the middle of a large message, and four more clients send large
// messages. The relay closes the stalled client only if these lack room. Otherwise its
// message arrives when it continues.
func TestStalledUploadGivesWay(t *testing.T) {
	begun, whole := largeMessage(0, 20*quarter)
	var frames [4][]byte
	var messages [4]string
	for i := range messages {
		frames[i], messages[i] = largeMessage(i+1, 20*quarter)
	}
	for _, c := range []struct {
		name   string
		begun  int // bytes that the stalled client has sent
		closed int
	}{
		{"with room for others", 8 * quarter, 0},
		{"without", 19 * quarter, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Config{MaxQueued: 52 * quarter, MaxFrame: 24 * quarter, QueueLimit: quarter, Ping: time.Hour}, func(w *world) {
				w.startAgent(routing.AgentEndConfig{MaxFrame: 24 * quarter})
				stalled, stalledEnd := w.uploader(1)
				defer stalled.Close()
				w.running.Go(func() { slowWrite(stalled, begun[:c.begun]) })
				time.Sleep(2*time.Second + turnTime)
				var ends []*hostEnd
				for i, frame := range frames {
					conn, h := w.uploader(i + 2)
					defer conn.Close()
					ends = append(ends, h)
					w.running.Go(func() { slowWrite(conn, frame) })
				}
				w.wantUploads(ends, messages[:])
				if n := w.closedWith(ahp.CloseOverloaded); n != c.closed {
					t.Errorf("%d clients were closed; want %d", n, c.closed)
				}
				if c.closed == 0 {
					w.running.Go(func() { slowWrite(stalled, begun[c.begun:]) })
					w.wantUploads([]*hostEnd{stalledEnd}, []string{whole})
				}
			})
		})
	}
}

// Twenty messages with random lengths, paces and stalls share a budget. All come to
// their end, and never use more than the budget.
func TestUploadsNeverDeadlock(t *testing.T) {
	const limit, longest = 4000, 1400
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 0))
			b := newBudget(limit, longest)
			beside := int(seed%3) * limit * 3 / 10 // the largest value leaves less than a message needs
			b.keep(beside)
			ctx, cancel := context.WithCancel(t.Context())
			r := &relief{life: ctx, budget: b, hosts: &hosts{}}
			go r.takeTurns()
			ended := make(chan bool, 20)
			for range cap(ended) {
				size, draw := draw.IntN(longest)+1, rand.New(rand.NewPCG(draw.Uint64(), 0))
				go func() {
					time.Sleep(time.Duration(draw.Int64N(int64(5 * time.Second))))
					u := &upload{conn: new(wire.Conn)}
					for read := 0; read < size; {
						n := min(draw.IntN(size)+1, size-read)
						if err := b.uploads.more(ctx, u, n); err != nil {
							t.Errorf("seed %d: the request for memory returned %v; want no error", seed, err)
							break
						}
						read += n
						if b.excess() > 0 || b.pressure() > 0 && beside < limit/2 {
							t.Errorf("seed %d: %d bytes are in use, %d of them not for uploads; want no excess, and pressure only while the latter need half of the limit", seed, b.used.Load(), beside)
						}
						time.Sleep(time.Duration(draw.Int64N(int64(4 * time.Second)))) // sometimes longer than turnTime
					}
					held := b.uploads.end(u)
					time.Sleep(time.Duration(draw.Int64N(int64(time.Second)))) // the message waits for its host
					b.add(-int(held))
					ended <- true
				}()
			}
			timeout := time.After(10 * time.Minute)
			for i := range cap(ended) {
				select {
				case <-ended:
				case <-timeout:
					t.Fatalf("seed %d: %d messages have come to their end; want %d", seed, i, cap(ended))
				}
			}
			if used, waits := b.used.Load(), b.uploads.waits.Load(); used != 0 || waits != 0 {
				t.Errorf("seed %d: %d bytes are in use and %d messages wait at the end; want none", seed, used, waits)
			}
			cancel()
		})
	}
}

// Memory is short while a client's data waits in the kernel until the relay reads it.
// The relay counts the client as taking turns, unless the relay holds the client back
// or the client does not read.
func TestUnreadClientTakesTurns(t *testing.T) {
	for _, c := range []struct {
		name    string
		unread  int  // bytes in the kernel that the relay has not read
		first   bool // the client waits for the first turn of its large message
		stuck   bool // the client's reader waits for its rate or its host
		out     int  // bytes queued for the client
		inTurns bool
	}{
		{"a relay that is busy", mib, false, false, 0, true},
		{"the first turn of a large message", mib, true, true, 0, true},
		{"one that is held back", mib, false, true, 0, false},
		{"one that does not read", mib, false, false, mib, false},
		{"one of which nothing waits", 0, false, false, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Config{MaxQueued: 8 * mib, MaxFrame: 4 * mib}, func(w *world) {
				one, other := net.Pipe()
				defer one.Close()
				defer other.Close()
				l := &load{budget: w.server.budget, conn: wire.NewConn(w.Context(), one, time.Minute), ctx: w.Context(), ofHost: &atomic.Int64{}}
				l.upload.conn = l.conn
				l.budget.add(8 * mib)
				defer l.budget.add(-8 * mib)
				if c.first {
					w.running.Go(func() { _ = l.readMore(mib) })
					synctest.Wait()
					defer l.budget.uploads.stop(&l.upload)
				}
				l.setKernel(0, c.unread)
				defer l.setKernel(0, 0)
				l.stuck.Store(c.stuck)
				now := time.Now()
				b := burden{since: now}
				l.weigh(&b, 0, c.out, now)
				if b.inTurns != c.inTurns || b.since != now || b.bytes != kernelCost(c.unread)+c.out {
					t.Errorf("the client's writes take turns: %v, want %v; %d bytes count as queued, want %d", b.inTurns, c.inTurns, b.bytes, kernelCost(c.unread)+c.out)
				}
			})
		})
	}
}

// TestPausedUploadIsNotClosed: a client pauses in the middle of a large message. The
// pause does not count as a stop if it is short, if the relay made the client wait as
// long before, or if the relay was asleep during the pause. A longer pause counts.
func TestPausedUploadIsNotClosed(t *testing.T) {
	for _, c := range []struct {
		name          string
		waited, pause time.Duration
		asleep        bool // the relay makes no checks during the pause
		stopped       bool
	}{
		{"a short pause", 0, 2 * time.Second, false, false},
		{"as long as it had waited", 4 * time.Second, 6 * time.Second, false, false},
		{"the relay was asleep", 0, 20 * time.Second, true, false},
		{"it has stopped", 0, stopTime + time.Second, false, true},
		{"it has stopped for long", 4 * time.Second, 4*time.Second + stopTime + time.Second, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBudget(40, 20)
				one, other := net.Pipe()
				defer one.Close()
				defer other.Close()
				l := &load{budget: b, conn: wire.NewConn(t.Context(), one, time.Minute), ctx: t.Context(), ofHost: &atomic.Int64{}}
				l.upload.conn = l.conn
				watch := func(d time.Duration) {
					for range d / uploadLook {
						time.Sleep(uploadLook)
						b.uploads.check(time.Now())
					}
				}
				b.uploads.check(time.Now())
				b.keep(39)
				b.add(1)
				more := make(chan error, 1)
				go func() { more <- l.readMore(10) }()
				synctest.Wait()
				watch(c.waited)
				b.keep(-39)
				b.uploads.give(time.Now())
				if err := <-more; err != nil {
					t.Fatal(err)
				}
				if c.asleep {
					time.Sleep(c.pause)
					b.uploads.check(time.Now())
				} else {
					watch(c.pause)
				}
				now := time.Now()
				w := burden{since: now}
				l.weigh(&w, 0, 0, now)
				if isStill(w, now) != c.stopped {
					t.Errorf("after a pause of %v, the upload, stopped for %v, counts as still: %v; want %v", c.pause, w.stopped, isStill(w, now), c.stopped)
				}
				l.doneReading()
			})
		})
	}
}

// TestUnreadBytesAreProgress: a byte of a client's message waits in the relay's kernel.
// Until the relay reads it, the client does not count as stopped.
func TestUnreadBytesAreProgress(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	now := time.Now()
	b := newBudget(40, 20)
	u := &upload{conn: wire.NewConn(t.Context(), server, time.Minute), held: 1, moved: now}
	b.uploads.line = append(b.uploads.line, u)
	stopped := func() bool {
		for end := now.Add(2 * stopTime); now.Before(end); now = now.Add(uploadLook) {
			b.uploads.check(now)
		}
		_, _, since := b.uploads.state(u, now)
		return now.Sub(since) >= stopTime
	}
	if !stopped() {
		t.Error("a client that sent nothing counts as moving; want stopped")
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !u.unread() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if stopped() {
		t.Error("a client whose byte is unread counts as stopped; want moving")
	}
}
