package link_test

import (
	"crypto/ed25519"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/broker/link"
)

// TestOutdatedInstanceGetsNoLink lets a relay open a link to a host-agent instance. If the relay
// knows a newer lease than the instance has, the instance must not answer, but check whether it
// still holds the host. When it has the newest lease, the link must open. If either has no lease
// numbers, the link must open too.
func TestOutdatedInstanceGetsNoLink(t *testing.T) {
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
						t.Errorf("the host-agent's welcome has the lease number %d; want %d", answer.Fence, test.relay)
					}
				case err := <-r.result:
					t.Errorf("Run = %v; want a link when the host-agent has the newest lease", err)
				}
			})
		})
	}
}

// TestRelayRefusesAnOutdatedWelcome lets a relay learn of a newer lease while its hello is on its
// way. The relay must refuse the welcome from the instance with the old lease.
func TestRelayRefusesAnOutdatedWelcome(t *testing.T) {
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

// TestHostAgentLearnsOfItsFirstLink opens and ends links. The host-agent must call Linked each time
// a link opens while there is no other, and the method Linked must report whether there is a link.
func TestHostAgentLearnsOfItsFirstLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		want := func(when string, linked bool, told int64) {
			t.Helper()
			synctest.Wait()
			if e.agent.Linked() != linked || e.linked.Load() != told {
				t.Errorf("%s: Linked() = %v, and the callback for links was called %d times; want %v, %d", when, e.agent.Linked(), e.linked.Load(), linked, told)
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

// TestRelayMakesHostAgentCheckItsLease sends the message Recheck to a host-agent, without a proof.
// Each time, the host-agent must check its lease at once; nothing else may happen.
func TestRelayMakesHostAgentCheckItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndsThat(t, link.Config{}, func() ([]ed25519.PublicKey, error) { return nil, nil }, slog.New(slog.DiscardHandler))
		defer e.close()
		e.lease.fence.Store(3)
		for range 2 {
			subject, packet := link.Recheck("t", "h", "agent1", "relay1")
			if err := e.net.Publish(subject, packet); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := e.lease.recheck.Load(); n != 2 || e.agent.Linked() {
			t.Errorf("the host-agent checked its lease %d times, and Linked() = %v; want twice, and false", n, e.agent.Linked())
		}
	})
}
