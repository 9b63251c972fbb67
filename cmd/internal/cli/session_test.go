package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestKnownSessionsOfAPage names the sessions in an answer to listSessions. A first page does not count those
// of further pages.
func TestKnownSessionsOfAPage(t *testing.T) {
	items := func(n int) string {
		return strings.TrimSuffix(strings.Repeat(`{"resource":"x:/1","title":"T"},`, n), ",")
	}
	named := func(n int) string {
		return "; known are: " + strings.TrimSuffix(strings.Repeat(`x:/1 ("T"), `, n), ", ")
	}
	for _, test := range []struct{ answer, want string }{
		{`{"items":[` + items(2) + `]}`, named(2)},
		{`{"items":[` + items(10) + `]}`, named(8) + ", and 2 more"},
		{`{"items":[` + items(2) + `],"nextCursor":"2"}`, named(2) + ", and more"},
		{`{"items":[` + items(10) + `],"nextCursor":"10"}`, named(8) + ", and more"},
		{`{"items":[]}`, ""},
	} {
		if got := namesOf(json.RawMessage(test.answer)); got != test.want {
			t.Errorf("namesOf(%s) = %q; want %q", test.answer, got, test.want)
		}
	}
}
