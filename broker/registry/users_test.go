package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"pgregory.net/rapid"

	"ahprelay/auth"
	"ahprelay/test/natssite"
)

var someNKeys = func() (keys []string) {
	for range 2 * maxUsers {
		pair, err := nkeys.CreateUser()
		if err != nil {
			panic(err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			panic(err)
		}
		keys = append(keys, public)
	}
	return keys
}()

func drawUsers(t *rapid.T, name string) (users natsUsers) {
	start := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	for range rapid.IntRange(0, 2*maxUsers).Draw(t, name) {
		issued := start.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "issued")) * time.Minute)
		users = users.with(natsUser{
			NKey: rapid.SampledFrom(someNKeys).Draw(t, "nkey"), Token: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "token"),
			Issued: issued, Expires: issued.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "life")) * time.Minute),
		})
	}
	return users
}

// TestMergedUsersStayWithinBounds merges random lists of users. The result must be within the
// bound, and independent of the order if all fit. Each user must be in it, or be covered by the
// entry auth.AllUsers.
func TestMergedUsersStayWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawUsers(t, "a"), drawUsers(t, "b")
		before := slices.Clone(a)
		both := a.with(b...)
		if !a.equal(before) {
			t.Fatal("with changed its receiver's users; want a copy")
		}
		if err := both.check(); err != nil {
			t.Fatalf("the merged %[2]d users: %[1]v; want them within the bounds", err, len(both))
		}
		again := both.with(b...).with(a...) // this may know more of the surplus users
		if third := again.with(b...).with(a...); !third.equal(again) || len(a)+len(b) <= maxUsers && !again.equal(both) {
			t.Fatalf("merging known users again: %v; want %v, as before", third, again)
		}
		if other := b.with(a...); len(a)+len(b) <= maxUsers && !other.equal(both) {
			t.Fatalf("merging in the opposite order: %v; want %v", other, both)
		}
		i := slices.IndexFunc(both, func(u natsUser) bool { return u.NKey == auth.AllUsers })
		all := slices.Concat(a, b)
		for _, u := range all {
			if slices.ContainsFunc(all, func(o natsUser) bool { return o.NKey == u.NKey && o.newer(u) }) {
				continue // a newer entry replaces this
			}
			named := slices.ContainsFunc(both, func(o natsUser) bool { return o.NKey == u.NKey && !o.Expires.Before(u.Expires) })
			if !named && (i < 0 || both[i].Expires.Before(u.Expires) || both[i].Issued.After(u.Issued)) {
				t.Fatalf("the user %+v is not in %+v; want it there, or covered by the entry for all users", u, both)
			}
		}
	})
}

// TestUnusedAccountsAreClosed opens tenants' accounts for various reasons, and lets time pass. Each
// account must close when no host-agent of its tenant can be connected any more, and not before.
func TestUnusedAccountsAreClosed(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{})
	now := time.Now()
	admit := func(tenant string, until time.Time) {
		t.Helper()
		e := auth.Enrolment{ID: "x", Tenant: tenant, Host: "h", IssuedAt: now}
		if err := r.Admit(t.Context(), e, someNKeys[0], until); err != nil {
			t.Fatal(err)
		}
	}
	admit("short", now.Add(15*time.Minute))
	admit("long", now.Add(time.Hour))
	natssite.Enrol(t, r, "shown", "h")
	if answer := r.keeping.hold(t.Context(), "held.h", leaseRequest{Op: opHold, Instance: "i", Seq: 1, Presence: Presence{State: Online}}, r.cfg.Instance); answer.Result != leaseHeld {
		t.Fatalf("hold: %+v; want held", answer)
	}
	tell := func(s hostState) {
		rev, err := r.view.store.write(t.Context(), hostKeys+s.Key, s, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.applyHost(&r.view, s, rev, 0, false)
	}
	tell(hostState{Key: "told.h", Enrolled: now, Users: natsUsers{{NKey: someNKeys[1], Token: "x", Issued: now, Expires: now.Add(15 * time.Minute)}}})
	tell(hostState{Key: "over.h", Enrolled: now, Users: natsUsers{{NKey: someNKeys[2], Token: "x", Issued: now, Expires: now.Add(-time.Hour)}}})
	want := func(after time.Duration, names ...string) {
		t.Helper()
		until(t, fmt.Sprintf("after %v %v are open", after, names), func() bool { // connections close late
			r.accounts.tidy(now.Add(after))
			got := r.cfg.Tenants.Names()
			slices.Sort(got)
			return fmt.Sprint(got) == fmt.Sprint(names)
		})
	}
	want(0, "held", "long", "short", "shown")
	want(time.Minute, "held", "long", "short", "shown")
	want(3*time.Minute, "held")
	r.keeping.sweep(now.Add(time.Minute)) // the lease expires without renewal
	want(17 * time.Minute)
}
