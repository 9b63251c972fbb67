package registry

import (
	"errors"
	"testing"
	"time"

	"ahprelay/test/natssite"
)

// TestRegistryThatHasNotReadItsStoreCallsNoHostUnknown asks for a host that the store does not
// have. Find may return ErrUnknownHost only if the relay has read its region's store since its
// start.
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

// TestRegionsThatWereNotHeardCallNoHostUnknown asks for an unknown host. Find must return
// ErrStoreAway while another region could still announce itself, while another region's store is
// being read, or while that region is silent.
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
