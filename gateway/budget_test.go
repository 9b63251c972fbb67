package gateway

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
	"ahprelay/test/clocks"
)

const mib = 1 << 20

// heap collects garbage, and returns the bytes of all live objects.
func heap() int {
	runtime.GC()
	sample := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtimemetrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

// wantBudget fails if the relay's queued bytes exceed the budget's limit, or if the
// heap has grown since before by more than this limit and beside together.
func (w *world) wantBudget(beside, before int) {
	w.Helper()
	synctest.Wait()
	if used := w.server.budget.used.Load(); w.server.budget.excess() > 0 || used < 0 {
		w.Errorf("%d bytes are queued for clients; want at most %d", used, w.server.budget.limit)
	}
	if grown := heap() - before; grown > int(w.server.budget.limit)+beside {
		w.Errorf("the process uses %d MiB of memory; want at most %d", grown/mib, (int(w.server.budget.limit)+beside)/mib)
	}
}

// closedWith returns how many connections the host has seen closed with the code.
func (w *world) closedWith(code ahp.CloseCode) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.conns {
		h.mu.Lock()
		if h.closed && h.code == code {
			n++
		}
		h.mu.Unlock()
	}
	return n
}

// TestStalledViewersStayWithinTheBudget has the host flood 24 clients that read
// nothing, with individual or shared messages. The relay's queued bytes stay within the
// limit, the relay closes all 24, and a client that reads gets every message.
func TestStalledViewersStayWithinTheBudget(t *testing.T) {
	const (
		clients = 24
		// The test's own memory: the host-agent's streams and link, and the messages at
		// both ends.
		beside = 16*mib + 16*mib + 32*mib + 8*mib + 8*mib
	)
	for name, shared := range map[string]bool{"own frames": false, "shared frames": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{MaxQueued: 16 * mib, QueueLimit: 1 * mib}, func(w *world) {
				w.startAgent(routing.AgentEndConfig{MaxQueued: 16 * mib})
				good := w.dial(w.token(nil))
				w.hostConn(1)
				for i := range clients {
					defer w.rawDial(w.token(nil)).Close()
					w.hostConn(i + 2)
				}
				w.mu.Lock()
				conns := w.conns
				w.mu.Unlock()
				before := heap()
				const messages = 60
				pad := strings.Repeat("x", 30<<10)
				for j, h := range conns { // the host sends as fast as Wait allows
					w.running.Go(func() {
						for i := range messages {
							own := j
							var channel []byte
							if shared {
								own, channel = 0, []byte("ahp-chat:/1")
							}
							message := fmt.Sprintf(`{"method":"x","params":{"n":%d,"own":%d,"pad":"%s"}}`, i, own, pad)
							err := h.conn.Wait(nil)
							if err == nil {
								err = h.conn.FromHost([]byte(message), false, channel)
							}
							if err != nil {
								if j == 0 {
									t.Errorf("the host's write to the client that reads: %v; want no error", err)
								}
								h.conn.Close(ahp.CloseOverloaded, "")
								return
							}
							time.Sleep(10 * time.Millisecond)
						}
					})
				}
				for range messages {
					time.Sleep(100 * time.Millisecond)
					w.wantBudget(beside, before)
				}
				synctest.Wait()
				if n := len(good.messages()); n != messages {
					t.Errorf("the client that reads got %d messages; want %d", n, messages)
				}
				good.wantOpen()
				time.Sleep(time.Minute)
				w.wantBudget(beside, before)
				if used := w.server.budget.used.Load(); used != 0 {
					t.Errorf("%d bytes are counted as queued after all clients have left; want 0", used)
				}
				if w.closedWith(ahp.CloseOverloaded) != clients {
					t.Errorf("%d clients were closed with 1013; want %d", w.closedWith(ahp.CloseOverloaded), clients)
				}
			})
		})
	}
}

// The host sends the same messages to 60 clients that read nothing. The relay keeps
// each message once for all of them, and closes no client.
func TestSharedFramesCountOnce(t *testing.T) {
	inWorld(t, Config{MaxQueued: 2 * mib}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		const clients = 60
		var ends []net.Conn
		for i := range clients {
			c := w.rawDial(w.token(nil))
			defer c.Close()
			ends = append(ends, c)
			w.hostConn(i + 1)
		}
		say := func(n, size int) {
			message := fmt.Sprintf(`{"method":"x","n":%d,"pad":"%s"}`, n, strings.Repeat("x", size))
			for _, h := range w.conns {
				_ = h.conn.FromHost([]byte(message), false, []byte("ahp-chat:/1"))
			}
			time.Sleep(10 * time.Millisecond)
		}
		for n := range 3 { // the host-agent shares the third and later messages
			say(n, 100)
		}
		for n := range 7 {
			say(n, 8<<10) // within each client's first credit, 64 KiB
		}
		synctest.Wait()
		if used := w.server.budget.used.Load(); used < 40<<10 || used > 256<<10 {
			t.Errorf("%d bytes are counted for shared frames; want about 50 KiB, and the frames' own cost", used)
		}
		if n := len(w.server.hosts.all()); n != clients {
			t.Errorf("%d clients are left; want %d", n, clients)
		}
		for _, c := range ends {
			_ = c.Close()
		}
		w.wantGone()
		if used := w.server.budget.used.Load(); used != 0 {
			t.Errorf("%d bytes are counted as queued after all clients have left; want 0", used)
		}
	})
}

// 40 clients send a message of 768 KiB each, most without its last byte, to a host that
// reads nothing. The relay keeps no more bytes than its limit allows, closes some of
// them, and keeps a client with small messages open.
func TestLargeUploadsStayWithinTheBudget(t *testing.T) {
	const uploads, size, beside = 40, 3 * mib / 4, 4*mib + 4*mib
	message, _ := largeMessage(0, size) // every client sends the same bytes
	inWorld(t, Config{MaxQueued: 4 * mib, QueueLimit: mib / 4, Ping: time.Hour}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{MaxQueued: 4 * mib})
		good := w.dial(w.token(nil))
		good.request(1, "initialize")
		w.hostConn(1).accept(1)
		before := heap()
		for i := range uploads {
			conn := w.mute()
			defer conn.Close()
			writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"initialize"}`))
			h := w.hostConn(i + 2)
			synctest.Wait()
			h.accept(1)
			h.mu.Lock()
			h.stuck = true
			h.mu.Unlock()
			synctest.Wait()
			sent := message
			if i%4 > 0 {
				sent = message[:len(message)-1] // the last byte never comes
			}
			w.running.Go(func() { _, _ = conn.Write(sent) })
			synctest.Wait()
			good.request(i+2, "ping")
			time.Sleep(wire.CloseTime) // enough for the relay to end a connection it closes
			synctest.Wait()
			for _, h := range w.conns {
				h.mu.Lock()
				if h.closed { // a closed host connection holds nothing
					h.got = nil
				}
				h.mu.Unlock()
			}
			w.wantBudget(beside, before)
		}
		good.wantOpen()
		if n := len(w.conns[0].messages()); n != uploads+1 {
			t.Errorf("host got %d messages of the client that sends small ones; want %d", n, uploads+1)
		}
		if n := w.closedWith(ahp.CloseOverloaded); n < 10 || n == uploads {
			t.Errorf("%d of %d clients were closed with 1013; want some, and not all", n, uploads)
		}
	})
}

// 150 clients read nothing. Eight clients read, and have more bytes queued at a time.
// When memory is short, the relay closes clients that read nothing, although each has
// fewer bytes.
func TestStalledClientsAreClosedFirst(t *testing.T) {
	const stalled, healthy = 150, 8
	inWorld(t, Config{MaxQueued: 12 * mib, QueueLimit: mib}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		for i := range stalled {
			defer w.rawDial(w.token(nil)).Close()
			w.hostConn(i + 1)
		}
		var good []*clientEnd
		for i := range healthy {
			good = append(good, w.dial(w.token(nil)))
			w.hostConn(stalled + i + 1)
		}
		pad := strings.Repeat("x", 50<<10)
		for n := range 5 {
			for _, h := range w.conns[:stalled] {
				_ = h.conn.FromHost(fmt.Appendf(nil, `{"method":"x","n":%d,"pad":"%s"}`, n, pad), false, nil)
			}
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		const answers = 8
		long := strings.Repeat("x", 450<<10)
		for n := range answers { // an answer is longer than a stalled client's queue
			answer := fmt.Sprintf(`{"id":%d,"pad":"%s"}`, n, long)
			for _, h := range w.conns[stalled:] {
				h.send(answer)
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(10 * time.Second) // for part of it, the relay holds the host back
		for i, c := range good {
			c.wantOpen()
			if n := len(c.messages()); n != answers {
				t.Errorf("client %d, which reads, got %d messages; want %d", i, n, answers)
			}
		}
		if n := w.closedWith(ahp.CloseOverloaded); n == 0 || n > stalled {
			t.Errorf("%d clients were closed with 1013; want some of the %d that read nothing", n, stalled)
		}
	})
}

// Twenty clients stop reading, and five seconds later twenty more. When memory is
// short, the relay closes clients of the first group, and none of the second.
func TestLongestStallIsClosedFirst(t *testing.T) {
	const each = 20
	inWorld(t, Config{MaxQueued: 11 * mib / 4, QueueLimit: mib}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		for i := range 2 * each {
			defer w.rawDial(w.token(nil)).Close()
			w.hostConn(i + 1)
		}
		fill := func(conns []*hostEnd, size int) {
			for _, h := range conns {
				h.send(fmt.Sprintf(`{"pad":"%s"}`, strings.Repeat("x", size)))
			}
			synctest.Wait()
		}
		old, young := w.conns[:each], w.conns[each:]
		fill(old, 20<<10)
		time.Sleep(5 * time.Second)
		fill(young, 40<<10)
		fill(young, 22<<10) // 0.4 MiB old, 1.2 MiB young, and the connections: memory is short
		time.Sleep(wire.CloseTime)
		synctest.Wait()
		count := func(conns []*hostEnd) (n int) {
			for _, h := range conns {
				h.mu.Lock()
				if h.closed {
					n++
				}
				h.mu.Unlock()
			}
			return n
		}
		if o, y := count(old), count(young); o == 0 || y > 0 {
			t.Errorf("%d of the clients stalled longest and %d of the others were closed; want at least 1, and 0", o, y)
		}
	})
}

// Idle clients take half of the relay's memory for queues. The relay refuses a new
// client with 503 and Retry-After until a client leaves.
func TestNewClientsAreRefusedWithoutMemory(t *testing.T) {
	inWorld(t, Config{MaxQueued: 4 * mib, MaxFrame: mib, QueueLimit: mib}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		const fit = 2*mib/connCost + 1
		var ends []net.Conn
		for range fit {
			ends = append(ends, w.rawDial(w.token(nil)))
		}
		synctest.Wait()
		request := w.upgrade(w.token(nil))
		response, err := handshake{w.server.Handler()}.RoundTrip(request)
		if err != nil || response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
			t.Errorf("a new client when memory is short: %v, %v; want HTTP 503 with Retry-After", response.Status, err)
		}
		_ = ends[0].Close()
		synctest.Wait()
		defer w.rawDial(w.token(nil)).Close() // the relay admits a client again
		for _, c := range ends {
			_ = c.Close()
		}
	})
}

// TestStandstillIgnoresTheSystemsClock sets the system's clock forward and back. No client may count as still
// for that, or as active.
func TestStandstillIgnoresTheSystemsClock(t *testing.T) {
	b, now := newBudget(mib, mib), time.Now()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		if passed := b.clock(clocks.Set(t, now, by)) - b.clock(now); passed != 0 {
			t.Errorf("the system's clock is set by %v: the budget's clock advances by %v; want 0", by, time.Duration(passed))
		}
	}
}

// While the relay holds sources back, the clock that measures standstill stops.
func TestHoldingBackDoesNotCountAsStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(mib, mib)
		began, moved := time.Now(), b.clock(time.Now())
		for range 5 {
			release := b.holdBack()
			time.Sleep(time.Second)
			if at := b.clock(time.Now()); at != b.clock(time.Now().Add(-time.Second)) {
				t.Errorf("the budget's clock moves (%v) while sources are held back; want it to stand", at)
			}
			release()
			time.Sleep(100 * time.Millisecond)
		}
		if passed := time.Duration(b.clock(time.Now()) - moved); passed != 500*time.Millisecond {
			t.Errorf("the budget's clock has advanced by %v within %v; want 500ms, without the time held back", passed, time.Since(began))
		}
	})
}
