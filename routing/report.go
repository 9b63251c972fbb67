package routing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"ahprelay/broker/link"
)

// A host-agent tells the relay what it sees of a connection that the relay
// cannot see: in reports, beside the connection's stream. A report names its
// connection by the id in [Open], so it may come after the connection's end. Of
// what has changed many times only the last is told.

// A Report is what a host-agent tells of one connection.
type Report struct {
	Conn string `json:"conn"` // Open.ID

	// State is a JSON object that the relay shows as it is, in place of the one
	// before; nil if there is none, or it is more than MaxReport allows.
	State json.RawMessage `json:"state,omitempty"`

	// Counts are of what has happened since the report before.
	Counts []Count `json:"counts,omitempty"`
}

// A Count says how often something has happened. Kind and class are 1 to 64
// of a-z, 0-9, "_" and ".".
type Count struct {
	Kind  string `json:"kind"`  // what: "warning", "rejection", …
	Class string `json:"class"` // and why
	N     int64  `json:"n"`     // above zero
}

// Bounds of reports.
const (
	// MaxReport is how long one may be, in bytes of JSON.
	MaxReport = 32 << 10

	// MaxCounts is how many counts one may have.
	MaxCounts = 64

	// reportGap is the time between the reports of a link, reportTurn how many
	// leave at a time.
	reportGap  = 200 * time.Millisecond
	reportTurn = 32

	maxCount = 1 << 40
)

// Report has the relay told what report returns. It is called once, later,
// under locks: it must not block, nor call back. If Report is called again
// before, that counts. It may be called when the connection has ended; what
// has not left when its link ends is dropped.
func (c *AgentConn) Report(report func() Report) {
	l := c.link
	_ = l.with(func() error {
		if l.ended || !l.takesReports {
			return nil
		}
		if c.report == nil {
			l.reports.push(c)
		}
		c.report = report
		l.lines.Wake()
		return nil
	})
}

// queueReports queues the reports that are due, and returns when others are.
func (l *agentLink) queueReports(now time.Time) (again time.Time) {
	switch {
	case l.reports.len() == 0:
		return time.Time{}
	case now.Before(l.nextReports):
		return l.nextReports
	}
	for n := min(l.reports.len(), reportTurn); n > 0; n-- {
		c := l.reports.pop()
		report := c.report
		c.report = nil
		l.mux.say(appendReport(nil, report()))
	}
	if l.reports.len() == 0 {
		l.nextReports = now.Add(reportGap)
	}
	return time.Time{}
}

// appendReport encodes a report, without a state that is too large.
func appendReport(b []byte, r Report) []byte {
	data, err := encodeReport(r)
	if err != nil || len(data) > MaxReport {
		r.State = nil
		if data, err = encodeReport(r); err != nil {
			panic(err) // no other field can fail
		}
	}
	return appendBytes(appendRecord(b, recordReport, 0), data)
}

// encodeReport does not escape <, > and &, for pages as those of package json
// do: that would make some states six times as long.
func encodeReport(r Report) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(r)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// report takes a report of the host-agent's.
func (r *RelayEnd) report(data []byte) error {
	report, err := readReport(data)
	if err == nil && r.cfg.Report != nil {
		r.cfg.Report(report)
	}
	return err
}

// readReport decodes a report and checks its bounds.
func readReport(data []byte) (Report, error) {
	var r Report
	if len(data) > MaxReport {
		return r, fmt.Errorf("%w: report of %d bytes", link.ErrBadPacket, len(data))
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%w: report: %w", link.ErrBadPacket, err)
	}
	if len(r.State) > 0 && r.State[0] != '{' || len(r.Counts) > MaxCounts {
		return r, fmt.Errorf("%w: report with %d counts, or a state that is no object", link.ErrBadPacket, len(r.Counts))
	}
	for _, c := range r.Counts {
		if !validLabel(c.Kind) || !validLabel(c.Class) || c.N < 1 || c.N > maxCount {
			return r, fmt.Errorf("%w: report counts %d of %.70q %.70q", link.ErrBadPacket, c.N, c.Kind, c.Class)
		}
	}
	return r, nil
}

func validLabel(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' {
			return false
		}
	}
	return 0 < len(s) && len(s) <= 64
}
