package resume_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"ahprelay/broker/resume"
	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A network is the network of one client, with its carriers in memory. While it is down, dialling
// fails. While it is frozen, nothing arrives, without any error. Bytes in transit are lost when it
// is cut, and arrive when an end closes a carrier.
type network struct {
	relay *resume.Relay
	pool  *resume.Pool
	wg    sync.WaitGroup

	mu      sync.Mutex
	person  string
	refused error
	down    bool
	thaw    chan struct{} // closed while the network is not frozen
	live    []*memCarrier
	dials   int
}

func newNetwork(relay *resume.Relay, pool *resume.Pool) *network {
	thaw := make(chan struct{})
	close(thaw)
	return &network{relay: relay, pool: pool, person: "ada", thaw: thaw}
}

func (n *network) dial(context.Context) (resume.Carrier, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	if n.refused != nil {
		return nil, &resume.Refused{Err: n.refused}
	}
	if n.down {
		return nil, errors.New("network down")
	}
	up, down := make(chan []byte, 4), make(chan []byte, 4)
	over := make(chan struct{})
	once, lost := &sync.Once{}, &atomic.Bool{}
	client, server := &memCarrier{n, up, down, over, once, lost}, &memCarrier{n, down, up, over, once, lost}
	n.live = append(n.live, client)
	person := n.person
	n.wg.Go(func() {
		_ = n.relay.Serve(server, n.pool, person, &net.TCPAddr{}, &net.TCPAddr{})
	})
	return client, nil
}

// cut ends all carriers.
func (n *network) cut() {
	n.mu.Lock()
	live := n.live
	n.live = nil
	n.mu.Unlock()
	for _, c := range live {
		c.lost.Store(true)
		c.Close()
	}
}

// dialled returns the number of attempts to dial.
func (n *network) dialled() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

func (n *network) setDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

func (n *network) freeze(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	frozen := true
	select {
	case <-n.thaw:
		frozen = false
	default:
	}
	switch {
	case on && !frozen:
		n.thaw = make(chan struct{})
	case !on && frozen:
		close(n.thaw)
	}
}

func (n *network) thawed() chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.thaw
}

// A memCarrier is one end of a carrier in memory.
type memCarrier struct {
	n        *network
	out, in  chan []byte
	over     chan struct{}
	overOnce *sync.Once
	lost     *atomic.Bool // the network was cut
}

func (c *memCarrier) Send(packet []byte) error {
	select {
	case <-c.over:
		return io.ErrClosedPipe
	default:
	}
	select {
	case c.out <- append([]byte(nil), packet...):
		return nil
	case <-c.over:
		return io.ErrClosedPipe
	}
}

func (c *memCarrier) Recv() ([]byte, error) {
	thawed := c.n.thawed()
	select {
	case <-thawed:
	default:
		select {
		case <-thawed:
		case <-c.over:
			return nil, io.EOF
		}
	}
	select {
	case p := <-c.in:
		return p, nil
	case <-c.over:
	}
	if !c.lost.Load() {
		select {
		case p := <-c.in:
			return p, nil
		default:
		}
	}
	return nil, io.EOF
}

func (c *memCarrier) Close() { c.overOnce.Do(func() { close(c.over) }) }
