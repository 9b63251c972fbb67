package gateway

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// A client announces a message of a terabyte, and sends 70 KiB of it. The relay closes
// the client, which neither sends the rest nor answers the close. After wire.CloseTime,
// the relay ends the network connection.
func TestEndlessMessageIsCut(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		h := w.hostConn(1)
		header := frameHeader(wire.FinBit|wire.OpText, 1<<40)
		go conn.Write(append(header, make([]byte, 70<<10)...))
		readClose(w.T, conn, ahp.CloseMessageTooBig, "message too big: more than 65536 bytes")
		h.wantClosed(ahp.CloseMessageTooBig)
		time.Sleep(wire.CloseTime)
		wantCut(w.T, conn)
	})
}

// wantCut waits until all goroutines are idle, and fails unless the relay has ended the
// network connection.
func wantCut(t *testing.T, conn net.Conn) {
	t.Helper()
	synctest.Wait()
	if err := conn.SetReadDeadline(time.Now().Add(time.Nanosecond)); err != nil {
		return
	}
	for {
		_, err := conn.Read(make([]byte, 1<<10))
		if err, ok := err.(net.Error); ok && err.Timeout() {
			t.Error("the network connection is open; want it ended")
		}
		if err != nil {
			return
		}
	}
}

// The relay refuses a client, which does not answer the close frame. After
// wire.CloseTime, the relay ends the network connection.
func TestSilentRefusedClientIsCut(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.host.Name = "other"
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		readClose(w.T, conn, ahp.CloseUnknownHost, "unknown host: no host-agent has ever enrolled under that name")
		time.Sleep(wire.CloseTime)
		wantCut(w.T, conn)
	})
}

// TestCloseDoesNotWait closes a server with a client in each state, such as silent,
// being refused or not reading. Server.Close must return at once.
func TestCloseDoesNotWait(t *testing.T) {
	clients := map[string]func(w *world) net.Conn{
		"silent": func(w *world) net.Conn { return w.rawDial(w.token(nil)) },
		"held": func(w *world) net.Conn {
			conn := w.rawDial(w.token(nil))
			writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"reconnect"}`))
			return conn
		},
		"being refused": func(w *world) net.Conn {
			w.host.Name = "other"
			return w.rawDial(w.token(nil))
		},
		"being closed in a message": func(w *world) net.Conn {
			conn := w.rawDial(w.token(nil))
			go conn.Write(append(frameHeader(wire.FinBit|wire.OpText, 1<<40), make([]byte, 70<<10)...))
			return conn
		},
		"not reading": func(w *world) net.Conn {
			w.startAgent(routing.AgentEndConfig{})
			conn := w.rawDial(w.token(nil))
			w.hostConn(1).send(strings.Repeat(" ", 1<<10))
			return conn
		},
		"waiting for the host": func(w *world) net.Conn {
			w.startAgent(routing.AgentEndConfig{})
			return stuckOnHost(w)
		},
	}
	for name, connect := range clients {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{}, func(w *world) {
				defer connect(w).Close()
				synctest.Wait()
				start := time.Now()
				w.server.Close()
				if took := time.Since(start); took > 0 {
					w.Errorf("Close took %v; want it to return at once", took)
				}
			})
		})
	}
}

// stuckOnHost connects a client to a host that reads nothing. The client sends until
// the relay no longer reads from it, and reads nothing itself.
func stuckOnHost(w *world) net.Conn {
	w.Helper()
	conn := w.rawDial(w.token(nil))
	h := w.hostConn(1)
	h.mu.Lock()
	h.stuck = true
	h.mu.Unlock()
	writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"initialize"}`))
	synctest.Wait()
	h.accept(1)
	synctest.Wait()
	message := []byte(`{"method":"x","pad":"` + strings.Repeat("x", 60<<10) + `"}`)
	w.running.Go(func() {
		for range 40 {
			if _, err := conn.Write(frame(wire.FinBit|wire.OpText, message)); err != nil {
				return
			}
		}
	})
	synctest.Wait()
	if n := len(h.messages()); n < 2 || n > 30 {
		w.Fatalf("host got %d messages; want some, and not all", n)
	}
	return conn
}

// A client sends to a stalled host, and reads nothing. The relay ends the connection
// because the client does not read, although the host is stalled too.
func TestClientThatReadsNothingIsClosedDespiteStalledHost(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		conn := stuckOnHost(w)
		defer conn.Close()
		time.Sleep(15*time.Second + defaultStall) // counts from the first ping, after 15 s
		wantCut(w.T, conn)
		w.wantGone()
	})
}

// The host sends to three clients. The relay ends the connection of the client that
// reads nothing, keeps the client that reads 6 KB/s, and delivers every message to the
// third.
func TestSlowClientsDelayNoOther(t *testing.T) {
	inWorld(t, Config{QueueLimit: 1 << 20}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		reader := w.dial(w.token(nil))
		hosts := []*hostEnd{w.hostConn(1)}
		stalled := w.rawDial(w.token(nil))
		defer stalled.Close()
		hosts = append(hosts, w.hostConn(2))
		slow := w.rawDial(w.token(nil))
		defer slow.Close()
		hosts = append(hosts, w.hostConn(3))
		w.running.Go(func() { // 6 KB/s
			for {
				if _, err := slow.Read(make([]byte, 6<<10)); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		message := `{"method":"x","pad":"` + strings.Repeat("x", 30<<10) + `"}`
		for _, h := range hosts {
			h.send(message)
		}
		time.Sleep(defaultStall - time.Second)
		synctest.Wait()
		if n := len(w.server.hosts.all()); n != 3 {
			w.Errorf("shortly before the slow clients' time ends, %d clients are connected; want 3", n)
		}
		time.Sleep(2 * time.Second)
		wantCut(w.T, stalled)
		hosts[1].wantClosed(ahp.CloseOverloaded)

		for range 100 {
			hosts[0].send(message)
			_ = hosts[2].conn.FromHost([]byte(message), false, nil)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := len(reader.messages()); n != 101 {
			w.Errorf("the client that reads got %d messages; want 101", n)
		}
		reader.wantOpen()
		if n := len(w.server.hosts.all()); n != 2 {
			w.Errorf("%d clients are connected; want the client that reads and the slow one", n)
		}
	})
}

// A client sends a ping while it slowly reads a large message. The relay's pong arrives
// after that message.
func TestPingOfSlowClientIsAnsweredInOrder(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		h := w.hostConn(1)
		message := `{"method":"x","pad":"` + strings.Repeat("x", 60<<10) + `"}`
		h.send(message)
		synctest.Wait()
		writeFrame(w.T, conn, wire.FinBit|wire.OpPing, []byte("are you there"))
		read := bufio.NewReader(&trickle{conn, 4 << 10, time.Second})
		time.Sleep(6 * time.Second)
		for _, want := range []struct {
			first   byte
			payload string
		}{{wire.FinBit | wire.OpText, message}, {wire.FinBit | wire.OpPong, "are you there"}} {
			first, payload, err := readFrame(read)
			if err != nil || first != want.first || string(payload) != want.payload {
				w.Fatalf("the client gets the frame %#x of %d bytes, %v; want %#x of %d", first, len(payload), err, want.first, len(want.payload))
			}
		}
	})
}

// A trickle is a connection whose Read waits, and then returns at most some bytes.
type trickle struct {
	net.Conn
	bytes int
	pause time.Duration
}

func (r *trickle) Read(p []byte) (int, error) {
	time.Sleep(r.pause)
	return r.Conn.Read(p[:min(len(p), r.bytes)])
}

// A client sends pings without end, and reads no pongs. The relay ends the connection.
func TestPingFloodEndsTheConnection(t *testing.T) {
	inWorld(t, Config{QueueLimit: 1 << 20}, func(w *world) {
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		ping := frame(wire.FinBit|wire.OpPing, make([]byte, 125))
		for range 20 << 10 {
			if _, err := conn.Write(ping); err != nil {
				break
			}
		}
		time.Sleep(defaultStall)
		wantCut(w.T, conn)
		w.wantGone()
	})
}

// A client reads nothing, and its queue exceeds the limit before the relay's first
// write. The relay ends the connection within flushTime: queue and close frame share
// this time limit.
func TestFullQueueEndsWithoutFurtherDelay(t *testing.T) {
	inWorld(t, Config{QueueLimit: 1 << 20}, func(w *world) {
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		synctest.Wait()
		out := w.server.hosts.all()[0].out
		begin := make(chan struct{})
		out.mu.Lock()
		spawn := out.writers.spawn
		out.writers = newWriters(func(run func()) bool {
			return spawn(func() {
				<-begin
				run()
			})
		}, alone)
		out.mu.Unlock()
		ping := routing.Frame{Data: frame(wire.FinBit|wire.OpPing, make([]byte, 125))}
		for out.queued() <= 1<<20 {
			out.push(ping)
		}
		out.push(ping)
		close(begin)
		time.Sleep(flushTime)
		wantCut(w.T, conn)
		w.wantGone()
	})
}

// The host closes a connection while messages wait for the client. The client gets all
// messages, and then the close frame.
func TestCloseFollowsTheQueue(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		ws := w.handshake(w.token(nil))
		h := w.hostConn(1)
		for range 10 {
			h.send(strings.Repeat(" ", 50<<10))
		}
		synctest.Wait() // the writer waits for the client
		h.conn.Close(ahp.CloseHostOffline, "gone")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for i := range 10 {
			if _, message, err := ws.Read(ctx); err != nil || len(message) != 50<<10 {
				w.Fatalf("message %d before the close: %d bytes, %v; want 51200", i, len(message), err)
			}
		}
		_, _, err := ws.Read(ctx)
		if websocket.CloseStatus(err) != websocket.StatusCode(ahp.CloseHostOffline) {
			w.Errorf("read: %v; want close 4100", err)
		}
		w.wantGone()
	})
}

// The host closes a client that reads a byte every 5 s, so its queue would take hours.
// The relay ends the network connection after flushTime.
func TestSlowReaderIsCutAfterItsClose(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		conn := w.rawDial(w.token(nil))
		defer conn.Close()
		w.running.Go(func() {
			for {
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					return
				}
				time.Sleep(5 * time.Second)
			}
		})
		h := w.hostConn(1)
		h.send(strings.Repeat(" ", 50<<10))
		h.conn.Close(ahp.CloseHostOffline, "gone")
		time.Sleep(flushTime)
		wantCut(w.T, conn)
		w.wantGone()
	})
}

// A host-agent closes connections with codes that are invalid or unknown to clients.
// The relay closes the clients with the code for resync.
func TestInvalidCloseCodesBecomeResync(t *testing.T) {
	for _, code := range []ahp.CloseCode{0, 1005, 1006, 1015, 2999, 4999, 65535} {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			c := w.dial(w.token(nil))
			w.hostConn(1).conn.Close(code, "just so")
			c.wantClosed(ahp.CloseResync, "resync: just so")
		})
	}
}

// A host-agent accepts smaller messages than the relay. The relay closes a client that
// sends a larger message, and keeps a client that does not.
func TestLowerLimitOfHostAgentApplies(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		const limit = 300 << 10
		w.startAgent(routing.AgentEndConfig{MaxFrame: limit})
		bystander := w.dial(w.token(nil))
		w.hostConn(1)
		c := w.dial(w.token(nil))
		c.request(1, "initialize")
		w.hostConn(2).accept(1)
		c.wantMessages(answerTo(1))
		head, tail := `{"method":"x","pad":"`, `"}`
		c.send(head + strings.Repeat("x", limit-len(head)-len(tail)) + tail)
		c.wantOpen()
		c.send(head + strings.Repeat("x", limit+1-len(head)-len(tail)) + tail)
		c.wantClosed(ahp.CloseMessageTooBig, "message too big: more than 307200 bytes")
		time.Sleep(time.Second)
		bystander.wantOpen()
	})
}

// TestDrainClosesAllClients: Drain spreads the closing of three clients over 3 s. Each
// client gets its waiting message first, and a client that reads nothing delays Drain
// no longer than 10 s. The link to the host-agent ends too, and no new one opens.
func TestDrainClosesAllClients(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		clients := []*clientEnd{w.dial(w.token(nil)), w.dial(w.token(nil))}
		slow := w.rawDial(w.token(nil))
		defer slow.Close()
		for n := range 3 {
			w.hostConn(n + 1).send(`{"method":"last words"}`)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		start := time.Now()
		w.server.Drain(ctx, 3*time.Second)
		if took := time.Since(start); took < 3*time.Second || took > 10*time.Second {
			w.Errorf("drain took %v; want 3 to 10 s", took)
		}
		for _, c := range clients {
			c.wantMessages(`{"method":"last words"}`)
			c.wantClosed(ahp.CloseShuttingDown, "relay shutting down")
		}
		if w.links.Linked() {
			w.Error("the host-agent still has a link to the relay; want it ended, because the host-agent loses its connection next")
		}
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, release, err := w.server.hosts.borrow(ctx, hostKey{testTenant, testHost}); err == nil {
			release()
			w.Error("the relay opens a new link after it has ended all; want none, because its host-agent would not hear its end")
		}
	})
}

// The link to a host ends when it has had no client for linkIdle. A client that comes
// shortly before, or just as the link ends, gets a connection that stays open.
func TestUnusedLinkEnds(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		w.hostConn(1)
		_ = c.ws.Close(websocket.StatusNormalClosure, "")
		w.wantGone()
		time.Sleep(linkIdle - time.Second)
		again := w.dial(w.token(nil)) // before the link ends
		w.hostConn(2)
		time.Sleep(time.Hour)
		again.wantOpen()
		_ = again.ws.Close(websocket.StatusNormalClosure, "")
		time.Sleep(linkIdle)
		synctest.Wait()
		late := w.dial(w.token(nil)) // just as the link ends
		w.hostConn(3)
		late.wantOpen()
		_ = late.ws.Close(websocket.StatusNormalClosure, "")
		time.Sleep(linkIdle + time.Second)
		synctest.Wait()
		if len(w.server.hosts.entries) != 0 {
			w.Errorf("%d hosts are remembered without clients; want none", len(w.server.hosts.entries))
		}
	})
}
