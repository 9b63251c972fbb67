package routing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"ahprelay/broker/link"
)

// A host-agent reports the parts of a connection's state that the relay cannot see. Reports
// are not part of the connection's stream. They name the connection by its id in [Open], so
// a report may arrive after the connection has ended. If several reports of a connection
// wait, only the latest is sent.

// A Report is a host-agent's report about one connection.
type Report struct {
	Conn string `json:"conn"` // Open.ID

	// State is a JSON object that replaces the previous state. The relay shows it
	// unchanged. It is nil if there is no state, or if with it the report would exceed
	// MaxReport.
	State json.RawMessage `json:"state,omitempty"`

	// ClientID is the client's id at the host. It is set only if the relay may not know it,
	// because the client sent initialize through a different relay.
	ClientID string `json:"clientId,omitempty"`

	// Counts are the events since the previous report.
	Counts []Count `json:"counts,omitempty"`
}

// A Count is how often an event occurred. Kind and class are 1 to 64 characters from a-z,
// 0-9, "_" and ".".
type Count struct {
	Kind  string `json:"kind"`  // the event: "warning", "rejection", …
	Class string `json:"class"` // the reason
	N     int64  `json:"n"`     // above zero
}

const (
	// MaxReport bounds a report, in bytes of JSON.
	MaxReport = 32 << 10

	// MaxCounts bounds a report's counts.
	MaxCounts = 64

	// A round sends the reports that wait at its start. When its last report is queued, further
	// reports wait for reportGap. reportTurn bounds the reports queued for one packet.
	reportGap  = 200 * time.Millisecond
	reportTurn = 32

	maxCount = 1 << 40
)

// Report sends a report to the relay. It calls report later and once, under locks: report
// must not block, nor call back. If an earlier function was not called yet, it is replaced.
// Report may be called after the connection has ended. When the link ends, unsent reports
// are dropped.
func (c *AgentConn) Report(report func() Report) {
	l := c.link
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	if l.ended {
		return
	}
	if c.report == nil {
		l.reports.push(c)
	}
	c.report = report
	l.lines.Wake()
}

// queueReports queues reports that are due. If reports must wait for reportGap, it returns
// when they are due.
func (l *agentLink) queueReports(now time.Time) (again time.Time) {
	switch {
	case l.reports.len() == 0:
		return time.Time{}
	case now.Before(l.nextReports):
		return l.nextReports
	case l.round == 0:
		l.round = l.reports.len()
	}
	turn := min(l.round, reportTurn)
	l.round -= turn
	for range turn {
		c := l.reports.pop()
		report := c.report
		c.report = nil
		l.mux.sendControl(appendReport(nil, report()))
	}
	if l.round > 0 {
		return time.Time{} // these reports make a packet, and the next turn comes with the next packet
	}
	l.nextReports = now.Add(reportGap)
	if l.reports.len() == 0 {
		return time.Time{}
	}
	return l.nextReports
}

// appendReport encodes a report. It omits a state that is too large.
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

// encodeReport encodes a report without escaping <, > and &, because escapes would make
// some states six times as long.
func encodeReport(r Report) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(r)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

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
