// Package meter has metrics code for relay and host-agent: build information, histograms
// of delays, and HTTP handlers. docs/operating.md describes each metric. Code names each
// metric in full, so it can be found by search.
package meter

import (
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewRegistry returns a registry with the metrics of every Go process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Build returns a metric with the constant value 1 and labels for the build: a version
// such as 0.1.0+1a2b3c4d is split into number and commit.
func Build(name, version string) prometheus.Collector {
	number, commit, _ := strings.Cut(version, "+")
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: name, Help: "Always 1; the labels name the version and the commit of this program.",
		ConstLabels: prometheus.Labels{"version": number, "commit": commit, "go": runtime.Version()},
	})
	g.Set(1)
	return g
}

// delayBuckets reach from imperceptible delays to the delay at which clients give up.
var delayBuckets = []float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25}

// Delays returns a histogram of delays, in seconds.
func Delays(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: delayBuckets})
}

// Handler serves the metrics of a registry.
func Handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// A Table is a [prometheus.Collector] whose metrics are computed when they are scraped.
// T is a snapshot of the program's state.
type Table[T any] struct {
	read func() T
	rows []row[T]
}

type row[T any] struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	of     func(T) float64
	labels []string // values
}

// NewTable returns an empty Table. Each scrape calls read once, for the values of all
// metrics.
func NewTable[T any](read func() T) *Table[T] { return &Table[T]{read: read} }

// Gauge adds a metric. labels is empty, or the name and value of one label.
func (t *Table[T]) Gauge(name, help string, of func(T) float64, labels ...string) {
	t.add(name, help, prometheus.GaugeValue, of, labels)
}

// Counter adds a metric that only grows.
func (t *Table[T]) Counter(name, help string, of func(T) float64, labels ...string) {
	t.add(name, help, prometheus.CounterValue, of, labels)
}

func (t *Table[T]) add(name, help string, kind prometheus.ValueType, of func(T) float64, labels []string) {
	var names, values []string
	if len(labels) > 0 {
		names, values = labels[:1], labels[1:]
	}
	t.rows = append(t.rows, row[T]{prometheus.NewDesc(name, help, names, nil), kind, of, values})
}

// Describe implements [prometheus.Collector].
func (t *Table[T]) Describe(out chan<- *prometheus.Desc) {
	for _, r := range t.rows {
		out <- r.desc
	}
}

// Collect implements [prometheus.Collector].
func (t *Table[T]) Collect(out chan<- prometheus.Metric) {
	seen := t.read()
	for _, r := range t.rows {
		out <- prometheus.MustNewConstMetric(r.desc, r.kind, r.of(seen), r.labels...)
	}
}

// Bool returns 1 for true and 0 for false, as the value of a gauge.
func Bool(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Page serves the metrics at /metrics, for a listener at the address at: through [LocalOnly]
// if that is a loopback address, otherwise through [NoPages].
func Page(registry *prometheus.Registry, at net.Addr) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", Handler(registry))
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return LocalOnly(mux)
	}
	return NoPages(mux)
}

// NoPages refuses requests which a web page could have sent: with an Origin, or marked
// by the browser as from another origin (requests for images and scripts have no Origin).
func NoPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		if r.Header["Origin"] != nil || site != "" && site != "none" && site != "same-origin" {
			http.Error(w, "this listener does not answer web pages", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// LocalOnly is NoPages, and also refuses requests whose Host is not a loopback name or
// address: a web page could make a name of its own resolve to this listener (DNS
// rebinding).
func LocalOnly(next http.Handler) http.Handler {
	return NoPages(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		if ip := net.ParseIP(host); !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "this listener answers only as localhost or a loopback address", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	}))
}
