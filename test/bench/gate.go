package bench

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ahprelay/test/must"
)

// gateBenchmark is a Go benchmark of everything that the host-agent does to read a
// frame, in the same order.
const gateBenchmark = "BenchmarkGates"

// gates measures what it costs to read a frame. It runs the Go benchmark in each round.
func gates(b *testbed) []Figure {
	program := filepath.Join(b.dir, "hostagent.test")
	args := []string{"test", "-vet=off", "-ldflags=-s -w", "-c", "-o", program, "ahprelay/hostagent"}
	if b.o.Tiny { // as make test compiles the package anyway
		args = slices.Insert(args, 1, "-race", "-tags=lockorder")
	}
	if out, err := exec.CommandContext(b.ctx, "go", args...).CombinedOutput(); err != nil {
		must.Fail("build: %w\n%s", err, out)
	}
	results := map[string]*goResult{}
	b.rounds(func(int) {
		cmd := exec.CommandContext(b.ctx, program, "-test.run=^$", "-test.bench=^"+gateBenchmark+"$", "-test.benchmem",
			"-test.benchtime="+b.long(300*time.Millisecond).String())
		cmd.Dir = b.dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			must.Fail("%w\n%s", err, out)
		}
		must.Do(readGoResults(string(out), results))
	})
	return must.Get(gateFigures(results))
}

func gateFigures(results map[string]*goResult) (figures []Figure, err error) {
	other := results["encoding-json"]
	for _, token := range []struct{ name, work string }{
		{"write", "may do everything"}, {"read", "may only look"}, {"channels", "may use some channels"},
		{"learning", "may use some channels, which it may add to"}, {"strict", "must declare what it can"},
	} {
		r := results[token.name]
		if r == nil || other == nil {
			return nil, fmt.Errorf("the results of %s lack %s, or encoding-json to compare with", gateBenchmark, token.name)
		}
		work := "a 512 B action to a client that " + token.work
		figures = append(figures,
			newFigure(work, "µs", r.time).beside("encoding/json, of the envelope", r.time, other.time).want(ratioAtMost(0.2)).orient(atMost(1)).
				means("What a client may do is checked on every message, and costs nobody anything."),
			newFigure(work, "allocations", r.allocs).beside("encoding/json, of the envelope", r.allocs, other.allocs).want(atMost(0)))
	}
	return figures, nil
}

// A goResult has a Go benchmark's µs and allocations for each operation.
type goResult struct{ time, allocs series }

// readGoResults reads the output of Go benchmarks, and adds each result under the name
// of its subbenchmark:
//
//	BenchmarkX/name-2   1000   123.4 ns/op   0 B/op   0 allocs/op
func readGoResults(out string, results map[string]*goResult) error {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], gateBenchmark+"/") {
			continue
		}
		name := strings.TrimPrefix(fields[0], gateBenchmark+"/")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil { // the suffix is GOMAXPROCS
				name = name[:i]
			}
		}
		r := results[name]
		if r == nil {
			r = &goResult{}
			results[name] = r
		}
		for i := 3; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i-1], 64)
			if err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			switch fields[i] {
			case "ns/op":
				r.time = append(r.time, v/1000)
			case "allocs/op":
				r.allocs = append(r.allocs, v)
			}
		}
	}
	return nil
}
