package link_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/link"
)

// There is no link to a host-agent instance whose lease is older than the relay knows
// of: that instance does not answer, and looks whether it still has the host. When it
// has a newer lease after all the link is made. Ends that do not number leases, as those
// of former versions, have links with all.
func TestFence(t *testing.T) {
	for _, test := range []struct {
		name         string
		relay, agent uint64
		linked       bool
	}{
		{"the same lease", 3, 3, true},
		{"the relay has not heard of the last one yet", 2, 3, true},
		{"an instance that was replaced", 3, 2, false},
		{"a relay that does not number leases", 0, 2, true},
		{"a host-agent that was told no number", 3, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnds(t, link.Config{})
				defer e.close()
				e.fence.Store(test.relay)
				e.lease.fence.Store(test.agent)
				r := e.start("relay1", testHello)
				time.Sleep(time.Second)
				synctest.Wait()
				if linked := len(r.joined) == 1; linked != test.linked || (e.lease.recheck.Load() > 0) == linked {
					t.Fatalf("linked %v, looked at the lease %d times; want a link: %v", linked, e.lease.recheck.Load(), test.linked)
				}
				if test.linked {
					return
				}
				e.lease.fence.Store(test.relay)
				select {
				case answer := <-r.joined:
					if answer.Fence != test.relay {
						t.Errorf("the welcome says lease %d; want %d", answer.Fence, test.relay)
					}
				case err := <-r.result:
					t.Errorf("Run = %v; want a link when the host-agent has the newest lease", err)
				}
			})
		})
	}
}

// A relay that hears of a newer lease while its offer is on the way takes no welcome of
// the instance before, also if that one does not look.
func TestFenceAtTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		e.fence.Store(3)
		e.lease.fence.Store(3)
		e.net.intercept(func(subject string, data []byte) ([]byte, error) {
			if strings.HasSuffix(subject, ".up") {
				e.fence.Store(4)
			}
			return data, nil
		})
		r := e.start("relay1", testHello)
		if err := <-r.result; !errors.Is(err, link.ErrOutdated) || len(r.joined) > 0 {
			t.Errorf("Run = %v; want ErrOutdated", err)
		}
	})
}

// A host-agent is told when a relay has a link and none had, and can ask whether one has.
func TestLinked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		want := func(when string, linked bool, told int64) {
			t.Helper()
			synctest.Wait()
			if e.agent.Linked() != linked || e.linked.Load() != told {
				t.Errorf("%s: linked %v, told %d times; want %v, %d", when, e.agent.Linked(), e.linked.Load(), linked, told)
			}
		}
		want("before", false, 0)
		one := e.join("relay1")
		want("with one relay", true, 1)
		two := e.join("relay2")
		want("with two", true, 1)
		one.cancel()
		<-one.result
		want("with one that stays", true, 1)
		two.cancel()
		<-two.result
		want("with none", false, 1)
		e.join("relay3").cancel()
		want("after another", false, 2)
	})
}
