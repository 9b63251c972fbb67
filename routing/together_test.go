package routing

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/broker/link"
)

// TestBodiesLeaveTogether queues bodies on two channels. Consecutive bodies on one channel must
// leave in one published message, up to the bound mostTogether. References to them must not leave
// before the message is published.
func TestBodiesLeaveTogether(t *testing.T) {
	const want = "1 2 3|4|5|6|7 8|"
	a := NewAgentEnd(AgentEndConfig{Instance: "agent", Connect: func(*AgentConn, Open) HostConn { return &stillHost{} }})
	offer := link.Hello{Credit: 1 << 30, MaxFrame: 1 << 20}
	l := a.Accept("relay", offer, &still{}).(*agentLink)
	if _, err := l.Handle(1, appendOpen(appendOpen(nil, 1, Open{ID: "1"}), 2, Open{ID: "2"})); err != nil {
		t.Fatal(err)
	}
	say := func(channel string, size int) {
		n := NewNotification(fmt.Appendf(nil, "%s said %d bytes %0*d", channel, size, size, size), []byte(channel))
		for _, c := range l.conns {
			if _, _, err := c.Notify([]*Notification{n}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, channel := range []string{"a", "b"} {
		say(channel, 1)
	}
	drain(a, l, nil, nil)
	if _, err := l.Handle(2, slices.Concat(record(recordWatching, 1), record(recordWatching, 2))); err != nil {
		t.Fatal(err)
	}
	for _, channel := range []string{"a", "b"} {
		say(channel, 2)
	}
	drain(a, l, nil, nil)
	for _, n := range []struct {
		channel string
		size    int
	}{{"a", 10}, {"a", 11}, {"a", 12}, {"b", 13}, {"a", mostTogether - 5}, {"a", mostTogether + 1}, {"a", 15}, {"a", 16}} {
		say(n.channel, n.size)
	}
	got, number, first := "", 0, a.bodies.last-8
	for {
		token, message := a.NextBody()
		if message == nil {
			break
		}
		if again, same := a.NextBody(); again != token || &same[0] != &message[0] {
			t.Errorf("NextBody returns a different message before this one is published; want the same")
		}
		if payload, _ := l.Next(3, 64<<10, time.Now()); payload != nil {
			t.Errorf("%d bytes leave before the bodies that they refer to; want none", len(payload))
		}
		message, intact := openBodies(message)
		if !intact {
			t.Errorf("the checksum of %q does not match; want it intact", message)
		}
		readBodies(message, "agent", func(n uint64, _, start, end int) {
			number++
			got += fmt.Sprint(n-first, " ")
			if !bytes.HasPrefix(message[start:end], []byte(token)) {
				t.Errorf("body %d has a different subject than %s; want the same", n, token)
			}
		})
		got = strings.TrimSuffix(got, " ") + "|"
		a.Published()
	}
	if got != want {
		t.Errorf("the bodies are published as %q; want %q", got, want)
	}
	if payload, _ := l.Next(3, 64<<10, time.Now().Add(time.Minute)); payload == nil {
		t.Errorf("no reference is sent after the bodies; want one")
	}
}
