package gateway

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/internal/meter"
)

// metrics holds the relay's counters.
type metrics struct {
	registry *prometheus.Registry

	accepted prometheus.Counter
	refused  *prometheus.CounterVec // by reason
	closed   *prometheus.CounterVec // by close code
	givenUp  *prometheus.CounterVec // by cause
	delays   prometheus.Histogram

	mu    sync.Mutex // guards ended, and client.counted
	ended traffic    // traffic of ended connections
}

// traffic counts messages and bytes.
type traffic struct{ framesIn, framesOut, bytesIn, bytesOut int64 }

func (t *traffic) add(c *client) {
	t.framesIn += c.framesIn.Load()
	t.framesOut += c.framesOut.Load()
	t.bytesIn += c.bytesIn.Load()
	t.bytesOut += c.bytesOut.Load()
}

// Directions of messages, as label values.
const (
	toHost   = "to_host"
	toClient = "to_client"
)

func newMetrics(s *Server) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help}
	}
	m := &metrics{
		registry: meter.NewRegistry(),
		accepted: prometheus.NewCounter(counter("ahp_relay_client_connections_total", "Client connections admitted.")),
		refused:  prometheus.NewCounterVec(counter("ahp_relay_client_refusals_total", "Connections and requests refused."), []string{"reason"}),
		closed:   prometheus.NewCounterVec(counter("ahp_relay_client_closes_total", "Client connections closed."), []string{"code"}),
		givenUp:  prometheus.NewCounterVec(counter("ahp_relay_clients_given_up_total", "Client connections ended because the client did not respond: to pings, after it had reconnected (replaced), or when the relay stopped (drain)."), []string{"cause"}),
		delays:   meter.Delays("ahp_relay_delivery_delay_seconds", "Delay from a message's arrival in the queue until the kernel accepts it, for a sample of writes."),
	}
	m.registry.MustRegister(
		meter.Build("ahp_relay_build_info", s.cfg.Version), m.accepted, m.refused, m.closed, m.givenUp, m.delays, clientStats(s), s.reports.metrics(),
	)
	if s.cfg.Registry != nil {
		m.registry.MustRegister(registryStats(s.cfg.Registry))
	}
	return m
}

func (m *metrics) count(c *client, code ahp.CloseCode) {
	m.closed.WithLabelValues(codeLabel(code)).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended.add(c)
	c.counted = true
}

// codeLabel returns the label value for a close code. Unknown codes share a label,
// because clients may close with any code.
func codeLabel(code ahp.CloseCode) string {
	switch code {
	case 1000, 1005, wire.CloseLost:
	default:
		if code.Reason() == "" {
			return "other"
		}
	}
	return strconv.Itoa(int(code))
}

// total returns the traffic of all connections, ended and open.
func (m *metrics) total(open []*client) traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.ended
	for _, c := range open {
		if !c.counted {
			t.add(c)
		}
	}
	return t
}

// A census is a snapshot of the connected clients, for metrics.
type census struct {
	phases             map[phase]int
	queued             int64
	links, silent      int
	audiences, viewers int
	away               int   // streams whose clients are absent
	backlog            int64 // bytes held for all streams
	total              traffic
}

func (s *Server) census() census {
	clients := s.hosts.all()
	n := census{phases: map[phase]int{}, queued: s.budget.used.Load(), links: s.hosts.links(), silent: s.hosts.silent()}
	for _, c := range clients {
		n.phases[c.phaseNow()]++
	}
	n.audiences, n.viewers = s.hosts.watching()
	if s.carried != nil {
		_, n.away = s.carried.relay.Count()
		n.backlog = int64(s.carried.pool.Held())
	}
	n.total = s.metrics.total(clients)
	return n
}

func clientStats(s *Server) prometheus.Collector {
	t := meter.NewTable(s.census)
	for p := phaseNew; p <= phaseClosed; p++ {
		t.Gauge("ahp_relay_clients", "Clients connected, by phase.", func(n census) float64 { return float64(n.phases[p]) }, "phase", p.String())
	}
	t.Gauge("ahp_relay_queued_bytes", "Bytes queued from and to clients; shared bytes count once.", func(n census) float64 { return float64(n.queued) })
	most := float64(s.cfg.MaxQueued)
	t.Gauge("ahp_relay_max_queued_bytes", "Limit for ahp_relay_queued_bytes.", func(census) float64 { return most })
	t.Gauge("ahp_relay_links", "Links to host-agents.", func(n census) float64 { return float64(n.links) })
	t.Gauge("ahp_relay_audiences", "Connections to hosts shared by several viewers.", func(n census) float64 { return float64(n.audiences) })
	t.Gauge("ahp_relay_viewers", "Clients in audiences.", func(n census) float64 { return float64(n.viewers) })
	t.Gauge("ahp_relay_clients_away", "Clients behind ahp-connect that are unreachable and may resume.", func(n census) float64 { return float64(n.away) })
	t.Gauge("ahp_relay_backlog_bytes", "Bytes that clients behind ahp-connect have not confirmed.", func(n census) float64 { return float64(n.backlog) })
	t.Gauge("ahp_relay_hosts_silent", "Online hosts in use that do not answer.", func(n census) float64 { return float64(n.silent) })
	const frames, bytes = "Messages between clients and hosts.", "Bytes in messages between clients and hosts."
	t.Counter("ahp_relay_frames_total", frames, func(n census) float64 { return float64(n.total.framesIn) }, "direction", toHost)
	t.Counter("ahp_relay_frames_total", frames, func(n census) float64 { return float64(n.total.framesOut) }, "direction", toClient)
	t.Counter("ahp_relay_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.bytesIn) }, "direction", toHost)
	t.Counter("ahp_relay_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.bytesOut) }, "direction", toClient)
	return t
}
