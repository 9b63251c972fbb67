package hostagent

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"sync"

	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/auth/mcpgate"
	"ahprelay/routing"
)

// A reporter logs a connection's gate events, counts them, and sends the counts and
// the MCP state to the relay.
type reporter struct {
	conn *clientLine
	log  *slog.Logger
	mcp  *mcpgate.Gate

	mu     sync.Mutex // guards the fields below
	id     string     // id of the connection at its relay
	client string     // clientId, if the client came from another relay, where it sent the clientId
	counts map[occasion]*tally
}

// An occasion is the kind and class of a gate event. Both come from fixed sets; a
// client cannot choose them.
type occasion struct{ kind, class string }

// A tally counts the events of one occasion.
type tally struct{ all, reported int64 }

// count records a gate event. It logs the first, tenth, hundredth … event of each
// occasion, except refusals.
func (r *reporter) count(kind, class, method string) {
	r.mu.Lock()
	if r.counts == nil {
		r.counts = map[occasion]*tally{}
	}
	t := r.counts[occasion{kind, class}]
	if t == nil {
		if len(r.counts) >= routing.MaxCounts {
			r.mu.Unlock()
			return
		}
		t = new(tally)
		r.counts[occasion{kind, class}] = t
	}
	t.all++
	n := t.all
	r.mu.Unlock()
	if isPowerOfTen(n) {
		r.say(kind, class, method, n)
	}
	r.changed()
}

func isPowerOfTen(n int64) bool {
	for n > 1 && n%10 == 0 {
		n /= 10
	}
	return n == 1
}

// say logs the n-th event of an occasion.
func (r *reporter) say(kind, class, method string, n int64) {
	switch kind {
	case mcpgate.Warning:
		r.log.Warn("mcp.capability.warning", "warning_class", class, "method", method, "count", n)
	case gate.Refusal: // refusals have audit lines
	case mcpgate.Rejection:
		r.log.Warn("mcp.rejection", "rejection_class", class, "method", method, "count", n)
	default:
		r.log.Info("mcp.observation", "observation_class", class, "method", method, "count", n)
	}
}

// maxReportedID is the longest clientId in a report, in bytes. Relays refuse reports
// above [routing.MaxReport].
const maxReportedID = 1024

// continues sends later reports to the relay at which the connection has this id. That
// relay needs the clientId, because the client did not send it there.
func (r *reporter) continues(id, clientID string) {
	r.mu.Lock()
	if r.id = id; len(clientID) <= maxReportedID {
		r.client = clientID
	}
	r.mu.Unlock()
	r.changed()
}

// changed schedules a report to the relay.
func (r *reporter) changed() { r.conn.Report(r.report) }

// A connState is a connection's state, as shown by the relay.
type connState struct {
	MCP mcpgate.State `json:"mcp"`

	// Seen counts gate events by kind and class.
	Seen map[string]map[string]int64 `json:"seen,omitempty"`
}

// report returns the current state, and the counts since the previous call. Routing
// calls report under routing's locks.
func (r *reporter) report() routing.Report {
	state := connState{MCP: r.mcp.State(), Seen: map[string]map[string]int64{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	report := routing.Report{Conn: r.id, ClientID: r.client}
	for o, t := range r.counts {
		if state.Seen[o.kind] == nil {
			state.Seen[o.kind] = map[string]int64{}
		}
		state.Seen[o.kind][o.class] = t.all
		if t.all > t.reported {
			report.Counts = append(report.Counts, routing.Count{Kind: o.kind, Class: o.class, N: t.all - t.reported})
			t.reported = t.all
		}
	}
	report.State = encode(state)
	return report
}

// encode returns a state as JSON without escaping <, > and &, as [mcpgate.Gate.State]
// requires.
func encode(state connState) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(state) // all fields can be encoded
	return b.Bytes()
}

// mcpGate returns the MCP gate of a new connection. The gate's events are reported.
func (a *Agent) mcpGate(c *hostConn, v *view.Conn, open routing.Open) *mcpgate.Gate {
	r := &reporter{id: open.ID, conn: c.conn, log: c.log}
	r.mcp = mcpgate.New(v, mcpgate.Config{
		Strict:  a.cfg.Strict || open.Strict,
		Event:   func(e mcpgate.Event) { r.count(e.Kind, e.Class, e.Method) },
		Changed: r.changed,
	})
	c.report = r
	return r.mcp
}
