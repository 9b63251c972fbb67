package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/internal/clock"

	"github.com/nats-io/nats.go/jetstream"
)

// Timing of readiness checks.
const (
	awaitEvery = time.Second     // interval between checks
	awaitLook  = 5 * time.Second // timeout for a check
)

// An awaiting checks whether a relay in a cluster is ready. The relay must have read the
// registry, which may need relays that are absent. Then each store must have all its
// copies. Otherwise an operator could go on to replace the relay with the last copy.
type awaiting struct {
	nats    *embedded.Server
	js      jetstream.JetStream
	cluster string       // the region; "" without regions
	unread  func() error // fails until the registry has been read
	log     *slog.Logger

	task
	lack atomic.Pointer[lack] // nil: the relay is ready
}

// A lack is the reason why a relay is not ready.
type lack struct {
	why     error
	waiting string // the awaited event or relays; may contain relays' addresses
}

// errUnchecked is the reason until the first check has finished.
var errUnchecked = errors.New("the copies of the stores have not been checked yet")

// startAwaiting starts the checks. The caller must close the result.
func startAwaiting(a *awaiting) *awaiting {
	a.lack.Store(&lack{why: errUnchecked})
	a.start(a.run)
	return a
}

// run checks until the relay is ready or ctx ends.
func (a *awaiting) run(ctx context.Context) {
	for last := ""; ; {
		now := a.lacking(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case now == nil:
			a.lack.Store(nil)
			a.log.Info("store copies complete")
			return
		}
		a.lack.Store(now)
		if text := now.err(true).Error(); text != last {
			a.log.Warn("relay not ready yet", "reason", text)
			last = text
		}
		if !clock.Sleep(ctx, awaitEvery) {
			return
		}
	}
}

// lacking returns the current reason why the relay is not ready, or nil.
func (a *awaiting) lacking(ctx context.Context) *lack {
	ctx, cancel := context.WithTimeout(ctx, awaitLook)
	defer cancel()
	if why := a.unread(); why != nil {
		return &lack{why, a.awaited(ctx)}
	}
	if why := broker.Whole(ctx, a.js, a.nats.Name(), a.cluster, len(a.nats.Routes())+1); why != nil {
		return &lack{why: why}
	}
	return nil
}

// awaited names the relays or the event that this relay waits for.
func (a *awaiting) awaited(ctx context.Context) string {
	absent := a.nats.Absent(ctx)
	switch {
	case len(absent) > 0:
		return strings.Join(absent, ", ")
	case a.nats.Linked():
		return "the election of a leader among the relays of the cluster"
	case len(a.nats.Others()) > 0:
		return "a connection to another relay of the cluster"
	}
	return "a second relay: none is named with --cluster-route, and none has connected"
}

// err returns the reason as an error, or nil. It names the awaited relays only if inside
// is true, because the public listener must not show their addresses.
func (l *lack) err(inside bool) error {
	switch {
	case l == nil:
		return nil
	case l.waiting == "":
		return l.why
	case inside:
		return fmt.Errorf("%w; waiting for %s", l.why, l.waiting)
	}
	return fmt.Errorf("%w; waiting for other relays, which the log and the admin listener's /readyz name", l.why)
}
