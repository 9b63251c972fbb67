package audit

import (
	"fmt"
	"testing"
)

// A latest keeps the last keptLines lines in memory, and shows each tenant only its
// own.
func TestLatestLinesAreTheTenants(t *testing.T) {
	var l latest
	for i := range keptLines + 10 {
		l.add(Line{Tenant: []string{"one", "two"}[i%2], Detail: fmt.Sprint(i)})
	}
	got := l.of("two")
	if len(got) != shownLines || got[0].Detail != fmt.Sprint(keptLines+9) || got[1].Detail != fmt.Sprint(keptLines+7) || len(l.lines) != keptLines {
		t.Errorf("tenant two is shown %d of %d lines, first %+v; want shownLines, and keptLines kept, the newest first", len(got), len(l.lines), got[0])
	}
	if got := l.of("three"); len(got) != 0 {
		t.Errorf("tenant three, which has no lines, is shown %+v; want none", got)
	}
}
