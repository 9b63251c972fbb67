package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/store"
	"ahprelay/test/natssite"
)

// peopleAt starts a relay's store of people. Without a file, file is "".
func peopleAt(t *testing.T, conn *broker.Conn, keys *auth.Keys, file string) (*store.Store, error) {
	t.Helper()
	sealer, err := keys.Sealer("people")
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Start(t.Context(), store.Config{
		Conn: conn, Sealer: sealer, Name: "people", Bucket: "ahp-people", Most: 8, Known: true, Brief: []string{"request."}, File: file,
	})
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

// people starts a relay's store of people, and returns when it has read the whole stream.
func people(t *testing.T, s *natssite.Site, file string) *store.Store {
	t.Helper()
	r, err := peopleAt(t, s.Relays(t), s.Keys, file)
	if err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "all that the stream has", r.Ready())
	return r
}

// put sets a record's value, or removes the record if value is "". It fails the test on an error.
func put(t *testing.T, s *store.Store, key, value string) {
	t.Helper()
	err := s.Update(key, func([]byte) ([]byte, error) {
		if value == "" {
			return nil, nil
		}
		return json.Marshal(value)
	})
	if err != nil {
		t.Fatalf("Update of %s: %v; want no error", key, err)
	}
}

// comes waits until a relay's store has the value want for a record. With want "", it waits
// until the store has no record.
func comes(t *testing.T, s *store.Store, key, want string) {
	t.Helper()
	natssite.Eventually(t, fmt.Sprintf("%s is %q", key, want), func() bool {
		all, err := s.All(key)
		var got string
		if raw, ok := all[key]; ok && err == nil {
			err = json.Unmarshal(raw, &got)
		}
		return err == nil && got == want
	})
}

// TestRecordsAreShared changes records at two relays. Each must get the other's changes, and read a
// new record at once. No concurrent change may be lost. Records sealed with other keys must be
// ignored, and invalid keys refused.
func TestRecordsAreShared(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	one, two := people(t, s, ""), people(t, s, "")
	put(t, one, "device.a", "ada's")
	if got, err := two.Read("device.a"); err != nil || string(got) != `"ada's"` {
		t.Errorf("the second relay reads device.a as %s, %v; want ada's", got, err)
	}
	comes(t, two, "device.a", "ada's")
	put(t, two, "device.a", "")
	comes(t, one, "device.a", "")
	put(t, one, "device.a", "again")
	comes(t, two, "device.a", "again")

	const each = 20
	var wg sync.WaitGroup
	for _, r := range []*store.Store{one, two} {
		wg.Go(func() {
			for range each {
				for {
					err := r.Update("person.count", func(old []byte) ([]byte, error) {
						n, _ := strconv.Atoi(string(old))
						return []byte(strconv.Itoa(n + 1)), nil
					})
					if err == nil {
						break
					}
					if !errors.Is(err, store.ErrAway) { // tried again: there were too many conflicts
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	natssite.Eventually(t, "all changes are counted", func() bool {
		got, err := one.Read("person.count")
		return err == nil && string(got) == fmt.Sprint(2*each)
	})
	// Whoever runs the NATS servers, without the relays' keys, cannot forge a person.
	forged, err := peopleAt(t, s.Relays(t), natssite.NewKeys(t), "")
	if err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "all that the stream has", forged.Ready())
	put(t, forged, "person.mallory", "owner")
	put(t, one, "device.b", "behind that")
	comes(t, two, "device.b", "behind that")
	comes(t, two, "person.mallory", "")
	if got, err := one.Read("person.mallory"); got != nil || !errors.Is(err, auth.ErrSealed) {
		t.Errorf("a forged record reads as %s, %v; want ErrSealed", got, err)
	}

	refused := errors.New("no")
	if err := one.Update("device.a", func([]byte) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("Update whose function fails = %v; want the function's error", err)
	}
	for _, key := range []string{"device.*", "device.>", "device.a b", "device.", "", "device"} {
		if got, err := one.Read(key); got != nil || err != nil {
			t.Errorf("%q is %s, %v; want nothing", key, got, err)
		}
		if err := one.Update(key, func(old []byte) ([]byte, error) { return []byte("1"), nil }); err == nil {
			t.Errorf("Update of %q returns no error; want one", key)
		}
	}
}

// TestRecordsAreTakenOver starts a relay with a file from an earlier version. Its records must be
// added to the store, but not replace the store's own. Records that were removed from the store
// must disappear, and a new store must get all records from the file.
func TestRecordsAreTakenOver(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	file := filepath.Join(t.TempDir(), "people.json")
	former := `{"person.default.ada": "ada", "device.a": "old", "device.b": "b"}` // as written by earlier versions
	if err := os.WriteFile(file, []byte(former), 0o600); err != nil {
		t.Fatal(err)
	}
	one := people(t, s, "")
	put(t, one, "device.a", "new")
	two := people(t, s, file)
	comes(t, one, "person.default.ada", "ada")
	comes(t, one, "device.b", "b")
	comes(t, two, "device.a", "new")
	two.Close()
	put(t, one, "device.b", "")
	two = people(t, s, file)
	comes(t, two, "device.b", "")
	comes(t, two, "device.a", "new")
	two.Close()

	other := natssite.New(t)
	three := people(t, other, file)
	comes(t, three, "device.a", "new")
	comes(t, people(t, other, ""), "person.default.ada", "ada")
	three.Close() // so that it no longer writes the file

	if err := os.WriteFile(file, []byte(former[:20]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := peopleAt(t, s.Relays(t), s.Keys, file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a damaged file: %v; want an error that names it", err)
	}
}

// TestRecordsWhileTheStoreIsAway stops the store. Known records must stay readable, also after the
// relay has restarted with its file. Changes must fail with ErrAway. So must the read of a record
// that is not known here, and its change: another relay may have made it.
func TestRecordsWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	file := filepath.Join(t.TempDir(), "people.json")
	conn := s.Relays(t)
	r, err := peopleAt(t, conn, s.Keys, file)
	if err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "all that the stream has", r.Ready())
	put(t, r, "device.a", "ada's")
	s.Server.Close()
	err = r.Update("device.a", func([]byte) ([]byte, error) { return nil, nil })
	if !errors.Is(err, store.ErrAway) {
		t.Errorf("Update without a NATS server = %v; want %v", err, store.ErrAway)
	}
	comes(t, r, "device.a", "ada's")
	r.Close()
	again, err := peopleAt(t, conn, s.Keys, file)
	if err != nil {
		t.Fatal(err)
	}
	comes(t, again, "device.a", "ada's")
	select {
	case <-again.Ready():
		t.Error("the store is ready although NATS is unreachable; want it to wait")
	default:
	}
	if again.Away() == nil {
		t.Error("Away = nil although NATS is unreachable; want an error")
	}
	if got, err := again.Read("device.a"); err != nil || string(got) != `"ada's"` {
		t.Errorf("device.a, from the file, reads as %s, %v; want ada's", got, err)
	}
	if got, err := again.Read("device.b"); !errors.Is(err, store.ErrAway) {
		t.Errorf("a record that is not in the file reads as %s, %v; want %v", got, err, store.ErrAway)
	}
	missing := errors.New("missing")
	for what, change := range map[string]func([]byte) ([]byte, error){
		"needs it":   func([]byte) ([]byte, error) { return nil, missing },
		"removes it": func([]byte) ([]byte, error) { return nil, nil },
	} {
		if err := again.Update("invite.c", change); !errors.Is(err, store.ErrAway) {
			t.Errorf("a change of such a record that %s: %v; want %v", what, err, store.ErrAway)
		}
	}
}

// TestBucketOfFormerRelays shares a bucket with earlier versions, which use it as a key-value
// bucket. Both must see each other's changes and removals.
func TestBucketOfFormerRelays(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	conn := s.Relays(t)
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	former, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: "ahp-people", Description: "people", History: 1, Storage: jetstream.FileStorage, Replicas: 1, LimitMarkerTTL: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := s.Keys.Sealer("people")
	if err != nil {
		t.Fatal(err)
	}
	sealed := func(key, value string) []byte {
		data, err := json.Marshal(sealer.Seal(key, []byte(value)))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if _, err := former.Create(t.Context(), "person.ada", sealed("person.ada", `"owner"`)); err != nil {
		t.Fatal(err)
	}
	r := people(t, s, "")
	comes(t, r, "person.ada", "owner")
	put(t, r, "device.a", "ada's")
	entry, err := former.Get(t.Context(), "device.a")
	if err != nil {
		t.Fatal(err)
	}
	var seal []byte
	if err := json.Unmarshal(entry.Value(), &seal); err != nil {
		t.Fatal(err)
	}
	if value, err := sealer.Open("device.a", seal); err != nil || string(value) != `"ada's"` {
		t.Errorf("a relay of the previous version reads %s, %v; want ada's", value, err)
	}
	rev, err := former.Update(t.Context(), "device.a", sealed("device.a", `"changed"`), entry.Revision())
	if err != nil {
		t.Fatal(err)
	}
	comes(t, r, "device.a", "changed")
	if err := former.Purge(t.Context(), "device.a", jetstream.LastRevision(rev), jetstream.PurgeTTL(time.Hour)); err != nil {
		t.Fatal(err)
	}
	comes(t, r, "device.a", "")
	put(t, r, "person.ada", "")
	if _, err := former.Get(t.Context(), "person.ada"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("a relay of the previous version reads a removed record: %v; want ErrKeyNotFound", err)
	}
	if _, err := former.Create(t.Context(), "person.ada", sealed("person.ada", `"again"`)); err != nil {
		t.Errorf("a relay of the previous version creates a removed record: %v; want no error", err)
	}
	comes(t, r, "person.ada", "again")
}

// TestRemovalsAreKnownForAWhile removes a device and a request. At all relays, the removal of the
// device must be known for a month, and that of the request for minutes.
func TestRemovalsAreKnownForAWhile(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	one, two := people(t, s, ""), people(t, s, "")
	for key, want := range map[string]time.Duration{"device.a": 30 * 24 * time.Hour, "request.a": 15 * time.Minute} {
		put(t, one, key, "ada's")
		put(t, one, key, "")
		for name, s := range map[string]*store.Store{"the writer": one, "another relay": two} {
			natssite.Eventually(t, name+" has the removal", func() bool { r := s.Get(key); return r.Rev != 0 && r.Data == nil })
			if left := time.Until(s.Get(key).Until); left > want || left < want-5*time.Minute {
				t.Errorf("%s knows the removal of %s for %v; want %v", name, key, left, want)
			}
		}
	}
}

// TestTenantLeavesRoomForOthers creates and removes records of a tenant until the store refuses one. Markers count.
// Its other changes, another tenant's records and records outside Config.Shared must still be possible, also
// at a relay that has just read the stream.
func TestTenantLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	sealer, err := site.Keys.Sealer("records")
	if err != nil {
		t.Fatal(err)
	}
	start := func() *store.Store {
		s, err := store.Start(t.Context(), store.Config{Conn: site.Relays(t), Sealer: sealer, Name: "records", Room: 8, Shared: "notify."})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		natssite.Next(t, "all that the stream has", s.Ready())
		return s
	}
	s := start()
	put(t, s, "notify.acme.0", "x")
	put(t, s, "notify.acme.0", "")
	for i := range 3 {
		put(t, s, fmt.Sprint("notify.acme.", i+1), "x")
	}
	for name, s := range map[string]*store.Store{"the writer": s, "another relay": start()} {
		if err := s.Update("notify.acme.more", func([]byte) ([]byte, error) { return []byte("1"), nil }); !errors.Is(err, store.ErrFull) {
			t.Errorf("%s: a tenant's record beyond its room: %v; want %v", name, err, store.ErrFull)
		}
		put(t, s, "notify.acme.1", "changed by "+name)
		put(t, s, "notify.acme.0", "in place of its marker, by "+name)
	}
	put(t, s, "notify.other.0", "x")
	put(t, s, "job.0", "x")
}

// TestFullStoreRemovesNoRecord fills the store up to its bound. A further record must be refused
// with ErrFull, and no other removed. Changes must still work, and a new record after a removal.
func TestFullStoreRemovesNoRecord(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := people(t, s, "")
	for i := range 8 {
		put(t, r, fmt.Sprint("device.", i), "x")
	}
	one := func([]byte) ([]byte, error) { return []byte("1"), nil }
	if err := r.Update("device.more", one); !errors.Is(err, store.ErrFull) {
		t.Errorf("Update of a full store = %v; want %v", err, store.ErrFull)
	}
	put(t, r, "device.0", "changed")
	put(t, r, "device.1", "")
	put(t, r, "device.more", "in its place")
	for i := range 8 {
		want := "x"
		switch i {
		case 0:
			want = "changed"
		case 1:
			want = ""
		}
		comes(t, r, fmt.Sprint("device.", i), want)
	}
}
