package registry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// someState draws a state of one host, as relays may have it after any time
// apart. Equal numbers of one instance are the same request.
func someState(t *rapid.T) *knownHost {
	day := time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC)
	k := &knownHost{hostState: hostState{Key: "t.h", Enrolled: day.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "enrolled")) * time.Hour)}}
	if !rapid.Bool().Draw(t, "held once") {
		return k
	}
	seq := rapid.Uint64Range(1, 4).Draw(t, "seq")
	instance := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "instance")
	k.Lease = &lease{Instance: instance, Seq: seq, Released: seq == 4, Presence: Presence{State: Online}}
	k.alive = seq == 2 || seq == 3
	k.LastSeen = day.Add(time.Duration(seq) * time.Minute)
	k.Revision = seq + uint64(len(instance)+int(instance[0]))%3
	return k
}

// TestStatesMerge has two relays tell each other what they know: both come to
// know the same, and hearing it again is no news.
func TestStatesMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := someState(t), someState(t)
		one, other := *a, *b
		one.merge(b)
		other.merge(a)
		if diff := cmp.Diff(one, other, cmp.AllowUnexported(knownHost{})); diff != "" {
			t.Fatalf("two relays differ (-one +other):\n%s", diff)
		}
		for _, o := range []*knownHost{a, b, &other} {
			if changed, news := one.merge(o); changed || news {
				t.Fatalf("%+v is news for %+v, which it is part of", o, one)
			}
		}
		if b.alive && !one.alive && a.Lease.Instance != b.Lease.Instance {
			t.Fatalf("a lease that is alive gave way to one that is not: %+v, %+v", a, b)
		}
	})
}

func TestNewerState(t *testing.T) {
	seen := time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC)
	state := func(instance string, seq, revision uint64, alive bool) *knownHost {
		return &knownHost{
			hostState: hostState{LastSeen: seen, Revision: revision, Lease: &lease{Instance: instance, Seq: seq}}, alive: alive,
		}
	}
	released := state("x", 7, 7, false)
	released.Lease.Released = true
	old := state("x", 9, 99, false)
	old.LastSeen = seen.Add(-time.Hour)
	for _, test := range []struct {
		name         string
		newer, older *knownHost
	}{
		{"held at last", state("x", 1, 1, true), &knownHost{}},
		{"renewed", state("x", 6, 6, true), state("x", 5, 5, true)},
		// It was renewed at a relay that had not heard of the one before.
		{"renewed elsewhere", state("x", 6, 3, true), state("x", 5, 5, true)},
		{"released", released, state("x", 6, 9, true)},
		{"taken over", state("y", 1, 8, true), state("x", 6, 7, true)},
		{"held by another since it was released", state("y", 1, 8, true), released},
		// Those that had not heard the renewals took it for lost, and gave it to nobody.
		{"renewed, elsewhere run out", state("x", 6, 8, true), state("x", 5, 7, false)},
		// … or to another, which is gone since.
		{"held, by another once", state("x", 6, 8, true), state("y", 50, 50, false)},
		{"run out later", state("y", 1, 1, false), old},
		{"two at once", state("y", 1, 1, true), state("x", 1, 1, true)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !test.newer.newer(test.older) || test.older.newer(test.newer) {
				t.Errorf("newer = %v, the other way %v; want true, false", test.newer.newer(test.older), test.older.newer(test.newer))
			}
		})
	}
}
