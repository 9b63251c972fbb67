package connect_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/auth"
	"ahprelay/broker/resume"
	"ahprelay/gateway"
	"ahprelay/internal/connect"
	"ahprelay/test/faultproxy"
	"ahprelay/test/locked"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// newMovable returns a journey with a relay that restarts at the same address.
func newMovable(t *testing.T) *journey {
	t.Helper()
	address, err := faultproxy.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return newJourneyAt(t, gateway.RelayConfig{Listen: address})
}

// restart restarts the relay gracefully, and returns when the new relay runs.
func (j *journey) restart(t *testing.T) {
	t.Helper()
	if err := j.RestartRelay(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestRestartIsInvisible restarts the relay twice while the host sends 160 actions a second and the
// client up to 1000 messages a second. The client's connection must stay open. No frame may be
// lost, repeated or changed in either direction, and the host must see a single connection.
func TestRestartIsInvisible(t *testing.T) {
	t.Parallel()
	j := newMovable(t)
	j.stream(t, "t1", 1000, 6, 512)
	stop := make(chan struct{})
	typed := make(chan int)
	go func() {
		n := 0
		defer func() { typed <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := j.client.Dispatch(j.chat, map[string]any{"type": "chat/draftChanged", "n": n}); err != nil {
				t.Errorf("dispatching message %d: %v; want no error", n, err)
				return
			}
			n++
			time.Sleep(time.Millisecond)
		}
	}()
	j.restart(t)
	j.restart(t)
	close(stop)
	n := <-typed
	j.awaitTurn(t, "t1")
	if _, err := j.client.Call(t.Context(), "listSessions", map[string]any{"channel": "ahp-root://"}); err != nil { // its answer comes last
		t.Fatal(err)
	}
	j.same(t)
	j.stillOpen(t)
	seen := 0
	for _, frame := range j.Tap.Conns()[0].ToHost() {
		if bytes.Contains(frame, []byte("chat/draftChanged")) {
			if !bytes.Contains(frame, fmt.Appendf(nil, `"n":%d,`, seen)) {
				t.Fatalf("the host received %s; want message %d", frame, seen)
			}
			seen++
		}
	}
	if seen != n {
		t.Errorf("the host received %d messages; want the %d that the client sent", seen, n)
	}
}

// TestRestartIsInvisibleToViewersOfALink restarts the relay twice while a link's viewer receives
// 1000 deltas. The viewer's connection must stay open, and it must receive all deltas.
func TestRestartIsInvisibleToViewersOfALink(t *testing.T) {
	t.Parallel()
	j := newMovable(t)
	j.writeToken(t, func(c *auth.Client) { c.Subject, c.Audience, c.Access = "eve", "a look link", auth.AccessRead })
	j.serve(t, connect.NewRelays(connect.NewRelay("http://"+j.gate.Addr(), connect.FileTokens(j.file))), nil)
	actor := j.client
	var err error
	if j.client, err = j.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: j.token(t, "viewer"), TokenIn: refclient.InTkn}); err != nil {
		t.Fatal(err)
	}
	initialize(t, j.client, "viewer")
	if _, err := j.client.Subscribe(t.Context(), j.chat); err != nil {
		t.Fatal(err)
	}
	if _, err := actor.Dispatch(j.chat, map[string]any{
		"type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-01-01T00:00:00Z",
		"message": map[string]any{"text": "stream 1000 2 512", "origin": map[string]any{"kind": "user"}},
	}); err != nil {
		t.Fatal(err)
	}
	j.restart(t)
	j.restart(t)
	j.awaitTurn(t, "t1")
	j.stillOpen(t)
	deltas := 0
	for _, frame := range j.client.Frames() {
		if bytes.Contains(frame, []byte(`"chat/delta"`)) {
			deltas++
		}
	}
	if deltas != 1000 {
		t.Errorf("the viewer received %d deltas; want 1000", deltas)
	}
}

// TestRandomFaultsBetweenRestartsLoseNothing restarts the relay and interrupts the network in
// random order while the host streams. The client's connection must stay open, with all frames.
func TestRandomFaultsBetweenRestartsLoseNothing(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			dice := rand.New(rand.NewPCG(seed, 0))
			j := newMovable(t)
			j.stream(t, "t1", 900, 8, 512)
			for range 4 {
				time.Sleep(time.Duration(dice.IntN(300)) * time.Millisecond)
				fault := dice.IntN(4)
				t.Log("fault ", fault)
				switch fault {
				case 0:
					j.gate.Cut()
					time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond)
				case 1:
					j.gate.Freeze()
					time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond)
				case 2:
					j.gate.FreezeOpen()
				}
				if err := j.gate.Heal(); err != nil {
					t.Fatal(err)
				}
				j.awaitMetric(t, "ahp_relay_clients_away 0\n")
				if fault == 3 {
					j.restart(t)
				}
			}
			j.restart(t)
			j.awaitTurn(t, "t1")
			j.same(t)
			j.stillOpen(t)
		})
	}
}

// TestLongRestartHoldsTheHostBack stops the relay until the host has sent more than the host-agent
// keeps. The host-agent must stop reading from the host, so that no frame is lost.
func TestLongRestartHoldsTheHostBack(t *testing.T) {
	t.Parallel()
	j := newMovable(t)
	j.stream(t, "t1", 250, 1, 60_000)
	before := j.sent()
	j.StopRelay(t.Context())
	natssite.Eventually(t, "the host has sent more than the host-agent keeps", func() bool { return j.sent()-before > resume.DefaultWindow+1<<20 })
	if err := j.StartRelay(t.Context()); err != nil {
		t.Fatal(err)
	}
	j.awaitTurn(t, "t1")
	j.same(t)
	j.stillOpen(t)
}

// sent returns how many bytes the host has sent on the client's connections.
func (j *journey) sent() (bytes int) {
	for _, c := range j.hostConns() {
		for _, frame := range c.ToClient() {
			bytes += len(frame)
		}
	}
	return bytes
}

// TestRestartWithoutTheClientIsSeenOnce restarts the relay while the client is unreachable. Nobody
// then knows which frames the client has received. Its connection must therefore close with 1012,
// and the host's connection end.
func TestRestartWithoutTheClientIsSeenOnce(t *testing.T) {
	t.Parallel()
	j := newMovable(t)
	j.stream(t, "t1", 500, 6, 512)
	j.gate.Cut()
	j.restart(t)
	if err := j.gate.Heal(); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the connection ends", j.client.Done())
	if code, reason := j.client.CloseStatus(); code != 1012 {
		t.Errorf("the connection was closed with %d %q; want 1012", code, reason)
	}
	natssite.Eventually(t, "the host-agent keeps nothing", func() bool { return j.Tap.Conns()[0].Ended() })
}

// TestRestartDuringAnInterruptionIsInvisible interrupts the network for a second while the relay
// stops. The client's connection must stay open, with all frames.
func TestRestartDuringAnInterruptionIsInvisible(t *testing.T) {
	t.Parallel()
	j := newMovable(t)
	j.stream(t, "t1", 500, 6, 512)
	j.gate.Cut()
	restarted := make(chan error, 1)
	go func() { restarted <- j.RestartRelay(t.Context()) }()
	time.Sleep(time.Second)
	if err := j.gate.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := natssite.Next(t, "the relay has restarted", restarted); err != nil {
		t.Fatal(err)
	}
	j.awaitTurn(t, "t1")
	j.same(t)
	j.stillOpen(t)
}

// TestTicketIsForOnePerson restarts the relay, so that the host-agent keeps a client's connection
// for a ticket. A different person, a lower level and a different device must be refused with 1012.
// The client itself must continue with the ticket, and only once.
func TestTicketIsForOnePerson(t *testing.T) {
	t.Parallel()
	j := newMovable(t)
	c, err := refclient.Dial(t.Context(), j.URL(stack.Host), j.withTicket(t, nil, resume.MoveHeader))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	initialize(t, c, "mover")
	j.restart(t)
	natssite.Next(t, "the connection ends", c.Done())
	if code, reason := c.CloseStatus(); code != 1001 || reason != resume.MoveReason {
		t.Fatalf("the connection was closed with %d %q; want 1001 with the word that it may move", code, reason)
	}
	if err := j.AwaitState(t.Context(), "online"); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*auth.Client){
		"a different person": func(c *auth.Client) { c.Subject = "eve" },
		"a lower level":      func(c *auth.Client) { c.Access = auth.AccessRead },
		"a different device": func(c *auth.Client) { c.Device = "d2" },
	} {
		thief, err := refclient.Dial(t.Context(), j.URL(stack.Host), j.withTicket(t, change, resume.MovedHeader))
		if err != nil {
			t.Fatal(err)
		}
		natssite.Next(t, name+" is refused", thief.Done())
		if code, _ := thief.CloseStatus(); code != 1012 || len(thief.Frames()) > 0 {
			t.Errorf("a connection with the ticket and %s was closed with %d, after %d frames; want 1012 and no frame", name, code, len(thief.Frames()))
		}
		_ = thief.Close()
	}
	again, err := refclient.Dial(t.Context(), j.URL(stack.Host), j.withTicket(t, nil, resume.MovedHeader))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Call(t.Context(), "listSessions", map[string]any{"channel": "ahp-root://"}); err != nil {
		t.Errorf("a call on the moved connection: %v; want an answer", err)
	}
	twice, err := refclient.Dial(t.Context(), j.URL(stack.Host), j.withTicket(t, nil, resume.MovedHeader))
	if err != nil {
		t.Fatal(err)
	}
	defer twice.Close()
	natssite.Next(t, "a used ticket is refused", twice.Done())
}

// withTicket returns options with a fixed ticket in the given header, and a token that change may
// change.
func (j *journey) withTicket(t *testing.T, change func(*auth.Client), header string) refclient.Options {
	t.Helper()
	token, err := j.Token(change)
	if err != nil {
		t.Fatal(err)
	}
	return refclient.Options{Token: token, Header: http.Header{header: {"0123456789abcdef"}}}
}

// A stoppingRelay closes its first connection with resume.MoveReason as soon as a message begins to
// arrive, and reads no further. Its second connection continues the first.
type stoppingRelay struct {
	begun chan struct{} // closed once a message has begun to arrive
	whole chan []byte   // messages on the second connection
	over  chan struct{} // closed at the test's end
}

// ServeHTTP implements [http.Handler].
func (s *stoppingRelay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == resume.Path:
		http.NotFound(w, r)
	case r.Header.Get(resume.MovedHeader) == "":
		raw := &rawHijacker{ResponseWriter: w}
		if _, err := websocket.Accept(raw, r, nil); err != nil {
			return
		}
		defer func() { _ = raw.conn.Close() }()
		if _, err := io.ReadFull(raw.conn, make([]byte, 1000)); err != nil {
			return
		}
		_, _ = raw.conn.Write(append([]byte{0x88, byte(2 + len(resume.MoveReason)), 1001 >> 8, 1001 & 0xff}, resume.MoveReason...))
		close(s.begun)
		<-s.over
	default:
		w.Header().Set(resume.MovedHeader, "yes")
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = ws.CloseNow() }()
		ws.SetReadLimit(-1)
		for {
			_, message, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			s.whole <- message
		}
	}
}

// A rawHijacker keeps the network connection of a WebSocket.
type rawHijacker struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack implements [http.Hijacker].
func (h *rawHijacker) Hijack() (_ net.Conn, rw *bufio.ReadWriter, err error) {
	h.conn, rw, err = http.NewResponseController(h.ResponseWriter).Hijack()
	return h.conn, rw, err
}

// TestMessageCutByARestartIsSentAgain lets a relay close its connection in the middle of a large
// message, with the reason that it may move. On the next connection, ahp-connect must send the
// whole message once, and then the message after it.
func TestMessageCutByARestartIsSentAgain(t *testing.T) {
	t.Parallel()
	s := &stoppingRelay{begun: make(chan struct{}), whole: make(chan []byte, 10), over: make(chan struct{})}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.over)
		server.Close()
	})
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("any"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{tokens: connect.NewTokens(filepath.Join(t.TempDir(), "tokens.json")), log: &locked.Buffer{}}
	w.serve(t, connect.NewRelays(connect.NewRelay(server.URL, connect.FileTokens(file))), nil)
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	// larger than the socket buffers of both ends: the sender's grows to 4 MiB, and the relay's
	// stays small because the relay does not read
	cut := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"cut","params":{"text":"%s"}}`, strings.Repeat("0123456789abcdef", 1<<19))
	next := []byte(`{"jsonrpc":"2.0","method":"next","params":{}}`)
	sent := make(chan error, 1)
	go func() { sent <- errors.Join(c.SendRaw(cut), c.SendRaw(next)) }()
	natssite.Next(t, "the message has begun", s.begun)
	for i, want := range [][]byte{cut, next} {
		if got := natssite.Next(t, "the next relay receives a message", s.whole); !bytes.Equal(got, want) {
			t.Fatalf("message %d at the next relay has %d bytes and begins with %.80q; want %d bytes", i, len(got), got, len(want))
		}
	}
	if err := natssite.Next(t, "both messages are sent", sent); err != nil {
		t.Error(err)
	}
}

// TestRevocationEmptiesWhatIsKept restarts the relay, so that the host-agent keeps a client's
// connection to the host. It then revokes the person, the token, the device, or the token from
// which it stems. The kept connection to the host must end.
func TestRevocationEmptiesWhatIsKept(t *testing.T) {
	t.Parallel()
	for name, rev := range map[string]auth.Revocation{
		"the person": {Tenant: stack.Tenant, Subject: "ada"},
		"the token":  {Token: "t1"},
		"the device": {Token: "d1"},
		"its origin": {Token: "o1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newMovable(t)
			c, err := refclient.Dial(t.Context(), j.URL(stack.Host), j.withTicket(t, func(c *auth.Client) {
				c.ID, c.Device, c.Origins = "t1", "d1", []auth.Origin{{ID: "o1", Subject: "eve", Issued: time.Now().Unix()}}
			}, resume.MoveHeader))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			initialize(t, c, "mover")
			j.restart(t)
			natssite.Next(t, "the connection ends", c.Done())
			if err := j.AwaitState(t.Context(), "online"); err != nil {
				t.Fatal(err)
			}
			host := j.Tap.Conns()[1]
			if host.Ended() {
				t.Fatal("the host-agent has not kept the connection to the host; want it open")
			}
			rev.At, rev.Until = time.Now().UTC().Add(time.Second), time.Now().Add(time.Hour)
			if err := j.Relay.Revocations().Add(rev.Spanning()); err != nil {
				t.Fatal(err)
			}
			natssite.Eventually(t, "the connection to the host has ended", host.Ended)
		})
	}
}
