package routing

import (
	"errors"
	"fmt"
	"strings"
	"testing"

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
