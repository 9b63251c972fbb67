package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"ahprelay/test/procs"
)

// Metrics reads the metrics page of a relay.
type Metrics struct {
	URL string

	asked atomic.Int64 // requests since the relay's start or the last Apart
}

// leasesHeard is the metric with the number of hosts that a relay holds through its own
// port.
const leasesHeard = "ahp_relay_registry_leases_heard"

var leasesHeardLine = regexp.MustCompile(`(?m)^` + leasesHeard + ` (\d+)$`)

// Held returns how many hosts the relay holds through its own port.
func (m *Metrics) Held(ctx context.Context) (hosts int, err error) {
	m.asked.Add(1)
	text, err := procs.GetBy(ctx, http.DefaultClient, m.URL, "")
	if err != nil {
		return 0, err
	}
	found := leasesHeardLine.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("no metric %s in %s", leasesHeard, m.URL)
	}
	return strconv.Atoi(string(found[1]))
}

// heldEvery is the pause between two requests of AwaitHeld.
const heldEvery = 50 * time.Millisecond

// AwaitHeld waits until relays together hold a number of hosts through their own ports.
func AwaitHeld(ctx context.Context, hosts int, relays ...*Metrics) error {
	return procs.Until(ctx, heldEvery, func() (err error) {
		held := 0
		for _, m := range relays {
			n, failed := m.Held(ctx)
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
