package auth_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
)

// rotated returns keys that have got a second set, their directory, and the second set. The second
// set begins to sign an hour after start.
func rotated(t *testing.T) (k *auth.Keys, dir string, added auth.SetInfo) {
	t.Helper()
	dir = t.TempDir()
	k = load(t, dir)
	added, err := auth.AddKeys(dir, start, start.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := k.Reload(); !changed || err != nil {
		t.Fatalf("Reload = %v, %v; want true and no error", changed, err)
	}
	return k, dir, added
}

// TestSignaturesAreValidWhileTheirSetExists signs tokens and challenges with both sets. A relay
// must accept them from the moment it knows the set until the set is removed. RetireKeys must
// refuse to remove a set that is in use.
func TestSignaturesAreValidWhileTheirSetExists(t *testing.T) {
	k, dir, added := rotated(t)
	early, late := load(t, dir), load(t, dir)
	now := start
	k.Now = func() time.Time { return now }
	early.Now = func() time.Time { return start }
	late.Now = func() time.Time { return start.Add(2 * time.Hour) }
	c := client()
	c.Expires = start.Add(48 * time.Hour)
	with := func(k *auth.Keys) string {
		token, err := k.Tokens().IssueClient(c)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	old, fresh := with(early), with(late)
	challenges := []string{early.NewChallenge(), late.NewChallenge()}
	key := newAgentKey(t)
	for i, at := range []time.Time{start, start.Add(2 * time.Hour)} {
		now = at
		for _, token := range []string{old, fresh} {
			if _, err := k.Tokens().VerifyClient(token); err != nil {
				t.Errorf("VerifyClient at %v: %v; want no error", at, err)
			}
		}
		signature, err := auth.SignChallenge(key, challenges[i], "acme", "laptop")
		if err != nil {
			t.Fatal(err)
		}
		if err := k.CheckChallenge(challenges[i], "acme", "laptop", key.Public(), signature); err != nil {
			t.Errorf("CheckChallenge of challenge %d: %v; want no error", i, err)
		}
	}
	first := k.SetIDs()[0]
	for _, test := range []struct {
		after time.Duration
		id    string
		ok    bool
	}{
		{time.Hour + time.Minute, first, false}, // the second set has just begun to sign
		{time.Hour + time.Minute, "0", false},
		{time.Hour + auth.DefaultAgentTTL, first, true},
		{48 * time.Hour, added.ID, false}, // the only set that is left
	} {
		if err := auth.RetireKeys(dir, test.id, start.Add(test.after), false); (err == nil) != test.ok {
			t.Errorf("RetireKeys(%s) after %v: %v; want success %v", test.id, test.after, err, test.ok)
		}
	}
	if changed, err := k.Reload(); !changed || err != nil {
		t.Fatalf("Reload = %v, %v; want true and no error", changed, err)
	}
	if _, err := k.Tokens().VerifyClient(old); !errors.Is(err, auth.ErrTokenInvalid) {
		t.Errorf("a token from retired keys: %v; want ErrTokenInvalid", err)
	}
	if _, err := k.Tokens().VerifyClient(fresh); err != nil {
		t.Errorf("a token from the remaining keys: %v; want no error", err)
	}
	again := load(t, dir)
	if got := again.SetIDs(); !slices.Equal(got, []string{added.ID}) {
		t.Errorf("the keys are %v; want %s", got, added.ID)
	}
	for _, tenant := range []string{"acme", "other"} {
		a, err1 := early.Authority().TenantAccount(tenant)
		b, err2 := again.Authority().TenantAccount(tenant)
		if a != b || err1 != nil || err2 != nil {
			t.Errorf("the account for %s is %s; want %s, as before", tenant, b, a)
		}
	}
}

// TestHostAgentFollowsKeys adds and removes sets of keys at random for a long time. A host-agent
// that renews its credential when it should must always be accepted, and must always accept the
// relay's keys.
func TestHostAgentFollowsKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) // each set costs disk time, so a single long walk replaces many
	dir := t.TempDir()
	k := load(t, dir)
	now := start
	k.Now = func() time.Time { return now }
	key := auth.NewHostKey()
	token, err := k.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: now.Add(365 * 24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	renew := func() {
		next, err := k.Tokens().RenewCredential(auth.Enrolment{Tenant: "acme", Host: "laptop", Key: key.Public(), Expires: now.Add(90 * 24 * time.Hour)}, token)
		if err == nil {
			err = auth.CheckCredential(next, token, key.Public())
		}
		if err != nil {
			t.Fatal(err)
		}
		token = next
	}
	renew()
	retired := 0
	for range 150 {
		switch random.IntN(4) {
		case 0:
			_, _ = auth.AddKeys(dir, now, now.Add(time.Hour)) // fails if there are enough sets
		case 1:
			if auth.RetireKeys(dir, k.SetIDs()[random.IntN(len(k.SetIDs()))], now, false) == nil { // fails if in use
				retired++
			}
		default:
			now = now.Add(auth.DefaultAgentTTL)
		}
		if _, err := k.Reload(); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Tokens().VerifyAgent(token); err != nil {
			t.Fatalf("VerifyAgent after the change of keys: %v; want no error", err)
		}
		link := auth.LinkID{Tenant: "acme", Host: "laptop", Agent: "agent", Relay: "relay", RelayShare: make([]byte, 32), AgentShare: make([]byte, 32)}
		trusted, err := auth.PeekRelayKeys(token)
		if err != nil {
			t.Fatal(err)
		}
		shown, proof, err := k.Links().Prove(link)
		if err == nil {
			err = auth.CheckLink(trusted, link, shown, proof)
		}
		if err != nil {
			t.Fatalf("CheckLink after the change of keys: %v; want no error", err)
		}
		if k.Tokens().Outdated(token) { // the host-agent requests NATS credentials, and learns this
			renew()
		}
		now = now.Add(time.Minute)
	}
	if retired < 3 {
		t.Errorf("%d sets were retired; want at least 3", retired)
	}
}

// TestHostAgentLearnsNewKeysAfterAPause has a host-agent that was off while the relay announced new
// keys. The host-agent must learn the new keys with a credential that the old keys sign, and then
// get a credential that the new keys sign.
func TestHostAgentLearnsNewKeysAfterAPause(t *testing.T) {
	dir := t.TempDir()
	k := load(t, dir)
	now := start
	k.Now = func() time.Time { return now }
	key := auth.NewHostKey()
	e := auth.Enrolment{Tenant: "acme", Host: "laptop", Key: key.Public(), Expires: start.Add(90 * 24 * time.Hour)}
	before, err := k.Tokens().IssueCredential(e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := auth.AddKeys(dir, start, start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Reload(); err != nil {
		t.Fatal(err)
	}
	now = start.Add(2 * time.Hour)
	for _, stage := range []string{"that names the new keys", "that the new keys have signed"} {
		if !k.Tokens().Outdated(before) {
			t.Fatalf("Outdated = false; want the host-agent to request a credential %s", stage)
		}
		next, err := k.Tokens().RenewCredential(e, before)
		if err != nil {
			t.Fatal(err)
		}
		if err := auth.CheckCredential(next, before, key.Public()); err != nil {
			t.Fatalf("CheckCredential of a credential %s: %v; want no error", stage, err)
		}
		before = next
	}
	if k.Tokens().Outdated(before) {
		t.Error("Outdated = true after both renewals; want false")
	}
}

// TestClusterStaysConnectedDuringRotation connects relays at each stage of a change of keys, and at
// neighbouring stages. The connection must succeed.
func TestClusterStaysConnectedDuringRotation(t *testing.T) {
	k, dir, _ := rotated(t)
	stage := func(after time.Duration) *auth.Keys {
		k := load(t, dir)
		k.Now = func() time.Time { return start.Add(after) }
		return k
	}
	first, made, signs := k.SetIDs()[0], stage(0), stage(2*time.Hour)
	if err := auth.RetireKeys(dir, first, start.Add(3*time.Hour), false); err != nil {
		t.Fatal(err)
	}
	retired := stage(4 * time.Hour)
	for _, pair := range [][2]*auth.Keys{{made, made}, {made, signs}, {signs, made}, {signs, retired}, {retired, signs}, {retired, retired}} {
		a, err1 := pair[0].ClusterTLS()
		b, err2 := pair[1].ClusterTLS()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if err := handshake(a, b); err != nil {
			t.Errorf("a handshake of servers with the keys %v and %v: %v; want no error", pair[0].List(), pair[1].List(), err)
		}
	}
	a, _ := made.ClusterTLS()
	b, _ := retired.ClusterTLS()
	if handshake(a, b) == nil {
		t.Error("relays with retired keys connect; want an error")
	}
}

// TestRetirementIsReadWhole retires sets of keys while a relay loads its keys all the time. Each
// load must find a set either complete or not at all, without an error. Afterwards, nothing of the
// retired sets may be left.
func TestRetirementIsReadWhole(t *testing.T) {
	dir := t.TempDir()
	k, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			if _, err := k.Reload(); err != nil {
				t.Errorf("the relay cannot load its keys during a retirement: %v", err)
				return
			}
		}
	})
	for range 30 {
		set, err := auth.AddKeys(dir, time.Now(), time.Now().Add(time.Hour))
		if err == nil {
			err = auth.RetireKeys(dir, set.ID, time.Now(), false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(over)
	reading.Wait()
	if left, err := os.ReadDir(filepath.Join(dir, "keys")); err != nil || len(left) != 4 {
		t.Errorf("the directory has %v, %v; want the four files of the first set", left, err)
	}
}
