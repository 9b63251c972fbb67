package remembering

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/remember"
)

// wantBlind fails unless the relay has n records, all with the current key, and with IDs that the
// relay cannot compute from a session's name.
func (w *world) wantBlind(n int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	vault := w.keeper.keys.current()
	if len(w.records) != n {
		w.t.Errorf("the relay has %d records; want %d", len(w.records), n)
	}
	for id, r := range w.records {
		if r.Key != vault.KeyID() || !r.Blind {
			w.t.Errorf("the record %.8s has the key ID %s, blind %v; want %s, true", id, r.Key, r.Blind, vault.KeyID())
		}
		for uri := range w.texts {
			if id == remember.IDOf(uri) {
				w.t.Errorf("a record has the plain ID of %s; want an ID that relays cannot compute", uri)
			}
		}
	}
}

// sealedWorld returns a world with a sealed host, whose sessions s:/1, s:/2 and so on have said
// the texts. Their records have been written.
func sealedWorld(t *testing.T, texts ...string) *world {
	w := newWorld(t, Turns)
	w.sealed = true
	w.start(Turns)
	w.keeper.Listed()
	for i, text := range texts {
		w.say(fmt.Sprint("s:/", i+1), text, 1)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	return w
}

// TestSealedRecordsAreBlind writes the records of a sealed host. Their IDs must depend on the
// host's key. A device must get only the IDs of its own sessions, and the list must have the
// version of each record.
func TestSealedRecordsAreBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sealedWorld(t, "one", "two")
		defer func() { w.stop() }()
		w.wantBlind(3)
		id := w.keeper.idOf("s:/1")
		if got := w.content(id); !strings.Contains(got, "one") {
			t.Errorf("the record of s:/1 is %q; want the text one", got)
		}
		var list listContent
		if err := json.Unmarshal([]byte(w.content(remember.ListID)), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Versions) != 2 || list.Versions[id] != w.record(id).Version {
			t.Errorf("the list has the versions %v; want that of both records", list.Versions)
		}
		one := gate.NewPolicy(auth.AccessRead, []string{"s:/1"}, nil, false)
		given, err := w.keeper.Keys(one, Holder{Holder: auth.Holder{Subject: "ada"}, End: time.Now().Add(time.Hour)})
		if err != nil || given.Key != nil || len(given.IDs) != 1 || given.IDs["s:/1"] != id || len(given.Records[id]) != remember.KeySize {
			t.Errorf("the holder of a link to s:/1 gets %+v, %v; want the record key and ID of that session only", given, err)
		}
	})
}

// TestSealedHoldersEndAtTheHost removes a device that had admitted a holder of the keys, and later
// lets another holder's time end. After each, all records must have a new key and new IDs, without
// reading the host.
func TestSealedHoldersEndAtTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sealedWorld(t, "one", "two")
		defer func() { w.stop() }()
		holder := func(name string, life time.Duration, rests ...string) Keys {
			t.Helper()
			given, err := w.keeper.Keys(all, Holder{Holder: auth.Holder{Token: name, Subject: "ada"}, End: time.Now().Add(life), Rests: rests})
			if err != nil {
				t.Fatal(err)
			}
			return given
		}
		before := holder("phone", 24*time.Hour, "phone", "laptop")
		reads := w.readsOf("s:/1")
		w.mu.Lock()
		w.revoked["laptop"] = true // this device had admitted the phone
		w.mu.Unlock()
		w.keeper.HolderEnded()
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantBlind(3)
		if vault := w.keeper.keys.current(); vault.KeyID() == before.KeyID || w.renewals() != 1 {
			t.Error("the removal of a device has not renewed the keys; want one renewal")
		}
		former := remember.Vault{Tenant: "acme", Host: "laptop", Key: before.Key, Blind: true}
		if w.record(former.IDOf("s:/1")) != nil {
			t.Error("a record has an ID made with the removed device's key; want new IDs")
		}
		holder("tablet", 3*time.Hour, "tablet")
		time.Sleep(2 * time.Hour)
		holder("tablet", 3*time.Hour, "tablet") // the device connects again, with a new end
		w.again(Turns)                          // the new end is kept across a restart
		time.Sleep(2*time.Hour + 45*time.Minute)
		synctest.Wait()
		if w.renewals() != 1 {
			t.Error("the keys are renewed before a holder's time is over; want one renewal so far")
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if w.renewals() != 2 {
			t.Errorf("the keys were renewed %d times; want one renewal when a holder's time is over", w.renewals())
		}
		w.wantBlind(3)
		if w.readsOf("s:/1") != reads || !strings.Contains(w.content(w.keeper.idOf("s:/1")), "one") {
			t.Error("the keeper read sessions from the host to renew the keys, or changed their content; want neither")
		}
	})
}

// TestRelayCannotExchangeRecordsAtARenewal removes a device while the relay lies: for the record of s:/1, it
// returns the record of another session, the list, or an earlier version. The host signs the records again,
// so it must not sign any of these as the latest state of s:/1: devices that may see only s:/1 would read
// the other sessions, and no device could find that the state is an earlier one.
func TestRelayCannotExchangeRecordsAtARenewal(t *testing.T) {
	for name, lie := range map[string]func(w *world, earlier *remember.Record) *remember.Record{
		"another session": func(w *world, _ *remember.Record) *remember.Record { return w.records[w.keeper.idOf("s:/2")] },
		"the list":        func(w *world, _ *remember.Record) *remember.Record { return w.records[remember.ListID] },
		"earlier":         func(_ *world, earlier *remember.Record) *remember.Record { return earlier },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := sealedWorld(t, "earlier words", "two")
				defer func() { w.stop() }()
				earlier := w.record(w.keeper.idOf("s:/1"))
				w.say("s:/1", "latest words", 1)
				time.Sleep(time.Minute)
				synctest.Wait()
				if _, err := w.keeper.Keys(all, Holder{End: time.Now().Add(24 * time.Hour), Rests: []string{"phone"}}); err != nil {
					t.Fatal(err)
				}
				w.mu.Lock()
				w.revoked["phone"] = true
				w.records[w.keeper.idOf("s:/1")] = lie(w, earlier)
				w.mu.Unlock()
				w.keeper.HolderEnded()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if got := w.content(w.keeper.idOf("s:/1")); w.renewals() != 1 || !strings.Contains(got, "latest words") {
					t.Errorf("behind %d renewals, the record of s:/1 is %q; want one, and its latest words", w.renewals(), got)
				}
			})
		})
	}
}

// TestSealingWipesTheRecords seals a host that has records at a relay, and unseals it again. Each
// time, no earlier record may stay at the relay, even if the relay did not answer at first.
func TestSealingWipesTheRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		w.say("s:/1", "one", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		for range 2 {
			before := w.keeper.keys.current()
			w.mu.Lock()
			was := w.records[before.IDOf("s:/1")]
			w.away, w.sealed = true, !w.sealed
			w.mu.Unlock()
			if was == nil {
				t.Fatal("the relay has no record of s:/1; want one")
			}
			first := w.keeper.sessions
			w.start(Turns)
			w.start(Turns) // a second restart, before the relay has answered
			w.mu.Lock()
			w.away = false
			w.mu.Unlock()
			time.Sleep(time.Minute)
			synctest.Wait()
			w.mu.Lock()
			left := len(w.records)
			w.mu.Unlock()
			if left > 0 {
				t.Errorf("the relay has %d records from before the sealing, before the host's list arrives; want 0", left)
			}
			w.lists(first)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			after := w.keeper.keys.current()
			if after.KeyID() == before.KeyID() || after.Signer.Equal(before.Signer) {
				t.Error("after the sealing, the keys are those that relays may have seen; want new ones")
			}
			w.mu.Lock()
			for id, r := range w.records {
				if slices.Equal(r.Data, was.Data) || r.Key == before.KeyID() || r.Blind != w.sealed {
					t.Errorf("the record %.8s is from before the sealing; want it written anew", id)
				}
			}
			w.mu.Unlock()
			if !strings.Contains(w.content(after.IDOf("s:/1")), "one") {
				t.Error("the relay has no new record of s:/1; want one")
			}
		}
	})
}

// TestSealedHoldersStayKnown gives the keys to as many devices as a host-agent keeps, and to many
// viewers with the same link. A further device must be refused, because its keys would displace a
// holder, whose removal would then go unnoticed.
func TestSealedHoldersStayKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sealedWorld(t, "one")
		defer func() { w.stop() }()
		hand := func(subject, device string) error {
			_, err := w.keeper.Keys(all, Holder{Holder: auth.Holder{Subject: subject}, End: time.Now().Add(time.Hour), Rests: []string{device}})
			return err
		}
		for i := range remember.MaxHolders {
			if err := errors.Join(hand("ada", fmt.Sprint("device-", i)), hand(fmt.Sprint("viewer-", i), "device-0")); err != nil {
				t.Fatal(err)
			}
		}
		if err := hand("ada", "one-more"); err == nil {
			t.Error("a holder above the bound gets the keys; want an error")
		}
		w.mu.Lock()
		w.revoked["device-0"] = true
		w.mu.Unlock()
		w.keeper.HolderEnded()
		time.Sleep(time.Second)
		synctest.Wait()
		if w.renewals() != 1 {
			t.Error("the removal of the first holder renewed no keys; want one renewal")
		}
		if err := hand("ada", "one-more"); err != nil {
			t.Error(err)
		}
	})
}

// TestRenewedGrantIsTheSameHolder gives a device the keys by a grant, and later by a second grant.
// The end of the first grant must not renew the keys, but the removal of the second grant must. If
// the second grant permits less, the removal of the first must renew the keys, too.
func TestRenewedGrantIsTheSameHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sealedWorld(t, "one")
		defer func() { w.stop() }()
		hand := func(policy gate.Policy, life time.Duration, grant string) {
			t.Helper()
			_, err := w.keeper.Keys(policy, Holder{Holder: auth.Holder{Subject: "ada"}, End: time.Now().Add(life), Rests: []string{grant, "laptop", "phone"}})
			if err != nil {
				t.Fatal(err)
			}
		}
		renewals := 0
		wants := func(more int, why string) {
			t.Helper()
			w.keeper.HolderEnded()
			time.Sleep(time.Second)
			synctest.Wait()
			if renewals += more; w.renewals() != renewals {
				t.Errorf("%s: the keys were renewed %d times; want %d", why, w.renewals(), renewals)
			}
		}
		removed := func(grant string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.revoked[grant] = true
		}
		hand(all, time.Hour, "grant-1")
		hand(all, 30*time.Hour, "grant-2")
		if n := len(w.keeper.keys.all()); n != 1 {
			t.Errorf("%d holders of the keys are listed; want the phone once", n)
		}
		time.Sleep(2 * time.Hour)
		wants(0, "the former grant has ended")
		w.again(Turns)
		removed("grant-2")
		wants(1, "the present grant is removed")

		look := gate.NewPolicy(auth.AccessRead, []string{"s:/1"}, nil, false)
		hand(all, 30*time.Hour, "grant-3")
		hand(look, 30*time.Hour, "grant-4")
		removed("grant-3")
		wants(1, "a grant of more authority is removed")
		hand(all, 30*time.Hour, "grant-5")
		hand(look, 30*time.Hour, "grant-5") // a connection that requests less than its grant permits
		hand(look, 30*time.Hour, "grant-6")
		removed("grant-5")
		wants(1, "the grant of a device that has also asked for less is removed")
	})
}

// TestKeysFromBeforeAPairingAreRenewed pairs a device with keys again, with a lower level. It gets the keys once more
// before the Keeper has checked its holders. The keys from before the pairing are the
// same, so they must be renewed.
func TestKeysFromBeforeAPairingAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sealedWorld(t, "one")
		defer func() { w.stop() }()
		var paired time.Time
		w.keeper.cfg.Ended = func(h *Holder) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return paired.After(h.At)
		}
		hand := func(policy gate.Policy) {
			t.Helper()
			if _, err := w.keeper.Keys(policy, Holder{Holder: auth.Holder{Subject: "ada", At: time.Now()}, End: time.Now().Add(time.Hour), Rests: []string{"phone"}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		wants := func(renewals int) {
			t.Helper()
			w.keeper.HolderEnded()
			time.Sleep(time.Second)
			synctest.Wait()
			if n := w.renewals(); n != renewals {
				t.Errorf("the keys were renewed %d times; want %d", n, renewals)
			}
		}
		hand(all)
		w.mu.Lock()
		paired = time.Now()
		w.mu.Unlock()
		time.Sleep(time.Second)
		hand(gate.NewPolicy(auth.AccessRead, []string{"s:/1"}, nil, false))
		wants(1)
		hand(all) // the new keys
		wants(1)
	})
}

// TestUnwrittenKeysAreNotUsed makes the writing of the key file fail. The keys and holders in
// memory must stay as they were, and the next attempt must succeed.
func TestUnwrittenKeysAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	r, err := openKeyring(dir, "acme", "laptop", true)
	if err != nil {
		t.Fatal(err)
	}
	holder := Holder{Holder: auth.Holder{Subject: "ada"}, End: time.Now().Add(time.Hour), Rests: []string{"phone"}}
	if err := r.hand(holder); err != nil {
		t.Fatal(err)
	}
	keyOf := func(r *keyring) string {
		vault := r.current()
		return vault.KeyID()
	}
	key, path := keyOf(r), r.path
	blocked := filepath.Join(dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.path = filepath.Join(blocked, "keys") // no file can be written here, because blocked is a file
	if _, err := r.renew(); err == nil {
		t.Fatal("renew has written the key file at an impossible path; want an error")
	}
	other := holder
	other.Rests = []string{"tablet"}
	if err := r.hand(other); err == nil {
		t.Fatal("hand has written the key file at an impossible path; want an error")
	}
	if keyOf(r) != key || len(r.all()) != 1 {
		t.Errorf("after failed writes, the key is %s with %d holders; want %s with one", keyOf(r), len(r.all()), key)
	}
	r.path = path
	if _, err := r.renew(); err != nil {
		t.Fatal(err)
	}
	again, err := openKeyring(dir, "acme", "laptop", true)
	if err != nil {
		t.Fatal(err)
	}
	if keyOf(again) == key || keyOf(again) != keyOf(r) {
		t.Errorf("after a restart, the key is %s; want %s", keyOf(again), keyOf(r))
	}
}
