package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// Clients connect while the host is away. The relay answers their pings, and holds
// initialize for 20 s and reconnect for ten minutes. Then it closes the connection, and
// does not answer the request. A client that has sent only pings stays open.
func TestRequestsAreHeldWhileTheHostIsAway(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		silent, fresh, resuming := w.dial(w.token(nil)), w.dial(w.token(nil)), w.dial(w.token(nil))
		for _, c := range []*clientEnd{silent, fresh, resuming} {
			c.request(1, "ping")
			c.wantMessages(answerTo(1))
		}
		time.Sleep(15 * time.Minute)
		silent.wantOpen()

		fresh.request(2, "initialize")
		time.Sleep(greetingHold - time.Second)
		fresh.request(3, "ping")
		fresh.wantMessages(answerTo(1), answerTo(3))
		fresh.wantOpen()
		time.Sleep(time.Second)
		fresh.wantMessages(answerTo(1), answerTo(3))
		fresh.wantClosed(ahp.CloseHostOffline, "host offline: asleep")

		resuming.request(2, "reconnect")
		resuming.request(3, "ping")
		resuming.wantMessages(answerTo(1), answerTo(3))
		time.Sleep(9*time.Minute + 59*time.Second)
		resuming.wantOpen()
		time.Sleep(time.Second)
		resuming.wantMessages(answerTo(1), answerTo(3))
		resuming.wantClosed(ahp.CloseHostOffline, "host offline: asleep")
	})
}

// Whatever the reason for a host's absence, the relay holds initialize for 20 s. Then it
// closes the connection without an answer. If the host returns before that, it gets the
// held initialize, and the client gets the host's answer and nothing else.
func TestInitializeIsHeldHoweverTheHostIsAway(t *testing.T) {
	online := func(w *world) { w.setState(registry.Online, "agent1", "") }
	refuses := func(why string) func(*world) {
		return func(w *world) {
			w.refuse = why
			w.startAgent(routing.AgentEndConfig{})
		}
	}
	for name, test := range map[string]struct {
		away   func(w *world)
		back   func(w *world) // makes the host return; nil: starts its host-agent
		reason string
	}{
		"never connected since the relay's start": {func(w *world) { w.setState(registry.Offline, "", "") }, nil, "no answer for 20s"},
		"its host-agent has gone": {func(w *world) { w.setReleased("agent0", "host-agent stopped") }, func(w *world) {
			w.setReleased("", "")
			w.startAgent(routing.AgentEndConfig{})
		}, "host-agent stopped"},
		"its lease has run out":          {func(w *world) { w.setState(registry.Offline, "", "host-agent unreachable") }, nil, "host-agent unreachable"},
		"its host-agent does not answer": {online, nil, "its host-agent does not answer"},
		"it is incompatible":             {func(w *world) { w.setState(registry.Incompatible, "", "upgrade the relay") }, nil, "upgrade the relay"},
		"it refuses connections": {refuses("connection refused"), func(w *world) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refuse = ""
		}, "connection refused"},
		"it is silent": {func(w *world) {
			w.silent = true
			w.startAgent(routing.AgentEndConfig{})
		}, func(w *world) {
			if err := w.hostConn(1).conn.Opened(); err != nil {
				w.Error(err)
			}
		}, "no answer for 20s"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{Resume: 5 * time.Second}, func(w *world) {
				test.away(w)
				c := w.dial(w.token(nil))
				c.request(1, "initialize")
				time.Sleep(greetingHold - time.Millisecond)
				c.wantOpen()
				time.Sleep(time.Millisecond)
				c.wantMessages()
				c.wantClosed(ahp.CloseHostOffline, "host offline: "+test.reason)
			})
			inWorld(t, Config{Resume: 5 * time.Second}, func(w *world) {
				test.away(w)
				c := w.dial(w.token(nil))
				want := c.request(1, "initialize")
				time.Sleep(greetingHold - 5*time.Second)
				if test.back == nil {
					w.startAgent(routing.AgentEndConfig{})
				} else {
					test.back(w)
				}
				time.Sleep(4 * time.Second)
				w.mu.Lock()
				h := w.conns[len(w.conns)-1]
				w.mu.Unlock()
				if got := h.messages(); len(got) != 1 || got[0] != want {
					w.Errorf("host got %q; want %q", got, want)
				}
				h.accept(1)
				c.wantMessages(answerTo(1))
				time.Sleep(15 * time.Minute)
				c.wantOpen()
			})
		})
	}
}

// The host accepts no connection for some minutes, and its host-agent reports that.
// From then on, the relay answers the client's pings, which stock clients need. When
// the host accepts the connection, it gets the other messages.
func TestSilentHostHoldsResumingClients(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.silent = true
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		want := c.request(1, "reconnect")
		c.request(2, "ping")
		time.Sleep(5 * time.Second)
		c.wantMessages()
		w.setSilent(time.Now())
		c.wantMessages(answerTo(2))
		for id := 3; id < 20; id++ {
			c.request(id, "ping")
			time.Sleep(10 * time.Second)
		}
		if got := len(c.messages()); got != 18 {
			w.Errorf("the relay answered %d pings of a held client; want 18", got)
		}
		h := w.hostConn(1)
		if err := h.conn.Opened(); err != nil {
			w.Error(err)
		}
		synctest.Wait()
		if got := h.messages(); len(got) != 1 || got[0] != want {
			w.Errorf("host got %q; want %q", got, want)
		}
		w.setSilent(time.Time{})
		c.request(20, "ping")
		synctest.Wait()
		if got := h.messages(); len(got) != 2 {
			w.Errorf("host got %q; want the ping, too", got)
		}
		time.Sleep(15 * time.Minute)
		c.wantOpen()
	})
}

// The relay holds a client's messages for nine minutes, until the host is back. The
// host gets them once and in order, and the client gets only the answers.
func TestHeldUntilHostIsBack(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		c := w.dial(w.token(nil))
		want := []string{c.request(1, "reconnect"), c.request(2, "listSessions")}
		c.request(3, "ping")
		time.Sleep(9 * time.Minute)
		w.startAgent(routing.AgentEndConfig{})
		h := w.hostConn(1)
		synctest.Wait()
		if got := h.messages(); strings.Join(got, "\n") != strings.Join(want, "\n") {
			w.Errorf("host got %q; want %q", got, want)
		}
		h.accept(1)
		c.wantMessages(answerTo(3), answerTo(1))
		time.Sleep(15 * time.Minute) // longer than any hold
		c.wantOpen()
	})
}

// The registry shows the host online, but its host-agent repeatedly fails to reach it.
// The relay closes a new client after 20 s. It holds a resuming client, and tries again
// until the host accepts.
func TestUnreachableHostIsRetried(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.mu.Lock()
		w.refuse = "connection refused"
		w.mu.Unlock()
		resuming, fresh := w.dial(w.token(nil)), w.dial(w.token(nil))
		resuming.request(1, "reconnect")
		w.startAgent(routing.AgentEndConfig{})
		w.hostConn(3)
		fresh.request(1, "initialize")
		time.Sleep(greetingHold)
		fresh.wantMessages()
		fresh.wantClosed(ahp.CloseHostOffline, "host offline: connection refused")

		w.hostConn(10)
		resuming.request(2, "ping")
		resuming.wantMessages(answerTo(2))
		w.mu.Lock()
		w.refuse = ""
		n := len(w.conns)
		w.mu.Unlock()
		h := w.hostConn(n + 1)
		h.accept(1)
		resuming.wantMessages(answerTo(2), answerTo(1))
	})
}

// A link ends after the relay has asked the host-agent to connect a client, and before
// the answer. The relay uses the next link, and the client notices nothing.
func TestLinkEndWhileOpeningIsInvisible(t *testing.T) {
	for _, first := range []string{"initialize", "reconnect"} {
		t.Run(first, func(t *testing.T) {
			inWorld(t, Config{}, func(w *world) {
				w.silent = true
				w.startAgent(routing.AgentEndConfig{})
				c := w.dial(w.token(nil))
				want := c.request(1, first)
				w.hostConn(1)
				w.mu.Lock()
				w.silent = false
				w.mu.Unlock()
				w.stopAgent()
				synctest.Wait()
				w.startAgent(routing.AgentEndConfig{})
				h := w.hostConn(2)
				synctest.Wait()
				if got := h.messages(); len(got) != 1 || got[0] != want {
					w.Errorf("host got %q; want %q", got, want)
				}
				h.accept(1)
				c.wantMessages(answerTo(1))
			})
		})
	}
}

// The registry shows the host online, but its host-agent does not answer the relay. The
// relay closes a new client after 20 s with that reason, and holds a resuming client
// until a host-agent answers.
func TestUnreachableHostAgentIsReported(t *testing.T) {
	inWorld(t, Config{Resume: 5 * time.Second}, func(w *world) {
		w.setState(registry.Online, "agent1", "")
		fresh, resuming := w.dial(w.token(nil)), w.dial(w.token(nil))
		fresh.request(1, "initialize")
		resuming.request(1, "ping")
		resuming.request(2, "reconnect")
		time.Sleep(greetingHold)
		fresh.wantMessages()
		fresh.wantClosed(ahp.CloseHostOffline, "host offline: its host-agent does not answer")
		resuming.wantMessages(answerTo(1))
		resuming.wantOpen()
		w.startAgent(routing.AgentEndConfig{})
		h := w.hostConn(1)
		h.accept(2)
		resuming.wantMessages(answerTo(1), answerTo(2))
	})
}

// A client's token expires when the client is new, held or open. The relay closes the
// client, and the host gets no message from it after that.
func TestConnectionEndsWithItsToken(t *testing.T) {
	short := func(c *auth.Client) { c.Expires = time.Now().Add(5 * time.Second) }
	const reason = "token expired"
	t.Run("new", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			c := w.dial(w.token(short))
			time.Sleep(5 * time.Second)
			c.wantClosed(ahp.CloseTokenEnded, reason)
		})
	})
	t.Run("held", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			conn := w.rawDial(w.token(short))
			defer conn.Close()
			writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"reconnect"}`))
			time.Sleep(5 * time.Second)
			readClose(w.T, conn, ahp.CloseTokenEnded, reason) // the client does not answer
			w.startAgent(routing.AgentEndConfig{})
			time.Sleep(time.Minute)
			if len(w.conns) != 0 {
				w.Error("the relay has opened a connection to the host for an expired token; want none")
			}
		})
	})
	t.Run("open", func(t *testing.T) {
		inWorld(t, Config{}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			conn := w.rawDial(w.token(short))
			defer conn.Close()
			h := w.hostConn(1)
			time.Sleep(5 * time.Second)
			h.wantClosed(ahp.CloseTokenEnded)
			go writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(`{"id":1,"method":"late"}`))
			readClose(w.T, conn, ahp.CloseTokenEnded, reason)
			synctest.Wait()
			if got := h.messages(); len(got) != 0 {
				w.Errorf("the host got %q from a client whose token has expired; want nothing", got)
			}
		})
	})
}

// TestForbiddenAndUnknownHostsAreRefused: after the handshake, the relay closes a
// client with a token for a different host, and a client for a host that has never
// enrolled.
func TestForbiddenAndUnknownHostsAreRefused(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		c := w.dial(w.token(func(c *auth.Client) { c.Hosts = []string{"desktop"} }))
		c.wantClosed(ahp.CloseForbidden, "forbidden: this token is not for that host")
		w.host = registry.Host{}
		c = w.dial(w.token(nil))
		c.wantClosed(ahp.CloseUnknownHost, "unknown host: no host-agent has ever enrolled under that name")
	})
}

// A host is released because its host-agent has crashed, though the link still seems to
// work. The relay closes the host's clients at once. It holds them when they return,
// and connects them when the next host-agent starts.
func TestClientsOfACrashedHostAgentAreHeld(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		c.request(1, "initialize")
		h := w.hostConn(1)
		h.accept(1)
		c.wantMessages(answerTo(1))

		w.setReleased("another", "host-agent crashed") // an older instance: has no effect
		c.wantOpen()
		w.setReleased("agent1", "host-agent crashed")
		c.wantClosed(ahp.CloseHostOffline, "host offline: host-agent crashed")
		h.wantClosed(ahp.CloseResync)
		fresh, resuming := w.dial(w.token(nil)), w.dial(w.token(nil))
		fresh.request(1, "initialize")
		time.Sleep(greetingHold)
		fresh.wantMessages()
		fresh.wantClosed(ahp.CloseHostOffline, "host offline: host-agent crashed")
		want := resuming.request(1, "reconnect")
		resuming.wantOpen()

		w.stopAgent()
		w.setReleased("", "")
		start := time.Now()
		w.startAgent(routing.AgentEndConfig{})
		h = w.hostConn(2)
		if took := time.Since(start); took > 0 {
			w.Errorf("the held client was connected %v after the host was back; want at once", took)
		}
		if got := h.messages(); len(got) != 1 || got[0] != want {
			w.Errorf("host got %q; want %q", got, want)
		}
	})
}

// A lease expires in the registry, but the link still works: clients notice nothing.
func TestExpiredLeaseDoesNotEndTheLink(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		c.request(1, "initialize")
		h := w.hostConn(1)
		h.accept(1)
		w.setState(registry.Offline, "", "host-agent unreachable")
		time.Sleep(time.Minute)
		c.wantMessages(answerTo(1))
		c.wantOpen()
		h.send(answerTo(2))
		c.wantMessages(answerTo(1), answerTo(2))
	})
}

// A client sends its messages and disconnects at once, while the relay still connects
// it to the host. The host gets all messages, and then the close.
func TestMessagesOfADisconnectedClientReachTheHost(t *testing.T) {
	messages := []string{`{"id":1,"method":"initialize"}`, `{"id":2,"method":"createSession"}`, `{"method":"last"}`}
	// leave connects a client, sends all messages, calls after, and disconnects.
	leave := func(w *world, closeFrame bool, after ...func()) {
		conn := w.rawDial(w.token(nil))
		for _, m := range messages {
			writeFrame(w.T, conn, wire.FinBit|wire.OpText, []byte(m))
		}
		for _, act := range after {
			synctest.Wait()
			act()
			synctest.Wait()
		}
		if closeFrame {
			writeFrame(w.T, conn, wire.FinBit|wire.OpClose, []byte{0x03, 0xe8})
		}
		_ = conn.Close()
	}
	wantAll := func(w *world, h *hostEnd) {
		synctest.Wait()
		if got := h.messages(); strings.Join(got, "\n") != strings.Join(messages, "\n") {
			w.Errorf("host got %q; want %q", got, messages)
		}
		h.mu.Lock()
		closed := h.closed
		h.mu.Unlock()
		if !closed {
			w.Error("the host's connection is open after the client has left; want it closed")
		}
		w.wantGone()
	}
	for name, closeFrame := range map[string]bool{"with a close frame": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{}, func(w *world) { // the host accepts late
				w.silent = true
				w.startAgent(routing.AgentEndConfig{})
				leave(w, closeFrame)
				h := w.hostConn(1)
				time.Sleep(5 * time.Second)
				if err := h.conn.Opened(); err != nil {
					w.Error(err)
				}
				wantAll(w, h)
			})
			inWorld(t, Config{}, func(w *world) { // the link comes late
				w.setState(registry.Online, "agent1", "")
				leave(w, closeFrame)
				time.Sleep(5 * time.Second)
				w.startAgent(routing.AgentEndConfig{})
				wantAll(w, w.hostConn(1))
			})
			inWorld(t, Config{}, func(w *world) { // the host returns, and the link comes late
				leave(w, closeFrame, func() { w.setState(registry.Online, "agent1", "") })
				time.Sleep(5 * time.Second)
				w.startAgent(routing.AgentEndConfig{})
				wantAll(w, w.hostConn(1))
			})
			inWorld(t, Config{}, func(w *world) { // the first link breaks
				w.silent = true
				w.startAgent(routing.AgentEndConfig{})
				leave(w, closeFrame)
				w.hostConn(1)
				w.stopAgent()
				synctest.Wait()
				w.silent = false
				w.startAgent(routing.AgentEndConfig{})
				wantAll(w, w.hostConn(2))
			})
			inWorld(t, Config{}, func(w *world) { // the host never accepts: the relay gives up
				w.silent = true
				w.startAgent(routing.AgentEndConfig{})
				leave(w, closeFrame)
				w.hostConn(1)
				time.Sleep(handOverTime)
				w.wantGone()
			})
			inWorld(t, Config{}, func(w *world) { // the host is away: the relay gives up at once
				leave(w, closeFrame)
				w.wantGone()
			})
		})
	}
}

// A different host-agent takes over a host. The relay closes the host's clients with
// the code for resync, so that they reconnect at once.
func TestTakeoverMakesClientsReconnect(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		c.request(1, "initialize")
		w.hostConn(1).accept(1)
		synctest.Wait()
		w.setState(registry.Online, "agent2", "")
		c.wantClosed(ahp.CloseResync, "resync: "+errAgentReplaced.Error())
	})
}
