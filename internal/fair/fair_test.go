package fair_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"ahprelay/internal/fair"
	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An asker is a request for a place.
type asker struct {
	path   [2]string
	cancel context.CancelFunc
	done   func() // releases the place; nil: no place yet
	ended  bool   // the request was cancelled before it had a place
}

func (a *asker) keys() []string { return []string{a.path[0], a.path[0] + "/" + a.path[1]} }

// TestFreePlacesAreTaken makes requests come, leave and give up at random. No limit may be
// exceeded, and no request may wait for a place that is free for it. In the end, no key may be
// remembered.
func TestFreePlacesAreTaken(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			limits := [2]int{rapid.IntRange(1, 4).Draw(rt, "of a host"), rapid.IntRange(1, 3).Draw(rt, "of a client")}
			turns := fair.New(100, limits[0], limits[1])
			var mu sync.Mutex // guards the askers
			var askers []*asker
			ask := func() {
				a := &asker{path: [2]string{rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "host"), rapid.SampledFrom([]string{"1", "2", "3"}).Draw(rt, "client")}}
				ctx, cancel := context.WithCancel(t.Context())
				a.cancel = cancel
				askers = append(askers, a)
				go func() {
					done, err := turns.Take(ctx, a.path[0], a.path[1])
					mu.Lock()
					defer mu.Unlock()
					a.done, a.ended = done, err != nil
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				}()
			}
			drop := func(i int) {
				mu.Lock()
				a := askers[i]
				askers = append(askers[:i:i], askers[i+1:]...)
				mu.Unlock()
				a.cancel()
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if a.done != nil {
					a.done()
				} else if !a.ended {
					t.Error("Take has not returned after its context ended; want it to give up")
				}
			}
			check := func() {
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				used := map[string]int{}
				for _, a := range askers {
					if a.done != nil {
						for level, key := range a.keys() {
							if used[key]++; used[key] > limits[level] {
								t.Fatalf("%s has %d places; want at most %d", key, used[key], limits[level])
							}
						}
					}
				}
				for _, a := range askers {
					keys := a.keys()
					if a.done == nil && used[keys[0]] < limits[0] && used[keys[1]] < limits[1] {
						t.Fatalf("%s waits while %d of %d and %d of %d places are taken; want a place", keys[1], used[keys[0]], limits[0], used[keys[1]], limits[1])
					}
				}
			}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				if len(askers) == 0 || rapid.IntRange(0, 2).Draw(rt, "ask") > 0 {
					ask()
				} else {
					drop(rapid.IntRange(0, len(askers)-1).Draw(rt, "which"))
				}
				check()
			}
			for len(askers) > 0 {
				drop(0)
				check()
			}
			if left := turns.Known(); left != 0 {
				t.Errorf("the queue remembers %d keys after all have left; want none", left)
			}
		})
	})
}

// TestOneDoesNotHoldUpOthers requests 200 places for one client, then a place for a different
// client at the same host, then a place for a different host. The places that become free must go
// to hosts in turn, and within a host to clients in turn.
func TestOneDoesNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := fair.New(200, 1, 1, 1) // each tenant, host and client may have one place
		var order []string
		var wg sync.WaitGroup
		first, err := turns.Take(t.Context(), "t", "a", "greedy")
		if err != nil {
			t.Fatal(err)
		}
		ask := func(host, client string) {
			wg.Go(func() {
				done, err := turns.Take(t.Context(), "t", host, client)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, host+"/"+client) // only one request has a place, so order needs no lock
				done()
			})
			synctest.Wait()
		}
		for range 200 {
			ask("a", "greedy")
		}
		if _, err := turns.Take(t.Context(), "t", "a", "greedy"); !errors.Is(err, fair.ErrFull) {
			t.Errorf("Take beyond the bound = %v; want %v", err, fair.ErrFull)
		}
		ask("a", "other")
		ask("b", "third")
		first()
		wg.Wait()
		if got, want := strings.Join(order[:4], " "), "a/greedy b/third a/other a/greedy"; got != want || len(order) != 202 {
			t.Errorf("the first of %d turns went to %s …; want %s", len(order), got, want)
		}
	})
}

// TestTenantsDoNotMeet takes all places of a tenant. A further request for that tenant must wait,
// and a request for another tenant must not.
func TestTenantsDoNotMeet(t *testing.T) {
	turns := fair.New(10, 4, 2)
	for i := range 4 {
		if _, err := turns.Take(t.Context(), "greedy", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.Take(over, "greedy", "4"); !errors.Is(err, context.Canceled) {
		t.Errorf("Take beyond the bound with an ended context = %v; want Canceled", err)
	}
	if _, err := turns.Take(over, "other", "0"); err != nil {
		t.Errorf("a different tenant's Take: %v; want no error", err)
	}
}

// TestAddressesOfANetworkAreGrouped calls Site with addresses. All addresses in an IPv6 /64 must
// have the same result, and so must the notations of an IPv4 address.
func TestAddressesOfANetworkAreGrouped(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "2001:db8:1:2::5": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64",
	} {
		if got := fair.Site(netip.MustParseAddr(address)); got != want {
			t.Errorf("the address %s is grouped as %s; want %s", address, got, want)
		}
	}
}

// TestNetworksOfAddresses calls Networks with addresses. It must return the larger and the smaller
// network in which an address counts.
func TestNetworksOfAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7": "192.0.2.0/24 192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.0/24 192.0.2.7/32",
		"2001:db8:1:2:3::4": "2001:db8:1::/48 2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/48 fe80::/64",
	} {
		got := fair.Networks(netip.MustParseAddr(address))
		if said := fmt.Sprint(got[0], " ", got[1]); said != want {
			t.Errorf("the address %s is counted in the networks %s; want %s", address, said, want)
		}
	}
}

// TestFloodEvictsItself fills a Room with connections from many addresses in a /48 and a /24.
// Connections from other networks must stay, and no network may exceed its limit.
func TestFloodEvictsItself(t *testing.T) {
	room := fair.Room{Places: 32, Networks: [2]int{16, 4}}
	var there []netip.Addr
	come := func(address string) {
		at := netip.MustParseAddr(address)
		if i := room.GivesWay(there, at); i >= 0 {
			there = slices.Delete(there, i, i+1)
		}
		there = append(there, at)
	}
	count := func(network string) (n int) {
		for _, at := range there {
			if netip.MustParsePrefix(network).Contains(at) {
				n++
			}
		}
		return n
	}
	come("203.0.113.1")
	for i := range 100 {
		come("2001:db8:0:7::1") // always the same address
		if n := count("2001:db8:0:7::/64"); n > 4 {
			t.Fatalf("one /64 has %d places; want at most 4", n)
		}
		come(fmt.Sprintf("2001:db8:0:%x::1", i+16))
		come(fmt.Sprint("198.51.100.", i))
	}
	come("2001:db8:ffff::1")
	for range 100 {
		come("2001:db8:0:99::1")
		come("198.51.100.200")
	}
	if n, six, four := len(there), count("2001:db8::/48"), count("198.51.100.0/24"); n > 32 || six > 16 || four > 16 {
		t.Errorf("the table has %d entries, %d from the flooding /48 and %d from the flooding /24; want at most 32, 16 and 16", n, six, four)
	}
	if count("203.0.113.0/24") != 1 || count("2001:db8:ffff::/48") != 1 {
		t.Errorf("the table has the only connection of each quiet network: %v; want all kept", there)
	}
	// This machine's address has no limit for its network: behind a proxy that the relay does not
	// trust, all clients have it.
	there = nil
	for range 40 {
		come("127.0.0.1")
	}
	come("203.0.113.1")
	if n := len(there); n != 32 || count("203.0.113.0/24") != 1 {
		t.Errorf("the table has %d entries after connections from loopback; want 32, with the one from 203.0.113.0/24", n)
	}
}
