package routing_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/routing"
)

// TestShedBodiesAreRequestedAgain calls Shed on a relay, which drops bodies that a stalled client
// still needs. When the client reads again, the relay must request them from the host-agent, and
// the client must receive all messages. The bytes reported to Kept must be exact.
func TestShedBodiesAreRequestedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const limit = 16 << 20
		var kept, most atomic.Int64
		w := newWorldWith(1, routing.AgentEndConfig{}, routing.RelayEndConfig{BodyLimit: limit, Kept: func(n int) {
			most.Store(max(most.Load(), kept.Add(int64(n))))
		}})
		clients := []*clientConn{w.dial(0), w.dial(0), w.dial(0)}
		late := clients[2]
		say := func(n, size int) {
			message := append(bytes.Repeat([]byte{'x'}, size), fmt.Sprint(n)...)
			for _, c := range clients {
				if err := c.host.send(message, false, "ahp-chat:/1"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		for n := range 5 { // the relay subscribes to bodies
			say(n, 100)
		}
		late.mu.Lock()
		late.stalled = true
		late.mu.Unlock()
		if err := late.host.send(bytes.Repeat([]byte{'y'}, 2<<20), false, ""); err != nil { // uses all credit
			t.Fatal(err)
		}
		for n := range 200 {
			say(n, 30<<10)
		}
		synctest.Wait()
		before := kept.Load()
		w.relays[0].Shed()
		if after := kept.Load(); before < 5<<20 || after > limit/8+64<<10 || after < 1<<20 {
			t.Errorf("the relay held %d bytes of bodies, and %d after it was told to hold less; want about 6 MiB and at most 2 MiB", before, after)
		}
		late.mu.Lock()
		late.stalled = false
		credit := late.untaken
		late.mu.Unlock()
		late.conn.Written(credit)
		time.Sleep(10 * time.Second)
		for i, c := range clients {
			c.wantAll(t, fmt.Sprint("client ", i))
		}
		w.end()
		if left := kept.Load(); left != 0 {
			t.Errorf("%d bytes are counted as held after all connections have ended; want 0", left)
		}
	})
}
