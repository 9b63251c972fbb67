package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/broker/embedded"
)

// awaitEvery is the interval between searches for the absent relays of a cluster.
const awaitEvery = 2 * time.Second

// An awaiting finds the relays of its cluster that a relay waits for, until it has read
// the registry.
type awaiting struct {
	nats   *embedded.Server
	unread func() error // of the registry
	log    *slog.Logger

	end     context.CancelFunc
	running sync.WaitGroup
	absent  atomic.Pointer[[]string] // nil: not known yet
}

// startAwaiting starts the search. The caller must close it.
func startAwaiting(nats *embedded.Server, unread func() error, log *slog.Logger) *awaiting {
	a := &awaiting{nats: nats, unread: unread, log: log}
	ctx, end := context.WithCancel(context.Background())
	a.end = end
	a.running.Go(func() { a.run(ctx) })
	return a
}

func (a *awaiting) close() {
	a.end()
	a.running.Wait()
}

// run returns when the registry has been read or ctx ends.
func (a *awaiting) run(ctx context.Context) {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for a.unread() != nil {
		absent := awaited(ctx, a.nats)
		if was := a.absent.Swap(&absent); ctx.Err() == nil && (was == nil || !slices.Equal(*was, absent)) {
			a.log.Warn("registry not read yet", "waiting_for", strings.Join(absent, ", "))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// awaited names the relays that a relay waits for, or the event.
func awaited(ctx context.Context, nats *embedded.Server) []string {
	others := nats.Others()
	absent := nats.Absent(ctx)
	switch {
	case len(absent) > 0:
		return absent
	case len(others) > 0:
		return []string{"the election of a leader among the relays of the cluster"}
	case nats.Linked():
		return []string{"the election of a leader with the relays that have connected"}
	}
	return []string{"a second relay: none is named with --cluster-route, and none has connected"}
}

// err explains an unread registry. Names appears only where addresses of relays may:
// not at the public listener.
func (a *awaiting) err(why error, names bool) error {
	absent := a.absent.Load()
	switch {
	case absent == nil:
		return why
	case names:
		return fmt.Errorf("%w; waiting for %s", why, strings.Join(*absent, ", "))
	}
	return fmt.Errorf("%w; waiting for other relays, which the log and the admin listener's /readyz name", why)
}
