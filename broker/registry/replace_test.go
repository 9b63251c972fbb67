package registry_test

import (
	"fmt"
	"testing"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestReplacedRelaysLoseNothing replaces each relay in a cluster by a relay with an empty data
// directory, as soon as all copies are complete. The store must keep every host and stay writable,
// whether the new relay has the lost relay's name or another.
func TestReplacedRelaysLoseNothing(t *testing.T) {
	t.Parallel()
	for rounds, ownNames := range map[int]bool{3: false, 2: true} {
		t.Run(fmt.Sprintf("own names %v", ownNames), func(t *testing.T) {
			t.Parallel()
			members := startCluster(t, 3, registry.Config{})
			for _, m := range members {
				awaitWhole(t, m)
			}
			for round := range rounds {
				m, other := members[round], members[(round+1)%3]
				natssite.Enrol(t, other, "acme", fmt.Sprint("before-", round))
				m.crash()
				if m.server.Store = t.TempDir(); ownNames {
					m.server.Name += "-next"
				}
				start := time.Now()
				m.serve(t)
				m.join(t)
				awaitWhole(t, m)
				t.Logf("replacement %d is whole after %v", round, time.Since(start).Round(time.Millisecond))
				for i := range round + 1 {
					if _, known := m.Lookup("acme", fmt.Sprint("before-", i)); !known {
						t.Errorf("replacement %d does not know host %d; want it known", round, i)
					}
				}
				natssite.Enrol(t, m, "acme", fmt.Sprint("after-", round))
			}
		})
	}
}

// TestLostMajorityIsReplacedInPlace replaces two of three relays at once by relays with empty data
// directories. They must get everything from the third.
func TestLostMajorityIsReplacedInPlace(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 3, registry.Config{})
	for _, m := range members {
		awaitWhole(t, m)
	}
	natssite.Enrol(t, members[0], "acme", "laptop")
	for _, m := range members[1:] {
		m.crash()
		m.server.Store = t.TempDir()
	}
	natssite.Eventually(t, "1 of 3 members is connected", func() bool {
		connected, all := members[0].Server.Members()
		return connected == 1 && all == 3
	})
	for _, m := range members[1:] {
		m.serve(t)
	}
	for _, m := range members[1:] {
		m.join(t)
	}
	for _, m := range members {
		awaitWhole(t, m)
		natssite.Eventually(t, m.name+" knows the host", func() bool { _, known := m.Lookup("acme", "laptop"); return known })
	}
	natssite.Enrol(t, members[2], "acme", "desktop")
}

// awaitWhole waits until a member has complete copies of all streams.
func awaitWhole(t *testing.T, m *member) {
	t.Helper()
	js, err := m.Relays(t).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	var why error
	defer func() {
		if why != nil {
			t.Logf("%s is not whole: %v; its server has the routes %v", m.name, why, m.Server.Routes())
		}
	}()
	natssite.Eventually(t, m.name+" is whole", func() bool {
		if why = m.Unread(); why == nil {
			why = broker.Whole(t.Context(), js, m.Server.Name(), "", len(m.Server.Routes())+1)
		}
		return why == nil
	})
}
