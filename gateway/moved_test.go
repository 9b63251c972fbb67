package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/broker/resume"
	"ahprelay/routing"
)

// ticket names a client's former connection.
const ticket = "0123456789abcdef"

// movedHeader returns the header of a client that continues its former connection at
// this relay.
func (w *world) movedHeader() http.Header {
	w.Helper()
	return http.Header{"Authorization": {"Bearer " + w.token(nil)}, resume.MovedHeader: {ticket}, resume.MoveHeader: {"next-" + ticket}}
}

// dialMoved connects a client that continues its former connection at this relay. The
// registry knows the host-agent, but no host-agent is connected.
func (w *world) dialMoved() *clientEnd {
	w.Helper()
	w.setState(registry.Online, "agent1", "") // the host-agent has a lease, and no connection
	c := &clientEnd{w: w, ws: w.handshakeAs(&websocket.DialOptions{HTTPHeader: w.movedHeader()})}
	w.running.Go(c.readLoop)
	return c
}

// Three clients move to this relay, and then their host goes away. The first client
// sends pings, the second answers the relay's pings, and the third is gone. The relay
// gives up the third. It keeps the first two for ten minutes, and then closes them with
// the code for resync.
func TestMovedClientsWaitAliveForTheirHost(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		pings, silent := w.dialMoved(), w.dialMoved()
		request := w.upgrade(w.token(nil))
		request.Header.Set(resume.MovedHeader, ticket)
		response, err := handshake{w.server.Handler()}.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		w.setState(registry.Offline, "", "asleep")
		gone := response.Body.(io.ReadWriteCloser)
		defer gone.Close()
		w.running.Go(func() { _, _ = io.Copy(io.Discard, gone) })
		var answers []string
		for id := range 19 {
			pings.request(id, "ping")
			answers = append(answers, answerTo(id))
			pings.wantMessages(answers...)
			time.Sleep(30 * time.Second)
		}
		w.wantGivenUp("pings", 1)
		pings.wantOpen()
		silent.wantOpen()
		time.Sleep(30 * time.Second)
		pings.wantClosed(ahp.CloseResync, "resync: asleep")
		silent.wantClosed(ahp.CloseResync, "resync: asleep")
		w.wantGone()
	})
}

// A client moves to this relay, and its host goes away. The client sends more than
// clients may send before a host has accepted them, in one message or many. The relay
// keeps the client, and delivers all messages when the host-agent is back.
func TestMovedClientsMaySendMuchBeforeTheirHostIsBack(t *testing.T) {
	for name, sizes := range map[string][]int{
		"one long message":    {100 << 10},
		"behind short ones":   {10, 10, 200 << 10, 10},
		"many short messages": {30 << 10, 30 << 10, 30 << 10, 30 << 10, 30 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{}, func(w *world) {
				c := w.dialMoved()
				w.setState(registry.Offline, "", "asleep")
				var want []string
				for id, size := range sizes {
					want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"x","params":{"channel":"ahp-root://","text":"%s"}}`, id, strings.Repeat("x", size)))
				}
				w.running.Go(func() {
					for _, message := range want {
						c.send(message)
					}
				})
				time.Sleep(5 * time.Minute)
				c.wantOpen()
				w.startAgent(routing.AgentEndConfig{})
				h := w.hostConn(1)
				if h.open.Ticket != ticket {
					t.Errorf("the host-agent got the ticket %q; want %q", h.open.Ticket, ticket)
				}
				synctest.Wait()
				if got := h.messages(); strings.Join(got, "\n") != strings.Join(want, "\n") {
					t.Errorf("the host got %d messages of %d bytes; want %d of %d bytes", len(got), len(strings.Join(got, "")), len(want), len(strings.Join(want, "")))
				}
				time.Sleep(15 * time.Minute)
				c.wantOpen()
			})
		})
	}
}

// A client moves to this relay, its host goes away, and the client sends a message longer than clients may send before
// a host has accepted them. Then the client's time ends, or the relay.
func TestMovedClientsEndWithALongMessage(t *testing.T) {
	for name, end := range map[string]func(w *world, c *clientEnd){
		"time": func(_ *world, c *clientEnd) {
			time.Sleep(10 * time.Minute)
			c.wantClosed(ahp.CloseResync, "resync: asleep")
		},
		"relay": func(w *world, _ *clientEnd) { w.server.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{}, func(w *world) {
				c := w.dialMoved()
				w.setState(registry.Offline, "", "asleep")
				w.running.Go(func() {
					_ = c.ws.Write(context.Background(), websocket.MessageText, make([]byte, 200<<10)) // may fail at the end
				})
				time.Sleep(time.Minute)
				end(w, c)
			})
		})
	}
}

// A client moves to this relay, and the relay drains before the host has accepted the
// client. The relay waits for the host's return, and then closes the client with the
// advice to move on.
func TestMovedClientsMoveOn(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		c := w.dialMoved()
		w.setState(registry.Offline, "", "asleep")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.running.Go(func() { w.server.Drain(ctx, 0) })
		time.Sleep(10 * time.Second)
		c.wantOpen()
		w.startAgent(routing.AgentEndConfig{})
		w.hostConn(1)
		synctest.Wait()
		c.wantClosed(ahp.CloseShuttingDown, resume.MoveReason)
		w.wantGone()
	})
}

// A client moves to this relay, and the relay drains after it has accepted the handshake,
// but before it knows the host. The relay must wait for the client, and close it with the
// advice to move on.
func TestDrainWaitsForAMovedClientsHandshake(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		find := w.server.hosts.enrolled
		w.server.hosts.enrolled = func(ctx context.Context, tenant, host string) error {
			time.Sleep(time.Second)
			return find(ctx, tenant, host)
		}
		c := &clientEnd{w: w, ws: w.handshakeAs(&websocket.DialOptions{HTTPHeader: w.movedHeader()})}
		w.running.Go(c.readLoop)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.server.Drain(ctx, 0)
		w.server.Close()
		c.wantClosed(ahp.CloseShuttingDown, resume.MoveReason)
	})
}

// A client moves on because its relay drains. It gets the close frame, and still sends
// messages for 20 s before its own close frame. The host must get all of them, and the
// connection must end as one that continues elsewhere.
func TestMovingClientIsReadUntilItCloses(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		request := w.upgrade(w.token(nil))
		request.Header.Set(resume.MoveHeader, ticket)
		response, err := handshake{w.server.Handler()}.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		c := response.Body.(net.Conn)
		defer c.Close()
		h := w.hostConn(1)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.running.Go(func() { w.server.Drain(ctx, 0) })
		w.running.Go(func() { _, _ = io.Copy(io.Discard, c) })
		for range 20 {
			time.Sleep(time.Second)
			const message = `{"jsonrpc":"2.0","method":"x"}`
			if _, err := c.Write(append([]byte{0x81, 0x80 | byte(len(message)), 0, 0, 0, 0}, message...)); err != nil {
				t.Fatalf("sending a message behind the relay's close frame: %v; want no error", err)
			}
		}
		if _, err := c.Write([]byte{0x88, 0x80 | 2, 0, 0, 0, 0, 1001 >> 8, 1001 & 0xff}); err != nil {
			t.Fatal(err)
		}
		h.wantClosed(ahp.CloseShuttingDown)
		if n := len(h.messages()); n != 20 {
			t.Errorf("the host got %d messages; want 20", n)
		}
	})
}

// A client with a token for a different host names a former connection at this host. The relay
// must answer alike whether the host is online or not.
func TestMovedClientsLearnNothingOfOtherHosts(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		status := func() int {
			request := w.upgrade(w.token(func(c *auth.Client) { c.Hosts = []string{"other"} }))
			request.Header.Set(resume.MovedHeader, ticket)
			response, err := handshake{w.server.Handler()}.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			return response.StatusCode
		}
		w.setState(registry.Online, "agent1", "")
		online := status()
		w.setState(registry.Offline, "", "asleep")
		if offline := status(); offline != online {
			t.Errorf("a client whose token is not for the host gets HTTP %d while the host is offline, and %d while it is online; want the same", offline, online)
		}
	})
}
