package broker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker"
)

// A youngCluster simulates a cluster whose number of servers and of copies of a stream change.
type youngCluster struct {
	mu              sync.Mutex // guards the fields below
	servers, copies int
	away            bool // Count fails, as if no server answered
	notMine         bool
	looks           int
}

func (y *youngCluster) keep(t *testing.T, known bool) {
	c := broker.Copies{
		Count: func(context.Context) (int, error) {
			y.mu.Lock()
			defer y.mu.Unlock()
			y.looks++
			if y.away {
				return 0, errors.New("no answer")
			}
			return y.copies, nil
		},
		Make: func(_ context.Context, copies int) error {
			y.mu.Lock()
			defer y.mu.Unlock()
			if copies > y.servers {
				return &jetstream.APIError{Description: "no suitable peers"}
			}
			y.copies = copies
			return nil
		},
		Mine: func() bool { y.mu.Lock(); defer y.mu.Unlock(); return !y.notMine },
	}
	if known {
		c.Servers = func() int { y.mu.Lock(); defer y.mu.Unlock(); return y.servers }
	}
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { c.Keep(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
}

// set changes the cluster under its mutex.
func (y *youngCluster) set(change func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	change()
}

func (y *youngCluster) after(t *testing.T, d time.Duration, want int) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.copies != want {
		t.Errorf("the stream has %d copies in a cluster of %d servers after %v; want %d", y.copies, y.servers, d, want)
	}
}

// seldom fails if Keep has counted the copies more than 200 times since looks was 0. Tests call it
// after an hour.
func (y *youngCluster) seldom(t *testing.T) {
	t.Helper()
	y.set(func() {
		if y.looks > 200 {
			t.Errorf("the relay asked a cluster of %d servers %d times in an hour about its copies; want at most 200", y.servers, y.looks)
		}
	})
}

// TestCopiesComeSoon adds servers to a new cluster. Keep must make the copies within 3 s after a
// server arrives, and later count them seldom. If the copies are too few again, it must restore
// them.
func TestCopiesComeSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &youngCluster{servers: 1, copies: 1}
		y.keep(t, true)
		y.after(t, time.Second, 1)
		y.set(func() { y.servers = 2 })
		y.after(t, 3*time.Second, 2)
		y.after(t, time.Hour, 2)
		y.seldom(t)
		y.set(func() { y.servers = 3 })
		y.after(t, 3*time.Second, 3)
		y.set(func() { y.looks = 0 })
		y.after(t, time.Hour, 3)
		y.seldom(t)
		y.set(func() { y.copies = 1 }) // as if another relay had removed copies
		y.after(t, time.Minute, 3)
	})
}

// TestCopiesOfOthersServers runs Keep without a known number of servers. The servers do not answer
// at first, then another relay is responsible. Keep must make the copies once its own relay is
// responsible.
func TestCopiesOfOthersServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &youngCluster{servers: 3, copies: 1, away: true}
		y.keep(t, false)
		y.after(t, 2*time.Second, 1)
		y.set(func() { y.away, y.notMine = false, true })
		y.after(t, 2*time.Second, 1)
		y.set(func() { y.notMine = false })
		y.after(t, 4*time.Second, 3)
	})
}

// TestOthersAddCopies runs Keep at a relay that is not responsible, while copies are missing. It
// must leave the responsible relay time to act, and add the copies after 30 s, since the
// responsible relay may have a version that adds none.
func TestOthersAddCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &youngCluster{servers: 3, copies: 2, notMine: true}
		y.keep(t, true)
		y.after(t, 5*time.Second, 2)
		y.after(t, 25*time.Second, 3)
	})
}

// TestCreationIsNotInterrupted ends the caller's context during a call of Create. The call must
// keep its own context with the deadline, and no call may follow.
func TestCreationIsNotInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	calls := 0
	err := broker.Create(ctx, func(call context.Context, copies int) error {
		calls++
		cancel()
		if _, limited := call.Deadline(); call.Err() != nil || !limited {
			t.Errorf("the call with %d copies has ended with %v, or has no deadline; want it running, with a deadline", copies, call.Err())
		}
		return &jetstream.APIError{}
	})
	if calls != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d calls, %v; want one, and %v", calls, err, context.Canceled)
	}
}
