package registry_test

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

	"ahprelay/auth"
	"ahprelay/people"
	"ahprelay/registry"
	"ahprelay/test/natssite"
)

// records starts those of one relay; file may be "".
func records(t *testing.T, s *natssite.Site, file string) *registry.Records {
	t.Helper()
	r, err := registry.StartRecords(t.Context(), registry.RecordsConfig{Conn: s.Relays(t), Sealer: sealer(t, s.Keys), File: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func sealer(t *testing.T, keys *auth.Keys) *auth.Sealer {
	t.Helper()
	s, err := keys.Sealer("people")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put makes a change that works.
func put(t *testing.T, s people.Store, key, value string) {
	t.Helper()
	err := s.Update(key, func([]byte) ([]byte, error) {
		if value == "" {
			return nil, nil
		}
		return json.Marshal(value)
	})
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
}

// comes waits until a relay knows a record as it is to be, "" for none.
func comes(t *testing.T, s people.Store, key, want string) {
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

// TestRecordsAreShared: what one relay changes all know, what is made at one may be asked for
// at another at once, and of changes at the same time none is lost.
func TestRecordsAreShared(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	one, two := records(t, s, ""), records(t, s, "")
	put(t, one, "device.a", "ada's")
	if got, err := two.Get("device.a"); err != nil || string(got) != `"ada's"` {
		t.Errorf("another relay has %s, %v", got, err)
	}
	comes(t, two, "device.a", "ada's")
	put(t, two, "device.a", "")
	comes(t, one, "device.a", "")
	put(t, one, "device.a", "again")
	comes(t, two, "device.a", "again")

	const each = 20
	var wg sync.WaitGroup
	for _, r := range []*registry.Records{one, two} {
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
					if !errors.Is(err, people.ErrAway) { // the other was faster too often
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	natssite.Eventually(t, "all changes are counted", func() bool {
		got, err := one.Get("person.count")
		return err == nil && string(got) == fmt.Sprint(2*each)
	})
	// Who has the NATS servers, and not the relays' keys, makes nobody.
	forged, err := registry.StartRecords(t.Context(), registry.RecordsConfig{Conn: s.Relays(t), Sealer: sealer(t, natssite.NewKeys(t))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(forged.Close)
	put(t, forged, "person.mallory", "owner")
	put(t, one, "device.b", "behind that")
	comes(t, two, "device.b", "behind that")
	comes(t, two, "person.mallory", "")
	if got, err := one.Get("person.mallory"); got != nil || !errors.Is(err, auth.ErrSealed) {
		t.Errorf("a forged record is %s, %v", got, err)
	}

	refused := errors.New("no")
	if err := one.Update("device.a", func([]byte) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("a change that fails: %v", err)
	}
	for _, key := range []string{"device.*", "device.>", "device.a b", "device.", "", "device"} {
		if got, err := one.Get(key); got != nil || err != nil {
			t.Errorf("%q is %s, %v; want nothing", key, got, err)
		}
		if err := one.Update(key, func(old []byte) ([]byte, error) { return []byte("1"), nil }); err == nil {
			t.Errorf("%q can be written", key)
		}
	}
}

// TestRecordsAreTakenOver: a relay that kept its records alone brings them, the store's own stay;
// what was removed elsewhere while it was away it forgets, and a new store is given what it knows.
func TestRecordsAreTakenOver(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	file := filepath.Join(t.TempDir(), "people.json")
	former := `{"person.default.ada": "ada", "device.a": "old", "device.b": "b"}` // the form of relays without a store
	if err := os.WriteFile(file, []byte(former), 0o600); err != nil {
		t.Fatal(err)
	}
	one := records(t, s, "")
	put(t, one, "device.a", "new")
	two := records(t, s, file)
	comes(t, one, "person.default.ada", "ada")
	comes(t, one, "device.b", "b")
	comes(t, two, "device.a", "new")
	two.Close()
	put(t, one, "device.b", "")
	two = records(t, s, file)
	comes(t, two, "device.b", "")
	comes(t, two, "device.a", "new")
	two.Close()

	other := natssite.New(t)
	three := records(t, other, file)
	comes(t, three, "device.a", "new")
	comes(t, records(t, other, ""), "person.default.ada", "ada")

	if err := os.WriteFile(file, []byte(former[:20]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.StartRecords(t.Context(), registry.RecordsConfig{Conn: s.Relays(t), Sealer: sealer(t, s.Keys), File: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a damaged file: %v", err)
	}
}

// TestRecordsWhileTheStoreIsAway: what is known stays known, also over a start in a cluster; and who
// changes something is told.
func TestRecordsWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	file := filepath.Join(t.TempDir(), "people.json")
	conn := s.Relays(t)
	r, err := registry.StartRecords(t.Context(), registry.RecordsConfig{Conn: conn, Sealer: sealer(t, s.Keys), File: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	put(t, r, "device.a", "ada's")
	s.Server.Close()
	err = r.Update("device.a", func([]byte) ([]byte, error) { return nil, nil })
	if !errors.Is(err, people.ErrAway) {
		t.Errorf("a change: %v; want %v", err, people.ErrAway)
	}
	comes(t, r, "device.a", "ada's")
	r.Close()
	again, err := registry.StartRecords(t.Context(), registry.RecordsConfig{Conn: conn, Sealer: sealer(t, s.Keys), File: file, Cluster: true})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	comes(t, again, "device.a", "ada's")
	select {
	case <-again.Ready():
		t.Error("it is ready without a store")
	default:
	}
	if again.Degraded() == "" {
		t.Error("it does not say that the store is away")
	}
}
