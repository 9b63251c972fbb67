package routing_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/broker/link"
	"ahprelay/routing"
)

// answer returns a response to a request, and where in it the content begins and ends.
func answer(id int, content []byte) (message []byte, from, to int) {
	head := fmt.Sprintf(`{"id":%d,"result":{"contents":[{"blob":"`, id)
	return slices.Concat([]byte(head), content, []byte(`"}]}}`)), len(head), len(head) + len(content)
}

func (h *hostConn) sendContent(id int, content []byte) error {
	message, from, to := answer(id, content)
	err := h.conn.FromHostWith(message, from, to)
	if err == nil {
		h.sent = append(h.sent, message)
	}
	return err
}

// content returns n bytes that repeat the seed. Contents with the same seed share their memory.
func content(seed string, n int) []byte {
	if have, ok := contents.Load(seed); ok && len(have.([]byte)) >= n {
		return have.([]byte)[:n]
	}
	made := bytes.Repeat([]byte(seed), n/len(seed)+1)
	contents.Store(seed, made)
	return made[:n]
}

var contents sync.Map // by seed: the longest content so far

// fromAgent returns the number of bytes that the host-agent has published.
func (w *world) fromAgent() int {
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	return w.net.sent["agent"]
}

// TestContentCrossesOnce sends answers with equal content to six clients at two relays, twice. The
// content must cross the link to each relay only once.
func TestContentCrossesOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(2, routing.AgentEndConfig{})
		defer w.end()
		var clients []*clientConn
		for i := range 6 {
			clients = append(clients, w.dial(i%2))
		}
		const size = 5*mib/2 + 77
		before := w.fromAgent()
		for round := range 2 {
			for i, c := range clients {
				if err := c.host.sendContent(i, content("abc", size)); err != nil {
					t.Fatal(err)
				}
				if err := c.host.send(message(round, 100), false, ""); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(20 * time.Second)
		}
		for i, c := range clients {
			c.wantAll(t, fmt.Sprint("client ", i))
		}
		if got, limit := w.fromAgent()-before, 2*size+100_000; got > limit {
			t.Errorf("host-agent sent %d bytes; want at most %d", got, limit)
		}
	})
}

// TestContentWithoutRoomForChunksIsSentWhole sends an answer with content through a relay that
// keeps no chunks. The answer must arrive complete.
func TestContentWithoutRoomForChunksIsSentWhole(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorldWith(1, routing.AgentEndConfig{}, routing.RelayEndConfig{ChunkLimit: -1})
		defer w.end()
		c := w.dial(0)
		if err := c.host.sendContent(1, content("abc", 3*mib)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		c.wantAll(t, "client")
	})
}

// TestContentIsWhatTheHostSent sends answers with more content than the relay stores, partly
// equal, mixed with other messages, through a lossy network, to clients which are slow. Each
// client must get its exact bytes.
func TestContentIsWhatTheHostSent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			limit := rapid.SampledFrom([]int{1 << 16, 1 << 17, 3 * mib / 2, 64 * mib}).Draw(rt, "limit")
			credit := rapid.SampledFrom([]int{1 << 16, mib}).Draw(rt, "credit")
			w := newWorldWith(rapid.IntRange(1, 2).Draw(rt, "relays"), routing.AgentEndConfig{}, routing.RelayEndConfig{ChunkLimit: limit, Credit: credit})
			defer w.end()
			var clients []*clientConn
			for range rapid.IntRange(1, 5).Draw(rt, "clients") {
				clients = append(clients, w.dial(rapid.IntRange(0, len(w.relays)-1).Draw(rt, "relay")))
			}
			lossy := rapid.Bool().Draw(rt, "lossy")
			w.net.mu.Lock()
			n := 0
			w.net.lose = func(string, string, []byte) bool { n++; return lossy && n%7 == 0 }
			w.net.mu.Unlock()
			for step := range rapid.IntRange(1, 16).Draw(rt, "steps") {
				c := rapid.SampledFrom(clients).Draw(rt, "client")
				var err error
				switch rapid.IntRange(0, 9).Draw(rt, "what") {
				case 0:
					time.Sleep(rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second}).Draw(rt, "pause"))
				case 1:
					c.stall()
				case 2:
					c.takeAll()
				case 3, 4:
					err = c.host.send(message(step, rapid.SampledFrom([]int{10, 1000, 40_000}).Draw(rt, "size")), false, "ahp-chat:/1")
				default:
					size := rapid.SampledFrom(contentSizes).Draw(rt, "size")
					err = c.host.sendContent(step, content(rapid.SampledFrom([]string{"a", "bc", "def"}).Draw(rt, "seed"), size))
				}
				if err != nil {
					rt.Fatal(err)
				}
			}
			for _, c := range clients {
				c.takeAll()
			}
			time.Sleep(2 * time.Minute)
			for i, c := range clients {
				c.wantAll(rt, fmt.Sprint("client ", i))
			}
		})
	})
}

// contentSizes are the sizes in bytes from which TestContentIsWhatTheHostSent draws. Most contents
// are a single chunk, because large contents take long under the race detector.
var contentSizes = []int{
	0, 100, 2 << 10, 3000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000, 80_000, 90_000, 130_000, mib + 5, mib + 300_000,
}

// TestStalledReaderOfContent sends answers with content to a client that reads nothing and to
// another client. The other must get all at once. The first must get no more than its credit, and
// the rest when it reads again.
func TestStalledReaderOfContent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(1, routing.AgentEndConfig{})
		defer w.end()
		slow, quick := w.dial(0), w.dial(0)
		slow.stall()
		for i := range 5 {
			for _, c := range []*clientConn{slow, quick} {
				if err := c.host.sendContent(i, content(fmt.Sprint(i), 2*mib)); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(10 * time.Second)
		quick.wantAll(t, "the other client")
		slow.mu.Lock()
		if slow.untaken > 3*mib {
			t.Errorf("the stalled client was sent %d bytes; want at most 3 MiB", slow.untaken)
		}
		slow.mu.Unlock()
		slow.takeAll()
		time.Sleep(10 * time.Second)
		slow.wantAll(t, "the stalled client")
	})
}

// TestBadChunksEndTheLink passes to a relay records about chunks that no correct host-agent sends.
// Handle must return ErrBadPacket, which ends the link.
func TestBadChunksEndTheLink(t *testing.T) {
	const (
		kindChunk = 18 + iota // the kinds of records as numbered in record.go
		kindDrop
		kindRef
	)
	piece := func(number, flags byte, n int) []byte {
		b := []byte{kindChunk, number, flags}
		for v := n; ; v >>= 7 {
			if v < 0x80 {
				b = append(b, byte(v))
				break
			}
			b = append(b, byte(v)|0x80)
		}
		return append(b, make([]byte, n)...)
	}
	last := byte(2)
	for name, records := range map[string][][]byte{
		"reference to none":       {{kindRef, 1, 1}},
		"reference to half a one": {piece(1, 0, 10), {kindRef, 1, 1}},
		"another between":         {piece(1, 0, 10), piece(2, last, 10)},
		"more of a whole one":     {piece(1, last, 10), piece(1, last, 10)},
		"too large":               {piece(1, 0, 1<<20), piece(1, last, 1)},
		"too many pieces":         {bytes.Repeat(piece(1, 0, 1), 300)},
		"too many bytes":          {piece(1, last, 60_000), piece(2, last, 60_000)},
		"drop of none":            {{kindDrop, 1}},
		"drop of half a one":      {piece(1, 0, 10), {kindDrop, 1}},
	} {
		relay := routing.NewRelayEnd(routing.RelayEndConfig{Agent: "a", Encode: encode, ChunkLimit: 100_000})
		if strings.HasPrefix(name, "too large") {
			relay = routing.NewRelayEnd(routing.RelayEndConfig{Agent: "a", Encode: encode})
		}
		relay.Start(link.Hello{Credit: 1000}, nil)
		var err error
		for i, r := range records {
			if _, err = relay.Handle(uint64(i+1), r); err != nil {
				break
			}
		}
		if !errors.Is(err, link.ErrBadPacket) || !strings.Contains(err.Error(), "chunk") {
			t.Errorf("%s: the error is %v; want ErrBadPacket about a chunk", name, err)
		}
	}
}
