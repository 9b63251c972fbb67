package connect_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"ahprelay/broker/resume"
	"ahprelay/internal/connect"
	"ahprelay/test/locked"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// marker is part of packets that the hostile relay makes up. No log may contain it.
const marker = "MARKER-OF-A-HOSTILE-RELAY"

// A hostileRelay is a server in front of a real relay. It carries packets between ahp-connect and
// the relay, and passes each packet from the relay through change.
type hostileRelay struct {
	real   string
	change func(h *hostileRelay, carrier, packet int, bytes []byte) [][]byte

	mu       sync.Mutex // guards the fields below
	carriers int
	recorded [][]byte // packets from the relay on the first WebSocket
}

// ServeHTTP implements [http.Handler].
func (h *hostileRelay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != resume.Path {
		to, _ := url.Parse(h.real)
		httputil.NewSingleHostReverseProxy(to).ServeHTTP(w, r)
		return
	}
	names := []string{resume.Subprotocol}
	out, _, err := websocket.Dial(r.Context(), "ws"+strings.TrimPrefix(h.real, "http")+resume.Path, &websocket.DialOptions{
		Subprotocols: names, HTTPHeader: http.Header{"Authorization": r.Header["Authorization"]},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = out.CloseNow() }()
	in, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: names})
	if err != nil {
		return
	}
	defer func() { _ = in.CloseNow() }()
	h.mu.Lock()
	h.carriers++
	carrier := h.carriers
	h.mu.Unlock()
	in.SetReadLimit(-1)
	out.SetReadLimit(-1)
	go func() {
		defer func() { _ = out.CloseNow() }()
		carry(r.Context(), in, out, func(_ int, b []byte) [][]byte { return [][]byte{b} })
	}()
	carry(r.Context(), out, in, func(n int, b []byte) [][]byte {
		h.mu.Lock()
		defer h.mu.Unlock()
		if carrier == 1 {
			h.recorded = append(h.recorded, slices.Clone(b))
		}
		return h.change(h, carrier, n, b)
	})
}

// carry passes packets from one WebSocket to the other until either ends. The function change
// returns what to send for each packet.
func carry(ctx context.Context, from, to *websocket.Conn, change func(n int, packet []byte) [][]byte) {
	for n := 0; ; n++ {
		_, packet, err := from.Read(ctx)
		if err != nil {
			return
		}
		for _, b := range change(n, packet) {
			if to.Write(ctx, websocket.MessageBinary, b) != nil {
				return
			}
		}
	}
}

// seen returns how many WebSockets ahp-connect has opened.
func (h *hostileRelay) seen() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.carriers
}

// behindHostile starts an endpoint whose relay is a hostileRelay with the given function change.
func behindHostile(t *testing.T, base *world, change func(*hostileRelay, int, int, []byte) [][]byte) (*world, *hostileRelay) {
	t.Helper()
	h := &hostileRelay{real: base.Relay.URL(), change: change}
	server, err := stack.Serve(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	w := &world{Stack: base.Stack, tokens: base.tokens, log: &locked.Buffer{}, file: base.file}
	w.serve(t, connect.NewRelays(connect.NewRelay("http"+strings.TrimPrefix(server.URL(), "ws"), connect.FileTokens(base.file))), nil)
	return w, h
}

// TestReplayedPacketsCountOnce sends each packet twice, followed by all earlier packets. The client
// must receive each of the host's frames only once.
func TestReplayedPacketsCountOnce(t *testing.T) {
	base := newWorld(t, nil)
	w, _ := behindHostile(t, base, func(h *hostileRelay, _, n int, packet []byte) [][]byte {
		if n == 0 { // the first packet, which opens the stream
			return [][]byte{packet}
		}
		return append([][]byte{packet, packet}, h.recorded[1:]...)
	})
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	initialize(t, c, "editor")
	for range 5 {
		if _, err := c.Call(t.Context(), "listSessions", map[string]any{"channel": "ahp-root://"}); err != nil {
			t.Fatal(err)
		}
	}
	conns := w.Tap.Conns()
	want, got := conns[len(conns)-1].ToClient(), c.Frames()
	if !slices.EqualFunc(want, got, bytes.Equal) {
		t.Errorf("the client received %d frames, and the host sent %d; want the same", len(got), len(want))
	}
}

// TestHostileStreamsEndOnce sends packets that no correct relay sends. The client's connection must
// close with 1012. Neither the client nor the log may get the packets' bytes.
func TestHostileStreamsEndOnce(t *testing.T) {
	base := newWorld(t, nil)
	for name, bad := range map[string][]byte{
		"huge packet": append([]byte(marker), make([]byte, 1<<20)...),
		"no packet":   []byte(marker),
		"empty":       {},
	} {
		t.Run(name, func(t *testing.T) {
			hostile := make(chan struct{})
			w, _ := behindHostile(t, base, func(_ *hostileRelay, _, n int, packet []byte) [][]byte {
				select {
				case <-hostile:
					if n > 0 {
						return [][]byte{bad}
					}
				default:
				}
				return [][]byte{packet}
			})
			c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
			if err != nil {
				t.Fatal(err)
			}
			initialize(t, c, "editor")
			before := len(c.Frames())
			close(hostile)
			go func() { _, _ = c.Call(t.Context(), "listSessions", map[string]any{"channel": "ahp-root://"}) }()
			natssite.Next(t, "the connection ends", c.Done())
			if code, reason := c.CloseStatus(); code != 1012 {
				t.Errorf("the connection was closed with %d %q; want 1012", code, reason)
			}
			if got := c.Frames()[before:]; len(got) != 0 {
				t.Errorf("the client received %q; want nothing", got)
			}
			if strings.Contains(w.log.String(), marker) {
				t.Errorf("the log has a packet's bytes: %s", w.log.String())
			}
		})
	}
}

// TestReplayedStreamIsNoStream answers a second client's stream with the packets of the first.
// ahp-connect must refuse these packets and dial again, and the second client must receive nothing.
func TestReplayedStreamIsNoStream(t *testing.T) {
	base := newWorld(t, nil)
	w, h := behindHostile(t, base, func(h *hostileRelay, carrier, n int, packet []byte) [][]byte {
		switch {
		case carrier == 1:
			return [][]byte{packet}
		case n == 0:
			return h.recorded
		}
		return nil
	})
	token := w.token(t, "editor")
	first, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	initialize(t, first, "editor")
	second, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the replay is refused, and ahp-connect dials again", func() bool { return h.seen() >= 4 })
	if got := second.Frames(); len(got) != 0 {
		t.Errorf("the second client received frames of the first: %q; want none", got)
	}
}
