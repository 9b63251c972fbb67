package hostagent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/contentproxy"
	"ahprelay/internal/awake"
	"ahprelay/internal/coalesce"
	"ahprelay/internal/fair"
	"ahprelay/routing"
	"ahprelay/test/membus"
)

// testResume is how long the host's machine may be unreachable before the host-agent closes the
// clients.
const testResume = link.DefaultResume

// A world is a host-agent between a fake host and a relay, in memory and on fake time.
type world struct {
	*testing.T
	host  *fakeHost
	agent *Agent
	relay *routing.RelayEnd
	bus   *membus.Net // the network between the host-agent and the relay that was linked last

	remotes []*remote // the clients, in the order of their connections

	life context.Context
	stop func()

	framed   bool // relays put the head of encodePiece before each piece, because they join messages
	reported reported
	running  sync.WaitGroup
}

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	inWorldOf(t, routing.AgentEndConfig{}, test)
}

func inWorldOf(t *testing.T, ends routing.AgentEndConfig, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, host: &fakeHost{answers: answersAll}, framed: ends.Sealed}
		life, stop := context.WithCancel(context.Background())
		w.life, w.stop = life, stop
		w.agent = &Agent{
			signInRate: fair.NewBuckets(signInEvery, signInAtOnce), listenBack: listenLoopback,
			cfg:      Config{Log: slog.New(slog.DiscardHandler), MaxFrame: 1 << 20},
			canvases: contentproxy.NewHost(contentproxy.Config{}), moves: newMoves(), rejections: newRejections(),
			known:  view.NewHost(gate.Key),
			audits: coalesce.New(auditEvery),
			awake:  awake.New(awake.Config{Mode: awake.Never}),
			access: &access{tenant: "default", host: "laptop", instance: "agent1"}, life: life,
		}
		w.agent.live = newLive(w.agent)
		w.agent.presence.init("1.0", false, w.agent.cfg.Waking.terms)
		w.agent.subjects = gate.NewSubjects()
		w.agent.dialFor = func(ctx context.Context, _ *caller) (hostSocket, error) { return w.host.dial(ctx) }
		w.agent.monitor = newMonitor("ws://host", w.host.dialNoting, testResume, w.agent.cfg.Log, w.agent.presence.hostChanged)
		w.agent.monitor.gone, w.agent.monitor.heard = w.agent.hostGone, w.agent.clients.lastHeard
		ends.Instance, ends.Connect = "agent1", w.agent.connect
		w.agent.routing = routing.NewAgentEnd(ends)
		w.running.Go(func() { w.agent.monitor.run(life) })
		w.running.Go(func() { w.agent.audits.Run(life) })
		w.running.Go(func() { w.agent.live.serve(life) })
		synctest.Wait()
		w.relay = w.link(life, "relay1")
		defer func() {
			stop()
			w.running.Wait()
			w.agent.conns.Wait()
			if n := w.agent.presence.now().Clients; n != 0 {
				t.Errorf("%d clients are counted at the end of the test; want none", n)
			}
			for i, s := range w.host.all() {
				if !s.isClosed() {
					t.Errorf("connection %d to the host is open at the end; want it closed", i)
				}
			}
		}()
		test(w)
	})
}

// link connects a relay to the host-agent, and waits until the link is ready.
func (w *world) link(life context.Context, name string) *routing.RelayEnd {
	bus, log := new(membus.Net), w.agent.cfg.Log
	w.bus = bus
	links := link.NewAgentLinks(bus, link.AgentLinksConfig{
		Tenant: "default", Host: "laptop", Agent: "agent1", Hello: w.agent.routing.Hello(), Log: log,
	}, w.agent.routing)
	w.running.Go(func() { _ = links.Run(life) })
	synctest.Wait()
	encode := func(piece []byte, _, _, _ bool) []byte { return piece }
	if w.framed {
		encode = encodePiece
	}
	relay := routing.NewRelayEnd(routing.RelayEndConfig{
		Agent:  "agent1",
		Encode: encode,
		Report: w.reported.add,
	})
	link := link.NewRelayLink(bus, link.RelayLinkConfig{
		Tenant: "default", Host: "laptop", Agent: "agent1", Relay: name, Hello: relay.Hello(), Log: log,
	}, func(answer link.Hello, lines link.RelayLines) link.RelayTraffic {
		relay.Start(answer, lines)
		return relay
	})
	w.running.Go(func() { _ = link.Run(life) })
	synctest.Wait()
	return relay
}

// A remote is a client's connection at the relay. It keeps what the host-agent sends.
type remote struct {
	w    *world
	conn *routing.RelayConn

	mu      sync.Mutex
	opened  bool
	ready   bool
	probes  int
	flushed bool
	moved   bool
	got     strings.Builder
	code    ahp.CloseCode // the close code; 0 while the connection is open
	reason  string
}

func (w *world) open() *remote {
	w.Helper()
	return w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "write"})
}

func (w *world) openAs(relay *routing.RelayEnd, open routing.Open) *remote {
	w.Helper()
	r := &remote{w: w}
	conn, err := relay.Open(open, r)
	if err != nil {
		w.Fatal(err)
	}
	r.conn = conn
	w.remotes = append(w.remotes, r)
	synctest.Wait()
	return r
}

func (r *remote) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// Event implements [routing.ClientConn].
func (r *remote) Event(e routing.Event) {
	r.note(func() {
		switch e {
		case routing.Opened:
			r.opened = true
		case routing.Ready:
			r.ready = true
		case routing.Probe:
			r.probes++
		case routing.Flushed:
			r.flushed = true
		case routing.Moved:
			r.moved = true
		}
	})
}

// Deliver implements [routing.ClientConn].
func (r *remote) Deliver(frames []routing.Frame) {
	r.note(func() {
		for _, f := range frames {
			r.got.Write(f.Data)
		}
	})
}

// Closed implements [routing.ClientConn].
func (r *remote) Closed(code ahp.CloseCode, reason string) {
	r.note(func() { r.code, r.reason = code, reason })
}

func (r *remote) send(message string) {
	r.w.Helper()
	if err := r.conn.Send(context.Background(), []byte(message)); err != nil {
		r.w.Errorf("sending a message: %v; want no error", err)
	}
	synctest.Wait()
}

func (r *remote) wantClosed(code ahp.CloseCode, reason string) {
	r.w.Helper()
	synctest.Wait()
	if code == ahp.CloseResync {
		time.Sleep(endWithin) // within this time, the host-agent could report that the host has ended
		synctest.Wait()
	}
	r.note(func() {
		if r.code != code || r.reason != reason {
			r.w.Errorf("client was closed with %d %q; want %d %q", r.code, r.reason, code, reason)
		}
	})
}

// hostSide waits until nothing happens, and returns the newest connection to the host.
func (w *world) hostSide() *fakeSocket {
	synctest.Wait()
	socks := w.host.all()
	return socks[len(socks)-1]
}

// TestMessagesPass sends messages from client and host. Each message must arrive unchanged, and the
// relay must get Ready when the host accepts initialize, not earlier.
func TestMessagesPass(t *testing.T) {
	inWorld(t, func(w *world) {
		w.host.set(func() { w.host.answers = nil })
		r := w.open()
		s := w.hostSide()
		if !r.opened || r.ready || w.agent.presence.now().Clients != 1 {
			t.Errorf("before the first message: opened %v, ready %v, %d clients; want true, false, 1", r.opened, r.ready, w.agent.presence.now().Clients)
		}
		sent := []string{
			`{"id":0,"method":"ping"}`, `{"id":"a","method":"initialize"}`, `{"method":"x"}`,
		}
		for _, m := range sent {
			r.send(m)
		}
		if got := s.messages(); !slices.Equal(got, sent) {
			t.Errorf("host got %q; want %q", got, sent)
		}
		for _, step := range []struct {
			message string
			ready   bool
		}{
			{`{"id":0,"result":null}`, false},
			{`{"id":"b","result":null}`, false},
			{`{"id":"a","error":{"code":-32005,"message":"no"}}`, false}, // the client may try initialize again
			{`{"id":"a","method":"resourceRead"}`, false},
			{`{"id":"\u0061","result":null}`, true},
			{"\xff is no message", true},
		} {
			if step.ready && !r.ready {
				r.send(sent[1])
				synctest.Wait()
			}
			s.toUs <- step.message
			synctest.Wait()
			if r.ready != step.ready {
				t.Errorf("ready = %v after the message %s; want %v", r.ready, step.message, step.ready)
			}
			if !strings.HasSuffix(r.got.String(), step.message) {
				t.Errorf("client got %q; want it to end with %q", r.got.String(), step.message)
			}
		}
		if !r.ready {
			t.Error("ready = false after the client's initialize was answered; want true")
		}
	})
}

// TestUnreadableMessageEndsTheConnection has the relay pass a client's message that is no JSON. The
// host must not get it, and the host-agent must close the connection. (A correct relay refuses such
// a message itself.)
func TestUnreadableMessageEndsTheConnection(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.open()
		s := w.hostSide()
		r.send("\xff is no message")
		if got := s.messages(); len(got) > 0 {
			t.Errorf("the host got %q; want no messages", got)
		}
		r.wantClosed(ahp.CloseBadMessage, "the relay sent an invalid message")
	})
}

// wantOpen fails if one of these clients was closed.
func (w *world) wantOpen(clients ...*remote) {
	w.Helper()
	synctest.Wait()
	for _, r := range clients {
		r.note(func() {
			if r.code != 0 {
				w.Errorf("a client was closed with %d %q; want it open", r.code, r.reason)
			}
		})
	}
}

const anyGreeting = `{"id":1,"method":"initialize","params":{"clientId":%q}}`

// TestHungHostKeepsItsClients has a host that stops answering, but closes no connection. Clients
// must stay connected, and new clients must wait until the host answers, as they would without a
// relay.
func TestHungHostKeepsItsClients(t *testing.T) {
	inWorld(t, func(w *world) {
		before := w.open()
		before.send(fmt.Sprintf(anyGreeting, "a"))
		hangs := make(chan struct{})
		w.host.set(func() { w.host.mute, w.host.hangs = true, hangs })
		time.Sleep(time.Minute)
		w.wantOpen(before)
		now := w.agent.presence.now()
		if now.State != registry.Online || now.Silent != pingTimeout.Milliseconds() {
			t.Errorf("presence = %+v; want online, and silent", now)
		}
		after := w.open()
		after.send(fmt.Sprintf(anyGreeting, "b"))
		time.Sleep(openTime - time.Second)
		w.wantOpen(before, after)
		if after.opened {
			t.Error("a client is connected to a host that hangs; want it to wait")
		}
		w.host.set(func() { w.host.mute, w.host.hangs = false, nil })
		close(hangs)
		time.Sleep(time.Hour)
		w.wantOpen(before, after)
		if got := w.hostSide().messages(); !after.opened || !slices.Equal(got, []string{fmt.Sprintf(anyGreeting, "b")}) {
			t.Errorf("the waiting client: opened %v, the host got %q; want it opened, with its greeting once", after.opened, got)
		}
		if now := w.agent.presence.now(); now.State != registry.Online || now.Silent != 0 {
			t.Errorf("presence = %+v; want online, and not silent", now)
		}
	})
	t.Run("for ever", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.host.set(func() { w.host.hangs = make(chan struct{}) })
			r := w.open()
			time.Sleep(openTime)
			r.wantClosed(ahp.CloseHostOffline, "the host does not answer")
		})
	})
	t.Run("and ends", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.host.set(func() { w.host.mute = true })
			r := w.open()
			time.Sleep(time.Minute + time.Millisecond) // no attempt to connect is made at that moment
			w.host.crash()
			r.wantClosed(ahp.CloseHostOffline, reasonEnded)
		})
	})
}

// TestUnreachableHostEndsItsClients makes the host's machine unreachable. After testResume, the
// host-agent must close the clients. A client that still gets the host's messages must stay, and
// all clients must stay if the machine answers earlier.
func TestUnreachableHostEndsItsClients(t *testing.T) {
	start := func(w *world) (silent, speaking *remote) {
		silent, speaking = w.open(), w.open()
		s := w.hostSide()
		w.running.Go(func() {
			for {
				select {
				case <-time.After(time.Second):
					s.toUs <- `{"method":"x"}`
				case <-s.closed:
					return
				}
			}
		})
		time.Sleep(time.Minute)
		return silent, speaking
	}
	t.Run("acknowledges nothing", func(t *testing.T) {
		inWorld(t, func(w *world) {
			silent, speaking := start(w)
			w.host.lose()
			time.Sleep(time.Second)
			silent.wantClosed(ahp.CloseHostOffline, reasonUnreachable)
			time.Sleep(time.Minute)
			w.wantOpen(speaking)
		})
	})
	unroutable := &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
	t.Run("has no route", func(t *testing.T) {
		inWorld(t, func(w *world) {
			silent, speaking := start(w)
			w.host.set(func() { w.host.down = unroutable })
			w.host.all()[0].end(io.EOF)
			time.Sleep(testResume)
			w.wantOpen(silent)
			time.Sleep(retryMost)
			silent.wantClosed(ahp.CloseHostOffline, reasonUnreachable)
			w.wantOpen(speaking)
		})
	})
	t.Run("for a while", func(t *testing.T) {
		inWorld(t, func(w *world) {
			silent, speaking := start(w)
			w.host.set(func() { w.host.down = unroutable })
			w.host.all()[0].end(io.EOF)
			time.Sleep(testResume - 2*retryMost)
			w.host.set(func() { w.host.down = errRefused }) // the machine answers that no program listens
			time.Sleep(time.Hour)
			w.wantOpen(silent, speaking)
		})
	})
}

// TestEachEndOfAHostHasItsCode ends the host's connections in different ways, and lists the close
// code that the client must get for each.
func TestEachEndOfAHostHasItsCode(t *testing.T) {
	lost := fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
	t.Run("it alone", func(t *testing.T) {
		inWorld(t, func(w *world) {
			r, other := w.open(), w.open()
			w.host.all()[1].end(websocket.CloseError{Code: 1013, Reason: "too slow"})
			r.wantClosed(ahp.CloseResync, "the host closed this connection (1013 too slow)")
			w.host.all()[2].end(lost)
			other.wantClosed(ahp.CloseResync, "the host closed this connection")
		})
	})
	t.Run("crash", func(t *testing.T) {
		inWorld(t, func(w *world) {
			r := w.open()
			w.host.crash()
			synctest.Wait()
			if r.code != ahp.CloseHostOffline || r.reason == "" {
				t.Errorf("the connection was closed with %d %q; want 4100 and a reason", r.code, r.reason)
			}
		})
	})
	t.Run("hang", func(t *testing.T) {
		inWorld(t, func(w *world) {
			r := w.open()
			w.host.set(func() { w.host.mute = true })
			w.hostSide().end(lost)
			time.Sleep(aliveWithin)
			r.wantClosed(ahp.CloseResync, "the host closed this connection")
		})
	})
	t.Run("too much", func(t *testing.T) {
		inWorld(t, func(w *world) {
			r := w.open()
			w.hostSide().end(fmt.Errorf("%w: a line", errTooBig))
			r.wantClosed(ahp.CloseMessageTooBig, "from the host, more than 1048576 bytes")
		})
	})
	t.Run("nobody there", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.host.set(func() { w.host.down = errRefused })
			r := w.open()
			r.wantClosed(ahp.CloseHostOffline, reasonNobody)
			if r.opened || w.agent.presence.now().Clients != 0 {
				t.Errorf("after the refusal: opened %v, %d clients; want false, 0", r.opened, w.agent.presence.now().Clients)
			}
		})
	})
}

// TestSlowClientHoldsItsHostBack has a client that accepts no messages. The host-agent must stop
// reading this client's connection to the host, but the client's own requests and their refusals
// must continue. If the client accepts messages within 40 s, it must get all of them. Otherwise the
// host-agent must close the client and its connection to the host.
func TestSlowClientHoldsItsHostBack(t *testing.T) {
	for _, comesBack := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.host.set(func() { w.host.answers = nil })
			r := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "read"}) // returns no credit
			s := w.hostSide()
			const messages, size = 18, 1 << 20
			message := strings.Repeat("x", size)
			for range messages {
				s.toUs <- message
			}
			synctest.Wait()
			if left := len(s.toUs); left < messages-12 || left > messages-8 {
				t.Errorf("%d of %d messages are unread; want all but about ten", left, messages)
			}
			r.send(`{"id":7,"method":"ping","params":{"channel":"ahp-root://"}}`)
			r.send(`{"id":8,"method":"disposeSession","params":{"channel":"ahp-session:/1"}}`)
			if got := s.messages(); len(got) != 1 || !strings.Contains(got[0], "ping") {
				t.Errorf("the host got %q; want only the ping", got)
			}
			time.Sleep(39 * time.Second)
			r.wantClosed(0, "")
			if comesBack {
				for range 10 * messages {
					r.conn.Written(1 << 18)
					synctest.Wait()
				}
				if n := strings.Count(r.got.String(), "x"); n != messages*size || !strings.Contains(r.got.String(), "-32009") {
					t.Errorf("client got %d bytes; want %d, and the refusal", n, messages*size)
				}
				time.Sleep(time.Minute)
				r.wantClosed(0, "")
				return
			}
			time.Sleep(2 * time.Second)
			r.wantClosed(ahp.CloseOverloaded, "slow consumer: accepts no data")
			if !s.isClosed() {
				t.Error("the connection to the host is open after the slow client was closed; want it closed")
			}
		})
	}
}

// TestRefusalsAreBounded has a client that sends forbidden requests and reads no answers. When the
// answers fill their bound, the host-agent must stop accepting requests, and later close the
// client.
func TestRefusalsAreBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "read"})
		s := w.hostSide()
		request := `{"id":"` + strings.Repeat("i", 500<<10) + `","method":"disposeSession","params":{"channel":"ahp-session:/1"}}`
		ctx, cancel := context.WithTimeout(context.Background(), 39*time.Second)
		defer cancel()
		sent := 0
		for ; sent < 200 && r.conn.Send(ctx, []byte(request)) == nil; sent++ {
			synctest.Wait()
		}
		if sent < 30 || sent > 60 {
			t.Errorf("the host-agent accepted %d requests of 500 KiB; want 30 to 60", sent)
		}
		r.wantClosed(0, "")
		time.Sleep(3 * time.Second)
		r.wantClosed(ahp.CloseOverloaded, "slow consumer: accepts no data")
		if !s.isClosed() || len(s.messages()) > 0 {
			t.Errorf("the connection to the host is open: %v, and it got %d messages; want it closed, and 0", !s.isClosed(), len(s.messages()))
		}
	})
}

// TestLastMessagesReachTheHost has a client that sends messages to a busy host and leaves. The host
// must get all of them when it reads again.
func TestLastMessagesReachTheHost(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.open()
		s := w.hostSide()
		gate := make(chan struct{})
		w.host.set(func() { w.host.gate = gate }) // the host reads nothing
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprintf(`{"method":"m%d"}`, i))
			if err := r.conn.Send(context.Background(), []byte(want[i])); err != nil {
				t.Fatal(err)
			}
		}
		r.conn.Close(1000, "done")
		synctest.Wait()
		s.toUs <- `{"method":"for nobody"}`
		synctest.Wait()
		close(gate)
		if got := s.messages(); !slices.Equal(got, want) {
			t.Errorf("host got %d messages; want %d", len(got), len(want))
		}
		if !s.isClosed() || w.agent.presence.now().Clients != 0 {
			t.Errorf("the connection to the host is closed: %v, and %d clients are counted; want true, 0", s.isClosed(), w.agent.presence.now().Clients)
		}
	})
}

// TestClientLeavesHungHost has a client that leaves while the host reads nothing. The host-agent
// must close the connection to the host after leaveTime.
func TestClientLeavesHungHost(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.open()
		s := w.hostSide()
		w.host.set(func() { w.host.gate = make(chan struct{}) })
		r.send(`{"method":"x"}`)
		r.send(`{"method":"y"}`)
		r.conn.Close(1000, "done")
		time.Sleep(leaveTime - time.Second)
		if s.isClosed() {
			t.Error("the connection to the host was closed before leaveTime; want it open until then")
		}
		time.Sleep(time.Second)
		if !s.isClosed() || w.agent.presence.now().Clients != 0 {
			t.Errorf("the connection to the host is closed: %v, and %d clients are counted; want true, 0", s.isClosed(), w.agent.presence.now().Clients)
		}
	})
}

// TestStopWithHungHost stops a host-agent while its host reads nothing. That must take at most 1 s.
func TestStopWithHungHost(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.open()
		w.host.set(func() { w.host.gate = make(chan struct{}) })
		r.send(`{"method":"x"}`)
		began := time.Now()
		w.stop()
		w.agent.conns.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("stopping with a hung host took %v; want at most 1 s", took)
		}
	})
}

// TestClientsAreCounted opens connections and ends them in each possible way. The host-agent's
// count of clients must always match.
func TestClientsAreCounted(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 20 {
			a, b, c := w.open(), w.open(), w.open()
			if n := w.agent.presence.now().Clients; n != 3 {
				t.Fatalf("round %d: %d clients; want 3", i, n)
			}
			a.conn.Close(1000, "")
			socks := w.host.all()
			socks[len(socks)-2].end(io.EOF)
			synctest.Wait()
			w.host.set(func() { w.host.down = io.EOF })
			w.open()
			w.host.set(func() { w.host.down = nil })
			c.conn.Close(1000, "")
			b.conn.Close(1000, "")
			time.Sleep(endWithin) // the host-agent waits for the monitor before it closes the client
			synctest.Wait()
			if n := w.agent.presence.now().Clients; n != 0 {
				t.Fatalf("round %d: %d clients; want none", i, n)
			}
		}
	})
}

// TestClientComesAgain opens connections with a clientId that is in use. The host-agent must probe
// the earlier open connections with this clientId, and no others.
func TestClientComesAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.host.set(func() { w.host.answers = nil })
		greet := func(r *remote, method, id string) {
			r.send(fmt.Sprintf(`{"id":1,"method":%q,"params":{"clientId":%q}}`, method, id))
		}
		want := func(probes ...int) {
			t.Helper()
			for i, r := range w.remotes {
				if r.probes != probes[i] {
					t.Errorf("relays probed the connection %d %d times; want %d", i, r.probes, probes[i])
				}
			}
		}
		first, other, gone := w.open(), w.open(), w.open()
		greet(first, "initialize", "phone")
		greet(other, "initialize", "laptop")
		greet(gone, "initialize", "phone")
		want(1, 0, 0)
		gone.conn.Close(1000, "")
		synctest.Wait()
		again := w.open()
		greet(again, "reconnect", "phone")
		want(2, 0, 0, 0)
		greet(first, "initialize", "laptop") // the host has not accepted this client yet
		want(2, 1, 0, 0)
		nameless := w.open()
		nameless.send(`{"id":1,"method":"initialize","params":{}}`)
		nameless.send(`{"id":1,"method":"initialize","params":{"clientId":7}}`)
		nameless.send(`{"id":1,"method":"resourceRead","params":{"clientId":"phone"}}`)
		greet(w.open(), "initialize", "phone")
		want(2, 1, 0, 1, 0, 0)
		for range 2 * maxProbed {
			greet(w.open(), "initialize", "phone")
		}
		if again.probes != maxProbed {
			t.Errorf("the connection was probed %d times; want once for each of the next %d connections", again.probes, maxProbed)
		}
		for _, r := range w.remotes {
			r.conn.Close(1000, "")
		}
		synctest.Wait()
		if n := len(w.agent.clients.byID); n != 0 {
			t.Errorf("%d clientIds are remembered after all clients have left; want 0", n)
		}
	})
}

// TestFlushIsConfirmedBehindEarlierMessages asks for a flush while a slow host has not read two
// messages. The relay must get Flushed only after the host has read both.
func TestFlushIsConfirmedBehindEarlierMessages(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.open()
		gate := make(chan struct{})
		w.host.set(func() { w.host.gate = gate })
		r.send(`{"method":"x"}`)
		r.send(`{"method":"y"}`)
		r.conn.Flush()
		time.Sleep(time.Minute)
		if r.flushed {
			t.Error("the flush was confirmed before the host got the messages; want it after them")
		}
		close(gate)
		synctest.Wait()
		if !r.flushed || len(w.hostSide().messages()) != 2 {
			t.Errorf("flushed %v, %d messages at the host; want true, 2", r.flushed, len(w.hostSide().messages()))
		}
	})
}

// TestMessagesThatArriveTogetherLeaveTogether has the host send 16 messages to a client at once.
// The messages must reach the relay in order, in at most eight packets.
func TestMessagesThatArriveTogetherLeaveTogether(t *testing.T) {
	inWorld(t, func(w *world) {
		want := ""
		w.host.mu.Lock()
		for i := range 16 {
			message := fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","serverSeq":%d}}`, i)
			if i == 7 {
				message = `{"jsonrpc":"2.0","id":1,"method":"ping"}` // a request, which no other client gets
			}
			want += message
			w.host.early = append(w.host.early, message)
		}
		w.host.mu.Unlock()
		packets := 0
		w.bus.Lose(func(subject string) bool {
			if strings.HasSuffix(subject, ".up") {
				packets++ // a call of Lose's function holds the lock of the bus
			}
			return false
		})
		r := w.open()
		w.bus.Lose(nil)
		r.note(func() {
			if r.got.String() != want {
				t.Errorf("the client got %s; want %s", r.got.String(), want)
			}
		})
		if packets > len(w.host.early)/2 { // packets may also carry the open record or acknowledgements
			t.Errorf("%d packets carried %d messages; want several messages in a packet", packets, len(w.host.early))
		}
	})
}
