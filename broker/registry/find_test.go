package registry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestOnlyTheStoreCallsHostUnknown asks a relay for hosts. Before it has read the store, it must
// not call a host unknown. Afterwards, it must find a host at once that was enrolled at another
// relay, and call a host unknown if it was never enrolled or was forgotten.
func TestOnlyTheStoreCallsHostUnknown(t *testing.T) {
	t.Parallel()
	members := newCluster(t, 2, registry.Config{})
	a, b := members[0], members[1]
	a.serve(t)
	a.join(t) // starts without the store after a time
	if err := a.Unread(); err == nil {
		t.Error("Unread = nil for one relay of two without the store; want an error")
	}
	if err := a.Find(t.Context(), "acme", "laptop"); !errors.Is(err, registry.ErrStoreAway) || errors.Is(err, registry.ErrUnknownHost) {
		t.Errorf("Find without the store = %v; want ErrStoreAway", err)
	}
	b.serve(t)
	b.join(t)
	awaitStore(t, a)
	awaitStore(t, b)
	natssite.Eventually(t, "the store has been read", func() bool { return a.Unread() == nil && b.Unread() == nil })
	// find repeats Find while the store is too busy to answer.
	find := func(m *member, host string) (err error) {
		natssite.Eventually(t, "the store answers", func() bool {
			err = m.Find(t.Context(), "acme", host)
			return !errors.Is(err, registry.ErrStoreAway)
		})
		return err
	}
	for i := range 50 {
		host := fmt.Sprintf("host%d", i)
		natssite.Enrol(t, b, "acme", host)
		if err := find(a, host); err != nil {
			t.Fatalf("Find(%s), just enrolled at the second relay: %v; want no error", host, err)
		}
	}
	natssite.Eventually(t, "the host is forgotten", func() bool {
		err := a.Forget(t.Context(), "acme", "host1")
		return err == nil || errors.Is(err, registry.ErrUnknownHost)
	})
	natssite.Eventually(t, "the other relay forgets the host", func() bool { _, known := b.Lookup("acme", "host1"); return !known })
	for _, host := range []string{"other", "host1", "not a name", "host.*"} {
		if err := find(b, host); !errors.Is(err, registry.ErrUnknownHost) {
			t.Errorf("Find(%q) = %v; want ErrUnknownHost", host, err)
		}
	}
}

// TestClusterOfThreeStartsWithTwo starts two relays of a cluster, while the routes name three.
// Absent must name the third, and the store must be writable. When the third joins, it must learn
// all hosts.
func TestClusterOfThreeStartsWithTwo(t *testing.T) {
	t.Parallel()
	members := newCluster(t, 3, registry.Config{})
	a, b, c := members[0], members[1], members[2]
	for _, m := range []*member{a, b} {
		m.serve(t)
	}
	if away := a.Server.Absent(t.Context()); len(away) != 1 || !strings.HasPrefix(away[0], c.server.Cluster.Listen+" (connection refused") {
		t.Errorf("Absent() = %q; want the third server, with the reason", away)
	}
	a.join(t)
	b.join(t)
	awaitStore(t, a)
	natssite.Enrol(t, a, "acme", "laptop")
	c.serve(t)
	c.join(t)
	natssite.Eventually(t, "the third relay knows the host", func() bool { _, known := c.Lookup("acme", "laptop"); return known })
	if away := a.Server.Absent(t.Context()); len(away) != 0 {
		t.Errorf("Absent() = %q; want none", away)
	}
}
