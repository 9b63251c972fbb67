package gateway

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// longestWait bounds how long a client that reads may wait, while the relay needs
// unreadTime to recognize the clients that do not read.
const longestWait = unreadTime + 200*time.Millisecond

// within polls until holds returns true, and fails after a minute.
func (w *world) within(holds func() bool) {
	w.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		synctest.Wait()
		switch {
		case holds():
			return
		case time.Since(began) > time.Minute:
			w.Fatal("the condition is not true after a minute; want it at once, because the client reads")
		}
	}
}

// fillStalled has the host send an individual message with size bytes to each
// connection.
func fillStalled(conns []*hostEnd, size int) {
	pad := strings.Repeat("x", size)
	for i, h := range conns {
		_ = h.conn.FromHost(fmt.Appendf(nil, `{"method":"x","n":%d,"pad":"%s"}`, i, pad), false, nil) // fails for a closed connection
	}
}

// sendLongAndStop has a client send a long message, and a short message behind it. It
// returns a function that reports whether the host has both.
func sendLongAndStop(_ *world, good *clientEnd, host *hostEnd) func() bool {
	good.send(`{"method":"x","pad":"` + strings.Repeat("x", 300<<10) + `"}`)
	good.send(`{"method":"stop"}`)
	return func() bool { return len(host.messages()) == 3 }
}

// sendSlowly sends the beginning of a large message at once, and the rest in small
// parts for more than a minute.
func sendSlowly(conn net.Conn) {
	data, _ := largeMessage(0, 2*mib-1)
	for n := 200 << 10; len(data) > n; n = 2 * leastPace {
		if _, err := conn.Write(data[:n]); err != nil {
			return
		}
		data = data[n:]
		time.Sleep(uploadLook)
	}
}

// TestReaderNeverQueuesBehindStalledClients: many clients stop reading at once, and
// take most of the relay's memory. A client that reads soon gets the host's answer. The
// host soon gets this client's long message and the short message behind it. The relay
// closes only clients that do not read. TestStalledClientsLeaveMemory bounds the memory
// of those.
func TestReaderNeverQueuesBehindStalledClients(t *testing.T) {
	for _, test := range []struct {
		name    string
		stalled int
		each    int  // bytes for each stalled client
		beside  bool // a different client slowly sends a large message meanwhile
		does    func(w *world, good *clientEnd, host *hostEnd) (done func() bool)
	}{
		{"an answer", 200, 140 << 10, false, func(_ *world, good *clientEnd, host *hostEnd) func() bool {
			host.send(`{"id":2,"pad":"` + strings.Repeat("x", 200<<10) + `"}`)
			return func() bool { return len(good.messages()) == 2 }
		}},
		{"a long message, and stop", 200, 100 << 10, false, sendLongAndStop},
		{"a long message, and stop, beside a slow one", 112, 100 << 10, true, sendLongAndStop},
	} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, Config{MaxQueued: 12 * mib, QueueLimit: mib, MaxFrame: 2 * mib, Ping: time.Hour}, func(w *world) {
				w.startAgent(routing.AgentEndConfig{MaxFrame: 2 * mib})
				good := w.dial(w.token(nil))
				good.request(1, "initialize")
				host := w.hostConn(1)
				host.accept(1)
				if test.beside {
					conn, _ := w.uploader(2)
					defer conn.Close()
					w.running.Go(func() { sendSlowly(conn) })
					time.Sleep(100 * time.Millisecond)
				}
				before := len(w.conns)
				for i := range test.stalled {
					defer w.rawDial(w.token(nil)).Close()
					w.hostConn(before + 1 + i)
				}
				fillStalled(w.conns[before:], test.each)
				synctest.Wait()
				began := time.Now()
				w.within(test.does(w, good, host))
				if waited := time.Since(began); waited > longestWait {
					t.Errorf("the reading client waited %v for its messages; want at most %v", waited, longestWait)
				}
				good.wantOpen()
				if n := w.closedWith(ahp.CloseOverloaded); n == 0 || n > test.stalled {
					t.Errorf("%d clients were closed; want at least 1, of the %d that read nothing", n, test.stalled)
				}
			})
		})
	}
}

// TestStalledClientsLeaveMemory: the host sends 400 KB to each of 60 clients that read
// nothing. The relay holds only the first credit of each, and closes no client. A
// client that reads gets an answer with 400 KB at once.
func TestStalledClientsLeaveMemory(t *testing.T) {
	const stalled = 60
	inWorld(t, Config{MaxQueued: 12 * mib, QueueLimit: mib, Ping: time.Hour}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		good := w.dial(w.token(nil))
		host := w.hostConn(1)
		for i := range stalled {
			defer w.rawDial(w.token(nil)).Close()
			w.hostConn(i + 2)
		}
		fillStalled(w.conns[1:], 400<<10)
		synctest.Wait()
		if used, most := w.server.budget.used.Load(), int64(stalled*leastCredit*5/4); used > most {
			t.Errorf("the messages queued for clients that read nothing take %d bytes; want at most %d", used, most)
		}
		began := time.Now()
		host.send(`{"id":1,"pad":"` + strings.Repeat("x", 400<<10) + `"}`)
		w.within(func() bool { return len(good.messages()) == 1 })
		if waited := time.Since(began); waited > 50*time.Millisecond {
			t.Errorf("the answer to a client that reads took %v; want at most 50 ms", waited)
		}
		if n := w.closedWith(ahp.CloseOverloaded); n != 0 {
			t.Errorf("%d clients were closed; want none", n)
		}
	})
}

// TestSlowHostIsNotTheClientsFault: for clients in several states, isUnread and isStill
// decide whether the relay closes the client when others need its memory.
func TestSlowHostIsNotTheClientsFault(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name          string
		b             burden
		unread, still bool
	}{
		{"reads nothing", burden{since: now.Add(-time.Second), unread: time.Second}, true, true},
		{"has just stopped reading", burden{since: now.Add(-unreadTime / 2), unread: unreadTime / 2}, false, false},
		{"has stopped in the middle of a message", burden{since: now.Add(-stopTime), stopped: stopTime}, false, true},
		{"waits for a slow host", burden{since: now.Add(-5 * time.Second)}, false, false},
		{"waits for a host that takes nothing", burden{since: now.Add(-stillTime)}, false, true},
		{"takes turns", burden{since: now.Add(-time.Second), unread: time.Second, inTurns: true}, false, false},
		{"moves", burden{since: now}, false, false},
	} {
		if isUnread(test.b, now) != test.unread || isStill(test.b, now) != test.still || !isAny(test.b, now) || isNotInTurns(test.b, now) == test.b.inTurns {
			t.Errorf("%s: %v, %v; want %v, %v", test.name, isUnread(test.b, now), isStill(test.b, now), test.unread, test.still)
		}
	}
}
