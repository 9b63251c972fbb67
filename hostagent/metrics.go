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

// metrics are what the host-agent counts.
type metrics struct {
	registry   *prometheus.Registry
	delays     prometheus.Histogram
	lost, back prometheus.Counter // the connection to NATS

	conn atomic.Pointer[broker.Conn] // nil: there was none yet
}

func newMetrics(a *Agent) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		registry: meter.NewRegistry(),
		delays:   meter.Delays("ahp_agent_delivery_delay_seconds", "How long what the host says waits here until it leaves for a relay, of a part of all messages."),
		lost:     counter("ahp_agent_disconnects_total", "Times that the connection to the relay was lost."),
		back:     counter("ahp_agent_reconnects_total", "Times that it came back."),
	}
	m.registry.MustRegister(meter.Build("ahp_agent_build_info", a.cfg.Version), m.delays, m.lost, m.back, hostStats(a), &a.rejections)
	if a.watch != nil {
		m.registry.MustRegister(watchStats(a.watch))
	}
	return m
}

// A census is what is known at a time.
type census struct {
	presence  registry.Presence
	clients   int
	total     traffic
	routing   routing.Stats
	barred    int
	previews  int
	connected bool
	in, out   uint64 // bytes that NATS has carried
}

func (a *Agent) census() census {
	n := census{
		presence: a.presence.now(), clients: len(a.clients.every()), total: a.clients.total(), routing: a.routing.Stats(), barred: len(a.barred.list()),
		previews: len(a.live.previews.list(func(*openPreview) bool { return true })),
	}
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

// hostStats looks at the host-agent when it is asked.
func hostStats(a *Agent) prometheus.Collector {
	t := meter.NewTable(a.census)
	t.Gauge("ahp_agent_host_up", "Whether the host is there.", func(n census) float64 { return meter.Bool(n.presence.State == registry.Online) })
	t.Gauge("ahp_agent_host_silent_seconds", "How long the host had not answered when relays were last told of it; 0 while it answers.", func(n census) float64 { return float64(n.presence.Silent) / 1000 })
	t.Gauge("ahp_agent_connected", "Whether there is a connection to NATS, through a relay or not.", func(n census) float64 { return meter.Bool(n.connected) })
	t.Gauge("ahp_agent_links", "Links to relays.", func(n census) float64 { return float64(n.routing.Links) })
	t.Gauge("ahp_agent_clients", "Connections of clients.", func(n census) float64 { return float64(n.clients) })
	t.Gauge("ahp_agent_barred", "Subjects and tokens that the host's owner keeps away.", func(n census) float64 { return float64(n.barred) })
	t.Gauge("ahp_agent_previews", "Ports that clients have opened.", func(n census) float64 { return float64(n.previews) })
	t.Gauge("ahp_agent_queued_bytes", "Bytes that wait for relays and for the host.", func(n census) float64 { return float64(n.routing.Queued) })
	t.Gauge("ahp_agent_window_bytes", "Bytes of notifications that were sent last, kept to find them again.", func(n census) float64 { return float64(n.routing.Window) })
	t.Counter("ahp_agent_client_connections_total", "Connections of clients that relays have opened.", func(n census) float64 { return float64(n.total.conns) })
	t.Counter("ahp_agent_refused_frames_total", "Messages of clients that were refused.", func(n census) float64 { return float64(n.total.refused) })
	const frames, bytes, nats = "Messages of clients and of the host.", "Bytes of those messages, each client's counted.", "Bytes that NATS has carried, before they are compressed."
	t.Counter("ahp_agent_frames_total", frames, func(n census) float64 { return float64(n.total.in) }, "direction", toHost)
	t.Counter("ahp_agent_frames_total", frames, func(n census) float64 { return float64(n.total.out) }, "direction", toClient)
	t.Counter("ahp_agent_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.inBytes) }, "direction", toHost)
	t.Counter("ahp_agent_frame_bytes_total", bytes, func(n census) float64 { return float64(n.total.outBytes) }, "direction", toClient)
	t.Counter("ahp_agent_nats_bytes_total", nats, func(n census) float64 { return float64(n.in) }, "direction", toHost)
	t.Counter("ahp_agent_nats_bytes_total", nats, func(n census) float64 { return float64(n.out) }, "direction", toClient)
	return t
}

// watchStats looks at the watch for notifications when it is asked.
func watchStats(w *watch.Watch) prometheus.Collector {
	t := meter.NewTable(w.Stats)
	t.Gauge("ahp_agent_watch_up", "Whether there is a connection to the host that watches for notifications.", func(s watch.Stats) float64 { return meter.Bool(s.Connected) })
	t.Gauge("ahp_agent_watch_sessions", "Sessions that are watched.", func(s watch.Stats) float64 { return float64(s.Sessions) })
	t.Gauge("ahp_agent_watch_needs", "What of these waits for somebody.", func(s watch.Stats) float64 { return float64(s.Needs) })
	return t
}

// checkListen reports an address that nobody can listen at.
func checkListen(address string) error {
	if address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("host-agent: MetricsListen is %q; want an address such as 127.0.0.1:8486", address)
	}
	return nil
}

// metricsHandler serves metrics at an address. At one that only this machine
// reaches, it answers only to such names: else DNS could lead a web page here.
func (a *Agent) metricsHandler(at net.Addr) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", meter.Handler(a.metrics.registry))
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return meter.LocalOnly(mux)
	}
	return meter.NoPages(mux)
}

// serveMetrics serves metrics until ctx ends. Without them the host is served
// all the same.
func (a *Agent) serveMetrics(ctx context.Context) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.MetricsListen)
	if err != nil {
		a.cfg.Log.Error("no metrics", "error", err)
		return
	}
	a.cfg.Log.Info("metrics", "url", "http://"+listener.Addr().String()+"/metrics")
	server := &http.Server{
		Handler: a.metricsHandler(listener.Addr()), ReadHeaderTimeout: controlTimeout, WriteTimeout: controlTimeout,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	<-ctx.Done()
	_ = server.Close()
	wg.Wait()
}
