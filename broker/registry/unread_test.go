package registry

import (
	"errors"
	"testing"
	"time"

	"ahprelay/test/natssite"
)

// TestRegistryThatHasNotReadItsStoreCallsNoHostUnknown ensures the store's answer about
// one host does not suffice: a relay which has not read its region's store since its
// start cannot call a host unknown.
func TestRegistryThatHasNotReadItsStoreCallsNoHostUnknown(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{})
	natssite.Eventually(t, "the store has been read", func() bool { return r.Unread() == nil })
	find := func() error { return r.Find(t.Context(), "acme", "laptop") }
	if err := find(); !errors.Is(err, ErrUnknownHost) {
		t.Errorf("the store has been read, and Find = %v; want ErrUnknownHost", err)
	}
	r.mu.Lock()
	r.view.isSynced = false
	r.mu.Unlock()
	if err := find(); !errors.Is(err, ErrStoreAway) || errors.Is(err, ErrUnknownHost) {
		t.Errorf("the store has not been read, and Find = %v; want ErrStoreAway", err)
	}
}

// TestRegionsThatWereNotHeardCallNoHostUnknown ensures no host is called unknown while a
// different region may still announce itself, while its store is being read, or while it
// is silent.
func TestRegionsThatWereNotHeardCallNoHostUnknown(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{Region: "eu"})
	natssite.Eventually(t, "the store has been read", func() bool { return r.Unread() == nil })
	other := &view{r: r, name: "us", store: r.view.store} // a store that answers
	for _, test := range []struct {
		name   string
		change func()
		want   error
	}{
		{"just started", func() { r.started = time.Now().Add(time.Hour) }, ErrStoreAway},
		{"alone for long", func() { r.started = time.Now().Add(-time.Hour) }, ErrUnknownHost},
		{"heard a region whose store is read", func() { r.regions.others["us"] = other }, ErrStoreAway},
		{"heard a region that is silent now", func() { other.silent = time.Now() }, ErrStoreAway},
	} {
		r.mu.Lock()
		test.change()
		r.mu.Unlock()
		if err := r.Find(t.Context(), "acme", "laptop"); !errors.Is(err, test.want) {
			t.Errorf("%s: Find = %v; want %v", test.name, err, test.want)
		}
	}
	r.mu.Lock()
	delete(r.regions.others, "us")
	r.mu.Unlock()
}
