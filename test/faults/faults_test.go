package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ahprelay/test/faultproxy"
	"ahprelay/test/load"
	"ahprelay/test/procs"
)

// TestMain runs all tests in their own network if possible, see
// [faultproxy.OwnNetwork]. It builds the programs first, because a build may need the
// machine's network.
func TestMain(m *testing.M) {
	_, err := procs.Build(context.Background())
	if err = errors.Join(err, faultproxy.OwnNetwork()); err != nil {
		fmt.Println("the programs cannot be built, or faults that need a network of their own are left out:", err)
	}
	goleak.VerifyTestMain(m)
}

// short lists the rows that each run of the tests includes. make faults runs all rows.
var short = []string{
	"client–relay: cut 3s",
	"client–relay: reset in the middle of a frame",
	"relay–NATS: frozen 3s",
	"relay–NATS: reset in the middle of a frame",
	"host-agent–NATS, through the relay's port: cut 3s",
	"host-agent–NATS over TCP: connections forgotten, 12s",
	"host-agent–host: cut 3s",
	"client–relay: all packets lost, 14s",
	"host-agent–NATS, through the relay's port: all packets lost, 14s",
	"relay: kill -9",
	"host: kill -9",
	"nats-server: kill -9",
	"host-agent: stopped 5s",
	"host-agent: kill -9",
	"all relays of three: SIGTERM and start, one after the other",
	"all relays of three: SIGTERM and start, one after the other, each with an empty data directory",
}

// TestRowsRunSideBySide runs the rows in short, several at a time. Each must keep its
// promise.
func TestRowsRunSideBySide(t *testing.T) {
	programs, err := procs.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Programs: programs, Dir: t.TempDir(), Clients: 3, Patience: 5}
	rows := slices.DeleteFunc(Rows(), func(r Row) bool { return !slices.Contains(short, r.Name()) })
	if len(rows) != len(short) {
		t.Fatalf("%d of the %d short rows are in the table; want all", len(rows), len(short))
	}
	rows = slices.DeleteFunc(rows, func(r Row) bool {
		why := r.Skip()
		if why != nil {
			t.Logf("%s is left out: %v", r.Name(), why)
		}
		return why != nil
	})
	results := make([]Result, len(rows))
	atOnce := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for i, row := range rows {
		wg.Go(func() {
			atOnce <- struct{}{}
			results[i] = Run(t.Context(), row, options)
			<-atOnce
		})
	}
	wg.Wait()
	for _, r := range results {
		t.Logf("%s\n%s", r.Row.Name(), r)
		if len(r.Broken) > 0 {
			t.Errorf("%s: promises are broken; want none", r.Row.Name())
		}
		if r.Received == 0 || r.Up == 0 {
			t.Errorf("%s: no messages were sent in a direction; want some in both", r.Row.Name())
		}
	}
}

// TestBrokenPromisesAreFound breaks each part of a promise. The result must name
// exactly that part.
func TestBrokenPromisesAreFound(t *testing.T) {
	row := Row{Place: "p", Fault: "f", promise: promise{codes: []int{codeOffline}, must: true, told: time.Second, pause: time.Second}}
	good := func() Result {
		return Result{Row: row, Closes: map[int]int{codeOffline: 2}, Told: time.Second, Pause: time.Second, Whole: time.Second}
	}
	for name, test := range map[string]struct {
		change func(*Result)
		want   string // expected text; "": no promise is broken
	}{
		"good":       {func(*Result) {}, ""},
		"lost":       {func(r *Result) { r.Lost = 1 }, "1 lost"},
		"repeated":   {func(r *Result) { r.Repeated = 1 }, "1 repeated"},
		"other code": {func(r *Result) { r.Closes[load.EndCut] = 3 }, "3 connections closed with cut"},
		"not told":   {func(r *Result) { clear(r.Closes) }, "want 4100"},
		"told late":  {func(r *Result) { r.Told = 3 * time.Second }, "told after 3s"},
		"long pause": {func(r *Result) { r.Pause = 3 * time.Second }, "nothing came for 3s"},
		"late":       {func(r *Result) { r.Whole = time.Minute }, "whole again after 1m0s"},
	} {
		r := good()
		test.change(&r)
		r.check(Options{Patience: 2})
		if got := strings.Join(r.Broken, "; "); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: broken is %q; want %q", name, got, test.want)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	names := map[string]bool{}
	for _, row := range Rows() {
		if names[row.Name()] {
			t.Errorf("two rows have the name %q; want different names", row.Name())
		}
		names[row.Name()] = true
	}
}

func TestTableHasARowForEachResult(t *testing.T) {
	var out bytes.Buffer
	err := WriteTable(&out, []Result{{
		Row: Row{Place: "p", Fault: "f"}, Report: load.Report{Sent: 3, Received: 2, InFlight: 1},
		Closes: map[int]int{codeOffline: 2, load.EndCut: 1}, Told: 1500 * time.Millisecond, Pause: 12 * time.Second, Whole: 10 * time.Millisecond,
	}})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := "| p | f | 3 | 2 | 1 | 0 | 0 | cut ×1, 4100 ×2 | 1.50 s | 12.0 s | 0.01 s |"
	if err != nil || len(lines) != 3 || lines[2] != want {
		t.Errorf("table %q, %v; want %q", lines, err, want)
	}
}
