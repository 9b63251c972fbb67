package resume

import (
	"sync"
	"testing"
	"time"
)

// A quietCarrier takes packets, and receives none.
type quietCarrier struct{ over chan struct{} }

func (q quietCarrier) Send([]byte) error { return nil }

func (q quietCarrier) Recv() ([]byte, error) {
	<-q.over
	return nil, errSilent
}

func (q quietCarrier) Close() {}

// TestStandingStillIsNoSilence lets a relay's process stand still while a Write waits for a client.
// That time is not the client's silence, because its packets may wait to be received, so the Write
// must wait on.
func TestStandingStillIsNoSilence(t *testing.T) {
	t.Parallel()
	const away = writeCheck * 3 / 2
	c := New(Config{ID: newID(), Window: 1, Inbox: clientWindow, Time: time.Hour, Pool: NewPool(1<<30, 1<<30)})
	c.away = away
	carrier := quietCarrier{make(chan struct{})}
	attached := make(chan struct{})
	go func() {
		defer close(attached)
		_ = c.Attach(carrier)
	}()
	if _, err := c.Write([]byte("fills the window")); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte("waits"))
		wrote <- err
	}()
	time.Sleep(away / 4) // the Write waits
	c.mu.Lock()
	time.Sleep(writeCheck + away)
	c.mu.Unlock()
	select {
	case err := <-wrote:
		t.Errorf("the waiting Write returns %v after its process stood still; want it to wait for the client", err)
	case <-time.After(away / 10):
		if err := <-wrote; err != ErrMissed {
			t.Errorf("the Write for a silent client returns %v; want %v", err, ErrMissed)
		}
	}
	c.Discard()
	close(carrier.over)
	<-attached
}

// TestTimeOfStandingStillIsNotAhead lets a process stand still while a Write waits, and has it receive
// a packet before the Write continues. The client's silence must count from this packet, not from a
// later time.
func TestTimeOfStandingStillIsNotAhead(t *testing.T) {
	t.Parallel()
	c := New(Config{ID: newID(), Window: 1, Inbox: clientWindow, Time: time.Hour, Pool: NewPool(1<<30, 1<<30)})
	if _, err := c.Write([]byte("fills the window")); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_, _ = c.Write([]byte("waits"))
	}()
	time.Sleep(writeCheck / 4) // the Write waits
	c.mu.Lock()
	time.Sleep(2 * writeCheck)
	c.heard = time.Now() // as recv does for a packet
	c.mu.Unlock()
	time.Sleep(writeCheck / 4) // the Write has seen its delay
	c.mu.Lock()
	if ahead := time.Until(c.heard); ahead > 0 {
		t.Errorf("the client was heard %v in the future; want no later than now", ahead)
	}
	c.mu.Unlock()
	c.Discard()
	<-wrote
}

// A stuckCarrier is a quietCarrier whose Close takes until released, like that of a TLS connection
// whose peer reads nothing.
type stuckCarrier struct {
	quietCarrier
	released chan struct{}
}

func (s stuckCarrier) Close() { <-s.released }

// TestStuckCloseOfACarrierDelaysNobody replaces a carrier whose Close does not return. The relay asks
// each stream regularly whether its client is away, so the stream must answer nevertheless.
func TestStuckCloseOfACarrierDelaysNobody(t *testing.T) {
	t.Parallel()
	c := New(Config{ID: newID(), Window: 1 << 20, Inbox: clientWindow, Time: time.Hour, Pool: NewPool(1<<30, 1<<30)})
	first := stuckCarrier{quietCarrier{make(chan struct{})}, make(chan struct{})}
	second := quietCarrier{make(chan struct{})}
	var attached sync.WaitGroup
	attach := func(carrier Carrier) {
		attached.Go(func() { _ = c.Attach(carrier) })
		for now := false; !now; time.Sleep(time.Millisecond) {
			c.mu.Lock()
			now = c.carrier == carrier
			c.mu.Unlock()
		}
	}
	attach(first)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		attach(second)
		c.Away()
	}()
	select {
	case <-answered:
	case <-time.After(5 * time.Second):
		t.Error("the stream does not answer while the Close of its former carrier is stuck; want an answer")
	}
	close(first.released)
	<-answered
	c.Discard()
	close(first.over)
	close(second.over)
	attached.Wait()
}
