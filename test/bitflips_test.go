package test

import (
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/hostagent"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A proxy changes bits on the connection between host-agent and relay, which has no
// TLS. Host-agent and relay must notice each change and repair it: clients and host
// receive exactly what was sent, and no client's connection ends.
func TestChangedBitsReachNoClient(t *testing.T) {
	t.Parallel()
	for name, overTCP := range map[string]bool{"through the relay's port": false, "over TCP": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := newScriptedHost(t)
			f := newFlipper(t)
			s := startStackWith(t, stack.Config{DataDir: t.TempDir(), Upstream: host.server.URL(), NATSOverTCP: overTCP}, func(s *stack.Stack, cfg *hostagent.Config) error {
				if overTCP {
					f.target, cfg.NATSURLs = s.Relay.NATSAddr().String(), []string{"nats://" + f.listener.Addr().String()}
				} else {
					f.target, cfg.Relays = strings.TrimPrefix(s.Relay.URL(), "http://"), []string{"http://" + f.listener.Addr().String()}
				}
				f.all.Go(f.serve)
				return nil
			})
			clients := []*refclient.Client{greet(t, s, stack.Host, "ada", nil, nil), greet(t, s, stack.Host, "bob", nil, nil)}
			conns := []*scriptedConn{host.conn("ada", 0), host.conn("bob", 0)}
			var told, asked []string
			step := func() {
				n := len(told)
				told = append(told, longNote("ahp-session:/1", n))
				asked = append(asked, longNote("ahp-session:/2", n))
				for i, c := range clients {
					if err := conns[i].say(told[n]); err != nil {
						t.Fatal(err)
					}
					if err := c.SendRaw([]byte(asked[n])); err != nil {
						t.Fatal(err)
					}
				}
			}
			deadline := time.Now().Add(2 * stepTime)
			for range changedBits {
				for before := f.changed.Load(); f.changed.Load() == before; time.Sleep(2 * time.Millisecond) {
					f.armed.Store(true)
					step()
					if time.Now().After(deadline) {
						t.Fatalf("after %d changed bits, the connection has not returned; want it open", before)
					}
				}
			}
			f.armed.Store(false)
			step()
			for i, c := range clients {
				awaitMessages(t, told, func() []string { return notesOf(c) })
				awaitMessages(t, asked, func() []string { return slices.DeleteFunc(conns[i].messages(), isNoNote) })
			}
			t.Logf("%d bits were changed, %d messages", f.changed.Load(), len(told))
		})
	}
}

// changedBits is the number of bits that TestChangedBitsReachNoClient changes.
const changedBits = 40

// longNote returns a long notification that hardly gets shorter by compression.
func longNote(channel string, n int) string {
	pad := make([]byte, 1200)
	dice := rand.New(rand.NewPCG(uint64(n), uint64(len(channel))))
	for i := range pad {
		pad[i] = byte(dice.Uint32())
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"x/y","params":{"channel":%q,"n":%d,"pad":"%s"}}`, channel, n, base64.StdEncoding.EncodeToString(pad))
}

func isNoNote(message string) bool { return !strings.Contains(message, `"method":"x/y"`) }

func notesOf(c *refclient.Client) (all []string) {
	for _, f := range c.Frames() {
		all = append(all, string(f))
	}
	return slices.DeleteFunc(all, isNoNote)
}

// awaitMessages waits until a receiver has as many messages as were sent, and compares them.
func awaitMessages(t *testing.T, sent []string, received func() []string) {
	t.Helper()
	got := received()
	for deadline := time.Now().Add(stepTime); len(got) < len(sent) && time.Now().Before(deadline); got = received() {
		time.Sleep(10 * time.Millisecond)
	}
	if !slices.Equal(got, sent) {
		i := 0
		for i < min(len(got), len(sent)) && got[i] == sent[i] {
			i++
		}
		t.Errorf("the client received %d of %d messages, and message %d differs; want the sent ones", len(got), len(sent), i)
	}
}

// A flipper is a TCP proxy. When armed is set, it changes a single bit in the next piece,
// in either direction, that is at least longPiece bytes long.
type flipper struct {
	listener net.Listener
	target   string
	armed    atomic.Bool
	changed  atomic.Int64
	all      sync.WaitGroup
}

func newFlipper(t *testing.T) *flipper {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flipper{listener: l}
	t.Cleanup(func() { // runs after the stack has ended
		_ = l.Close()
		f.all.Wait()
	})
	return f
}

func (f *flipper) serve() {
	for {
		from, err := f.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", f.target)
		if err != nil {
			_ = from.Close()
			continue
		}
		for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
			f.all.Go(func() {
				defer from.Close()
				defer to.Close()
				f.pass(way[1], way[0])
			})
		}
	}
}

// longPiece is the least length of a piece in which a flipper changes a bit. Pieces
// with a chat's messages are longer; pieces with only a login or a lease are shorter.
const longPiece = 1200

func (f *flipper) pass(to io.Writer, from io.Reader) {
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if n >= longPiece && f.armed.CompareAndSwap(true, false) {
			piece[rand.IntN(n)] ^= 1 << rand.IntN(8)
			f.changed.Add(1)
		}
		if n > 0 {
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
