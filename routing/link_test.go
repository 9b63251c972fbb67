package routing_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
	"ahprelay/routing"
)

// A world is a host, a host-agent, relays and their clients, over an in-memory network and on fake
// time.
type world struct {
	net   *memoryNet
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
	links []*link.RelayLink

	agent  *routing.AgentEnd
	relays []*routing.RelayEnd

	mu    sync.Mutex
	hosts map[string]*hostConn // by connection id
	next  int
}

func newWorld(relays int, agentCfg routing.AgentEndConfig) *world {
	return newWorldWith(relays, agentCfg, routing.RelayEndConfig{})
}

func newWorldWith(relays int, agentCfg routing.AgentEndConfig, relayCfg routing.RelayEndConfig) *world {
	hellos := make([]func(*link.Hello), relays)
	for i := range hellos {
		hellos[i] = func(*link.Hello) {}
	}
	return newWorldOf(hellos, agentCfg, relayCfg)
}

// newWorldOf returns a world with a relay for each function in hellos. The function changes the
// Hello with which its relay opens the link.
func newWorldOf(hellos []func(*link.Hello), agentCfg routing.AgentEndConfig, relayCfg routing.RelayEndConfig) *world {
	relayCfg.Agent, relayCfg.Encode = "agent1", encode
	ctx, stop := context.WithCancel(context.Background())
	w := &world{net: &memoryNet{sent: map[string]int{}}, ctx: ctx, stop: stop, hosts: map[string]*hostConn{}}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	agentCfg.Instance = "agent1"
	if agentCfg.Connect == nil {
		agentCfg.Connect = w.connect
	}
	w.agent = routing.NewAgentEnd(agentCfg)
	links := link.NewAgentLinks(w.net.bus(ctx, "agent"), link.AgentLinksConfig{
		Tenant: "t", Host: "h", Agent: "agent1", Hello: w.agent.Hello(), Log: log,
	}, w.agent)
	w.wg.Go(func() { _ = links.Run(ctx) })
	for i, change := range hellos {
		relay := routing.NewRelayEnd(relayCfg)
		hello := relay.Hello()
		change(&hello)
		up := make(chan struct{})
		link := link.NewRelayLink(w.net.bus(ctx, fmt.Sprint("relay", i)), link.RelayLinkConfig{
			Tenant: "t", Host: "h", Agent: "agent1", Relay: fmt.Sprint("relay", i), Hello: hello, Log: log,
		}, func(answer link.Hello, lines link.RelayLines) link.RelayTraffic {
			relay.Start(answer, lines)
			close(up)
			return relay
		})
		w.wg.Go(func() { _ = link.Run(ctx) })
		<-up
		w.relays, w.links = append(w.relays, relay), append(w.links, link)
	}
	return w
}

// end stops the world and waits for its goroutines.
func (w *world) end() {
	w.stop()
	w.wg.Wait()
	w.net.wg.Wait()
}

// encode prefixes a piece with its flags and length, so that clients can reassemble messages.
func encode(piece []byte, first, last, isBinary bool) []byte {
	flags := byte(0)
	for i, f := range []bool{first, last, isBinary} {
		if f {
			flags |= 1 << i
		}
	}
	return append(binary.AppendUvarint([]byte{flags}, uint64(len(piece))), piece...)
}

// pieces calls f with each encoded piece in data.
func pieces(data []byte, f func(flags byte, piece []byte)) {
	for len(data) > 0 {
		flags := data[0]
		size, n := binary.Uvarint(data[1:])
		data = data[1+n:]
		f(flags, data[:size])
		data = data[size:]
	}
}

// joined returns the message that consists of the given pieces. Growing a large message piece by
// piece would copy it several times.
func joined(pieces [][]byte) []byte {
	if len(pieces) == 1 {
		return pieces[0]
	}
	return bytes.Join(pieces, nil)
}

// A hostConn is the host's end of a connection. It records the messages.
type hostConn struct {
	conn *routing.AgentConn

	mu     sync.Mutex
	got    [][]byte
	sent   [][]byte
	closed bool

	flushes []int // number of messages received before each flush
	stuck   bool  // the host reads nothing
	untaken int   // credit that is not yet returned
}

func (w *world) connect(conn *routing.AgentConn, open routing.Open) routing.HostConn {
	h := &hostConn{conn: conn}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[open.ID] = h
	w.wg.Go(func() { _ = conn.Opened() })
	return h
}

func (h *hostConn) Deliver(message []byte, _ bool, credit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, message)
	if h.stuck {
		h.untaken += credit
		return
	}
	go h.conn.Written(credit)
}

func (h *hostConn) Flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flushes = append(h.flushes, len(h.got))
	go h.conn.Flushed(false)
}

func (h *hostConn) Closed(ahp.CloseCode, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

func (h *hostConn) send(message []byte, binary bool, channel string) error {
	var uri []byte
	if channel != "" {
		uri = []byte(channel)
	}
	err := h.conn.FromHost(message, binary, uri)
	if err == nil {
		h.mu.Lock()
		h.sent = append(h.sent, message)
		h.mu.Unlock()
	}
	return err
}

// A clientConn is a client at a relay. It records the messages.
type clientConn struct {
	conn *routing.RelayConn
	host *hostConn
	sent [][]byte

	mu      sync.Mutex
	opened  chan struct{}
	partial [][]byte // pieces of an incomplete message
	got     [][]byte
	code    ahp.CloseCode
	stalled bool  // the client returns no credit
	untaken int   // credit that is not yet returned
	flushed []int // number of messages received before each Flushed event

	probed atomic.Int32 // number of Probe events
}

func (w *world) dial(relay int) *clientConn {
	w.next++
	id := fmt.Sprint("c", w.next)
	c := &clientConn{opened: make(chan struct{})}
	c.mu.Lock()
	conn, err := w.relays[relay].Open(routing.Open{ID: id, Subject: "ada"}, c)
	c.conn = conn
	c.mu.Unlock()
	if err != nil {
		panic(err)
	}
	<-c.opened
	w.mu.Lock()
	defer w.mu.Unlock()
	c.host = w.hosts[id]
	return c
}

func (c *clientConn) Event(e routing.Event) {
	switch e {
	case routing.Opened:
		close(c.opened)
	case routing.Probe:
		c.probed.Add(1)
	case routing.Flushed:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flushed = append(c.flushed, len(c.got))
	}
}

func (c *clientConn) Deliver(frames []routing.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range frames {
		pieces(f.Data, func(flags byte, piece []byte) {
			if flags&1 != 0 {
				c.partial = nil
			}
			c.partial = append(c.partial, piece)
			if flags&2 != 0 {
				c.got = append(c.got, joined(c.partial))
				c.partial = nil
			}
		})
		if c.stalled {
			c.untaken += f.Credit
		} else if f.Credit > 0 {
			go c.conn.Written(f.Credit)
		}
	}
}

func (c *clientConn) Closed(code ahp.CloseCode, _ string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.code = code
}

type fataler interface{ Fatalf(string, ...any) }

// wantSame fails unless two lists of messages are equal.
func wantSame(t fataler, who string, got, want [][]byte) {
	for i := range min(len(got), len(want)) {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("%s: message %d = %.60q; want %.60q", who, i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%s: got %d messages; want %d", who, len(got), len(want))
	}
}

func (c *clientConn) wantAll(t fataler, who string) {
	// No lock is held when a check fails: the world's end would wait for it forever.
	c.mu.Lock()
	got, code := c.got, c.code
	c.mu.Unlock()
	wantSame(t, who+" at the client", got, c.host.sent)
	if code != 0 {
		t.Fatalf("the client of %s was closed with %d; want it open", who, code)
	}
	c.host.mu.Lock()
	got = c.host.got
	c.host.mu.Unlock()
	wantSame(t, who+" at the host", got, c.sent)
}

func inBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func TestSharedFramesCrossOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(1, routing.AgentEndConfig{})
		defer w.end()
		var clients []*clientConn
		for range 50 {
			clients = append(clients, w.dial(0))
		}
		w.net.mu.Lock()
		before := w.net.sent["agent"]
		w.net.mu.Unlock()
		for i := range 500 {
			frame := bytes.Repeat([]byte{'x'}, 1024)
			copy(frame, fmt.Sprint(i))
			for _, c := range clients {
				if err := c.host.send(frame, false, "ahp-chat:/1"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * time.Millisecond)
		}
		time.Sleep(time.Second)
		for i, c := range clients {
			c.wantAll(t, fmt.Sprint("client ", i))
		}
		w.net.mu.Lock()
		defer w.net.mu.Unlock()
		if got, limit := w.net.sent["agent"]-before, 650_000; got > limit {
			t.Errorf("host-agent sent %d bytes; want at most %d", got, limit)
		} else {
			t.Logf("host-agent sent %d bytes", got)
		}
	})
}
