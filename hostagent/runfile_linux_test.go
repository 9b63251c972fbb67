package hostagent

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/hostagent/remembering"
	waitbook "ahprelay/hostagent/waiting"
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
	check(first.begins("a"))
	if _, err := openRunFile(dir, "default", "laptop"); !errors.Is(err, errRunning) {
		t.Errorf("opening the run file while a host-agent holds it = %v; want errRunning", err)
	}
	other, err := openRunFile(dir, "default", "tower")
	check(err)
	other.close()
	first.close() // this host-agent ends before it has the lease

	second := next("a")
	check(second.begins("b"))
	second.close() // this host-agent, too, ends before it has the lease

	third := next("b", "a")
	check(third.begins("c"))
	check(third.holds("c"))
	third.close() // this host-agent ends while it has the lease

	fourth := next("c")
	check(fourth.begins("d"))
	check(fourth.holds("d"))
	check(fourth.released())
	fourth.close() // this host-agent has released the lease

	fifth := next()
	for i := range 3 * maxPrevious {
		check(fifth.begins("e" + strings.Repeat("x", i)))
		fifth.previous = fifth.proven(fifth.note())
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
	if err := r.begins("a"); err != nil {
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

// TestHostsOfTwoRelaysShareNoState starts a host-agent while another has a host of the same name at a different relay, and with the same
// state directory. It must not start, and the error must name both relay and remedy. It starts for the same relay, and
// after the other has ended.
func TestHostsOfTwoRelaysShareNoState(t *testing.T) {
	dir := t.TempDir()
	agent := func(relays ...string) *Agent {
		return &Agent{access: &access{tenant: "default", host: "laptop", instance: relays[0][len("https://"):]}, cfg: Config{StateDir: dir, Relays: relays, Log: slog.New(slog.DiscardHandler)}}
	}
	first := agent("https://a", "https://b")
	if err := first.enter(); err != nil {
		t.Fatal(err)
	}
	err := agent("https://c").Run(t.Context())
	for _, want := range []string{"https://a https://b", "--state-dir", dir} {
		if !errors.Is(err, errOtherRelay) || !strings.Contains(err.Error(), want) {
			t.Errorf("the host-agent of another relay ends with %v; want an error that names %s", err, want)
		}
	}
	if err := agent("https://d", "https://b").enter(); err != nil {
		t.Errorf("the host-agent of a cluster's other relay: %v; want that it waits for the host", err)
	}
	first.run.close()
	last := agent("https://c")
	if err := last.enter(); err != nil {
		t.Errorf("after the end of the first: %v; want that the host has moved to the other relay", err)
	}
	last.run.close()
}

// TestSupersededHostAgentWritesNoState lets a second host-agent get the host while the first still runs, as after a
// SIGSTOP, and after --take-over. Then each change at the first must fail and leave the files as they
// are; the second changes them.
func TestSupersededHostAgentWritesNoState(t *testing.T) {
	former, next := openStates(t)
	changes := func(a *Agent) map[string]error {
		left, name := newIdentity(t), rand.Text()
		_, private := a.private.set("ada", "s:/"+name, true, nil)
		_, keys := a.last.keeper.Keys(gate.NewPolicy(auth.AccessRead, nil, nil, false), remembering.Holder{Rests: []string{name}, End: time.Now().Add(time.Hour)})
		_, leaves := a.waiting.book.Enter(waitbook.Device{Subject: "ada", ID: name, Keys: base64.RawURLEncoding.EncodeToString(left.Bytes())})
		return map[string]error{
			"private": private, "keys": keys, "leaves": leaves,
			"paired":  pairDevice(t, a.seals.vault, newIdentity(t)),
			"journal": a.waiting.book.Write(name, waitbook.Entry{Stage: waitbook.Sending}, time.Now()),
		}
	}
	start := func(a *Agent) {
		if err := a.enter(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.run.close)
		if err := got(a); err != nil {
			t.Fatal(err)
		}
		for what, err := range changes(a) {
			if err != nil {
				t.Errorf("%s: %s: %v; want that the host-agent which has the host changes it", a.instance, what, err)
			}
		}
	}
	start(former)
	start(next)
	files := func() (all string) {
		list, err := filepath.Glob(filepath.Join(next.cfg.StateDir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range list {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all += string(data)
		}
		return all
	}
	before := files()
	for what, err := range changes(former) {
		if err == nil {
			t.Errorf("%s: the superseded host-agent has changed it; want an error", what)
		}
	}
	if files() != before {
		t.Error("the superseded host-agent has changed the state directory; want it as its successor left it")
	}
}
