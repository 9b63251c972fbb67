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
	for _, args := range [][]string{{"--no-such-flag"}, {"--rounds", "x"}, {"no-such-part"}, {"--rounds", "0"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("run(%q) succeeded", args)
		}
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
