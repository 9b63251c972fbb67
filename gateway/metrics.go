package gateway

import (
	"net/http"
	"strconv"
	"sync"

	"ahprelay/ahp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what the relay counts.
type metrics struct {
	registry *prometheus.Registry

	accepted prometheus.Counter
	refused  *prometheus.CounterVec // by reason
	closed   *prometheus.CounterVec // by close code
	givenUp  *prometheus.CounterVec // by cause

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
		return prometheus.CounterOpts{Namespace: "ahp_relay", Name: name, Help: help}
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		accepted: prometheus.NewCounter(counter("client_connections_total", "Client connections that were let in.")),
		refused:  prometheus.NewCounterVec(counter("client_refusals_total", "Client connections that were not let in."), []string{"reason"}),
		closed:   prometheus.NewCounterVec(counter("client_closes_total", "Client connections that ended."), []string{"code"}),
		givenUp:  prometheus.NewCounterVec(counter("clients_given_up_total", "Client connections whose other end showed no life: pings went unanswered, or the client had come again (replaced)."), []string{"cause"}),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.accepted, m.refused, m.closed, m.givenUp, clientStats{s}, s.reports,
	)
	if s.cfg.Registry != nil {
		m.registry.MustRegister(registryStats{s.cfg.Registry})
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

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// clientStats looks at the clients when it is asked.
type clientStats struct{ server *Server }

var (
	clientsDesc   = prometheus.NewDesc("ahp_relay_clients", "Clients connected, by phase.", []string{"phase"}, nil)
	queuedDesc    = prometheus.NewDesc("ahp_relay_queued_bytes", "Bytes that wait for clients and from clients; those that several are to get count once.", nil, nil)
	silentDesc    = prometheus.NewDesc("ahp_relay_hosts_silent", "Hosts with clients here that are there and do not answer.", nil, nil)
	linksDesc     = prometheus.NewDesc("ahp_relay_links", "Links to host-agents.", nil, nil)
	audiencesDesc = prometheus.NewDesc("ahp_relay_audiences", "Connections to hosts that several clients share who only look.", nil, nil)
	viewersDesc   = prometheus.NewDesc("ahp_relay_viewers", "Clients that are in audiences.", nil, nil)
	framesDesc    = prometheus.NewDesc("ahp_relay_frames_total", "Messages of clients and hosts.", []string{"direction"}, nil)
	bytesDesc     = prometheus.NewDesc("ahp_relay_frame_bytes_total", "Bytes of those messages.", []string{"direction"}, nil)
)

// Describe implements [prometheus.Collector].
func (clientStats) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clientsDesc, queuedDesc, linksDesc, audiencesDesc, viewersDesc, silentDesc, framesDesc, bytesDesc} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (g clientStats) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	clients := g.server.hosts.all()
	phases := map[phase]int{}
	for _, c := range clients {
		c.mu.Lock()
		phases[c.phase]++
		c.mu.Unlock()
	}
	for p := phaseNew; p <= phaseClosed; p++ {
		send(clientsDesc, prometheus.GaugeValue, float64(phases[p]), p.String())
	}
	send(queuedDesc, prometheus.GaugeValue, float64(g.server.budget.used.Load()))
	send(linksDesc, prometheus.GaugeValue, float64(g.server.hosts.links()))
	audiences, viewers := g.server.hosts.watching()
	send(audiencesDesc, prometheus.GaugeValue, float64(audiences))
	send(viewersDesc, prometheus.GaugeValue, float64(viewers))
	send(silentDesc, prometheus.GaugeValue, float64(g.server.hosts.silent()))
	t := g.server.metrics.total(clients)
	send(framesDesc, prometheus.CounterValue, float64(t.framesIn), toHost)
	send(framesDesc, prometheus.CounterValue, float64(t.framesOut), toClient)
	send(bytesDesc, prometheus.CounterValue, float64(t.bytesIn), toHost)
	send(bytesDesc, prometheus.CounterValue, float64(t.bytesOut), toClient)
}
