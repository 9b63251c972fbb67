package gateway

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/auth/gate"
	"ahprelay/auth/mcpgate"
	"ahprelay/routing"
)

// reports is what host-agents report of clients' connections: how each is, for
// the admin pages, and how often gates have seen what, for metrics.
type reports struct {
	log *slog.Logger

	mu      sync.Mutex
	clients map[string]*client // by id, those that are there
	seen    map[occasion]int64 // by all gates so far
}

// An occasion is what a gate may see, and a class of it.
type occasion struct{ kind, class string }

// other stands for kinds and classes that this relay does not know.
const other = "other"

// A gateMetric is a metric of what gates have seen.
type gateMetric struct {
	kind    string
	desc    *prometheus.Desc
	classes []string
}

// gateMetrics are the kinds of occasions that are counted, and their classes.
// What a host-agent reports beyond these is counted as other, so that none can
// make many metrics.
var gateMetrics = []gateMetric{
	mcpMetric(mcpgate.Warning, "ahp_relay_mcp_capability_warnings_total", "Messages of hosts that need what the client has not declared, and passed."),
	mcpMetric(mcpgate.Rejection, "ahp_relay_mcp_rejections_total", "Messages that host-agents have refused because client or host had not declared what they need."),
	mcpMetric(mcpgate.Observation, "ahp_relay_mcp_observations_total", "Messages that passed because not enough was known."),
	{gate.Refusal, prometheus.NewDesc("ahp_relay_refusals_total",
		"Messages that host-agents have refused to keep subjects apart.", []string{"refusal_class"}, nil), append(slices.Clone(gate.RefusalClasses), other)},
}

func mcpMetric(kind, name, help string) gateMetric {
	desc := prometheus.NewDesc(name, help, []string{kind + "_class"}, nil)
	return gateMetric{kind, desc, append(mcpgate.Classes(kind), other)}
}

var (
	samplingDesc = prometheus.NewDesc("ahp_relay_mcp_sampling_capability_warnings_total",
		"Those of ahp_relay_mcp_capability_warnings_total of the class "+samplingWarning+".", nil, nil)
	otherSeenDesc = prometheus.NewDesc("ahp_relay_gate_events_other_total",
		"What host-agents have reported that this relay does not know.", nil, nil)
)

// samplingWarning is the class of requests for sampling that a client cannot
// answer.
const samplingWarning = "sampling_without_client_capability"

func newReports(log *slog.Logger) *reports {
	r := &reports{log: log, clients: map[string]*client{}, seen: map[occasion]int64{}}
	for _, m := range gateMetrics {
		for _, class := range m.classes {
			r.seen[occasion{m.kind, class}] = 0
		}
	}
	return r
}

func (r *reports) add(c *client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients[c.id] = c
}

func (r *reports) remove(c *client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.clients, c.id)
}

// accept takes a report of the host-agent of a host. It is called under locks of
// the routing package.
func (r *reports) accept(key hostKey, report routing.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range report.Counts {
		r.count(n)
	}
	c := r.clients[report.Conn]
	if c == nil || c.host != key {
		return // it is gone, or not that host's
	}
	if report.State != nil {
		c.reported.Store(&report.State)
	}
	for _, n := range report.Counts {
		if n.Kind == mcpgate.Warning && r.first(c, n.Class) {
			c.log().Warn("mcp.capability.warning", "warning_class", n.Class)
		}
	}
}

func (r *reports) count(n routing.Count) {
	for _, o := range []occasion{{n.Kind, n.Class}, {n.Kind, other}} {
		if _, known := r.seen[o]; known {
			r.seen[o] += n.N
			return
		}
	}
	r.seen[occasion{other, other}] += n.N
}

// first reports whether a class of warnings is a client's first.
func (r *reports) first(c *client, class string) bool {
	if len(c.warnings) >= routing.MaxCounts || slices.Contains(c.warnings, class) {
		return false
	}
	c.warnings = append(c.warnings, class)
	return true
}

// totals returns how often what was seen.
func (r *reports) totals() map[occasion]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.seen)
}

// Describe implements [prometheus.Collector].
func (r *reports) Describe(out chan<- *prometheus.Desc) {
	for _, m := range gateMetrics {
		out <- m.desc
	}
	out <- samplingDesc
	out <- otherSeenDesc
}

// Collect implements [prometheus.Collector].
func (r *reports) Collect(out chan<- prometheus.Metric) {
	seen := r.totals()
	send := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, m := range gateMetrics {
		for _, class := range m.classes {
			send(m.desc, seen[occasion{m.kind, class}], class)
		}
	}
	send(samplingDesc, seen[occasion{mcpgate.Warning, samplingWarning}])
	send(otherSeenDesc, seen[occasion{other, other}])
}

// An mcpInfo is what the admin page shows of MCP on a connection.
type mcpInfo struct {
	ID      string          `json:"id"`
	Tenant  string          `json:"tenant"`
	Host    string          `json:"host"`
	Subject string          `json:"subject"`
	Phase   string          `json:"phase"`
	Strict  bool            `json:"strict"`         // the relay has asked for it
	MCP     json.RawMessage `json:"mcp,omitempty"`  // as the host-agent has reported it
	Seen    json.RawMessage `json:"seen,omitempty"` // the same
}

func (a *adminPages) mcpInfo(c *client) mcpInfo {
	info := mcpInfo{
		ID: c.id, Tenant: c.host.tenant, Host: c.host.name, Subject: c.token.first.Subject,
		Phase: c.phaseNow().String(), Strict: a.cfg.strict(c.host),
	}
	if state := c.reported.Load(); state != nil {
		var parts struct{ MCP, Seen json.RawMessage }
		if json.Unmarshal(*state, &parts) == nil {
			info.MCP, info.Seen = parts.MCP, parts.Seen
		}
	}
	return info
}

// serveMCP tells what gates have seen, and with details=1 how each connection
// is.
func (a *adminPages) serveMCP(w http.ResponseWriter, r *http.Request) {
	answer := map[string]any{
		"strict": append([]string{}, a.cfg.Strict...), "initialized": countReady(a.hosts.all()),
	}
	for o, n := range a.reports.totals() {
		kind, _ := answer[o.kind+"s"].(map[string]int64)
		if kind == nil {
			kind = map[string]int64{}
			answer[o.kind+"s"] = kind
		}
		kind[o.class] = n
	}
	answerConnections(a, w, r, a.mcpInfo, answer)
}

func countReady(clients []*client) (n int) {
	for _, c := range clients {
		if c.ready.Load() {
			n++
		}
	}
	return n
}

func (cfg *Config) checkStrict() error {
	for _, pattern := range cfg.Strict {
		if _, err := path.Match(pattern, ""); err != nil || strings.Count(pattern, "/") != 1 {
			return fmt.Errorf("%q in Strict is no pattern of hosts; want one such as default/laptop or default/*", pattern)
		}
	}
	return nil
}

// strict reports whether a host's connections are gated strictly.
func (cfg *Config) strict(host hostKey) bool {
	return slices.ContainsFunc(cfg.Strict, func(pattern string) bool {
		match, _ := path.Match(pattern, host.tenant+"/"+host.name)
		return match
	})
}
