package routing_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ahprelay/broker/link"
	"ahprelay/routing"
)

// A plainTagger makes tags that contain their input in plain form, so that a test can check them.
type plainTagger struct{ made uint32 }

func (p *plainTagger) Tag(sum [32]byte, own uint64) (tag [routing.TagSize]byte) {
	copy(tag[:8], sum[:])
	binary.BigEndian.PutUint32(tag[8:], uint32(own))
	binary.BigEndian.PutUint32(tag[12:], p.made)
	p.made++
	return tag
}

// newSealedWorld returns a world with a sealed host.
func newSealedWorld(relays int) *world {
	return newSealedWorldOf(slices.Repeat([]func(*link.Hello){func(*link.Hello) {}}, relays))
}

// newSealedWorldOf returns a world as newWorldOf does, with a sealed host.
func newSealedWorldOf(hellos []func(*link.Hello)) (w *world) {
	type sealedHost struct {
		*hostConn
		*plainTagger
	}
	return newWorldOf(hellos, routing.AgentEndConfig{Sealed: true, Connect: func(conn *routing.AgentConn, open routing.Open) routing.HostConn {
		return sealedHost{w.connect(conn, open).(*hostConn), &plainTagger{}}
	}}, routing.RelayEndConfig{})
}

// A taggedClient is a client of a sealed host. Its method untag checks the tags.
type taggedClient struct {
	*clientConn
	conn *routing.AgentConn
	t    *testing.T
	sums []byte // hashes of the bodies received since the last tag
	own  uint32
	tags uint32
	sent [][]byte // messages sent to the client, not counting tags
}

// untag checks that each group of bodies is followed by the right tag, before any other message. It
// returns the received messages without the tags.
func (c *taggedClient) untag() (rest [][]byte) {
	c.t.Helper()
	c.clientConn.mu.Lock()
	defer c.clientConn.mu.Unlock()
	for _, m := range c.got {
		switch m[0] {
		case 7:
			sum := sha256.Sum256(m)
			c.sums = append(c.sums, sum[:]...)
		case routing.TagKind:
			sum := sha256.Sum256(c.sums)
			want := (&plainTagger{c.tags}).Tag(sum, uint64(c.own))
			if len(c.sums) == 0 || !bytes.Equal(m[1:], want[:]) {
				c.t.Fatalf("tag %d is %x; want %x for %d bodies", c.tags, m[1:], want, len(c.sums)/32)
			}
			c.tags++
			c.sums = nil
			continue
		default:
			if len(c.sums) > 0 {
				c.t.Fatalf("bodies without a tag before the message %.20q; want their tag first", m)
			}
			c.own++
		}
		rest = append(rest, m)
	}
	if len(c.sums) > 0 {
		c.t.Fatal("the last bodies have no tag; want one")
	}
	return rest
}

// TestTagsCoverEachConnectionsBodies sends shared bodies, and messages to single clients, in random
// order to clients at two relays. Some clients are slow. Each client must receive its messages in
// order, and after its bodies a tag for exactly these.
func TestTagsCoverEachConnectionsBodies(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { runTagged(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

// runTagged sends bodies and messages to six clients at two relays, and checks what each client has
// received.
func runTagged(t *testing.T, random *rand.Rand) {
	w := newSealedWorld(2)
	defer w.end()
	clients := make([]*taggedClient, 6)
	for i := range clients {
		c := &taggedClient{clientConn: w.dial(i % 2), t: t}
		c.conn = c.host.conn
		clients[i] = c
	}
	for n := range 300 {
		channel := []byte{byte('a' + random.IntN(2))}
		size := 1 + random.IntN(300)
		if random.IntN(20) == 0 {
			size = 1 + random.IntN(100_000)
		}
		body := append([]byte{7, channel[0]}, bytes.Repeat([]byte{byte(n)}, size)...)
		body = binary.BigEndian.AppendUint32(body, uint32(n))
		note := routing.NewSealedBody(body, channel)
		for i, c := range clients {
			if random.IntN(4) == 0 {
				own := fmt.Appendf([]byte{6}, "own %d %d", i, n)
				if err := c.conn.FromHost(own, true, nil); err != nil {
					t.Fatal(err)
				}
				c.sent = append(c.sent, own)
			}
			if channel[0] == 'b' && i > 3 {
				continue // not a reader of this channel
			}
			if _, due, err := c.conn.Notify([]*routing.Notification{note}); err != nil {
				t.Fatal(err)
			} else if due {
				c.conn.Send()
			}
			c.sent = append(c.sent, body)
		}
		if random.IntN(3) == 0 {
			time.Sleep(time.Duration(random.IntN(5)) * time.Millisecond)
		}
		if slow := clients[random.IntN(len(clients))]; random.IntN(30) == 0 {
			slow.clientConn.mu.Lock()
			slow.stalled = true
			slow.clientConn.mu.Unlock()
		}
	}
	for _, c := range clients {
		c.clientConn.mu.Lock()
		c.stalled = false
		credit := c.untaken
		c.clientConn.mu.Unlock()
		c.clientConn.conn.Written(credit)
	}
	time.Sleep(5 * time.Second)
	for i, c := range clients {
		wantSame(t, fmt.Sprint("client ", i), c.untag(), c.sent)
	}
}

// TestTagsCrossInBatches sends 500 bodies to 50 readers of a sealed host. The host-agent may send
// at most twice as many bytes as it sends for an unsealed host.
func TestTagsCrossInBatches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSealedWorld(1)
		defer w.end()
		var clients []*taggedClient
		for range 50 {
			c := &taggedClient{clientConn: w.dial(0), t: t}
			clients = append(clients, c)
		}
		sent := func() int {
			w.net.mu.Lock()
			defer w.net.mu.Unlock()
			return w.net.sent["agent"]
		}
		before := sent()
		for i := range 500 {
			frame := bytes.Repeat([]byte{7}, 1024+30)
			copy(frame[1:], fmt.Sprint(i))
			note := routing.NewSealedBody(frame, []byte("x"))
			for _, c := range clients {
				if _, due, err := c.host.conn.Notify([]*routing.Notification{note}); err != nil {
					t.Fatal(err)
				} else if due {
					c.host.conn.Send()
				}
			}
			time.Sleep(3 * time.Millisecond)
		}
		time.Sleep(time.Second)
		for _, c := range clients {
			if got := c.untag(); len(got) != 500 {
				t.Fatalf("%d bodies; want 500", len(got))
			}
		}
		if got := sent() - before; got > 1_206_000 { // twice the bytes for an unsealed host
			t.Errorf("the host-agent sent %d bytes for 500 bodies to 50 readers; want at most 1206000", got)
		} else {
			t.Logf("the host-agent sent %d bytes", got)
		}
	})
}
