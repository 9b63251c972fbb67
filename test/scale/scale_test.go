package scale

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
)

// TestMain also runs helpers: this test binary is their program.
func TestMain(m *testing.M) {
	if asked, err := loadgen.Main(os.Args[1:], Roles); asked {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// TestEachScenarioMakesRows runs each scenario with few hosts. Each must return rows.
// Their times do not matter.
func TestEachScenarioMakesRows(t *testing.T) {
	t.Parallel()
	p := &Plan{Sizes: Sizes{Few: 20, Many: 60, Restart: 60, Hosts: 60, Relays: 3, Watch: 100 * time.Millisecond, Tenants: []int{100}, Far: 60, Delay: 20 * time.Millisecond, Changes: 3, Sessions: 5}, Renew: time.Second}
	for _, m := range Measurements {
		if !slices.Contains([]string{"costs", "tenants", "restart", "idle", "remembered", "far", "regions"}, m.Name) {
			continue // the tests below run moves, real and shortage
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			rows, err := m.Measure(ctx, p, t.TempDir(), slog.New(slog.DiscardHandler))
			if err != nil || len(rows) == 0 {
				t.Fatalf("the rows are %v, %v; want at least one", rows, err)
			}
			for _, r := range rows {
				t.Logf("%s: %s", r.Name, r.Got)
			}
		})
	}
}

// TestMajorityIsServedDuringACut isolates the host-agent's relay. The host-agent must
// move to the relay of its second connection before clients at the other relays are
// closed.
func TestMajorityIsServedDuringACut(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	plan := &Plan{Sizes: Sizes{Cut: 18 * time.Second, Apart: 30}}
	rows, err := Measurement{"moves", 3, partitionMoves}.Measure(ctx, plan, t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Logf("%s: %s", r.Name, r.Got)
		if !r.Good {
			t.Errorf("%s: %s; want %s", r.Name, r.Got, r.Wanted)
		}
	}
}

// TestRealHostAgentsMakeRows runs a RealRun with few host-agents. The relays must list
// every host as online throughout restarts, replacements and a crash.
func TestRealHostAgentsMakeRows(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	programs, err := procs.Build(ctx)
	if err != nil {
		t.Fatal(err)
	}
	run := RealRun{
		Programs: programs, Dir: t.TempDir(), Hosts: 60, Relays: 3, Restarts: 1,
	}
	rows, err := run.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Logf("%s: %s", r.Name, r.Got)
		if r.Wanted == "0" && !r.Good {
			t.Errorf("%s: %s; want 0", r.Name, r.Got)
		}
	}
}

// TestShortageMakesRows runs a Shortage with few host-agents. All of them must come
// online. Their rates do not matter.
func TestShortageMakesRows(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	programs, err := procs.Build(ctx)
	if err != nil {
		t.Fatal(err)
	}
	run := Shortage{Programs: programs, Dir: t.TempDir(), Rounds: 1, For: time.Second, Most: 100}
	rows, err := run.Run(ctx)
	if err != nil || len(rows) == 0 {
		t.Fatalf("%v, %v", rows, err)
	}
	for _, r := range rows {
		t.Logf("%s: %s", r.Name, r.Got)
	}
}
