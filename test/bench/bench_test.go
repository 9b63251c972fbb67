package bench

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
)

// TestMain also runs load generators: this test binary is their program.
func TestMain(m *testing.M) {
	if asked, err := loadgen.Main(os.Args[1:], nil); asked {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// TestEachPartLosesNothingAndMakesFigures runs each part with very little work. Every
// connection must stay open, every frame must arrive, and each part must return its
// figures.
func TestEachPartLosesNothingAndMakesFigures(t *testing.T) {
	programs, err := procs.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	atOnce := make(chan struct{}, 4)
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			dir := t.TempDir()
			parts, figures, err := Run(t.Context(), Options{Programs: programs, Dir: dir, Rounds: 1, Tiny: true, Progress: io.Discard}, p.name)
			if err != nil {
				t.Fatal(err)
			}
			if len(figures) == 0 || len(parts) != 1 || parts[0].Name != p.name {
				t.Errorf("the run made %d figures of the parts %v; want at least one of %s", len(figures), parts, p.name)
			}
			for _, f := range figures {
				if f.Part != p.name || f.Work == "" || f.Unit == "" {
					t.Errorf("the figure %+v lacks its part, work or unit", f)
				}
			}
			var out bytes.Buffer
			if err := (&Record{Figures: figures}).WriteJSON(&out); err != nil { // fails if a figure is not a number
				t.Error(err)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("the run has left the files %v; want none", left)
			}
		})
	}
}

// TestOnlyIdleChangesAllThreads gives a process only idle processor time. The kernel must
// report this of each of its threads.
func TestOnlyIdleChangesAllThreads(t *testing.T) {
	p, err := loadgen.Start(t.TempDir(), "host", loadgen.HostRole, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Call("Host.URL", loadgen.None{}, new(string)); err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.Pid()))
	if err != nil || len(threads) < 2 {
		t.Fatalf("the process has the threads %v, %v; want several", threads, err)
	}
	if err := onlyIdle(p.Pid()); err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if attr, err := unix.SchedGetAttr(id, 0); err != nil || attr.Policy != unix.SCHED_IDLE {
			t.Errorf("thread %d has the policy %+v, %v; want SCHED_IDLE", id, attr, err)
		}
	}
}

func TestRunRejectsAnUnknownPart(t *testing.T) {
	_, _, err := Run(t.Context(), Options{Progress: io.Discard}, "fanout", "typo")
	if err == nil || !strings.Contains(err.Error(), `"typo"`) {
		t.Errorf("Run with the part typo = %v; want an error that names it", err)
	}
}

func TestMedianRatioAndDifferenceOfSeries(t *testing.T) {
	for _, test := range []struct {
		values series
		want   float64
	}{{nil, 0}, {series{7}, 7}, {series{9, 1, 5}, 5}, {series{4, 1, 3, 100}, 3.5}} {
		if got := test.values.median(); got != test.want {
			t.Errorf("median(%v) = %v; want %v", test.values, got, test.want)
		}
	}
	a, b := series{2, 9, 8, -1, 4}, series{1, 3, 0, 1, -2}
	if got := fmt.Sprint(a.over(b), a.less(b)); got != "[2 3] [1 6 8 -2 6]" {
		t.Errorf("over and less return %s; want [2 3] [1 6 8 -2 6]", got)
	}
}

// TestRatioIsTheMedianOfRoundRatios checks that a figure's ratio is the median of the
// rounds' ratios, and not the quotient of two medians.
func TestRatioIsTheMedianOfRoundRatios(t *testing.T) {
	f := newFigure("w", "u", series{1, 20, 300}).beside("other", series{1, 20, 300}, series{10, 10, 10})
	if f.Value != 20 || f.Comparison.Value != 10 || *f.Ratio != 2 || f.Spread != (Spread{1, 300}) {
		t.Errorf("the figure is %+v, its ratio %v; want 20, 10, and a ratio of 2", f, *f.Ratio)
	}
	g := newFigure("w", "u", series{1, 100, 6}).beside("other", series{1, 100, 6}, series{1, 20, 3})
	if *g.Ratio != 2 {
		t.Errorf("ratio %v; want 2", *g.Ratio)
	}
}

func TestTargetIsMetAtItsLimit(t *testing.T) {
	f := newFigure("w", "ms", series{4}).beside("other", series{4}, series{2})
	for _, test := range []struct {
		target target
		text   string
		met    bool
	}{
		{atMost(4), "≤ 4 ms", true},
		{atMost(3.9), "≤ 3.9 ms", false},
		{atLeast(4), "≥ 4 ms", true},
		{atLeast(5), "≥ 5 ms", false},
		{ratioAtMost(2), "≤ 2×", true},
		{ratioAtMost(1.25), "≤ 1.25×", false},
		{ratioAtLeast(2), "≥ 2×", true},
		{ratioAtLeast(12), "≥ 12×", false},
	} {
		if g := f.want(test.target); g.Target != test.text || g.Met != test.met {
			t.Errorf("the target %+v is printed as %q, met %v; want %q, %v", test.target, g.Target, g.Met, test.text, test.met)
		}
	}
	if g := newFigure("w", "ms", series{4}).want(ratioAtLeast(1)); g.Met {
		t.Error("a target for a ratio is met without a ratio; want it missed")
	}
}

func TestTableJoinsComparisonsOfAFigure(t *testing.T) {
	figures := []Figure{
		newFigure("much work", "ms", series{1.234, 2.345, 3}).beside("other", series{1, 2, 3}, series{4, 4, 4}).want(ratioAtMost(0.4)).orient(atMost(2)).means("Quick."),
		newFigure("much work", "ms", series{1.234, 2.345, 3}).beside("third", series{1, 2, 3}, series{1, 1, 1}).want(ratioAtLeast(1)).orient(atMost(2)),
		newFigure("alone", "MB", series{1234567}),
	}
	figures[0].Part, figures[1].Part, figures[2].Part = "p", "p", "q"
	var table bytes.Buffer
	if err := WriteTable(&table, Machine{CPU: "cpu", Cores: 2, Kernel: "k", Go: "g", Load: "0"}, figures); err != nil {
		t.Fatal(err)
	}
	want := `cpu, 2 cores, k, g, load before the run 0

| part | work | median (spread) | beside it | target | met | orientation | what it means |
|---|---|---|---|---|---|---|---|
| ` + "`p`" + ` | much work | 2.35 ms (1.23–3) | other 4 (0.5×); third 1 (2×) | ≤ 0.4×; ≥ 1× | **no**; yes | ≤ 2 ms | Quick. |
| ` + "`q`" + ` | alone | 1234567 MB (1234567–1234567) |  |  |  |  |  |
`
	if table.String() != want {
		t.Errorf("table\n%s\nwant\n%s", table.String(), want)
	}
}

// TestRatioSpreadOmitsOutliers checks that the spread of ratios leaves out the lowest
// and the highest ratio.
func TestRatioSpreadOmitsOutliers(t *testing.T) {
	ones := series{1, 1, 1, 1, 1, 1, 1, 1}
	f := newFigure("w", "u", ones).beside("other", series{9, 3, 2, 5, 4, 7, 6, 0.1}, ones)
	if got := *f.RatioSpread; got != (Spread{2, 7}) {
		t.Errorf("spread of ratios %v; want 2 to 7", got)
	}
}

func TestDigitsRoundsFractions(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0123456: "0.0123", 0.25: "0.25", 1.5: "1.5", 12.345: "12.3", 123.4: "123", 5000: "5000", -0.5: "-0.5", 1e-9: "0",
	} {
		if got := digits(v); got != want {
			t.Errorf("digits(%v) = %q; want %q", v, got, want)
		}
	}
}

func TestMachineNamesCoresKernelAndGo(t *testing.T) {
	m := ThisMachine()
	if m.Cores < 1 || !strings.HasPrefix(m.Kernel, "Linux ") || !strings.HasPrefix(m.Go, "go") || m.Load == "unknown" {
		t.Errorf("the machine is %+v; want its cores, kernel, Go version and load", m)
	}
	if got := field("a : b\nmodel name\t: x: y\n", "model name"); got != "x: y" {
		t.Errorf("field = %q; want x: y", got)
	}
}

func TestReadGoResultsCollectsRounds(t *testing.T) {
	results := map[string]*goResult{}
	const out = "goos: linux\nBenchmarkGates/write-2  \t  384639\t 572.9 ns/op\t 893.70 MB/s\t 160 B/op\t 1 allocs/op\n" +
		"BenchmarkGates/encoding-json-2 \t 1 \t 14027 ns/op\t 36.50 MB/s\t 384 B/op\t 10 allocs/op\nBenchmarkOther-2 1 1 ns/op\nPASS\n"
	for range 2 {
		if err := readGoResults(out, results); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(*results["write"], *results["encoding-json"], len(results)); got != "{[0.5729 0.5729] [1 1]} {[14.027 14.027] [10 10]} 2" {
		t.Errorf("the results are %s; want two rounds of both benchmarks", got)
	}
	if readGoResults("BenchmarkGates/x 1 many ns/op", results) == nil {
		t.Error("readGoResults accepts many ns/op; want an error")
	}
	if _, err := gateFigures(map[string]*goResult{}); err == nil {
		t.Error("gateFigures without results succeeds; want an error")
	}
}
