package store_test

import (
	"testing"
	"time"

	"ahprelay/broker/store"
	"ahprelay/test/natssite"
)

// TestSizesKeepNoData writes a record into a store with Sizes. At the writer, at another relay and
// after a restart, the store must know the size and have no data in memory. Load must return the
// data. A removed record must be known for minutes.
func TestSizesKeepNoData(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	start := func() *store.Store {
		sealer, err := site.Keys.Sealer("remembered")
		if err != nil {
			t.Fatal(err)
		}
		s, err := store.Start(t.Context(), store.Config{
			Conn: site.Relays(t), Sealer: sealer, Name: "sizes", Stream: "ahp-sizes", Subjects: "ahp.relays.v1.sizes.", Sizes: true, MaxBytes: 1 << 20,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		natssite.Next(t, "all that the stream has", s.Ready())
		return s
	}
	one, two := start(), start()
	if r := one.Write(t.Context(), store.Change{Key: "s.a.b", Data: []byte("secret")}); r[0].Err != nil {
		t.Fatal(r)
	}
	for name, s := range map[string]*store.Store{"the writer": one, "another relay": two, "a new relay": start()} {
		natssite.Eventually(t, name+" has the size", func() bool {
			r := s.Get("s.a.b")
			return r.Size >= len("secret") && !r.At.IsZero()
		})
		if r := s.Get("s.a.b"); r.Data != nil {
			t.Errorf("%s has the data %q in memory; want none", name, r.Data)
		}
		if r, err := s.Load(t.Context(), "s.a.b"); err != nil || string(r.Data) != "secret" {
			t.Errorf("Load at %s = %q, %v; want secret", name, r.Data, err)
		}
	}
	if r := two.Write(t.Context(), store.Change{Key: "s.a.b", Rev: two.Get("s.a.b").Rev}); r[0].Err != nil {
		t.Fatal(r)
	}
	for _, s := range []*store.Store{one, two} {
		natssite.Eventually(t, "the removal is known", func() bool { return s.Get("s.a.b").Size == 0 })
		if left := time.Until(s.Get("s.a.b").Until); left < 14*time.Minute || left > 15*time.Minute {
			t.Errorf("the removal is known for %v; want a quarter of an hour", left)
		}
	}
	if r, err := one.Load(t.Context(), "s.a.b"); err != nil || r.Data != nil {
		t.Errorf("a removed record loads as %q, %v; want no data", r.Data, err)
	}
}
