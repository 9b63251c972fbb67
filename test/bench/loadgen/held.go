package loadgen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"
)

// Metrics reads the metrics page of a relay.
type Metrics struct {
	URL string

	asked atomic.Int64 // requests since the relay's start or the last Apart
}

// ErrNoMetric is the error for a page without the metric.
var ErrNoMetric = errors.New("no such metric")

// leasesHeard is the metric with the number of hosts that a relay holds through its own
// port.
const leasesHeard = "ahp_relay_registry_leases_heard"

var leasesHeardLine = regexp.MustCompile(`(?m)^` + leasesHeard + ` (\d+)$`)

// Held returns how many hosts the relay holds through its own port.
func (m *Metrics) Held(ctx context.Context) (hosts int, err error) {
	m.asked.Add(1)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	found := leasesHeardLine.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("%w: %s in %s", ErrNoMetric, leasesHeard, m.URL)
	}
	return strconv.Atoi(string(found[1]))
}

// HeldEvery is the pause between two requests of a caller that waits for hosts.
const HeldEvery = 50 * time.Millisecond

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
