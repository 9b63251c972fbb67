package hostagent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/remember"
	"ahprelay/routing"
)

const testTicket = "a-ticket-of-a-client"

// A mover is a client that moves from relay1 to the second relay. Its former connection is at
// relay1, and host is its connection to the host.
type mover struct {
	*world
	former *remote
	host   *fakeSocket
	second *routing.RelayEnd
}

// inMove runs test with a client whose relay has asked the host-agent to keep its connection. The
// client is still connected to its first relay.
func inMove(t *testing.T, test func(m *mover)) {
	t.Helper()
	inWorld(t, func(w *world) {
		m := &mover{world: w, former: w.open(), second: w.link(w.life, "relay2")}
		m.host = w.hostSide()
		m.former.send(`{"id":1,"method":"initialize"}`)
		m.host.toUs <- `{"n":1}`
		synctest.Wait()
		m.former.conn.Move(routing.Move{Ticket: testTicket, Until: time.Now().Add(time.Hour), Holder: auth.Holder{Token: "t7"}})
		m.former.send(`{"method":"behind the move"}`)
		if !m.former.moved || !strings.HasSuffix(m.former.got.String(), `{"n":1}`) {
			t.Fatalf("moved: %v, after %q; want true after all earlier messages of the host", m.former.moved, m.former.got.String())
		}
		test(m)
	})
}

// leave ends the client's connection to the first relay with code.
func (m *mover) leave(code ahp.CloseCode) {
	m.former.conn.Close(code, "")
	synctest.Wait()
}

// arrive connects a client to the second relay with the ticket. change may change what the relay
// sends.
func (m *mover) arrive(change func(*routing.Open)) *remote {
	open := routing.Open{ID: "d", Subject: "ada", Access: "write", Ticket: testTicket}
	if change != nil {
		change(&open)
	}
	return m.openAs(m.second, open)
}

// wantKept fails unless the host-agent keeps the connections of n clients that are away. If n is 0,
// it must count no kept bytes either.
func (m *mover) wantKept(n int) {
	m.Helper()
	synctest.Wait()
	if got := len(m.agent.moves.all()); got != n {
		m.Errorf("%d connections to the host are kept for moving clients; want %d", got, n)
	}
	if held := m.agent.moves.pool.Held(); n == 0 && held != 0 {
		m.Errorf("%d bytes are counted for kept connections after the last has ended; want none", held)
	}
}

// TestMoveKeepsAllMessagesInOrder moves a client while the host and the client send. Host and
// client must get each message once and in order, on the same connection to the host.
func TestMoveKeepsAllMessagesInOrder(t *testing.T) {
	inMove(t, func(m *mover) {
		long := fmt.Sprintf(`{"long":%q}`, strings.Repeat("x", routing.MaxLent))
		m.host.toUs <- `{"n":2}`
		m.host.toUs <- long
		synctest.Wait()
		next := m.arrive(nil)
		if next.opened {
			t.Error("the client's second connection is opened before the first has ended; want it to wait")
		}
		m.former.send(`{"method":"last"}`)
		m.leave(ahp.CloseShuttingDown)
		m.host.toUs <- `{"n":3}`
		synctest.Wait()
		if want := `{"n":2}` + long + `{"n":3}`; next.got.String() != want || !next.opened || !next.ready {
			t.Errorf("the client got %d bytes, opened %v, ready %v; want %d, true, true", next.got.Len(), next.opened, next.ready, len(want))
		}
		next.send(`{"method":"first"}`)
		want := []string{`{"id":1,"method":"initialize"}`, `{"method":"behind the move"}`, `{"method":"last"}`, `{"method":"first"}`}
		if got := m.host.messages(); !slices.Equal(got, want) {
			t.Errorf("the host got %q; want %q", got, want)
		}
		if strings.Contains(m.former.got.String(), `"n":2`) {
			t.Error("the first connection got a message after the move; want none")
		}
		m.wantKept(0)
		m.wantOpen(next)
	})
}

// TestUnclearEndKeepsNothing ends the first relay's connection with a code that may mean lost
// messages. The host-agent must close the connection to the host, and refuse the ticket.
func TestUnclearEndKeepsNothing(t *testing.T) {
	inMove(t, func(m *mover) {
		m.host.toUs <- `{"n":2}`
		m.leave(ahp.CloseResync)
		if !m.host.isClosed() {
			t.Error("the connection to the host is open after an unclear end; want it closed")
		}
		m.wantKept(0)
		m.arrive(nil).wantClosed(ahp.CloseResync, "the host-agent does not keep this connection")
	})
}

// TestTicketIsForTheSameAuthority arrives with the ticket, but with a different subject, level or
// other authority. The host-agent must refuse each, and then accept the rightful client once.
func TestTicketIsForTheSameAuthority(t *testing.T) {
	inMove(t, func(m *mover) {
		m.leave(ahp.CloseShuttingDown)
		for name, change := range map[string]func(*routing.Open){
			"subject":  func(o *routing.Open) { o.Subject = "eve" },
			"level":    func(o *routing.Open) { o.Access = "read" },
			"device":   func(o *routing.Open) { o.DeviceID = "d2" },
			"channels": func(o *routing.Open) { o.Channels = []string{"x:/*"} },
			"strict":   func(o *routing.Open) { o.Strict = true },
			"ticket":   func(o *routing.Open) { o.Ticket += "x" },
		} {
			if thief := m.arrive(change); thief.code != ahp.CloseResync || thief.opened {
				t.Errorf("a ticket shown with a different %s: closed with %d, opened %v; want %d, false", name, thief.code, thief.opened, ahp.CloseResync)
			}
		}
		next := m.arrive(nil)
		if !next.opened {
			t.Error("the connection of the client with the right ticket is not opened; want it opened")
		}
		if again := m.arrive(nil); again.code != ahp.CloseResync {
			t.Errorf("a connection with a used ticket was closed with %d; want %d", again.code, ahp.CloseResync)
		}
		m.wantOpen(next)
	})
}

// TestTicketSurvivesALineThatEndsAtOnce has a client arrive on lines that end before the host-agent
// looks at them. The ticket must stay valid, and the connection to the host open.
func TestTicketSurvivesALineThatEndsAtOnce(t *testing.T) {
	inMove(t, func(m *mover) {
		m.leave(ahp.CloseShuttingDown)
		former := m.agent.clients.every()[0].conn.now.Load()
		for range 20 {
			in := &arrival{conn: former, gone: make(chan struct{})}
			in.Closed(ahp.CloseResync, "the client has left")
			if in.run(m.agent, routing.Open{ID: "d", Subject: "ada", Access: "write", Ticket: testTicket}) {
				t.Fatal("the client arrives on a line that has ended; want it to be kept")
			}
		}
		m.wantKept(1)
		next := m.arrive(nil)
		if !next.opened {
			t.Errorf("the client's last line is closed with %d; want it opened", next.code)
		}
		m.wantOpen(next)
	})
}

// TestKeptConnectionsAreBounded has the host send more than the bound while the client is away. The
// host-agent must stop reading the host, and the client must get all messages after it arrives.
func TestKeptConnectionsAreBounded(t *testing.T) {
	inMove(t, func(m *mover) {
		m.leave(ahp.CloseShuttingDown)
		piece := fmt.Sprintf(`{"x":%q}`, strings.Repeat("x", 256<<10))
		const pieces = 40
		go func() {
			for range pieces {
				m.host.toUs <- piece
			}
		}()
		synctest.Wait()
		if held := m.agent.moves.pool.Held(); held < keptMost || held > keptMost+2*len(piece) {
			t.Errorf("%d bytes of the host's messages are kept; want the bound of %d, exceeded by at most two messages", held, keptMost)
		}
		next := m.arrive(nil)
		for next.conn != nil && next.got.Len() < pieces*len(piece) {
			next.conn.Written(1 << 20)
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if next.got.Len() != pieces*len(piece) {
			t.Errorf("the client got %d bytes; want %d", next.got.Len(), pieces*len(piece))
		}
		m.wantKept(0)
	})
}

// TestKeptConnectionsExpire has a client that does not arrive at the second relay. After keptTime,
// the host-agent must close the connection to the host.
func TestKeptConnectionsExpire(t *testing.T) {
	inMove(t, func(m *mover) {
		m.leave(ahp.CloseShuttingDown)
		m.host.toUs <- `{"n":2}`
		time.Sleep(keptTime - time.Second)
		if m.host.isClosed() {
			t.Error("the connection to the host has ended before keptTime; want it open")
		}
		time.Sleep(2 * time.Second)
		if !m.host.isClosed() {
			t.Error("the connection to the host is open after keptTime; want it closed")
		}
		m.wantKept(0)
	})
}

// TestKeptConnectionsEndWithTheToken keeps a connection whose client has renewed its token. The
// connection must end when the renewed token ends, not when the token from the handshake ends. If
// the renewed token has ended already, the host-agent must not keep the connection.
func TestKeptConnectionsEndWithTheToken(t *testing.T) {
	for _, test := range []struct {
		name       string
		life, held time.Duration
	}{
		{"a renewed token", time.Hour, keptTime},
		{"a token that ends soon", time.Minute, time.Minute},
		{"a token that has ended", -time.Second, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				before := time.Now().Add(time.Second)
				r := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "write", Expires: &before})
				time.Sleep(2 * time.Second)
				r.conn.Move(routing.Move{Ticket: testTicket, Until: time.Now().Add(test.life)})
				synctest.Wait()
				if kept := test.held > 0; r.moved != kept || r.flushed == kept {
					t.Errorf("the host-agent confirmed a move: %v, and a flush: %v; want %v, %v", r.moved, r.flushed, kept, !kept)
				}
				r.conn.Close(ahp.CloseShuttingDown, "")
				time.Sleep(test.held - time.Second)
				synctest.Wait()
				if test.held > 0 && w.hostSide().isClosed() {
					t.Error("the connection to the host has ended before its time; want it open")
				}
				time.Sleep(2 * time.Second)
				if !w.hostSide().isClosed() {
					t.Error("the connection outlives the client's token; want it closed")
				}
			})
		})
	}
}

// TestRepeatedMovesFillNoQueue has a relay repeat Move and Flush while the host reads nothing. The
// host-agent must queue one request and answer it later.
func TestRepeatedMovesFillNoQueue(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.open()
		gate := make(chan struct{})
		w.host.set(func() { w.host.gate = gate })
		r.send(`{"method":"first"}`)
		for range 1000 {
			r.conn.Move(routing.Move{Ticket: testTicket, Until: time.Now().Add(time.Hour)})
			r.conn.Flush()
		}
		synctest.Wait()
		c := w.agent.clients.every()[0]
		c.writer.mu.Lock()
		waiting := len(c.writer.queue)
		c.writer.mu.Unlock()
		if waiting != 1 {
			t.Errorf("%d move requests wait in the client's queue; want 1", waiting)
		}
		close(gate)
		synctest.Wait()
		if !r.moved {
			t.Error("the client's move got no answer after the queue had room; want one")
		}
	})
}

// TestBlockedPeopleDoNotArrive blocks the person or the token of a kept connection. A block of the
// person must drop the kept messages at once. Neither the blocked person nor the blocked token may
// arrive with the ticket.
func TestBlockedPeopleDoNotArrive(t *testing.T) {
	inMove(t, func(m *mover) {
		m.leave(ahp.CloseShuttingDown)
		m.host.toUs <- `{"n":2}`
		if n, err := m.agent.kick(Kick{Subject: "ada", For: time.Hour}); n != 1 || err != nil {
			t.Errorf("the kick ends %d connections, %v; want 1", n, err)
		}
		synctest.Wait()
		m.wantKept(0)
		if !m.host.isClosed() {
			t.Error("the blocked client's connection to the host is open; want it closed")
		}
		if next := m.arrive(nil); next.code != ahp.CloseForbidden {
			t.Errorf("the connection was closed with %d; want %d", next.code, ahp.CloseForbidden)
		}
	})
	inMove(t, func(m *mover) {
		m.leave(ahp.CloseShuttingDown)
		if err := m.agent.blocked.add(blockedKey{token: "t1"}, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if next := m.arrive(func(o *routing.Open) { o.Token = "t1" }); next.code != ahp.CloseForbidden || next.opened {
			t.Errorf("the connection was closed with %d, opened %v; want %d, false", next.code, next.opened, ahp.CloseForbidden)
		}
	})
}

// TestStopWaitsForNobodyWhoIsAway stops the host-agent while it keeps a client's connection. The
// stop must not wait for that client.
func TestStopWaitsForNobodyWhoIsAway(t *testing.T) {
	inMove(t, func(m *mover) {
		m.leave(ahp.CloseShuttingDown)
		none := m.agent.dismiss()
		synctest.Wait()
		select {
		case <-none:
		default:
			t.Error("the stopping host-agent waits for a client that is moving; want it to stop at once")
		}
		m.wantKept(0)
	})
}

// TestRelayThatVanishesKeepsNothing loses the first relay's packets after it asked for a move. The
// host-agent must close the connection to the host.
func TestRelayThatVanishesKeepsNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.open()
		r.conn.Move(routing.Move{Ticket: testTicket, Until: time.Now().Add(time.Hour)})
		synctest.Wait()
		if !r.moved {
			t.Fatal("the connection is not kept after Move; want it kept")
		}
		w.bus.Lose(func(string) bool { return true })
		time.Sleep(testResume + leaveTime + time.Second)
		if !w.hostSide().isClosed() {
			t.Error("the connection to the host is open after its relay vanished; want it closed")
		}
	})
}

// TestRevokedClientsAreNotKept has the host-agent ask a relay whether the client of a kept
// connection is revoked. Errors and other answers must end nothing. When the relay names the
// client, the connection and its messages must be dropped.
func TestRevokedClientsAreNotKept(t *testing.T) {
	inMove(t, func(m *mover) {
		m.host.toUs <- `{"n":2}`
		m.leave(ahp.CloseShuttingDown)
		answers := []string{`{"error":"store away"}`, `no JSON`, `{"removed":[7,-1]}`, `{}`}
		var asked []remember.Request
		ctx, stop := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() {
			defer close(over)
			m.agent.moves.endRevoked(ctx, "agent1", func(_ context.Context, data []byte) ([]byte, error) {
				r, err := remember.ReadRequest(data)
				if err != nil {
					t.Error(err)
				}
				asked = append(asked, r)
				if len(answers) == 0 {
					return []byte(`{"removed":[0]}`), nil
				}
				answer := answers[0]
				answers = answers[1:]
				return []byte(answer), nil
			})
		}()
		time.Sleep(4*revokedEvery - time.Millisecond)
		m.wantKept(1)
		time.Sleep(2 * time.Millisecond)
		m.wantKept(0)
		if !m.host.isClosed() {
			t.Error("the revoked client's connection to the host is open; want it closed")
		}
		if len(asked) != 5 || len(asked[4].Holders) != 1 || asked[4].Holders[0].Token != "t7" {
			t.Errorf("the host-agent asked the relay about %+v; want five questions, about the token t7", asked)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(asked) != 5 {
			t.Errorf("the host-agent asked the relay %d times; want no further question when no connection is kept", len(asked))
		}
		stop()
		<-over
	})
}
