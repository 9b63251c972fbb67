package main

import (
	"io"
	"path/filepath"
	"testing"

	"ahprelay/test/bench"
)

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"--rounds", "x"}, {"no-such-part"}, {"--rounds", "0"}, {"--record", "--tiny"}, {"plot", "fanout"}, {"fanout", "plot"}, {"fanout", "scale"}, {"scale", "fanout"}, {"scale", "--only", "("}, {"scale", "--tiny"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("run(%q) returns no error; want one", args)
		}
	}
}

// Parts and their flags need no command before them.
func TestPartsNeedNoCommand(t *testing.T) {
	for _, test := range []struct {
		args    []string
		command string
	}{
		{nil, "parts"}, {[]string{"--record"}, "parts"}, {[]string{"fanout", "latency"}, "parts"}, {[]string{"--tiny", "latency"}, "parts"},
		{[]string{"bursts", "--relay-flag=--admin-listen=127.0.0.1:8485"}, "parts"}, {[]string{"plot"}, "plot"},
		{[]string{"scale"}, "scale"}, {[]string{"scale", "--only", "^real$", "--real", "50", "--real-relays", "1"}, "scale"},
	} {
		var f flags
		if got, err := f.parse(test.args, io.Discard, io.Discard); err != nil || got != test.command {
			t.Errorf("parse(%q) = %q, %v; want %q", test.args, got, err, test.command)
		}
	}
}

// A second part is added to the record of the same day, commit and machine.
func TestPartsJoinTheRecordOfTheirDay(t *testing.T) {
	dir := t.TempDir()
	for _, part := range []string{"fanout", "gate"} {
		r := &bench.Record{Commit: "abc"}
		parts, figures := []bench.RecordedPart{{Name: part}}, []bench.Figure{{Part: part}}
		r.Add(parts, figures)
		if err := keep(r, dir, parts, figures); err != nil {
			t.Fatal(err)
		}
	}
	got, err := bench.NewestRecord(dir)
	if err != nil || len(got.Parts) != 2 || len(got.Figures) != 2 {
		t.Errorf("the newest record is %+v, %v; want both parts", got, err)
	}
	if err := keep(&bench.Record{}, filepath.Join(dir, "none"), nil, nil); err == nil {
		t.Error("keep writes a file into a missing folder; want an error")
	}
}
