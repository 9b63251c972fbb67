package routing

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ahprelay/broker/link"
)

// TestReportsBeyondBoundsAreRefused parses reports at and beyond each bound. Only those beyond a
// bound must be refused, with ErrBadPacket.
func TestReportsBeyondBoundsAreRefused(t *testing.T) {
	counts := func(n int) string {
		return `{"conn":"c","counts":[` + strings.TrimSuffix(strings.Repeat(`{"kind":"k","class":"c","n":1},`, n), ",") + `]}`
	}
	count := func(kind, class string, n int) string {
		return fmt.Sprintf(`{"counts":[{"kind":%q,"class":%q,"n":%d}]}`, kind, class, n)
	}
	state := func(size int) string {
		return `{"state":{"x":"` + strings.Repeat("x", size-len(`{"state":{"x":""}}`)) + `"}}`
	}
	for _, test := range []struct {
		name, data string
		ok         bool
	}{
		{"nothing", `{}`, true},
		{"an unknown member", `{"later":1}`, true},
		{"most counts", counts(MaxCounts), true},
		{"too many counts", counts(MaxCounts + 1), false},
		{"longest", state(MaxReport), true},
		{"too long", state(MaxReport + 1), false},
		{"a state that is no object", `{"state":[]}`, false},
		{"longest class", count("a.b", strings.Repeat("a", 64), 1), true},
		{"too long a class", count("a", strings.Repeat("a", 65), 1), false},
		{"no kind", count("", "a", 1), false},
		{"not a class", count("a", `a"b`, 1), false},
		{"none", count("a", "b", 0), false},
		{"less than none", count("a", "b", -1), false},
		{"most", count("a", "b", maxCount), true},
		{"too many", count("a", "b", maxCount+1), false},
		{"no JSON", `{`, false},
	} {
		_, err := readReport([]byte(test.data))
		if (err == nil) != test.ok || err != nil && !errors.Is(err, link.ErrBadPacket) {
			t.Errorf("%s: reading the report: %v; want it accepted: %v", test.name, err, test.ok)
		}
	}
}

// TestEachConnectionReportsOnceInTheGap has 100 connections with a new report for each packet. A
// round must send one report of each, although there are always reports that wait.
func TestEachConnectionReportsOnceInTheGap(t *testing.T) {
	l := new(agentLink)
	conns := make([]*AgentConn, 100)
	sent := map[*AgentConn]int{}
	report := func() {
		for i, c := range conns {
			if c == nil {
				c = new(AgentConn)
				conns[i] = c
			}
			if c.report == nil {
				l.reports.push(c)
				c.report = func() Report { sent[c]++; return Report{} }
			}
		}
	}
	now := time.Now()
	for round := 1; round <= 3; round++ {
		for range 50 {
			report()
			l.queueReports(now)
		}
		for i, c := range conns {
			if sent[c] != round {
				t.Fatalf("in round %d, connection %d has sent %d reports in all; want one for each round", round, i, sent[c])
			}
		}
		if again := l.queueReports(now); !again.Equal(now.Add(reportGap)) {
			t.Errorf("the next round begins after %v; want %v", again.Sub(now), reportGap)
		}
		now = now.Add(reportGap)
	}
}
