package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/auth"
)

func loadRevocations(t testing.TB, path string) *Revocations {
	t.Helper()
	r, err := LoadRevocations(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRevocationsAreKept adds revocations, and reads the file after each, as after a crash. The
// file must contain all of them, and they must apply to exactly the right tokens.
func TestRevocationsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations.json")
	r := loadRevocations(t, path)
	at := time.Now()
	subject := auth.Revocation{Tenant: "acme", Subject: "ada", At: at}
	for _, rev := range []auth.Revocation{
		{Token: "ABC", At: at, Until: at.Add(time.Hour)}, subject, {Tenant: "acme", Host: "laptop", At: at},
	} {
		if err := r.Add(rev); err != nil {
			t.Fatal(err)
		}
		if again := loadRevocations(t, path); !maps.Equal(again.entries, r.entries) {
			t.Fatalf("after %+v the file holds %+v; want %+v", rev, again.List(), r.List())
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of revocations has mode %v, %v; want 0600", info.Mode(), err)
	}
	again := loadRevocations(t, path)
	ada := auth.Client{ID: "other", Tenant: "acme", Subject: "ada"}
	switch {
	case !again.Revoked(at.Add(-time.Minute), ada.Keys()...):
		t.Error("an old token of a revoked subject is valid; want it revoked")
	case again.Revoked(at.Add(time.Minute), ada.Keys()...):
		t.Error("a new token of a revoked subject is revoked; want it valid")
	case again.Revoked(at.Add(-time.Minute), auth.Client{ID: "other", Tenant: "umbrella", Subject: "ada"}.Keys()...):
		t.Error("a token of a subject with that name in a different tenant is revoked; want it valid")
	case !again.Revoked(at.Add(time.Minute), auth.Client{ID: "ABC", Tenant: "umbrella", Subject: "bob"}.Keys()...):
		t.Error("a token whose ID is revoked is valid; want it revoked")
	case !again.Revoked(at.Add(-time.Minute), auth.Enrolment{ID: "e", Tenant: "acme", Host: "laptop"}.Keys()...):
		t.Error("an enrolment of the revoked host is valid; want it revoked")
	}
}

// TestRevokedOriginIsFoundInAChain looks for revoked origins in chains. A revoked origin must be
// found at any place in its chain, if it was issued before the revocation.
func TestRevokedOriginIsFoundInAChain(t *testing.T) {
	r, at := loadRevocations(t, ""), time.Now()
	for _, rev := range []auth.Revocation{
		{Token: "stolen", At: at}, {Tenant: "acme", Subject: "ada", At: at}, {Tenant: "acme", Host: "laptop", At: at}, {Token: "spent", At: at, Alone: true},
	} {
		if err := r.Add(rev); err != nil {
			t.Fatal(err)
		}
	}
	before, after := at.Add(-time.Minute).Unix(), at.Add(time.Minute).Unix()
	for name, test := range map[string]struct {
		origin auth.Origin
		want   bool
	}{
		"token":                      {auth.Origin{ID: "stolen", Subject: "bob", Issued: after}, true},
		"subject":                    {auth.Origin{ID: "a", Subject: "ada", Issued: before}, true},
		"later grant of a subject":   {auth.Origin{ID: "a", Subject: "ada", Issued: after}, false},
		"host":                       {auth.Origin{ID: "a", Host: "laptop", Issued: before}, true},
		"subject with a host's name": {auth.Origin{ID: "a", Subject: "laptop", Issued: before}, false},
		"token that was used up":     {auth.Origin{ID: "spent", Subject: "bob", Issued: before}, false},
		"other":                      {auth.Origin{ID: "a", Subject: "bob", Issued: before}, false},
	} {
		good := auth.Origin{ID: "good", Subject: "bob", Issued: before}
		for _, chain := range [][]auth.Origin{{test.origin}, {good, test.origin}, {test.origin, good}} {
			if got := r.RevokedOrigin("acme", chain); got != test.want {
				t.Errorf("%s, with %d origins: the token is revoked: %v; want %v", name, len(chain), got, test.want)
			}
		}
		if name != "token" && r.RevokedOrigin("umbrella", []auth.Origin{test.origin}) {
			t.Errorf("%s: the origin is revoked in a different tenant; want it valid", name)
		}
	}
	if err := r.Add(auth.Revocation{Token: "spent", At: at}); err != nil {
		t.Fatal(err)
	}
	if !r.RevokedOrigin("acme", []auth.Origin{{ID: "spent", Subject: "bob"}}) {
		t.Error("tokens derived from a used and then revoked token are valid; want them revoked")
	}
	r.receive([]auth.Revocation{{Token: "spent", At: at.Add(time.Hour), Alone: true}})
	if !r.RevokedOrigin("acme", []auth.Origin{{ID: "spent", Subject: "bob"}}) {
		t.Error("after a later revocation of the token alone, the tokens derived from it are valid; want them revoked")
	}
}

// BenchmarkRevokedOrigin measures a lookup of the longest chain among 65,536 revocations.
func BenchmarkRevokedOrigin(b *testing.B) {
	r, now := loadRevocations(b, ""), time.Now()
	for i := range 1 << 16 {
		rev := auth.Revocation{Token: fmt.Sprint(i), At: now}
		r.entries[rev.Key()] = rev
	}
	var chain []auth.Origin
	for i := range auth.MaxOrigins {
		chain = append(chain, auth.Origin{ID: fmt.Sprint("device-", i), Subject: fmt.Sprint("person", i), Issued: now.Unix()})
	}
	for b.Loop() {
		if r.RevokedOrigin("acme", chain) {
			b.Fatal("RevokedOrigin = true without a revocation; want false")
		}
	}
}

// TestDamagedRevocationsPreventTheStart loads damaged files. LoadRevocations must return an error
// that names the file.
func TestDamagedRevocationsPreventTheStart(t *testing.T) {
	for name, text := range map[string]string{
		"cut off": `[{"token":"AB`, "empty": "", "no revocation": `[{"at":"2026-03-04T00:00:00Z"}]`,
	} {
		path := filepath.Join(t.TempDir(), "revocations.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadRevocations(path, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: LoadRevocations: %v; want an error that names %s", name, err, path)
		}
	}
}

// TestRevocationsCannotBeKept adds a revocation while its file cannot be written. Add must return
// an error, but the revocation must apply. When the file can be written, it must contain the
// revocation.
func TestRevocationsCannotBeKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	r := loadRevocations(t, filepath.Join(dir, "revocations.json"))
	if err := r.Add(auth.Revocation{Token: "ABC", At: time.Now(), Alone: true}); err == nil {
		t.Error("Add with a file that cannot be written returns no error; want one")
	}
	if !r.Revoked(time.Now(), auth.RevocationKey{Token: "ABC"}) {
		t.Error("after a failed write, the token is valid; want it revoked")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.save(); err != nil || len(loadRevocations(t, r.file).List()) != 1 {
		t.Errorf("once the file can be written, save = %v, or the file lacks the revocation; want it saved", err)
	}
}

func TestRevocationsAreBounded(t *testing.T) {
	r := loadRevocations(t, "")
	now := time.Now()
	fill := func(to int) {
		for i := len(r.entries); i < to; i++ {
			rev := auth.Revocation{Token: fmt.Sprint(i), At: now}
			r.entries[rev.Key()] = rev
		}
	}
	if first, err := r.Spend("t", "last", now); !first || err != nil {
		t.Errorf("Spend = %v, %v; want true", first, err)
	}
	if first, err := r.Spend("t", "last", now); first || err != nil {
		t.Errorf("a second Spend of the token = %v, %v; want false", first, err)
	}
	fill(MaxRevocations - 1)
	if err := r.Add(auth.Revocation{Token: "last of all", At: now}); err != nil {
		t.Errorf("an operator's revocation in the last place: %v; want no error", err)
	}
	if err := r.Add(auth.Revocation{Token: "more", At: now}); !errors.Is(err, ErrTooManyRevocations) {
		t.Errorf("Add to a full list = %v; want %v", err, ErrTooManyRevocations)
	}
	if err := r.Add(auth.Revocation{Token: "1", At: now.Add(time.Hour)}); err != nil {
		t.Errorf("a revocation of a known token in a full list: %v; want no error", err)
	}
	r.receive([]auth.Revocation{{Token: "other relay's", At: now}})
	if !r.Revoked(now, auth.RevocationKey{Token: "other relay's"}) {
		t.Error("a revocation received from a different relay is not in force; want it in a full list too")
	}
}

// TestRevocationsOfATenantLeaveRoomForOthers: the hosts of a tenant use up as many tokens as they can,
// and then its people revoke as many grants as they can. Another tenant can still use tokens up and
// revoke, and the operators can revoke. When the loud tenant's revocations have expired, it has its room
// again, also after a restart.
func TestRevocationsOfATenantLeaveRoomForOthers(t *testing.T) {
	r := loadRevocations(t, "")
	now := time.Now()
	add := func(by string, i int) error {
		return r.Add(auth.Revocation{Token: fmt.Sprint(by, i), At: now, Until: now.Add(time.Hour), Alone: true, By: by})
	}
	spend := func(tenant string, i int) error {
		_, err := r.Spend(tenant, fmt.Sprint("used", tenant, i), now.Add(time.Hour))
		return err
	}
	used := 0
	for spend("loud", used) == nil {
		used++
	}
	most := used
	for add("loud", most) == nil {
		most++
	}
	if used != maxOfTenants/3 || most != maxOfTenants/2 {
		t.Errorf("the loud tenant has used up %d tokens, and has %d revocations with these; want %d and %d", used, most, maxOfTenants/3, maxOfTenants/2)
	}
	if err := spend("quiet", 0); err != nil {
		t.Errorf("another tenant's used token: %v; want room for it", err)
	}
	if err := add("quiet", 0); err != nil {
		t.Errorf("another tenant's revocation: %v; want room for it", err)
	}
	if err := add("", 0); err != nil {
		t.Errorf("an operator's revocation: %v; want room for it", err)
	}
	if err := r.Add(auth.Revocation{Token: "usedloud0", At: now}); err != nil || r.by["loud"] != most-1 {
		t.Errorf("an operator revokes what the loud tenant's people have revoked: %v, and these have %d; want %d", err, r.by["loud"], most-1)
	}
	r.prune(now.Add(2 * time.Hour))
	if err := add("loud", most); err != nil || len(r.by) != 2 {
		t.Errorf("after the end of the revoked grants: %v, and the counts are %v; want room", err, r.by)
	}
}

// TestTokenIsSpentOnce spends the same token in 20 goroutines at once. Only one of them may be the
// first.
func TestTokenIsSpentOnce(t *testing.T) {
	r := loadRevocations(t, filepath.Join(t.TempDir(), "revocations.json"))
	var firsts atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if first, err := r.Spend("t", "ABC", time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			} else if first {
				firsts.Add(1)
			}
		})
	}
	wg.Wait()
	if n := firsts.Load(); n != 1 {
		t.Errorf("%d callers were first to spend the token; want 1", n)
	}
}

// TestRevocationsAreForgotten prunes revocations. Only those may be removed whose tokens have
// expired even for a relay with a slow clock.
func TestRevocationsAreForgotten(t *testing.T) {
	r := loadRevocations(t, "")
	now := time.Now()
	r.began = now.Add(-settleFor)
	for _, rev := range []auth.Revocation{
		{Token: "short", At: now, Until: now.Add(time.Minute), Alone: true},
		{Token: "long", At: now, Until: now.Add(time.Hour), Alone: true},
		{Token: "unknown", At: now, Until: now.Add(time.Minute), Alone: true},
		{Token: "unknown", At: now, Alone: true}, // only its id is known, not its expiry
	} {
		if err := r.Add(rev); err != nil {
			t.Fatal(err)
		}
	}
	r.prune(now.Add(time.Minute))
	if n := len(r.List()); n != 3 {
		t.Errorf("%d revocations are left while a relay with a slow clock may still accept their tokens; want 3", n)
	}
	r.prune(now.Add(time.Minute + auth.Leeway + time.Second))
	if text := fmt.Sprint(r.List()); strings.Contains(text, "short") || len(r.List()) != 2 {
		t.Errorf("the revocations %v are left; want 2, without short", text)
	}
	r.receive([]auth.Revocation{{Token: "over", At: now.Add(-2 * time.Hour), Until: now.Add(-time.Hour)}})
	r.prune(now.Add(2 * time.Hour))
	if len(r.entries) != 1 || r.entries[auth.RevocationKey{Token: "unknown"}].Token == "" {
		t.Errorf("after all expiry times, the revocations %v are left; want only the one without a known expiry", r.entries)
	}
}

// TestForwardJumpOfTheClockForgetsNothing sets the clock forward beyond the end of a revoked token,
// and back. The token must still be revoked, and the revocation must be forgotten when its time has
// passed.
func TestForwardJumpOfTheClockForgetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := loadRevocations(t, "")
		var jump atomic.Int64
		r.wall = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.run(ctx) })
		time.Sleep(settleFor)
		now := time.Now()
		if err := r.Add(auth.Revocation{Token: "stolen", At: now, Until: now.Add(time.Hour), Alone: true}); err != nil {
			t.Fatal(err)
		}
		jump.Store(int64(2 * time.Hour))
		time.Sleep(5 * time.Minute)
		jump.Store(0)
		if !r.Revoked(now, auth.RevocationKey{Token: "stolen"}) {
			t.Error("the token is valid again; want it revoked")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if list := r.List(); len(list) > 0 {
			t.Errorf("after the end of all revoked tokens, the revocations %v are left; want none", list)
		}
		cancel()
		running.Wait()
	})
}

// TestForwardJumpOfTheClockRefusesNothing sets a relay's clock forward beyond the end of a token, and
// then lets a different relay, whose clock is right, revoke this token. The revocation must take effect
// here, and must stay in the store.
func TestForwardJumpOfTheClockRefusesNothing(t *testing.T) {
	r, now := loadRevocations(t, ""), time.Now()
	r.began, r.wall = now.Add(-time.Hour), func() time.Time { return time.Now().Add(2 * time.Hour) }
	r.receive([]auth.Revocation{{Token: "sent", At: now, Until: now.Add(time.Hour), Alone: true}})
	r.stored(auth.Revocation{Token: "stored", At: now, Until: now.Add(time.Hour), Alone: true}, 1)
	for _, token := range []string{"sent", "stored"} {
		if !r.Revoked(now, auth.RevocationKey{Token: token}) {
			t.Errorf("the token %q is valid; want it revoked", token)
		}
	}
	if list := r.toRemove(); len(list) > 0 {
		t.Errorf("the revocations %v are to be removed from the store; want none", list)
	}
}

// TestStartWithAForwardClockForgetsNothing starts a relay while its clock is two hours ahead, so that a
// token in its file and one in the store seem to have expired an hour ago. Five minutes later, the clock
// is set right. Both tokens must still be revoked. A token that is used up after the start is forgotten
// when it has expired.
func TestStartWithAForwardClockForgetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := 2 * time.Hour
		right := time.Now().Add(-ahead)
		rev := auth.Revocation{Token: "filed", At: right, Until: right.Add(time.Hour), Alone: true}
		path := filepath.Join(t.TempDir(), "revocations.json")
		if err := loadRevocations(t, path).Add(rev); err != nil {
			t.Fatal(err)
		}
		r := loadRevocations(t, path)
		var behind atomic.Int64
		r.wall = func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.run(ctx) })
		rev.Token = "stored"
		r.stored(rev, 1)
		if _, err := r.Spend("t", "used", time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if r.Revoked(right, auth.RevocationKey{Token: "used"}) {
			t.Error("the token that was used up after the start is still remembered; want it forgotten")
		}
		behind.Store(int64(ahead))
		time.Sleep(settleFor / 2)
		for _, token := range []string{"filed", "stored"} {
			if !r.Revoked(right, auth.RevocationKey{Token: token}) {
				t.Errorf("the token %q is valid again; want it revoked", token)
			}
		}
		if list := r.toRemove(); len(list) > 0 {
			t.Errorf("the revocations %v are to be removed from the store; want none", list)
		}
		time.Sleep(settleFor)
		synctest.Wait()
		if list := r.List(); len(list) > 0 {
			t.Errorf("after the end of all revoked tokens, the revocations %v are left; want none", list)
		}
		cancel()
		running.Wait()
	})
}

// TestRevocationsConverge adds revocations at three relays and exchanges their lists in random
// order. In the end, all relays must have the same set.
func TestRevocationsConverge(t *testing.T) {
	base := time.Now().UTC().Round(0)
	rapid.Check(t, func(t *rapid.T) {
		relays := []*Revocations{loadRevocations(&testing.T{}, ""), loadRevocations(&testing.T{}, ""), loadRevocations(&testing.T{}, "")}
		one := rapid.IntRange(0, len(relays)-1)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			from, to := relays[one.Draw(t, "from")], relays[one.Draw(t, "to")]
			if from != to {
				to.receive(overWire(t, from.List()))
				continue
			}
			at := base.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "at")) * time.Millisecond)
			rev := auth.Revocation{Tenant: "acme", At: at, Alone: rapid.Bool().Draw(t, "alone")}
			if until := rapid.IntRange(0, 2).Draw(t, "until"); until > 0 {
				rev.Until = base.Add(time.Duration(until) * time.Hour)
			}
			name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
			if rapid.Bool().Draw(t, "of subject") {
				rev.Subject = name
			} else {
				rev.Host = name
			}
			if err := from.Add(rev); err != nil {
				t.Fatal(err)
			}
			if !from.Revoked(at, rev.Key()) {
				t.Fatalf("the revocation %+v has no effect; want it in effect", rev)
			}
		}
		for range 2 {
			for _, from := range relays {
				for _, to := range relays {
					to.receive(overWire(t, from.List()))
				}
			}
		}
		for _, r := range relays[1:] {
			if !maps.Equal(r.entries, relays[0].entries) {
				t.Fatalf("two relays have the revocations %+v and %+v; want the same", relays[0].List(), r.List())
			}
		}
	})
}

func overWire(t *rapid.T, list []auth.Revocation) (heard []auth.Revocation) {
	text, err := json.Marshal(list)
	if err == nil {
		err = json.Unmarshal(text, &heard)
	}
	if err != nil {
		t.Fatal(err)
	}
	return heard
}
