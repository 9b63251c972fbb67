package gateway

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/ahp"
	"ahprelay/internal/meter"
)

// metrics are what the relay counts.
type metrics struct {
	registry *prometheus.Registry

	accepted prometheus.Counter
	refused  *prometheus.CounterVec // by reason
	closed   *prometheus.CounterVec // by close code
	givenUp  *prometheus.CounterVec // by cause
	delays   prometheus.Histogram

	mu    sync.Mutex // guards ended, and the counted marks of clients
	ended traffic    // of clients that are gone
}

// traffic is what connections have carried.
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
		accepted: prometheus.NewCounter(counter("ahp_relay_client_connections_total", "Client connections that were let in.")),
		refused:  prometheus.NewCounterVec(counter("ahp_relay_client_refusals_total", "Client connections that were not let in."), []string{"reason"}),
		closed:   prometheus.NewCounterVec(counter("ahp_relay_client_closes_total", "Client connections that ended."), []string{"code"}),
		givenUp:  prometheus.NewCounterVec(counter("ahp_relay_clients_given_up_total", "Client connections whose other end showed no life: pings went unanswered, or the client had come again (replaced)."), []string{"cause"}),
		delays:   meter.Delays("ahp_relay_delivery_delay_seconds", "How long what may be sent to a client waits until its kernel has taken it, of a part of all writes."),
	}
	m.registry.MustRegister(
		meter.Build("ahp_relay_build_info", s.cfg.Version), m.accepted, m.refused, m.closed, m.givenUp, m.delays, clientStats(s), s.reports,
	)
	if s.cfg.Registry != nil {
		m.registry.MustRegister(registryStats(s.cfg.Registry))
	}
	return m
}

// count adds what a connection that has ended did.
func (m *metrics) count(c *client, code ahp.CloseCode) {
	m.closed.WithLabelValues(codeLabel(code)).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended.add(c)
	c.counted = true
}

// codeLabel returns a close code as a label value. Clients may close with any
// code: those that mean nothing here have one label together.
func codeLabel(code ahp.CloseCode) string {
	switch code {
	case 1000, 1005, closeLost:
	default:
		if code.Reason() == "" {
			return "other"
		}
	}
	return strconv.Itoa(int(code))
}

// total is what all connections have carried, those that are open included.
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

// A census is what is known of the clients at a time.
type census struct {
	phases             map[phase]int
	queued             int64
	links, silent      int
	audiences, viewers int
	total              traffic
}

func (s *Server) census() census {
	clients := s.hosts.all()
	n := census{phases: map[phase]int{}, queued: s.budget.used.Load(), links: s.hosts.links(), silent: s.hosts.silent()}
	for _, c := range clients {
		n.phases[c.phaseNow()]++
	}
	n.audiences, n.viewers = s.hosts.watching()
	n.total = s.metrics.total(clients)
	return n
}

// clientStats looks at the clients when it is asked.
func clientStats(s *Server) prometheus.Collector {
	t := meter.NewTable(s.census)
	for p := phaseNew; p <= phaseClosed; p++ {
		t.Gauge("ahp_relay_clients", "Clients connected, by phase.", func(n census) float64 { return float64(n.phases[p]) }, "phase", p.String())
	}
	t.Gauge("ahp_relay_queued_bytes", "Bytes that wait for clients and from clients; those that several are to get count once.", func(n census) float64 { return float64(n.queued) })
	t.Gauge("ahp_relay_links", "Links to host-agents.", func(n census) float64 { return float64(n.links) })
	t.Gauge("ahp_relay_audiences", "Connections to hosts that several clients share who only look.", func(n census) float64 { return float64(n.audiences) })
	t.Gauge("ahp_relay_viewers", "Clients that are in audiences.", func(n census) float64 { return float64(n.viewers) })
	t.Gauge("ahp_relay_hosts_silent", "Hosts with clients here that are there and do not answer.", func(n census) float64 { return float64(n.silent) })
	const frames, bytes = "Messages of clients and hosts.", "Bytes of those messages."
	t.Counter("ahp_relay_frames_total", frames, func(n census) float64 { return float64(n.total.framesIn) }, "direction", toHost)
	t.Counter("ahp_relay_frames_total", frames, func(n census) float64 { return float64(n.total.framesOut) }, "direction", toClient)
	t.Counter("ahp_relay_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.bytesIn) }, "direction", toHost)
	t.Counter("ahp_relay_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.bytesOut) }, "direction", toClient)
	return t
}
