package routing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/broker/link"
	"ahprelay/routing"
)

// TestCrowdsKeepEachConnectionsOrder sends messages to a crowd. In random order, connections at two
// relays enter the crowd, leave it, and receive messages of their own outside. Each client must
// receive all these messages in the order in which they were sent, and the crowd's messages only
// from its entry until it leaves.
func TestCrowdsKeepEachConnectionsOrder(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { runCrowd(t, rand.New(rand.NewPCG(seed, 2))) })
		})
	}
}

// A seated is a client with the messages that it must receive.
type seated struct {
	*clientConn
	agent *routing.AgentConn
	want  [][]byte
	in    bool
}

func runCrowd(t *testing.T, rng *rand.Rand) {
	w := newSealedWorld(2)
	defer w.end()
	crowd := w.agent.NewCrowd()
	var clients []*seated
	for i := range 8 {
		c := w.dial(i % 2)
		synctest.Wait()
		clients = append(clients, &seated{clientConn: c, agent: c.host.conn})
	}
	stays := 0
	for n := range 400 {
		c := clients[rng.IntN(len(clients))]
		message := fmt.Appendf(nil, "message %d %s", n, make([]byte, rng.IntN(2000)))
		switch rng.IntN(6) {
		case 0:
			if c.in || !crowd.MayEnter(c.agent) {
				continue
			}
			if err := crowd.Enter(c.agent, message); err != nil {
				t.Fatal(err)
			}
			c.in = true
			stays++
		case 1:
			if !c.in {
				continue
			}
			if err := crowd.Leave(c.agent, message); err != nil {
				t.Fatal(err)
			}
			c.in = false
		case 2:
			if c.in {
				continue
			}
			if err := c.agent.FromHost(message, true, nil); err != nil {
				t.Fatal(err)
			}
		case 3:
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			continue
		default:
			crowd.Tell([][]byte{message})
			for _, c := range clients {
				if c.in {
					c.want = append(c.want, message)
				}
			}
			continue
		}
		c.want = append(c.want, message)
	}
	time.Sleep(time.Second)
	for i, c := range clients {
		c.clientConn.mu.Lock()
		got := slices.Clone(c.got)
		c.clientConn.mu.Unlock()
		wantSame(t, fmt.Sprint("client ", i), got, c.want)
	}
	if stays < 10 {
		t.Errorf("connections entered a crowd %d times; want at least 10", stays)
	}
}

// TestOldRelaysHaveNoCrowds connects a client through a relay of 1.0.0-rc.1, which knows tags but
// not crowds. MayEnter must be false for its connection.
func TestOldRelaysHaveNoCrowds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSealedWorldOf([]func(*link.Hello){func(hello *link.Hello) {
			hello.Features = []string{link.FeatureSealed, link.FeatureTags}
		}})
		defer w.end()
		c := w.dial(0)
		synctest.Wait()
		if w.agent.NewCrowd().MayEnter(c.host.conn) {
			t.Error("MayEnter = true for a connection at an old relay; want false")
		}
	})
}

// TestRelayThatTakesNothingLosesItsCrowd sends a crowd more bytes at once than the queue's bound.
// The crowd's connection must end, and nothing may stay queued.
func TestRelayThatTakesNothingLosesItsCrowd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSealedWorld(1)
		defer w.end()
		crowd, c := w.agent.NewCrowd(), w.dial(0)
		synctest.Wait()
		conn := c.host.conn
		if !crowd.MayEnter(conn) {
			t.Fatal("MayEnter = false; want true")
		}
		if err := crowd.Enter(conn, []byte("enter")); err != nil {
			t.Fatal(err)
		}
		var all [][]byte
		for range 9 << 20 >> 15 {
			all = append(all, make([]byte, 32<<10))
		}
		crowd.Tell(all)
		synctest.Wait()
		if err := conn.FromHost([]byte("more"), true, nil); err == nil {
			t.Error("FromHost succeeds after the relay has lost its crowd; want an error")
		}
		if queued := w.agent.Stats().Queued; queued != 0 {
			t.Errorf("%d bytes are left in the queues; want 0", queued)
		}
	})
}

// TestRelayThatTakesNothingLosesThoseWhoLeft has a connection leave a crowd whose queue then exceeds
// its bound. The connection must have received the message of its leave, or end: later messages
// would follow a gap.
func TestRelayThatTakesNothingLosesThoseWhoLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSealedWorld(1)
		defer w.end()
		crowd, stays, leaves := w.agent.NewCrowd(), w.dial(0), w.dial(0)
		synctest.Wait()
		for _, c := range []*clientConn{stays, leaves} {
			if err := crowd.Enter(c.host.conn, []byte("enter")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		all := make([][]byte, 7<<20>>15)
		for i := range all {
			all[i] = make([]byte, 32<<10)
		}
		crowd.Tell(all)
		if err := crowd.Leave(leaves.host.conn, []byte("leave")); err != nil {
			t.Fatal(err)
		}
		crowd.Tell(all)
		synctest.Wait()
		err := leaves.host.conn.FromHost([]byte("more"), true, nil)
		synctest.Wait()
		leaves.mu.Lock()
		defer leaves.mu.Unlock()
		told := slices.ContainsFunc(leaves.got, func(m []byte) bool { return string(m) == "leave" })
		if err == nil && !told {
			t.Error("the connection continues without the message of its leave; want it closed")
		}
		if queued := w.agent.Stats().Queued; queued != 0 {
			t.Errorf("%d bytes are left in the queues; want 0", queued)
		}
	})
}
