package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestEachMixtureIsTried checks the list of trials: each mixture of both versions must
// be in it, with an open and with a sealed host.
func TestEachMixtureIsTried(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"--list"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	names := strings.Split(out.String(), "\n")
	for _, sealed := range []bool{false, true} {
		for i := range 8 {
			of := func(bit int) string { return []string{former, now}[i>>bit&1] }
			want := fmt.Sprintf(": relay %s, host-agent %s, ahp-connect %s", of(0), of(1), of(2))
			if !slices.ContainsFunc(names, func(name string) bool {
				return strings.HasSuffix(name, want) && strings.Contains(name, ", sealed") == sealed
			}) {
				t.Errorf("no trial ends with %s, sealed: %t; the trials are\n%s", want, sealed, out.String())
			}
		}
	}
	if err := run(t.Context(), []string{"--only", "["}, io.Discard, io.Discard); err == nil {
		t.Error("--only [ is accepted; want an error")
	}
}

// TestEachTrialIsRecorded checks the table in docs/versions.md: make former must have
// recorded each trial, without a broken promise.
func TestEachTrialIsRecorded(t *testing.T) {
	text, err := os.ReadFile("../../../docs/versions.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(text)) {
		if strings.HasSuffix(line, " | ok |\n") {
			rows = append(rows, line)
		}
		if strings.Contains(line, "BROKEN") {
			t.Error("a trial is recorded as broken: ", line)
		}
	}
	if len(rows) != len(trials()) {
		t.Fatalf("%d trials are recorded; want %d: make former ARGS=--record=docs/versions.md", len(rows), len(trials()))
	}
	v := versions{flags: flags{Commit: commitOf(rows[0])}}
	for i, trial := range trials() {
		if want := v.row(trial); !strings.HasPrefix(rows[i], want) {
			t.Errorf("row %d is\n%s; want\n%s", i, rows[i], want)
		}
	}
}

// commitOf returns the former version in a row. The row must be the first, in which the
// relay is former.
func commitOf(row string) string {
	cells := strings.Split(row, "|")
	return strings.TrimSpace(cells[3])
}
