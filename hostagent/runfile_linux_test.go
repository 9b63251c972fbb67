package hostagent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func openRun(t *testing.T, dir string) *runFile {
	t.Helper()
	r, err := openRunFile(dir, "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// TestHostAgentKnowsItsPredecessors starts host-agents one after the other, which end in different
// ways. Each host-agent must know the earlier host-agents that may still have the host's lease.
func TestHostAgentKnowsItsPredecessors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	next := func(want ...string) *runFile {
		t.Helper()
		r := openRun(t, dir)
		if !slices.Equal(r.previous, want) {
			t.Errorf("the previous instances are %q; want %q", r.previous, want)
		}
		return r
	}
	first := next()
	check(first.note("a"))
	if _, err := openRunFile(dir, "default", "laptop"); !errors.Is(err, errRunning) {
		t.Errorf("opening the run file while a host-agent holds it = %v; want errRunning", err)
	}
	other, err := openRunFile(dir, "default", "tower")
	check(err)
	other.close()
	first.close() // this host-agent ends before it has the lease

	second := next("a")
	check(second.note("b"))
	second.close() // this host-agent, too, ends before it has the lease

	third := next("b", "a")
	check(third.note("c"))
	check(third.holds("c"))
	third.close() // this host-agent ends while it has the lease

	fourth := next("c")
	check(fourth.note("d"))
	check(fourth.holds("d"))
	check(fourth.released())
	fourth.close() // this host-agent has released the lease

	fifth := next()
	for i := range 3 * maxPrevious {
		check(fifth.note("e" + strings.Repeat("x", i)))
		fifth.previous = fifth.read()
	}
	if len(fifth.previous) != maxPrevious {
		t.Errorf("%d instances are remembered; want %d", len(fifth.previous), maxPrevious)
	}
}

// TestForeignRunFileProvesNothing starts a host-agent with a copied run file, with a file written
// before the machine restarted, and with invalid files. The host-agent must read no predecessors
// from these files.
func TestForeignRunFileProvesNothing(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir)
	if err := r.note("a"); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(r.f.Name())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(r.f.Name())
	for what, test := range map[string]struct {
		copied bool
		text   string
	}{
		"copy":           {true, string(good)},
		"another kernel": {false, strings.Replace(string(good), bootID(), "6f4b0d3e-0000-4000-8000-000000000000", 1)},
		"half":           {false, string(good[:len(good)/2])},
		"nothing":        {false, ""},
		"no instances":   {false, strings.Replace(string(good), `"a"`, `"../A b","",7`, 1)},
		"bad names":      {false, strings.Replace(string(good), `"a"`, `"../A b",""`, 1)},
	} {
		at := dir
		if test.copied {
			at = t.TempDir()
		} else {
			r.close()
		}
		if err := os.WriteFile(filepath.Join(at, name), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if again := openRun(t, at); len(again.previous) > 0 {
			t.Errorf("%s: the previous instances are %q; want none", what, again.previous)
		} else {
			again.close()
		}
	}
}
