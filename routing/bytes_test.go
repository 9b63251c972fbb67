package routing_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
	"pgregory.net/rapid"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// A streamWorld is a world with a host-agent that accepts byte streams.
type streamWorld struct {
	*world
	ends chan *routing.ByteConn
}

func newStreamWorld() *streamWorld {
	w := &streamWorld{ends: make(chan *routing.ByteConn, 16)}
	w.world = newWorld(1, routing.AgentEndConfig{Connect: func(conn *routing.AgentConn, open routing.Open) routing.HostConn {
		if open.Canvas == nil {
			return w.connect(conn, open)
		}
		stream, host := conn.Bytes(open.ID)
		w.ends <- stream
		return host
	}})
	return w
}

// open opens a byte stream at the relay, and returns the ends at the relay and at the host-agent.
func (w *streamWorld) open(t interface{ Fatal(...any) }) (relay, agent *routing.ByteConn) {
	relay, err := w.relays[0].OpenBytes(routing.Open{ID: "s", Canvas: &routing.Canvas{}})
	if err != nil {
		t.Fatal(err)
	}
	return relay, <-w.ends
}

// TestByteConnIsANetConn runs the tests for a net.Conn from package nettest with a stream, from
// either end.
func TestByteConnIsANetConn(t *testing.T) {
	for name, swap := range map[string]bool{"relay": false, "agent": true} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				w := newStreamWorld()
				relay, agent := w.open(t)
				c1, c2 = relay, agent
				if swap {
					c1, c2 = agent, relay
				}
				return c1, c2, func() {
					_ = c1.Close()
					_ = c2.Close()
					w.end()
				}, nil
			})
		})
	}
}

// TestBytesArriveInOrder writes pieces of various sizes on streams in both directions, and sends a
// message on another connection. All bytes must arrive in order, then EOF, and the message must
// arrive too.
func TestBytesArriveInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 40_000), 1, 3).Draw(rt, "sizes")
		reads := rapid.IntRange(100, 100_000).Draw(rt, "reads")
		synctest.Test(t, func(t *testing.T) {
			w := newStreamWorld()
			defer w.end()
			c := w.dial(0)
			for range 2 {
				relay, agent := w.open(t)
				for _, way := range []struct{ from, to *routing.ByteConn }{{relay, agent}, {agent, relay}} {
					var want []byte
					for i, n := range sizes {
						want = append(want, bytes.Repeat([]byte{byte(i + 1)}, n)...)
					}
					w.wg.Go(func() {
						for rest := want; len(rest) > 0; {
							n := min(len(rest), max(sizes[0]+1, len(want)/200)) // else a long stream is written byte by byte
							if _, err := way.from.Write(rest[:n]); err != nil {
								t.Error(err)
							}
							rest = rest[n:]
						}
					})
					got := make([]byte, 0, len(want))
					for piece := make([]byte, reads); len(got) < len(want); {
						n, err := way.to.Read(piece)
						if err != nil {
							t.Fatal(err)
						}
						got = append(got, piece[:n]...)
					}
					if !bytes.Equal(got, want) {
						t.Fatalf("%d bytes came; want %d, the same", len(got), len(want))
					}
				}
				if err := c.host.send(message(1, 300), false, "ahp-chat:/1"); err != nil {
					t.Fatal(err)
				}
				if err := agent.Close(); err != nil {
					t.Fatal(err)
				}
				if _, err := relay.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("Read after the end = %v; want io.EOF", err)
				}
				_ = relay.Close()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			c.wantAll(t, "client")
		})
	})
}

// TestSlowReaderOfBytes writes to a stream whose other end reads nothing for 10 minutes. The writer
// must block after about 1 MB, other connections must work, and the bytes must still arrive
// afterwards. When the reader cuts the stream, Write must return the code and the reason.
func TestSlowReaderOfBytes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newStreamWorld()
		defer w.end()
		for name, ends := range map[string]func() (to, from *routing.ByteConn){
			"agent": func() (to, from *routing.ByteConn) { to, from = w.open(t); return },
			"relay": func() (to, from *routing.ByteConn) { from, to = w.open(t); return },
		} {
			to, from := ends()
			written := 0
			done := make(chan struct{})
			w.wg.Go(func() {
				defer close(done)
				for piece := make([]byte, 10_000); ; written += len(piece) {
					if _, err := from.Write(piece); err != nil {
						return
					}
				}
			})
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if written < 500_000 || written > 1_200_000 {
				t.Errorf("%s: the writer wrote %d bytes to a stream that nothing reads; want 500000 to 1200000", name, written)
			}
			c := w.dial(0)
			if err := c.host.send(message(1, 300), false, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			c.wantAll(t, "beside "+name)
			if n, err := io.ReadFull(to, make([]byte, 2_000_000)); err != nil {
				t.Errorf("%s: the reader got %d bytes, then %v; want 2000000", name, n, err)
			}
			to.Cut(ahp.CloseForbidden, "no more")
			<-done
			_, err := from.Write([]byte("x"))
			var cut *routing.CutError
			if !errors.As(err, &cut) || cut.Code != ahp.CloseForbidden || cut.Reason != "no more" {
				t.Errorf("%s: Write to a stream that the peer has closed = %v; want the reason", name, err)
			}
		}
	})
}

// TestBytesEndWithTheLink ends a link. Read must return a CutError at both ends of its streams.
func TestBytesEndWithTheLink(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newStreamWorld()
		relay, agent := w.open(t)
		w.stop()
		synctest.Wait()
		for i, c := range []*routing.ByteConn{relay, agent} {
			var cut *routing.CutError
			if _, err := c.Read(make([]byte, 1)); !errors.As(err, &cut) {
				t.Errorf("%s of the stream, after the link's end: %v; want an error that the stream was cut", fmt.Sprint("end ", i), err)
			}
		}
		w.end()
	})
}
