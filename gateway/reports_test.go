package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/routing"
)

// admin requests a page from the admin listener, and returns its body.
func (w *world) admin(path string) string {
	w.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+path, nil)
	got := httptest.NewRecorder()
	w.server.AdminHandler().ServeHTTP(got, r)
	if got.Code != http.StatusOK {
		w.Fatalf("%s: HTTP %d; want 200", path, got.Code)
	}
	body, _ := io.ReadAll(got.Body)
	return string(body)
}

// metric returns a metric's value as text, or "missing".
func (w *world) metric(name string) string {
	w.Helper()
	for line := range strings.Lines(w.admin("/metrics")) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return "missing"
}

// wantMetrics fails unless metrics have these values.
func (w *world) wantMetrics(want map[string]string) {
	w.Helper()
	for name, value := range want {
		if got := w.metric(name); got != value {
			w.Errorf("%s is %s; want %s", name, got, value)
		}
	}
}

// report sends a host-agent's report about a connection, and waits until the relay has
// it.
func (h *hostEnd) report(r routing.Report) {
	h.conn.Report(func() routing.Report { return r })
	time.Sleep(time.Second)
	synctest.Wait()
}

const (
	warningMetric   = `ahp_relay_mcp_capability_warnings_total{warning_class="sampling_without_client_capability"}`
	rejectionMetric = `ahp_relay_mcp_rejections_total{rejection_class="method_not_served"}`
)

// TestReportsAreShown: a host-agent reports on a connection. The admin pages show the
// reported state, and the metrics and the log show the counts.
func TestReportsAreShown(t *testing.T) {
	var log bytes.Buffer
	inWorld(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		w.wantMetrics(map[string]string{warningMetric: "0", rejectionMetric: "0", "ahp_relay_mcp_sampling_capability_warnings_total": "0", "ahp_relay_gate_events_other_total": "0"})
		c := w.dial(w.token(nil))
		h := w.hostConn(1)
		state := `{"mcp":{"initialized":true,"mode":"soft","clientCapabilities":{"mcpApps":{}}},"seen":{"warning":{"x":3}}}`
		warning := routing.Count{Kind: "warning", Class: "sampling_without_client_capability", N: 3}
		h.report(routing.Report{Conn: h.open.ID, State: []byte(state), Counts: []routing.Count{warning, {Kind: "rejection", Class: "method_not_served", N: 2}}})

		var all struct {
			Connections int
			Warnings    map[string]int64
			Rejections  map[string]int64
			Details     []struct {
				ID, Tenant, Host, Subject string
				MCP                       struct {
					Initialized        bool
					ClientCapabilities map[string]any
				}
				Seen map[string]map[string]int

				Declared string `json:"client_capabilities_json"`
			}
		}
		if err := json.Unmarshal([]byte(w.admin("/admin/runtime/mcp?details=1")), &all); err != nil {
			t.Fatal(err)
		}
		d := all.Details[0]
		if all.Connections != 1 || all.Warnings["sampling_without_client_capability"] != 3 || all.Rejections["method_not_served"] != 2 ||
			d.ID != h.open.ID || d.Subject != "ada" || d.Host != testHost || !d.MCP.Initialized || d.MCP.ClientCapabilities["mcpApps"] == nil || d.Seen["warning"]["x"] != 3 || d.Declared != `{"mcpApps":{}}` {
			t.Errorf("/admin/runtime/mcp: %+v; want the report's connection, warnings and rejections", all)
		}
		if page := w.admin("/admin/runtime/mcp"); strings.Contains(page, "details") || strings.Contains(page, h.open.ID) {
			t.Errorf("/admin/runtime/mcp shows details without details=1: %s", page)
		}
		if page := w.admin("/admin/connections?details=1"); !strings.Contains(page, `"reported":`+state) {
			t.Errorf("/admin/connections?details=1: %s; want the reported state", page)
		}

		// A second report adds to the counts, and replaces the state.
		h.report(routing.Report{Conn: h.open.ID, State: []byte(`{"mcp":{"initialized":false}}`), Counts: []routing.Count{warning}})
		w.wantMetrics(map[string]string{warningMetric: "6", rejectionMetric: "2", "ahp_relay_mcp_sampling_capability_warnings_total": "6", "mcp_sampling_capability_warnings_total": "6"})
		if page := w.admin("/admin/runtime/mcp?details=1"); !strings.Contains(page, `"initialized":false`) || strings.Contains(page, "mcpApps") {
			t.Errorf("/admin/runtime/mcp after the second report: %s; want an uninitialized connection, without mcpApps", page)
		}
		if n := strings.Count(log.String(), "mcp.capability.warning"); n != 1 {
			t.Errorf("%d warnings in the log; want one:\n%s", n, log.String())
		}

		// The relay also counts a report that comes after the client has disconnected.
		if err := c.ws.CloseNow(); err != nil {
			t.Fatal(err)
		}
		w.wantGone()
		h.report(routing.Report{Conn: h.open.ID, Counts: []routing.Count{warning}})
		w.wantMetrics(map[string]string{warningMetric: "9"})
	})
}

// A report with unknown kinds and classes creates no metrics, and the relay ignores a
// report on a different host's connection.
func TestUnknownReportsMakeNoMetrics(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		h := w.hostConn(1)
		before := strings.Count(w.admin("/metrics"), "\n")
		h.report(routing.Report{Conn: "another", State: []byte(`{"mcp":{}}`), Counts: []routing.Count{
			{Kind: "warning", Class: "later_class", N: 1}, {Kind: "later_kind", Class: "x", N: 5},
		}})
		for _, info := range w.server.hosts.all() {
			w.server.reports.accept(hostKey{testTenant, "elsewhere"}, routing.Report{Conn: info.id, State: []byte(`{"mcp":{"stolen":1}}`)})
		}
		w.wantMetrics(map[string]string{`ahp_relay_mcp_capability_warnings_total{warning_class="other"}`: "1", "ahp_relay_gate_events_other_total": "5", warningMetric: "0"})
		if after := strings.Count(w.admin("/metrics"), "\n"); after != before {
			t.Errorf("%d lines of metrics; want %d as before", after, before)
		}
		if page := w.admin("/admin/runtime/mcp?details=1"); strings.Contains(page, "stolen") {
			t.Errorf("/admin/runtime/mcp shows the report from another host's agent: %s", page)
		}
		c.wantOpen()
	})
}

// The metrics add up the reports over a host-agent's first link and its next.
func TestCountsOutliveLinks(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		for i, want := range []string{"2", "4"} {
			w.startAgent(routing.AgentEndConfig{})
			w.dial(w.token(nil))
			h := w.hostConn(i + 1)
			h.report(routing.Report{Conn: h.open.ID, Counts: []routing.Count{{Kind: "rejection", Class: "method_not_served", N: 2}}})
			w.wantMetrics(map[string]string{rejectionMetric: want})
			w.stopAgent()
			w.setReleased("agent1", "restarted")
			time.Sleep(2 * time.Second)
			synctest.Wait()
			w.mu.Lock()
			w.host.Released = ""
			w.mu.Unlock()
		}
	})
}

// For each connection, the relay tells the host-agent whether the host is strict by the
// configured patterns. checkStrict refuses malformed patterns.
func TestStrictModeReachesHostAgents(t *testing.T) {
	for pattern, strict := range map[string]bool{
		"default/laptop": true, "default/*": true, "*/*": true, "*/lap*": true,
		"default/desktop": false, "other/*": false,
	} {
		inWorld(t, Config{Strict: []string{"x/y", pattern}}, func(w *world) {
			w.startAgent(routing.AgentEndConfig{})
			w.dial(w.token(nil))
			if got := w.hostConn(1).open.Strict; got != strict {
				t.Errorf("strict %s: the host-agent is told %v; want %v", pattern, got, strict)
			}
			if page := w.admin("/admin/runtime/mcp"); !strings.Contains(page, `"strict":["x/y","`+pattern+`"]`) {
				t.Errorf("the strict pattern %s is not in /admin/runtime/mcp: %s", pattern, page)
			}
		})
	}
	for _, pattern := range []string{"laptop", "a/b/c", "", "default/[", "default"} {
		cfg := Config{Strict: []string{pattern}, MaxFrame: 1 << 20, MaxFirstFrame: 1 << 10, QueueLimit: 1 << 20, MaxQueued: 1 << 30, Instance: "x"}
		if err := cfg.checkStrict(); err == nil || !strings.Contains(err.Error(), "--strict") {
			t.Errorf("pattern %q: %v; want an error that names the field", pattern, err)
		}
	}
}
