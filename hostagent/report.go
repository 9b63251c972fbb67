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

// A reporter tells the relay of one connection: what the gates have seen
// there, how often, and what is known of MCP. And it logs that.
type reporter struct {
	id   string // of the connection
	conn *routing.AgentConn
	log  *slog.Logger
	mcp  *mcpgate.Gate

	mu     sync.Mutex
	counts map[occasion]*tally
}

// An occasion is what a gate may see, and a class of it: few, and none is the
// client's choice.
type occasion struct{ kind, class string }

// A tally is how often something was seen.
type tally struct{ all, told int64 }

// count notes something that a gate has seen. Of what comes often, the log
// tells the first, the tenth, the hundredth …
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

// say logs what a gate has seen, for the n-th time.
func (r *reporter) say(kind, class, method string, n int64) {
	switch kind {
	case mcpgate.Warning:
		r.log.Warn("mcp.capability.warning", "warning_class", class, "method", method, "count", n)
	case gate.Refusal: // has lines of the audit
	case mcpgate.Rejection:
		r.log.Warn("mcp.rejection", "rejection_class", class, "method", method, "count", n)
	default:
		r.log.Info("mcp."+kind, kind+"_class", class, "method", method, "count", n)
	}
}

// changed has the relay told how things are.
func (r *reporter) changed() { r.conn.Report(r.report) }

// A connState is what the relay shows of a connection.
type connState struct {
	MCP mcpgate.State `json:"mcp"`

	// What the gates have seen so far, by kind and class.
	Seen map[string]map[string]int64 `json:"seen,omitempty"`
}

// report returns how things are, and what has happened since it was last
// called. Routing calls it under its locks.
func (r *reporter) report() routing.Report {
	state := connState{MCP: r.mcp.State(), Seen: map[string]map[string]int64{}}
	report := routing.Report{Conn: r.id}
	r.mu.Lock()
	defer r.mu.Unlock()
	for o, t := range r.counts {
		if state.Seen[o.kind] == nil {
			state.Seen[o.kind] = map[string]int64{}
		}
		state.Seen[o.kind][o.class] = t.all
		if t.all > t.told {
			report.Counts = append(report.Counts, routing.Count{Kind: o.kind, Class: o.class, N: t.all - t.told})
			t.told = t.all
		}
	}
	report.State = encode(state)
	return report
}

// encode returns a state as JSON, in which <, > and & are not escaped, as
// [mcpgate.Gate.State] wants it.
func encode(state connState) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(state) // no field can fail
	return b.Bytes()
}

// mcpGate returns the gate of a new connection for MCP, whose events are
// reported.
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
