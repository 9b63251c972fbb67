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

// A youngCluster simulates copies on a growing number of servers.
type youngCluster struct {
	mu              sync.Mutex // guards all
	servers, copies int
	away            bool // no server answers
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

// set changes the cluster.
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
		t.Errorf("there are %d copies at %d servers after %v; want %d", y.copies, y.servers, d, want)
	}
}

// seldom fails if there were too many checks in the last hour.
func (y *youngCluster) seldom(t *testing.T) {
	t.Helper()
	y.set(func() {
		if y.looks > 200 {
			t.Errorf("a cluster of %d was asked %d times in an hour", y.servers, y.looks)
		}
	})
}

// TestCopiesComeSoon ensures a new cluster gets its copies as its servers arrive, with
// few checks later.
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
		y.set(func() { y.copies = 1 }) // by another relay
		y.after(t, time.Minute, 3)
	})
}

// TestCopiesOfOthersServers covers an unknown number of servers, servers which do not
// answer at first, and a relay which becomes responsible late.
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

// TestOthersAddCopies ensures other relays add copies if the responsible relay does not,
// for example because of its version. The responsible relay gets time to act first.
func TestOthersAddCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &youngCluster{servers: 3, copies: 2, notMine: true}
		y.keep(t, true)
		y.after(t, 5*time.Second, 2)
		y.after(t, 25*time.Second, 3)
	})
}
