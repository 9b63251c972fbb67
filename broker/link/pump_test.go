package link_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/broker/link"
)

func TestLinkCarriesBothDirectionsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		r := e.join("relay1")
		other := e.join("relay2")
		r.send(numbers(1, 100)...)
		r.agent.send(numbers(101, 200)...)
		other.agent.send("x")
		time.Sleep(time.Second)
		r.agent.wantGot(t, numbers(1, 100)...)
		r.wantGot(t, numbers(101, 200)...)
		other.wantGot(t, "x")
	})
}

// TestWindowOpensAtOnce sends a long queue through a small window. Each end must continue as soon
// as the peer has released packets, without waiting for the writer's timer.
func TestWindowOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{Window: 1000, Heartbeat: time.Hour, Probe: time.Hour, Resume: time.Hour, AckDelay: time.Millisecond})
		defer e.close()
		r := e.join("relay1")
		r.send(numbers(1, 300)...)
		time.Sleep(10 * time.Second)
		r.agent.wantGot(t, numbers(1, 300)...)
		r.agent.send(numbers(301, 600)...)
		time.Sleep(10 * time.Second)
		r.wantGot(t, numbers(301, 600)...)
	})
}

// TestBodyLeavesWithoutAWakeUp adds a body while the writer asks the links for packets, without a
// call of Wake. The body must still be published at once.
func TestBodyLeavesWithoutAWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		r := e.join("relay1")
		time.Sleep(time.Second)
		r.agent.mu.Lock()
		r.agent.asked = func() {
			e.mu.Lock()
			e.bodies = 1
			e.mu.Unlock()
		}
		r.agent.mu.Unlock()
		r.agent.lines.Wake()
		synctest.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.left != 1 {
			t.Errorf("%d bodies have left; want 1", e.left)
		}
	})
}

// TestInboxIsBoundedInBytes has a host-agent send long messages while the relay's reader is busy. The relay must not
// keep all of them, and the link must go on.
func TestInboxIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		const size, sent = 1 << 20, 5 * link.InboxBytes >> 20
		r := e.startWith("relay1", testHello, func(c *cargo) {
			c.busy = make(chan struct{})
			_ = c.lines.(link.RelayLines).Watch("body")
		})
		<-r.joined
		for range sent {
			_ = e.net.Publish(link.ChannelSubject("t", "h", "body"), make([]byte, size))
			synctest.Wait()
		}
		close(r.busy)
		synctest.Wait()
		r.cargo.mu.Lock()
		kept := r.bodies
		r.cargo.mu.Unlock()
		if most := 2*link.InboxBytes/size + 1; kept > most || kept < most/2 {
			t.Errorf("of %d messages with %d bytes, the relay keeps %d while it is busy; want %d to %d", sent, size, kept, most/2, most)
		}
		e.mu.Lock()
		agent := e.accepted[0]
		e.mu.Unlock()
		agent.send("after")
		time.Sleep(time.Second)
		r.wantGot(t, "after")
	})
}

// TestInboxWakesItsReaderForEachMessage queues messages, some of them while the reader takes others. Each must wake a
// reader that takes one message at each signal.
func TestInboxWakesItsReaderForEachMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := link.NewInbox(8)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go i.Run(ctx)
		queue := func(names ...string) {
			for _, name := range names {
				i.In <- &nats.Msg{Subject: name}
				synctest.Wait()
			}
		}
		take := func(want string) {
			t.Helper()
			select {
			case <-i.Ready:
				if msg := i.Next(); msg == nil || msg.Subject != want {
					t.Errorf("Next returns %v; want %s", msg, want)
				}
			default:
				t.Errorf("the reader is not woken for %s", want)
			}
		}
		queue("1", "2")
		take("1")
		queue("3")
		take("2")
		take("3")
		queue("4", "5")
		take("4")
		take("5")
		if msg := i.Next(); msg != nil {
			t.Errorf("Next returns %v after the last message; want nil", msg)
		}
	})
}

// TestTrafficMayWakeItsLinkEarly calls Wake while the relay's link is still opening. The queued
// payload must be sent.
func TestTrafficMayWakeItsLinkEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		r := e.startWith("relay1", testHello, func(c *cargo) {
			c.queueUp("early")
			c.lines.Wake()
		})
		<-r.joined
		time.Sleep(time.Second)
		e.mu.Lock()
		agent := e.accepted[0]
		e.mu.Unlock()
		agent.wantGot(t, "early")
	})
}

// TestSlowNetworkIsShared fills a slow network with one link's packets, or with bodies. Packets of
// another link must arrive within 400 ms, and no link end.
func TestSlowNetworkIsShared(t *testing.T) {
	for _, test := range []struct {
		name  string
		start func(e *ends, r *relayEnd)
	}{
		{"link", func(_ *ends, r *relayEnd) {
			r.agent.mu.Lock()
			r.agent.endless = 60 << 10
			r.agent.mu.Unlock()
			r.agent.lines.Wake()
		}},
		{"bodies", func(e *ends, _ *relayEnd) {
			e.mu.Lock()
			e.bodies = -1
			e.mu.Unlock()
			e.agent.Wake()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnds(t, link.Config{})
				defer e.close()
				first, second := e.join("relay1"), e.join("relay2")
				time.Sleep(time.Second)
				e.net.mu.Lock()
				e.net.took["up"], e.net.took["body"] = 10*time.Millisecond, 10*time.Millisecond
				e.net.mu.Unlock()
				test.start(e, first)
				for range 20 {
					sent := time.Now()
					second.agent.send("x")
					time.Sleep(time.Second)
					second.mu.Lock()
					if n := len(second.gotAt); n == 0 {
						t.Fatal("a packet on the second link waits longer than a second; want at most 400 ms")
					} else if d := second.gotAt[n-1].Sub(sent); d > 400*time.Millisecond || d < 0 {
						t.Fatalf("a packet on the second link took %v; want at most 400 ms", d)
					}
					second.mu.Unlock()
				}
				for _, c := range []*cargo{first.cargo, first.agent, second.cargo, second.agent} {
					c.mu.Lock()
					if len(c.ended) > 0 {
						t.Errorf("a link ended with %v; want all links open", c.ended)
					}
					c.mu.Unlock()
				}
			})
		})
	}
}

// TestNothingIsLostWhileNATSIsAway lets publishing fail for 10 s. The ends must not try without a
// pause. When publishing works again, they must send everything.
func TestNothingIsLostWhileNATSIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		r := e.join("relay1")
		r.send("1")
		time.Sleep(time.Second)
		var tries atomic.Int64
		e.net.intercept(func(subject string, data []byte) ([]byte, error) {
			tries.Add(1)
			return refuseAll(subject, data)
		})
		r.send("2")
		r.agent.send("3")
		e.mu.Lock()
		e.bodies = 1
		e.mu.Unlock()
		time.Sleep(10 * time.Second)
		if n := tries.Load(); n > 200 {
			t.Errorf("%d attempts to publish in 10 s; want at most 200", n)
		}
		if e.left != 0 {
			t.Error("a body counts as published while NATS is unreachable; want none")
		}
		e.net.intercept(nil)
		r.link.Resumed()
		e.agent.Resumed()
		start := time.Now()
		synctest.Wait()
		for range 100 {
			time.Sleep(time.Millisecond)
		}
		r.agent.wantGot(t, "1", "2")
		r.wantGot(t, "3")
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.left != 1 || time.Since(start) > 200*time.Millisecond {
			t.Errorf("%d bodies published; want 1", e.left)
		}
	})
}

// TestUnacceptablePacketEndsTheLink sends a packet that is too large for NATS. Its link must end,
// because it would block all later packets. A body that is too large must be skipped.
func TestUnacceptablePacketEndsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		r := e.join("relay1")
		e.net.intercept(func(_ string, data []byte) ([]byte, error) {
			if len(data) > 1000 {
				return nil, fmt.Errorf("publish: %w", nats.ErrMaxPayload)
			}
			return data, nil
		})
		e.mu.Lock()
		e.bodies = 1 // skipped; relays ask for missing bodies
		e.mu.Unlock()
		r.agent.send(strings.Repeat("x", 1001))
		synctest.Wait()
		r.agent.wantEnded(t, nats.ErrMaxPayload)
		r.wantEnded(t, link.ErrBye)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.left != 1 {
			t.Errorf("%d bodies left behind a packet that is too large; want 1", e.left)
		}
	})
}

// TestFullWindowPassesAnswers fills the window. Records that the peer waits for must still be sent,
// and further packets only when the peer has released earlier ones.
func TestFullWindowPassesAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{Window: 1})
		defer e.close()
		r := e.join("relay1")
		r.mu.Lock()
		r.hold = true
		r.mu.Unlock()
		r.agent.send("1", "2")
		time.Sleep(time.Second)
		r.wantGot(t, "1")
		r.agent.mu.Lock()
		r.agent.urgent = [][]byte{[]byte("answer")}
		r.agent.mu.Unlock()
		r.agent.lines.Wake()
		time.Sleep(time.Second)
		r.wantGot(t, "1", "answer")
		r.lines.Done(1)
		r.lines.Done(2)
		time.Sleep(time.Second)
		r.wantGot(t, "1", "answer", "2")
	})
}

// TestLostHandshakeIsRepeated loses the first messages of a handshake. There must be exactly one
// link in the end, and it must carry packets.
func TestLostHandshakeIsRepeated(t *testing.T) {
	for _, lost := range []int{1, 2, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, link.Config{})
			defer e.close()
			var n atomic.Int32 // both ends publish and so count
			e.net.intercept(func(_ string, data []byte) ([]byte, error) {
				if int(n.Add(1)) <= lost {
					return nil, nil
				}
				return data, nil
			})
			r := e.start("relay1", testHello)
			r.link.Resumed() // does nothing before there is a link
			time.Sleep(3 * time.Second)
			e.mu.Lock()
			if len(e.accepted) != 1 {
				t.Fatalf("%d lost: host-agent accepted %d links; want 1", lost, len(e.accepted))
			}
			r.agent = e.accepted[0]
			e.mu.Unlock()
			r.agent.send("1")
			r.send("2")
			time.Sleep(time.Second)
			r.wantGot(t, "1")
			r.agent.wantGot(t, "2")
		})
	}
}

// TestNewLinkReplacesThePreviousLink lets a relay open a second link. The first must end at both
// ends, and none of its packets may reach the second.
func TestNewLinkReplacesThePreviousLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		old := e.join("relay1")
		old.send("1")
		time.Sleep(time.Second)
		e.net.intercept(loseAll)
		old.agent.send("late")
		synctest.Wait()
		e.net.intercept(nil)
		fresh := e.join("relay1")
		old.agent.wantEnded(t, link.ErrReplaced)
		fresh.send("2")
		fresh.agent.send("3")
		time.Sleep(time.Second)
		old.agent.wantGot(t, "1")
		fresh.agent.wantGot(t, "2")
		fresh.wantGot(t, "3")
		// The relay's end of the first link gets no answers any more.
		time.Sleep(20 * time.Second)
		old.wantEnded(t, link.ErrSilent)
		old.wantGot(t)
		if len(fresh.ended) > 0 || len(fresh.agent.ended) > 0 {
			t.Errorf("the new link ended with %v at the relay and %v at the host-agent; want it open", fresh.ended, fresh.agent.ended)
		}
	})
}

func TestEachEndOfALinkIsNoticed(t *testing.T) {
	for _, test := range []struct {
		name       string
		end        func(e *ends, r *relayEnd)
		relay      error
		agent      error
		within     time.Duration
		moreWrites bool
	}{
		{"relay stops", func(_ *ends, r *relayEnd) { r.cancel() }, context.Canceled, link.ErrBye, time.Millisecond, true},
		{"host-agent stops", func(e *ends, _ *relayEnd) { e.stop() }, nil, nil, time.Millisecond, false},
		{"network gone", func(e *ends, _ *relayEnd) {
			e.net.intercept(loseAll)
		}, link.ErrSilent, link.ErrSilent, 20 * time.Second, true},
		{"relay is known to be gone", func(e *ends, _ *relayEnd) {
			e.agent.RelaysGone([]string{"other", "relay1"})
		}, link.ErrBye, nil, time.Millisecond, true},
		{"relay sends rubbish", func(e *ends, _ *relayEnd) {
			_ = e.net.Publish("ahp.v1.t.h.link.agent1.relay1.down", link.AppendSum([]byte("r")))
		}, link.ErrBye, link.ErrBadPacket, time.Millisecond, true},
		{"host-agent sends rubbish", func(e *ends, _ *relayEnd) {
			_ = e.net.Publish("ahp.v1.t.h.link.agent1.relay1.up", link.AppendSum([]byte("r")))
		}, link.ErrBadPacket, link.ErrBye, time.Millisecond, true},
		{"relay sends what makes no sense", func(_ *ends, r *relayEnd) { r.send("bad", "2") }, link.ErrBye, nil, time.Millisecond, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnds(t, link.Config{})
				defer e.close()
				r := e.join("relay1")
				time.Sleep(500 * time.Millisecond)
				test.end(e, r)
				synctest.Wait()
				time.Sleep(test.within)
				synctest.Wait()
				if test.moreWrites { // nothing of this may arrive
					r.lines.Done(1)
					r.send("late")
					r.agent.lines.Done(1)
					r.agent.send("late")
					time.Sleep(time.Second)
				}
				if test.relay != nil {
					r.wantEnded(t, test.relay)
				}
				if test.agent != nil {
					r.agent.wantEnded(t, test.agent)
				}
				for _, c := range []*cargo{r.cargo, r.agent} {
					if len(c.ended) != 1 || c.late > 0 || len(c.got) > 0 {
						t.Errorf("the link ended with %v, then got %d late calls and the packets %q; want one end, and nothing later", c.ended, c.late, c.got)
					}
				}
			})
		})
	}
}

// TestRelayEndsALinkForCertain loses the first bye of a relay that calls End, or the host-agent's
// answer to it. When End returns, the host-agent must have got the packets and have no link. Without
// a network, End must return with its context.
func TestRelayEndsALinkForCertain(t *testing.T) {
	bye := func(way string) func() tap {
		return func() tap {
			lost := false
			return func(subject string, data []byte) ([]byte, error) {
				if !lost && strings.HasSuffix(subject, way) && bytes.Equal(data[:2], link.Bye(1, testEpoch, "")[:2]) {
					lost = true
					return nil, nil
				}
				return data, nil
			}
		}
	}
	for _, test := range []struct {
		name   string
		tap    func() tap
		linked bool
		most   time.Duration
	}{
		{"relay's bye lost", bye(".down"), false, time.Second},
		{"host-agent's bye lost", bye(".up"), false, time.Second},
		{"network gone", func() tap { return loseAll }, true, 5 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnds(t, link.Config{})
				defer e.close()
				r := e.join("relay1")
				e.net.intercept(test.tap())
				r.send("last")
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				start := time.Now()
				r.link.End(ctx)
				if took := time.Since(start); took > test.most || e.agent.Linked() != test.linked {
					t.Errorf("End took %v, and the host-agent has a link: %v; want at most %v, and %v", took, e.agent.Linked(), test.most, test.linked)
				}
				if !test.linked {
					r.agent.wantGot(t, "last")
				}
			})
		})
	}
}

// TestRelayReportedGoneLinksAgain tells a host-agent that a running relay is gone, which ends its
// link. The relay must be able to open a new link, and keep it when the report is repeated.
func TestRelayReportedGoneLinksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		first, other := e.join("relay1"), e.join("relay2")
		e.agent.RelaysGone([]string{"relay1"})
		synctest.Wait()
		first.wantEnded(t, link.ErrBye)
		again := e.join("relay1")
		e.agent.RelaysGone([]string{"relay1"})
		again.send("x")
		other.send("y")
		time.Sleep(time.Second)
		again.agent.wantGot(t, "x")
		other.agent.wantGot(t, "y")
	})
}

// TestStrayPacketIsAnswered sends a packet for a link that the host-agent does not know. It must
// answer with a bye. It must not answer a bye, or messages that are no packets.
func TestStrayPacketIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		var up [][]byte
		e.net.intercept(func(subject string, data []byte) ([]byte, error) {
			if strings.HasSuffix(subject, ".up") {
				up = append(up, data)
			}
			return data, nil
		})
		publish := func(token string, data []byte) {
			_ = e.net.Publish("ahp.v1.t.h.link.agent1."+token+".down", data)
			synctest.Wait()
		}
		publish("relay9", dataPacket(1, 0, "x"))
		if len(up) != 1 || string(up[0]) != string(link.Bye(1, testEpoch, "host-agent has no such link")) {
			t.Errorf("answers %q; want a bye", up)
		}
		publish("relay9", link.Bye(1, testEpoch, "enough")) // else answers would never end
		publish("relay9", nil)
		publish("not a name", dataPacket(1, 0, "x"))
		if len(up) != 1 {
			t.Errorf("the host-agent answered stray packets again, with %q; want one answer", up[1:])
		}
	})
}

// TestSettleWaitsForEverything queues packets and bodies on a slow network. Settle must return when
// all are sent and released, or when its context ends.
func TestSettleWaitsForEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		r := e.join("relay1")
		e.net.mu.Lock()
		e.net.took["up"], e.net.took["body"] = 10*time.Millisecond, 10*time.Millisecond
		e.net.mu.Unlock()
		e.mu.Lock()
		e.bodies = 100
		e.mu.Unlock()
		r.agent.send(numbers(1, 50)...)
		ctx, cancel := context.WithTimeout(e.life, 10*time.Second)
		defer cancel()
		start := time.Now()
		e.agent.Settle(ctx)
		if d := time.Since(start); d < 1500*time.Millisecond || d > 3*time.Second {
			t.Errorf("Settle took %v; want the time of 150 messages", d)
		}
		r.wantGot(t, numbers(1, 50)...)
		e.net.intercept(refuseAll)
		r.agent.send("x")
		short, cancel := context.WithTimeout(e.life, time.Second)
		defer cancel()
		start = time.Now()
		e.agent.Settle(short)
		if d := time.Since(start); d != time.Second {
			t.Errorf("Settle without a network took %v; want all of its time", d)
		}
	})
}

func TestLinksAboveTheBoundWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		var relays []*relayEnd
		for i := range 256 {
			relays = append(relays, e.join(fmt.Sprint("relay", i)))
		}
		one := e.start("relay256", testHello)
		time.Sleep(time.Second)
		if len(e.accepted) != 256 {
			t.Fatalf("%d links accepted; want 256", len(e.accepted))
		}
		relays[7].cancel()
		time.Sleep(time.Second)
		select {
		case <-one.joined:
		default:
			t.Error("a waiting link is not opened although there is room; want it opened")
		}
	})
}
