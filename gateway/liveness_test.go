package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// mute connects a client that reads everything and sends nothing. To the relay it looks
// like a half-open connection whose kernel buffers are not full.
func (w *world) mute() net.Conn {
	w.Helper()
	conn := w.rawDial(w.token(nil))
	w.running.Go(func() { _, _ = io.Copy(io.Discard, conn) })
	return conn
}

// wantGivenUp fails unless the relay's metrics count n clients given up for the cause.
func (w *world) wantGivenUp(cause string, n int) {
	w.Helper()
	synctest.Wait()
	families, err := w.server.metrics.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	got := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "ahp_relay_clients_given_up_total" && m.GetLabel()[0].GetValue() == cause {
				got = int(m.GetCounter().GetValue())
			}
		}
	}
	if got != n {
		w.Errorf("the metric counts %d clients closed for %s; want %d", got, cause, n)
	}
}

// A client answers pings, and a second sends pongs unasked: the relay keeps both. Two
// more clients send nothing, and the host sends messages to one of them. The relay
// gives both up, after three unanswered pings.
func TestSilentClientsAreGivenUp(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		answers := w.dial(w.token(nil))
		first := w.hostConn(1)
		talks := w.mute()
		defer talks.Close()
		w.hostConn(2)
		w.running.Go(func() {
			for {
				time.Sleep(25 * time.Second)
				if _, err := talks.Write(frame(wire.FinBit|wire.OpPong, nil)); err != nil {
					return
				}
			}
		})
		for i, trickle := range []bool{false, true} {
			silent := w.mute()
			defer silent.Close()
			h := w.hostConn(3 + i)
			for at := time.Duration(0); at < 61*time.Second; at += time.Second {
				time.Sleep(time.Second)
				if trickle && at < 45*time.Second {
					h.send(`{"method":"x"}`)
				}
				if gone := len(w.server.hosts.all()) == 2; gone && at < 45*time.Second {
					t.Fatalf("given up after %v; want three unanswered pings first", at)
				}
			}
			h.wantClosed(wire.CloseLost)
		}
		w.wantGivenUp("pings", 2)
		time.Sleep(15 * time.Minute)
		answers.wantOpen()
		first.send(`{"method":"still there?"}`)
		answers.wantMessages(`{"method":"still there?"}`)
		if n := len(w.server.hosts.all()); n != 2 {
			t.Errorf("%d clients are connected; want the 2 that answer or send", n)
		}
		w.wantGivenUp("pings", 2)
	})
}

// A client sends a large message over a slow line. While parts arrive, the relay sends
// no ping. It sends a ping once the message has stalled.
func TestNoPingIntoALargeMessage(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		pings := make(chan time.Time, 100)
		w.running.Go(func() {
			for r := bufio.NewReader(conn); ; {
				header := make([]byte, 2)
				if _, err := io.ReadFull(r, header); err != nil {
					return
				}
				if header[0] == wire.FinBit|wire.OpPing {
					pings <- time.Now()
				}
				_, _ = io.CopyN(io.Discard, r, int64(header[1]))
			}
		})
		writeFrame(t, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"initialize"}`))
		h := w.hostConn(1)
		synctest.Wait()
		h.accept(1)
		synctest.Wait() // from here on, the relay accepts large messages
		frame, message := largeMessage(0, 8*mib)
		for part := range slices.Chunk(frame[:len(frame)-1], 32<<10) { // 256 parts
			if _, err := conn.Write(part); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if n := len(pings); n > 0 {
			t.Errorf("%d pings while a message was coming; want none", n)
		}
		time.Sleep(2 * w.server.cfg.Ping)
		if len(pings) == 0 {
			t.Error("no ping reached the client after its message stopped half-way; want one")
		}
		if _, err := conn.Write(frame[len(frame)-1:]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := h.messages(); len(got) != 2 || got[1] != message {
			t.Errorf("host got %d messages; want its initialize and the large one", len(got))
		}
	})
}

// 150 clients connect together. The relay spreads its pings to them over time: it pings
// at most half of them within a second.
func TestPingsAreSpread(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		const clients = 150
		var ends []*clientEnd
		for range clients {
			ends = append(ends, w.dial(w.token(nil)))
		}
		synctest.Wait()
		// sent returns how many clients have been sent a ping.
		sent := func() (n int) {
			for _, c := range w.server.hosts.all() {
				if c.out.past(1) && c.alive.mark > 0 {
					n++
				}
			}
			return n
		}
		most := 0
		for before := 0; before < clients; {
			time.Sleep(time.Second)
			synctest.Wait()
			now := sent()
			most, before = max(most, now-before), now
		}
		if most > clients/2 {
			t.Errorf("%d of %d clients were pinged within a second; want at most half", most, clients)
		}
		for _, c := range ends {
			c.wantOpen()
		}
	})
}

// A client sends to a host that reads nothing. The relay therefore reads nothing from
// the client, not even pongs, and must not give the client up.
func TestClientOfStalledHostIsNotGivenUp(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		c.request(1, "initialize")
		h := w.hostConn(1)
		h.mu.Lock()
		h.stuck = true
		h.mu.Unlock()
		h.accept(1)
		synctest.Wait()
		const messages = 40
		w.running.Go(func() {
			for range messages {
				c.send(`{"method":"x","pad":"` + strings.Repeat("x", 60<<10) + `"}`)
			}
		})
		time.Sleep(10 * time.Minute)
		c.wantOpen()
		if n := len(h.messages()); n > messages/2 {
			t.Fatalf("host got %d messages; want it stuck", n)
		}
		h.unstick()
		time.Sleep(10 * time.Minute)
		c.wantOpen()
		if n := len(h.messages()); n != messages+1 {
			t.Errorf("host got %d messages; want %d", n, messages+1)
		}
		w.wantGivenUp("pings", 0)
	})
}

// The host sends large messages to a client behind a proxy, which buffers a minute's
// worth and delays pings as much. The relay does not give the client up, and the client
// gets all messages. Then the client answers no ping, though the proxy still reads, and
// the relay gives the client up.
func TestSlowLineIsNotTakenForDead(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		const piece, buffer, perPiece = 64 << 10, 8 << 20, 500 * time.Millisecond // 128 KB/s
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		near, far := net.Pipe()
		defer near.Close()
		pieces := make(chan []byte, buffer/piece)
		w.running.Go(func() {
			defer close(pieces)
			for {
				b := make([]byte, piece)
				n, err := conn.Read(b)
				if err != nil {
					return
				}
				pieces <- b[:n]
			}
		})
		w.running.Go(func() {
			defer far.Close()
			for b := range pieces {
				time.Sleep(perPiece * time.Duration(len(b)) / piece)
				_, _ = far.Write(b)
			}
		})
		h := w.hostConn(1)
		want := []string{strings.Repeat("a", 100), strings.Repeat("b", 32<<20), strings.Repeat("c", 5<<20), strings.Repeat("d", 100)}
		for _, m := range want {
			h.send(m)
		}
		for i, m := range want {
			got, err := readMessageAnd(near, func(ping []byte) { writeFrame(t, conn, wire.FinBit|wire.OpPong, ping) })
			if err != nil || got != m {
				t.Fatalf("message %d: %d bytes, %v; want %d", i, len(got), err, len(m))
			}
		}
		if n := len(w.server.hosts.all()); n != 1 {
			t.Errorf("%d clients are left; want 1", n)
		}
		w.running.Go(func() { _, _ = io.Copy(io.Discard, near) })
		time.Sleep(slowTime + time.Minute)
		w.wantGivenUp("pings", 1)
	})
}

// readMessage reads frames up to a message's end, and returns the message.
func readMessage(r io.Reader) (string, error) { return readMessageAnd(r, func([]byte) {}) }

// readMessageAnd does the same as readMessage, and calls answer with each ping's
// payload.
func readMessageAnd(r io.Reader, answer func(ping []byte)) (string, error) {
	var message []byte
	for {
		first, payload, err := readFrame(r)
		if err != nil {
			return string(message), err
		}
		if first == wire.FinBit|wire.OpPing {
			answer(payload)
		}
		if first&0x0f >= wire.OpClose {
			continue
		}
		if message = append(message, payload...); first&wire.FinBit != 0 {
			return string(message), nil
		}
	}
}

// unstick lets the host read again: the messages that wait, and all later ones.
func (h *hostEnd) unstick() {
	h.mu.Lock()
	h.stuck = false
	credit := h.untaken
	h.untaken = 0
	h.mu.Unlock()
	h.conn.Written(credit)
}

// TestProbeEndsDeadConnections: a host-agent probes a connection. The relay keeps it if
// the client answers or sends a message, and ends it if the client is silent or reads
// nothing for probeTime.
func TestProbeEndsDeadConnections(t *testing.T) {
	within := func(w *world, d time.Duration, n int) {
		w.Helper()
		time.Sleep(d)
		synctest.Wait()
		if got := len(w.server.hosts.all()); got != n {
			w.Errorf("%v after the probe, %d clients are connected; want %d", d, got, n)
		}
	}
	t.Run("answers", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			c := w.dial(w.token(nil))
			w.hostConn(1).conn.Probe()
			within(w, time.Minute, 1)
			c.wantOpen()
		})
	})
	t.Run("gone", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			defer w.mute().Close()
			h := w.hostConn(1)
			for range 5 {
				h.conn.Probe()
			}
			within(w, probeTime-time.Millisecond, 1)
			within(w, 2*time.Millisecond, 0)
			h.wantClosed(wire.CloseLost)
			w.wantGivenUp("replaced", 1)
		})
	})
	t.Run("says something else", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			conn := w.mute()
			defer conn.Close()
			w.hostConn(1).conn.Probe()
			time.Sleep(probeTime / 2)
			writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"method":"x"}`))
			within(w, probeTime, 1)
		})
	})
	t.Run("takes nothing", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			conn := w.rawDial(w.token(nil))
			defer conn.Close()
			h := w.hostConn(1)
			h.send(strings.Repeat(" ", 1<<20))
			h.conn.Probe()
			within(w, probeTime+time.Second, 0)
		})
	})
	t.Run("takes much", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			conn := w.rawDial(w.token(nil))
			defer conn.Close()
			h := w.hostConn(1)
			h.send(strings.Repeat(" ", 2<<20))
			h.conn.Probe()
			r := bufio.NewReader(&trickle{conn, 16 << 10, 500 * time.Millisecond})
			if m, err := readMessage(r); err != nil || len(m) != 2<<20 {
				t.Fatalf("a slow message has %d bytes, %v; want 2 MiB", len(m), err)
			}
			if n := len(w.server.hosts.all()); n != 1 {
				t.Errorf("%d clients are left; want 1", n)
			}
		})
	})
	t.Run("waits for the host", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			conn := stuckOnHost(w)
			defer conn.Close()
			w.running.Go(func() { _, _ = io.Copy(io.Discard, conn) })
			w.conns[0].conn.Probe()
			within(w, time.Minute, 1)
		})
	})
}

// The relay drains while messages are under way in both directions. The client gets the
// host's messages up to the host's receipt of the client's, and then a close frame. The
// host gets all messages that the client sends before it answers the close.
func TestDrainLosesNothing(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"initialize"}`))
		h := w.hostConn(1)
		synctest.Wait()
		h.accept(1)
		synctest.Wait()
		h.mu.Lock()
		h.stuck = true
		h.mu.Unlock()
		writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"method":"before"}`))
		for i := range 100 {
			h.send(fmt.Sprintf(`{"method":"said","params":%d}`, i))
		}
		drained := make(chan struct{})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		go func() {
			defer close(drained)
			w.server.Drain(ctx, 0)
		}()
		synctest.Wait()
		writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"method":"meanwhile"}`))
		for i := range 100 {
			h.send(fmt.Sprintf(`{"method":"said","params":%d}`, 100+i))
		}
		time.Sleep(time.Second)
		h.unstick() // the host has taken "before", so the relay may close the client
		_ = h.conn.Flushed(false)
		r := bufio.NewReader(conn)
		for i := -1; i < 200; i++ {
			want := fmt.Sprintf(`{"method":"said","params":%d}`, i)
			if i < 0 {
				want = answerTo(1)
			}
			if got, err := readMessage(r); got != want {
				t.Fatalf("client got %q, %v; want %q", got, err, want)
			}
		}
		first, payload, err := readFrame(r)
		if err != nil || first != wire.FinBit|wire.OpClose || string(payload[2:]) != "relay shutting down" {
			t.Fatalf("client got frame %#x %q, %v; want close 1001", first, payload, err)
		}
		want := []string{`{"id":1,"method":"initialize"}`, `{"method":"before"}`, `{"method":"meanwhile"}`}
		for i := range 20 {
			want = append(want, fmt.Sprintf(`{"method":"after","params":[%d]}`, i))
			writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(want[i+3]))
		}
		select {
		case <-drained:
			t.Error("the relay has drained while a client is connected; want it to wait")
		default:
		}
		writeFrame(w.T, conn, wire.FinBit|wire.OpClose, payload)
		<-drained
		w.wantGone()
		if got := h.messages(); !slices.Equal(got, want) {
			t.Errorf("host got %s; want %s", got, want)
		}
		h.wantClosed(ahp.CloseShuttingDown)
	})
}

// The relay drains a client of a host that reads nothing, a client that does not answer
// the close, and a client that reads nothing. Drain ends within 8 s, and the first two
// clients get a close frame.
func TestDrainEndsWithStalledClients(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		conn := stuckOnHost(w)
		defer conn.Close()
		told := make(chan string, 2)
		for _, c := range []net.Conn{conn, w.rawDial(w.token(nil))} {
			defer c.Close()
			w.running.Go(func() {
				r := bufio.NewReader(c)
				for {
					first, payload, err := readFrame(r)
					if err != nil || first == wire.FinBit|wire.OpClose {
						told <- fmt.Sprintf("%x %s", first, payload)
						_, _ = io.Copy(io.Discard, r)
						return
					}
				}
			})
		}
		deaf := w.rawDial(w.token(nil))
		defer deaf.Close()
		w.hostConn(3).send(strings.Repeat(" ", 1<<20))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
		defer cancel()
		start := time.Now()
		w.server.Drain(ctx, 4*time.Second)
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("drain took %v; want at most 8 s", took)
		}
		w.wantGone()
		for range 2 {
			if got := <-told; got != "88 \x03\xe9relay shutting down" {
				t.Errorf("a client got %q at last; want close 1001", got)
			}
		}
	})
}
