package routing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"ahprelay/broker/link"
)

// A host-agent reports the parts of a connection's state that the relay cannot see.
// Reports travel beside the connection's stream, and name the connection by its id in
// [Open], so a report may arrive after the connection's end. Only the latest state is
// sent.

// A Report is a host-agent's report about one connection.
type Report struct {
	Conn string `json:"conn"` // Open.ID

	// State is a JSON object that replaces the previous state. The relay shows it
	// unchanged. It is nil if there is none or it exceeds MaxReport.
	State json.RawMessage `json:"state,omitempty"`

	// ClientID is the client's id at the host, if the relay may not know it: the client has
	// introduced itself through a different relay.
	ClientID string `json:"clientId,omitempty"`

	// Counts are the events since the previous report.
	Counts []Count `json:"counts,omitempty"`
}

// A Count is a number of events. Kind and class are 1 to 64 characters from a-z, 0-9,
// "_" and ".".
type Count struct {
	Kind  string `json:"kind"`  // the event: "warning", "rejection", …
	Class string `json:"class"` // the reason
	N     int64  `json:"n"`     // above zero
}

// Bounds of reports.
const (
	// MaxReport bounds a report, in bytes of JSON.
	MaxReport = 32 << 10

	// MaxCounts bounds a report's counts.
	MaxCounts = 64

	// reportGap is the time between the reports of a link. reportTurn bounds the
	// reports that leave together.
	reportGap  = 200 * time.Millisecond
	reportTurn = 32

	maxCount = 1 << 40
)

// Report sends the result of report to the relay. The function is called once, later,
// under locks: it must not block, nor call back. A later call to Report replaces a
// function that was not called yet. Report may be called after the connection's end.
// Unsent reports are dropped when the link ends.
func (c *AgentConn) Report(report func() Report) {
	l := c.link
	_ = l.with(func() error {
		if l.ended {
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

// queueReports queues the reports that are due, and returns when more will be due.
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
		l.mux.sendControl(appendReport(nil, report()))
	}
	if l.reports.len() == 0 {
		l.nextReports = now.Add(reportGap)
	}
	return time.Time{}
}

// appendReport encodes a report, and omits a state that is too large.
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

// encodeReport does not escape <, > and &, as package json does for web pages: escapes
// make some states six times as long.
func encodeReport(r Report) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(r)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// reportRecord handles a report from the host-agent.
func (r *RelayEnd) reportRecord(_ uint64, f *link.Fields) error {
	data := f.Bytes()
	if f.Bad {
		return nil
	}
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
		return r, fmt.Errorf("%w: report has %d counts, or a state other than an object", link.ErrBadPacket, len(r.Counts))
	}
	for _, c := range r.Counts {
		if !validLabel(c.Kind) || !validLabel(c.Class) || c.N < 1 || c.N > maxCount {
			return r, fmt.Errorf("%w: report has an invalid count of %d for %.70q %.70q", link.ErrBadPacket, c.N, c.Kind, c.Class)
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
