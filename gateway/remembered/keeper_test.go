package remembered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker/remember"
	"ahprelay/broker/store"
	"ahprelay/test/natssite"
)

// room is the bound for records and markers in tests.
const room = 64

// storeAt returns the site's store, with the keys for a purpose, after it has read all records.
func storeAt(t *testing.T, site *natssite.Site, purpose string) *store.Store {
	t.Helper()
	sealer, err := site.Keys.Sealer(purpose)
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Start(t.Context(), store.Config{
		Conn: site.Relays(t), Sealer: sealer, Name: "remembered sessions", Stream: Stream, Subjects: Subjects, Sizes: true, MaxBytes: 64 << 20, Room: room, Shared: Prefix,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	natssite.Next(t, "all that the stream has", s.Ready())
	return s
}

// keeperAt returns a Keeper with the given quotas, after it has read all records in the
// site's store.
func keeperAt(t *testing.T, site *natssite.Site, perHost, perTenant int64) *Keeper {
	t.Helper()
	return newKeeper(Config{Store: storeAt(t, site, "remembered"), PerHost: perHost, PerTenant: perTenant, Log: slog.New(slog.DiscardHandler)})
}

// write stores a record with size bytes for a host.
func write(t *testing.T, k *Keeper, of hostKey, id string, size int) error {
	t.Helper()
	time.Sleep(2 * time.Millisecond) // each record gets its own time of storage
	return k.put(t.Context(), of, &remember.Record{ID: id, Key: "0011223344556677", Version: uint64(time.Now().UnixMilli()), Data: make([]byte, size), Signature: make([]byte, 64)})
}

// has reports whether a host's record is stored.
func has(t *testing.T, k *Keeper, of hostKey, id string) bool {
	t.Helper()
	r, _, err := k.Load(t.Context(), of.tenant, of.host, id)
	if err != nil {
		t.Fatal(err)
	}
	return r != nil
}

// A host above its quota loses its own oldest records, and keeps its list. In a full
// tenant too, a host displaces only its own records.
func TestQuotasRemoveOwnOldest(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	k := keeperAt(t, site, 100<<10, 140<<10)
	laptop, desk, other := hostKey{"acme", "laptop"}, hostKey{"acme", "desk"}, hostKey{"other", "laptop"}
	id := func(i int) string { return remember.IDOf(fmt.Sprint("s:/", i)) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(write(t, k, laptop, remember.ListID, 1<<10))
	for i := range 8 { // each record takes about 20 KiB, in base64
		must(write(t, k, laptop, id(i), 15<<10))
	}
	for i := range 8 {
		if want := i >= 4; has(t, k, laptop, id(i)) != want {
			t.Errorf("the store has record %d: %v; want %v", i, !want, want)
		}
	}
	if !has(t, k, laptop, remember.ListID) {
		t.Error("the record of the list was removed for the quota; want it kept")
	}
	must(write(t, k, laptop, id(4), 15<<10)) // replaces the record
	if !has(t, k, laptop, id(5)) {
		t.Error("a replaced record removed a different one; want both")
	}

	must(write(t, k, desk, id(0), 15<<10))
	must(write(t, k, desk, id(1), 15<<10))
	must(write(t, k, desk, id(2), 15<<10)) // displaces the host's own oldest record
	if has(t, k, desk, id(0)) || !has(t, k, laptop, id(4)) {
		t.Error("in a full tenant, a new record must remove the writing host's oldest record, and no record of a different host")
	}
	if err := write(t, k, desk, id(3), 60<<10); !errors.Is(err, errQuota) {
		t.Errorf("a record beyond the tenant's quota: %v; want %v", err, errQuota)
	}
	if !has(t, k, desk, id(1)) || !has(t, k, desk, id(2)) {
		t.Error("a refused record has removed other records of its host, although that is not enough; want both kept")
	}
	must(write(t, k, other, id(0), 15<<10)) // a different tenant has its own quota
	stats := k.Stats()
	must(k.Forget(t.Context(), laptop.tenant, laptop.host))
	if k.Entries(laptop.tenant, laptop.host) != nil || k.Stats().Records >= stats.Records || !has(t, k, other, id(0)) {
		t.Error("after Forget, the forgotten host has records, or a different host has lost some; want neither")
	}

	again := keeperAt(t, site, 0, 0) // another relay counts the same
	natssite.Eventually(t, "another relay counts the same", func() bool { return again.Stats() == k.Stats() })
}

// TestChurnCostsNoOtherTenant stores and removes more sessions of one host than the stream has room for.
// The host must be refused before another tenant loses a record, and that tenant must find room.
func TestChurnCostsNoOtherTenant(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	js, err := site.Relays(t).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: Stream, Subjects: []string{Subjects + ">"}, MaxMsgsPerSubject: 1, AllowMsgTTL: true, MaxMsgs: room, Discard: jetstream.DiscardOld,
	}); err != nil {
		t.Fatal(err)
	}
	k := keeperAt(t, site, 0, 0)
	laptop, other, first, second := hostKey{"acme", "laptop"}, hostKey{"other", "laptop"}, remember.IDOf("s:/1"), remember.IDOf("s:/2")
	if err := write(t, k, other, first, 1); err != nil {
		t.Fatal(err)
	}
	var refused error
	for i := range 2 * room {
		id := remember.IDOf(fmt.Sprint("s:/churn/", i))
		if err := write(t, k, laptop, id, 1); err != nil {
			refused = err
		}
		if err := k.drop(t.Context(), laptop, id); err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(refused, errQuota) {
		t.Errorf("a host that stores and removes sessions without end: %v; want %v", refused, errQuota)
	}
	if err := write(t, k, other, second, 1); err != nil || !has(t, k, other, first) || !has(t, k, other, second) {
		t.Errorf("another tenant's next record: %v, and it has its records: %v, %v; want both", err, has(t, k, other, first), has(t, k, other, second))
	}
}

// TestDropOfANewRecord drops a record at a relay that has not read it from the store yet, as happens
// when another relay has just stored it. The record must be removed.
func TestDropOfANewRecord(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	k, late := keeperAt(t, site, 0, 0), keeperAt(t, site, 0, 0)
	late.cfg.Store.Close() // it reads no further changes
	laptop, id := hostKey{"acme", "laptop"}, remember.IDOf("s:/1")
	if err := write(t, k, laptop, id, 1<<10); err != nil {
		t.Fatal(err)
	}
	if err := late.drop(t.Context(), laptop, id); err != nil || has(t, k, laptop, id) {
		t.Errorf("drop of a record that another relay has stored: %v, and the store still has it: %v; want it removed", err, has(t, k, laptop, id))
	}
	if err := late.drop(t.Context(), laptop, id); err != nil {
		t.Errorf("drop of a record that is removed: %v; want no error", err)
	}
}

// TestAllRecordsIncludeNewOnes stores a record at one relay. Another relay that cannot read it must
// refuse to remove or list all records of the host. A relay that can must list and remove it.
func TestAllRecordsIncludeNewOnes(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	k, late := keeperAt(t, site, 0, 0), keeperAt(t, site, 0, 0)
	do := func(k *Keeper, limit time.Duration, op remember.Op) (answer remember.Answer, err error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		got, err := k.do(ctx, "acme", "laptop", []byte(`{"instance":"a","op":"`+string(op)+`"}`), func(string) error { return nil })
		if err == nil {
			answer = got.(remember.Answer)
		}
		return answer, err
	}
	id := remember.IDOf("s:/1")
	if err := write(t, late, hostKey{"acme", "laptop"}, id, 1<<10); err != nil {
		t.Fatal(err)
	}
	if answer, err := do(k, natssite.Patience, remember.Index); err != nil || !slices.Equal(answer.IDs, []string{id}) {
		t.Errorf("all records, of which another relay has just stored one: %v, %v; want it", answer.IDs, err)
	}
	if _, err := do(k, natssite.Patience, remember.Drop); err != nil || has(t, late, hostKey{"acme", "laptop"}, id) {
		t.Errorf("removal of all records: %v, and the store has one; want it removed", err)
	}
	late.cfg.Store.Close() // it reads no further changes
	if err := write(t, k, hostKey{"acme", "laptop"}, id, 1<<10); err != nil {
		t.Fatal(err)
	}
	for _, op := range []remember.Op{remember.Index, remember.Drop} {
		if _, err := do(late, 100*time.Millisecond, op); !errors.Is(err, store.ErrAway) {
			t.Errorf("%s of all records at a relay that has not read the last one: %v; want %v", op, err, store.ErrAway)
		}
	}
}

// TestLatePutReplacesNothing stores a version at a slow relay, after another relay has stored a later
// version, or has removed the record. Neither may be undone, also if this relay knows the later version, or has
// never known the removed record. The next version must be stored.
func TestLatePutReplacesNothing(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	k, slow := keeperAt(t, site, 0, 0), keeperAt(t, site, 0, 0)
	laptop, id := hostKey{"acme", "laptop"}, remember.IDOf("s:/1")
	put := func(k *Keeper, version uint64) error {
		return k.put(t.Context(), laptop, &remember.Record{ID: id, Key: "0011223344556677", Version: version, Data: []byte("x"), Signature: make([]byte, 64)})
	}
	stored := func() uint64 {
		t.Helper()
		r, _, err := k.Load(t.Context(), laptop.tenant, laptop.host, id)
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			return 0
		}
		return r.Version
	}
	slow.cfg.Store.Close() // it reads no further changes
	if err := k.drop(t.Context(), laptop, id); err != nil {
		t.Fatal(err)
	}
	if err := put(slow, 1); err == nil || stored() != 0 {
		t.Errorf("a first version that comes after its removal: %v, and version %d is stored; want an error, and no record", err, stored())
	}
	if err := put(k, 3); err != nil {
		t.Fatal(err)
	}
	if err := put(k, 2); err == nil || stored() != 3 {
		t.Errorf("an earlier version at a relay that knows the later one: %v, and version %d is stored; want an error, and version 3", err, stored())
	}
	if err := put(slow, 2); err == nil || stored() != 3 {
		t.Errorf("an earlier version that comes late: %v, and version %d is stored; want an error, and version 3", err, stored())
	}
	if err := put(slow, 4); err != nil || stored() != 4 {
		t.Errorf("the next version: %v, and version %d is stored; want it", err, stored())
	}
	if err := k.drop(t.Context(), laptop, id); err != nil {
		t.Fatal(err)
	}
	if err := put(slow, 5); err == nil || stored() != 0 {
		t.Errorf("a version that comes after the removal of its record: %v, and version %d is stored; want an error, and no record", err, stored())
	}
	if err := put(slow, 6); err != nil || stored() != 6 {
		t.Errorf("the version after that: %v, and version %d is stored; want it", err, stored())
	}
}

// TestUnreadableRecordIsReplaced stores a record over one that the relays' keys no longer open.
func TestUnreadableRecordIsReplaced(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	laptop, id := hostKey{"acme", "laptop"}, remember.IDOf("s:/1")
	if r := storeAt(t, site, "other keys").Write(t.Context(), store.Change{Key: keyOf(laptop, id), Data: []byte("{}")}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	k := keeperAt(t, site, 0, 0)
	if err := write(t, k, laptop, id, 1); err != nil || !has(t, k, laptop, id) {
		t.Errorf("a record in place of an unreadable one: %v; want it stored", err)
	}
}

// TestStreamDropsRecords removes records from the stream, as it does beyond its bounds. Relays learn
// nothing of that. The host must be able to write the one again, and to remove the other.
func TestStreamDropsRecords(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	k := keeperAt(t, site, 0, 0)
	laptop, one, two := hostKey{"acme", "laptop"}, remember.IDOf("s:/1"), remember.IDOf("s:/2")
	for _, id := range []string{one, two} {
		if err := write(t, k, laptop, id, 1<<10); err != nil {
			t.Fatal(err)
		}
	}
	js, err := site.Relays(t).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := write(t, k, laptop, one, 1<<10); err != nil || !has(t, k, laptop, one) {
		t.Errorf("writing a record that the stream has dropped: %v; want it stored", err)
	}
	if err := k.drop(t.Context(), laptop, two); err != nil {
		t.Errorf("removing a record that the stream has dropped: %v; want no error", err)
	}
	if list := k.Entries(laptop.tenant, laptop.host); len(list) != 1 || list[0].ID != one {
		t.Errorf("the host's records are %v; want the first", list)
	}
}
