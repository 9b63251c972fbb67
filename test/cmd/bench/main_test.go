package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/test/bench"
)

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"--rounds", "x"}, {"no-such-part"}, {"--rounds", "0"}, {"fanout", "--out", "x"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("run(%q) succeeded", args)
		}
	}
}

// TestReplaceTable keeps what stands around the table.
func TestReplaceTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.md")
	if err := os.WriteFile(file, []byte("a\n"+tableBegins+"old\n"+tableEnds+"b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := replaceTable(file, []byte("new\n")); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := os.ReadFile(file); string(got) != "a\n"+tableBegins+"\nnew\n\n"+tableEnds+"b\n" {
		t.Errorf("the file is %q", got)
	}
	if err := os.WriteFile(file, []byte("a\n"+tableBegins), 0o600); err != nil {
		t.Fatal(err)
	}
	if replaceTable(file, nil) == nil {
		t.Error("a file without an end of the table was written")
	}
}

func TestWriteJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.json")
	if err := writeJSON(file, []bench.Figure{{Part: "p"}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `"part": "p"`) {
		t.Errorf("the file has %s, %v", text, err)
	}
	if err := writeJSON(filepath.Join(t.TempDir(), "none", "f"), nil); err == nil {
		t.Error("a file in no directory was written")
	}
}
