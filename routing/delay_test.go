package routing

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/broker/link"
)

// TestDelaysAreMeasured lets messages wait in the host-agent's queues for known times. Delayed must
// get the wait of the first message only, nothing for dropped messages, and then the wait of the
// next message.
func TestDelaysAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		a := NewAgentEnd(AgentEndConfig{
			Instance: "agent", Connect: func(*AgentConn, Open) HostConn { return &stillHost{} },
			Delayed: func(d time.Duration) { told = append(told, d) },
		})
		l := a.Accept("relay", link.Hello{Credit: 1 << 20, MaxFrame: 1 << 20}, &still{}).(*agentLink)
		start := appendOpen(appendOpen(nil, 1, Open{ID: "1"}), 2, Open{ID: "2"})
		if _, err := l.Handle(1, start); err != nil {
			t.Fatal(err)
		}
		want := func(what string, delays ...time.Duration) {
			t.Helper()
			if !slices.Equal(told, delays) {
				t.Errorf("%s: the reported delays are %v; want %v", what, told, delays)
			}
			told = nil
		}
		say := func(c uint64, message, channel string) {
			t.Helper()
			if err := l.conns[c].FromHost([]byte(message), false, []byte(channel)); err != nil {
				t.Fatal(err)
			}
		}
		leave := func() {
			t.Helper()
			for a.publish.len() > 0 {
				a.NextBody()
				a.Published()
			}
			for payload, _ := l.Next(1, 64<<10, time.Now()); payload != nil; payload, _ = l.Next(1, 64<<10, time.Now()) {
			}
			l.Released(1)
		}
		say(1, `{"id":1}`, "")
		time.Sleep(2 * time.Second)
		say(1, `{"id":2}`, "") // the queue measures only a single item at a time
		leave()
		want("the first of two", 2*time.Second)
		for range 8 {
			say(2, `{"id":3}`, "")
		}
		time.Sleep(time.Second)
		l.mux.drop(&l.conns[2].stream, a.bodies.release)
		leave()
		want("dropped")
		for i := 0; len(told) == 0 && i < 8; i++ {
			say(1, `{"id":4}`, "")
			time.Sleep(time.Second)
			leave()
		}
		want("after that", time.Second)
	})
}

// TestDelaysOfSharedMessages sends a shared message to one of many connections. Its reference waits
// for linger, because more could follow. The host-agent must report that time.
func TestDelaysOfSharedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		a, l := benchAgent(t)
		l.mux.delay.report = func(d time.Duration) { told = append(told, d) }
		if err := l.conns[1].FromHost(action(2), false, []byte("ahp-chat:/1")); err != nil {
			t.Fatal(err)
		}
		for a.publish.len() > 0 {
			a.NextBody()
			a.Published()
		}
		time.Sleep(linger)
		if payload, _ := l.Next(1, 64<<10, time.Now()); payload == nil || !slices.Equal(told, []time.Duration{linger}) {
			t.Errorf("a packet of %d bytes after %v; want one after %v", len(payload), told, linger)
		}
	})
}
