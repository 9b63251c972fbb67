package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/auth/gate"
	"ahprelay/auth/mcpgate"
	"ahprelay/internal/meter"
	"ahprelay/routing"
)

// reports collects what host-agents report about clients: the state of each connection,
// for the admin pages, and the number of gate events, for metrics.
type reports struct {
	mu      sync.Mutex         // guards the fields below
	clients map[string]*client // by connection id
	seen    map[occasion]int64 // number of gate events, from all host-agents
}

// An occasion identifies a kind and class of gate events.
type occasion struct{ kind, class string }

// other replaces kinds and classes that this relay does not know.
const other = "other"

// A gateMetric is a metric for one kind of gate event.
type gateMetric struct {
	kind, name, help, label string
	classes                 []string
}

// gateMetrics lists the known kinds of gate events and their classes. Unknown ones count
// as other, so that a host-agent cannot create many metrics.
var gateMetrics = []gateMetric{
	mcpMetric(mcpgate.Warning, "ahp_relay_mcp_capability_warnings_total", "Host messages passed although the client has not declared the capability."),
	mcpMetric(mcpgate.Rejection, "ahp_relay_mcp_rejections_total", "Messages refused by host-agents because client or host had not declared the capability."),
	mcpMetric(mcpgate.Observation, "ahp_relay_mcp_observations_total", "Messages that host-agents passed because too little was known to judge them."),
	{gate.Refusal, "ahp_relay_refusals_total", "Messages refused by host-agents to keep subjects apart.", "refusal_class", append(slices.Clone(gate.RefusalClasses), other)},
}

func mcpMetric(kind, name, help string) gateMetric {
	return gateMetric{kind, name, help, kind + "_class", append(mcpgate.Classes(kind), other)}
}

// samplingWarning is the class for sampling requests to a client that cannot answer them.
const samplingWarning = "sampling_without_client_capability"

func newReports() *reports {
	r := &reports{clients: map[string]*client{}, seen: map[occasion]int64{}}
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

// accept processes a report from a host-agent. Package routing calls it under locks, so
// it must not block.
func (r *reports) accept(key hostKey, report routing.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range report.Counts {
		r.count(n)
	}
	c := r.clients[report.Conn]
	if c == nil || c.host != key {
		return // the client is gone, or connected to a different host
	}
	if report.State != nil {
		c.reported.Store(&report.State)
	}
	if report.ClientID != "" {
		c.introduced.Store(&report.ClientID)
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

// first reports whether a client has not caused this warning class before, and records
// the class.
func (r *reports) first(c *client, class string) bool {
	if len(c.warnings) >= routing.MaxCounts || slices.Contains(c.warnings, class) {
		return false
	}
	c.warnings = append(c.warnings, class)
	return true
}

func (r *reports) totals() map[occasion]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.seen)
}

// metrics returns the numbers of gate events as metrics.
func (r *reports) metrics() prometheus.Collector {
	t := meter.NewTable(r.totals)
	count := func(name, help string, of occasion, labels ...string) {
		t.Counter(name, help, func(seen map[occasion]int64) float64 { return float64(seen[of]) }, labels...)
	}
	for _, m := range gateMetrics {
		for _, class := range m.classes {
			count(m.name, m.help, occasion{m.kind, class}, m.label, class)
		}
	}
	sampling := occasion{mcpgate.Warning, samplingWarning}
	count("ahp_relay_mcp_sampling_capability_warnings_total", "ahp_relay_mcp_capability_warnings_total for the class "+samplingWarning+".", sampling)
	count("mcp_sampling_capability_warnings_total", "The same as ahp_relay_mcp_sampling_capability_warnings_total.", sampling) // its previous name
	count("ahp_relay_gate_events_other_total", "Gate events from host-agents, of kinds unknown to this relay.", occasion{other, other})
	return t
}

// An mcpInfo describes MCP on a connection for the admin page.
type mcpInfo struct {
	ID      string          `json:"id"`
	Tenant  string          `json:"tenant"`
	Host    string          `json:"host"`
	Subject string          `json:"subject"`
	Phase   string          `json:"phase"`
	Strict  bool            `json:"strict"`         // requested by the relay
	MCP     json.RawMessage `json:"mcp,omitempty"`  // reported by the host-agent
	Seen    json.RawMessage `json:"seen,omitempty"` // reported by the host-agent

	// Declared is MCP.clientCapabilities as text: the JSON that the client sent.
	Declared string `json:"client_capabilities_json,omitempty"`
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
			var mcp mcpgate.State
			if json.Unmarshal(parts.MCP, &mcp) == nil {
				info.Declared = string(mcp.Capabilities)
			}
		}
	}
	return info
}

// serveMCP responds with the number of gate events and, with details=1, the state of each
// connection.
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
			return fmt.Errorf("--strict %q is not a host pattern; want for example default/laptop or default/*", pattern)
		}
	}
	return nil
}

// strict reports whether connections to a host are gated strictly.
func (cfg *Config) strict(host hostKey) bool {
	return slices.ContainsFunc(cfg.Strict, func(pattern string) bool {
		match, _ := path.Match(pattern, host.tenant+"/"+host.name)
		return match
	})
}
