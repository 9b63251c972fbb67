package meter

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestOnlyLocalNamesAreServed(t *testing.T) {
	handler := LocalOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for _, test := range []struct {
		host   string
		header http.Header
		ok     bool
	}{
		{host: "localhost", ok: true},
		{host: "localhost:8485", ok: true},
		{host: "LocalHost:8485", ok: true},
		{host: "127.0.0.1:8485", ok: true},
		{host: "127.9.9.9", ok: true},
		{host: "[::1]:8485", ok: true},
		{host: "[::1]", ok: true},
		{host: "[::ffff:127.0.0.1]:8485", ok: true},
		{host: ""},
		{host: "0.0.0.0:8485"},
		{host: "[::]:8485"},
		{host: "::1"}, // a Host header has IPv6 addresses in brackets
		{host: "192.168.1.5:8485"},
		{host: "relay.example.com"},
		{host: "localhost.example.com:8485"},
		{host: "localhost.:8485"},
		{host: "127.0.0.1.example.com"},
		{host: "evil@127.0.0.1:8485"},
		{host: "localhost", header: http.Header{"Origin": {"http://localhost:8485"}}},
		{host: "localhost", header: http.Header{"Origin": {""}}},
		{host: "localhost", header: http.Header{"Origin": {"null"}}},
		{host: "localhost", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}},
		{host: "localhost", header: http.Header{"Sec-Fetch-Site": {"same-site"}}},
		{host: "localhost", header: http.Header{"Sec-Fetch-Site": {"none"}}, ok: true},
		{host: "localhost", header: http.Header{"Sec-Fetch-Site": {"same-origin"}}, ok: true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host, r.Header = test.host, test.header
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if got := w.Code == http.StatusNoContent; got != test.ok {
			t.Errorf("host %q, header %v: HTTP %d; want it served: %v", test.host, test.header, w.Code, test.ok)
		}
	}
}

// page returns the metrics page with the given collectors.
func page(t *testing.T, metrics ...prometheus.Collector) string {
	t.Helper()
	r := NewRegistry()
	r.MustRegister(metrics...)
	got := httptest.NewRecorder()
	Handler(r).ServeHTTP(got, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return got.Body.String()
}

func TestMetricsAreWrittenInPrometheusForm(t *testing.T) {
	table := NewTable(func() int { return 7 })
	table.Gauge("ahp_relay_x", "X.", func(n int) float64 { return float64(n) })
	table.Counter("ahp_relay_y_total", "Y.", func(n int) float64 { return float64(n + 1) }, "way", "up")
	table.Counter("ahp_relay_y_total", "Y.", func(n int) float64 { return float64(n + 2) }, "way", "down")
	delays := Delays("ahp_relay_z_seconds", "Z.")
	delays.Observe(0.003)
	all := page(t, Build("ahp_relay_build_info", "0.1.0+1a2b3c4d"), table, delays)
	for _, want := range []string{
		`ahp_relay_build_info{commit="1a2b3c4d",go="` + runtime.Version() + `",version="0.1.0"} 1`,
		"# TYPE ahp_relay_x gauge\nahp_relay_x 7\n", `ahp_relay_y_total{way="up"} 8`, `ahp_relay_y_total{way="down"} 9`,
		`ahp_relay_z_seconds_bucket{le="0.0025"} 0`, `ahp_relay_z_seconds_bucket{le="0.005"} 1`, "go_goroutines ", "process_start_time_seconds ",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the metrics lack %s:\n%s", want, all)
		}
	}
}
