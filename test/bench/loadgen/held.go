package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"ahprelay/test/procs"
)

// Metrics reads the metrics page of a relay.
type Metrics struct {
	URL string

	asked atomic.Int64 // requests since the relay's start or the last Apart
}

// Metrics with numbers of hosts.
const (
	leasesKept  = "ahp_relay_registry_leases"
	leasesHeard = "ahp_relay_registry_leases_heard"
)

// Held returns how many hosts the relay holds through its own port.
func (m *Metrics) Held(ctx context.Context) (hosts int, err error) { return m.count(ctx, leasesHeard) }

// Kept returns how many hosts' leases the relay keeps. A few of their host-agents may be
// connected to a different relay.
func (m *Metrics) Kept(ctx context.Context) (hosts int, err error) { return m.count(ctx, leasesKept) }

func (m *Metrics) count(ctx context.Context, metric string) (hosts int, err error) {
	m.asked.Add(1)
	text, err := procs.GetBy(ctx, http.DefaultClient, m.URL, "")
	if err != nil {
		return 0, err
	}
	_, found, _ := strings.Cut(string(text), "\n"+metric+" ")
	value, _, ok := strings.Cut(found, "\n")
	if !ok {
		return 0, fmt.Errorf("no metric %s in %s", metric, m.URL)
	}
	return strconv.Atoi(value)
}

// heldEvery is the pause between two requests of AwaitHeld.
const heldEvery = 50 * time.Millisecond

// AwaitHeld waits until relays together hold a number of hosts through their own ports.
func AwaitHeld(ctx context.Context, hosts int, relays ...*Metrics) error {
	return await(ctx, (*Metrics).Held, hosts, relays)
}

// AwaitKept waits until relays together keep the leases of a number of hosts.
func AwaitKept(ctx context.Context, hosts int, relays ...*Metrics) error {
	return await(ctx, (*Metrics).Kept, hosts, relays)
}

func await(ctx context.Context, count func(*Metrics, context.Context) (int, error), hosts int, relays []*Metrics) error {
	return procs.Until(ctx, heldEvery, func() (err error) {
		held := 0
		for _, m := range relays {
			n, failed := count(m, ctx)
			held, err = held+n, errors.Join(err, failed)
		}
		if held >= hosts {
			return nil
		}
		return errors.Join(fmt.Errorf("%d of %d hosts are held", held, hosts), err)
	})
}

// Started sets the number of requests to 0. Call it after a start of the relay.
func (m *Metrics) Started() { m.asked.Store(0) }

// Apart returns the processor time that a relay's process has used, without the time
// for requests to the metrics page. It measures the time for a request by some
// additional requests.
func (m *Metrics) Apart(ctx context.Context, pid int) (used time.Duration, err error) {
	const some = 20
	asked := m.asked.Load()
	if used, err = CPU(pid); err != nil {
		return 0, err
	}
	for range some {
		if _, err := m.Held(ctx); err != nil {
			return 0, err
		}
	}
	after, err := CPU(pid)
	return used - (after-used)/some*time.Duration(asked), err
}
