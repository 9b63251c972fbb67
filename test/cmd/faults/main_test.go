package main

import (
	"strings"
	"testing"
)

// TestNamedRowsArePrinted lists the rows whose names match --only.
func TestNamedRowsArePrinted(t *testing.T) {
	var out, errs strings.Builder
	if err := run(t.Context(), []string{"--list", "--only", "^host: kill|^relay: kill"}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	if out.String() != "relay: kill -9\nhost: kill -9\n" {
		t.Errorf("--list prints %q; want the two rows", out.String())
	}
	for _, args := range [][]string{{"--list", "--only", "["}, {"--list", "--only", "no such row"}, {"extra"}} {
		if err := run(t.Context(), args, &out, &errs); err == nil {
			t.Errorf("run(%q) returns no error; want one", args)
		}
	}
}
