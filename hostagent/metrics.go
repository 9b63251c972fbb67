package hostagent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/meter"
	"ahprelay/routing"
)

// metrics holds the host-agent's counters.
type metrics struct {
	registry   *prometheus.Registry
	delays     prometheus.Histogram
	lost, back prometheus.Counter // how often the connection to NATS was lost, and came back

	conn    atomic.Pointer[broker.Conn] // nil before the first connection
	standby atomic.Bool                 // the host-agent has a second connection to NATS
}

func newMetrics(a *Agent) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		registry: meter.NewRegistry(),
		delays:   meter.Delays("ahp_agent_delivery_delay_seconds", "Sampled time from reading a host message to sending it to a relay."),
		lost:     counter("ahp_agent_disconnects_total", "Lost connections to the relay."),
		back:     counter("ahp_agent_reconnects_total", "Reconnections to the relay."),
	}
	m.registry.MustRegister(meter.Build("ahp_agent_build_info", a.cfg.Version), m.delays, m.lost, m.back, hostStats(a), a.rejections.counts)
	if a.watch != nil {
		m.registry.MustRegister(watchStats(a.watch))
	}
	return m
}

// A census is a snapshot for the gauges.
type census struct {
	presence  registry.Presence
	clients   int
	total     traffic
	routing   routing.Stats
	blocked   int
	previews  int
	connected bool
	standby   bool
	in, out   uint64 // bytes carried by NATS
}

func (a *Agent) census() census {
	n := census{
		presence: a.presence.now(), clients: len(a.clients.every()), total: a.clients.total(), routing: a.routing.Stats(), blocked: len(a.blocked.list()),
		previews: len(a.live.previews.list(func(*openPreview) bool { return true })),
	}
	n.standby = a.metrics.standby.Load()
	if conn := a.metrics.conn.Load(); conn != nil {
		n.connected = conn.Connected()
		n.in, n.out = conn.Traffic()
	}
	return n
}

// Directions, as label values.
const (
	toHost   = "to_host"
	toClient = "to_client"
)

// hostStats collects the host-agent's gauges.
func hostStats(a *Agent) prometheus.Collector {
	t := meter.NewTable(a.census)
	t.Gauge("ahp_agent_host_up", "Whether the host is up.", func(n census) float64 { return meter.Bool(n.presence.State == registry.Online) })
	t.Gauge("ahp_agent_host_silent_seconds", "The host's silence as last reported to relays; 0 while it answers.", func(n census) float64 { return float64(n.presence.Silent) / 1000 })
	t.Gauge("ahp_agent_connected", "Whether NATS is connected, directly or through a relay.", func(n census) float64 { return meter.Bool(n.connected) })
	t.Gauge("ahp_agent_standby", "Whether a second, idle connection to a different relay is open.", func(n census) float64 { return meter.Bool(n.standby) })
	t.Gauge("ahp_agent_links", "Links to relays.", func(n census) float64 { return float64(n.routing.Links) })
	t.Gauge("ahp_agent_clients", "Client connections.", func(n census) float64 { return float64(n.clients) })
	t.Gauge("ahp_agent_barred", "Subjects and tokens blocked by the host's owner.", func(n census) float64 { return float64(n.blocked) })
	t.Gauge("ahp_agent_previews", "Open previews of ports.", func(n census) float64 { return float64(n.previews) })
	t.Gauge("ahp_agent_queued_bytes", "Bytes queued for relays and for the host.", func(n census) float64 { return float64(n.routing.Queued) })
	t.Gauge("ahp_agent_window_bytes", "Bytes of recent notifications kept for sharing.", func(n census) float64 { return float64(n.routing.Window) })
	t.Counter("ahp_agent_client_connections_total", "Client connections opened by relays.", func(n census) float64 { return float64(n.total.conns) })
	t.Counter("ahp_agent_refused_frames_total", "Client messages refused.", func(n census) float64 { return float64(n.total.refused) })
	const frames, bytes, nats = "Messages from clients and from the host.", "Bytes of messages, counted for each client.", "Bytes carried by NATS, before compression."
	t.Counter("ahp_agent_frames_total", frames, func(n census) float64 { return float64(n.total.in) }, "direction", toHost)
	t.Counter("ahp_agent_frames_total", frames, func(n census) float64 { return float64(n.total.out) }, "direction", toClient)
	t.Counter("ahp_agent_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.inBytes) }, "direction", toHost)
	t.Counter("ahp_agent_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.outBytes) }, "direction", toClient)
	t.Counter("ahp_agent_nats_bytes_total", nats, func(n census) float64 { return float64(n.in) }, "direction", toHost)
	t.Counter("ahp_agent_nats_bytes_total", nats, func(n census) float64 { return float64(n.out) }, "direction", toClient)
	return t
}

// watchStats collects the metrics of the watch of sessions.
func watchStats(w *watch.Watch) prometheus.Collector {
	t := meter.NewTable(w.Stats)
	t.Gauge("ahp_agent_watch_up", "Whether the watch of sessions is connected to the host.", func(s watch.Stats) float64 { return meter.Bool(s.Connected) })
	t.Gauge("ahp_agent_watch_sessions", "Watched sessions.", func(s watch.Stats) float64 { return float64(s.Sessions) })
	t.Gauge("ahp_agent_watch_needs", "Open questions that need a person.", func(s watch.Stats) float64 { return float64(s.Needs) })
	return t
}

func checkListen(address string) error {
	if address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("--metrics-listen %q: want an address such as 127.0.0.1:8487", address)
	}
	return nil
}

// serve serves the metrics at an address until ctx ends, unless the address is empty. If
// that fails, the host is served without metrics.
func (m *metrics) serve(ctx context.Context, address string, log *slog.Logger) {
	if address == "" {
		return
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		log.Error("metrics unavailable", "error", err)
		return
	}
	log.Info("metrics served", "url", "http://"+listener.Addr().String()+"/metrics")
	serveHTTP(ctx, listener, meter.Page(m.registry, listener.Addr()))
}

// serveHTTP serves a listener's requests until ctx ends.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: controlTimeout, WriteTimeout: controlTimeout,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	<-ctx.Done()
	_ = server.Close()
	wg.Wait()
}
