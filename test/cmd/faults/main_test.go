package main

import (
	"os"
	"path/filepath"
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

// The program replaces the table below the marker, and keeps the text above it.
func TestTextAboveTheTableIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.md")
	if err := os.WriteFile(file, []byte("head\n"+marker+"\nold\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceTable(file, []byte("new\n")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(file); string(got) != "head\n"+marker+"\nnew\n" {
		t.Errorf("the file is %q; want the head, the mark and the new text", got)
	}
	if err := os.WriteFile(file, []byte("head\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceTable(file, nil); err == nil {
		t.Error("replaceTable writes a file without a mark; want an error")
	}
}
