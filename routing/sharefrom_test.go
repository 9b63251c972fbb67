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

// TestSingleViewersNotificationsGoInItsStream ensures a single viewer's notifications go in its
// own stream, or with ShareFrom 1 on their channel's subject, once the relay listens.
func TestSingleViewersNotificationsGoInItsStream(t *testing.T) {
	for from, want := range map[int]bool{0: false, 2: false, 1: true} {
		a := NewAgentEnd(AgentEndConfig{Instance: "agent", ShareFrom: from, Connect: func(*AgentConn, Open) HostConn { return &stillHost{} }})
		l := a.Accept("relay", link.Hello{Credit: 1 << 20, MaxFrame: 1 << 20}, &still{}).(*agentLink)
		if _, err := l.Handle(1, appendOpen(nil, 1, Open{ID: "1"})); err != nil {
			t.Fatal(err)
		}
		say := func(text string) (published, stream string) {
			t.Helper()
			n := NewNotification([]byte(text), []byte("ahp-chat:/1"))
			if _, _, err := l.conns[1].Notify([]*Notification{n}); err != nil {
				t.Fatal(err)
			}
			drain(a, l, func(p []byte) { published += string(p) }, func(p []byte) { stream += string(p) })
			return published, stream
		}
		published, stream := say("the first")
		if published != "" || !strings.Contains(stream, "the first") {
			t.Errorf("from %d: before the relay listens, %q is published and %q sent", from, published, stream)
		}
		asked := strings.Contains(stream, ChannelToken("ahp-chat:/1"))
		if asked != want {
			t.Errorf("from %d: the relay was asked to listen: %v; want %v", from, asked, want)
		}
		if !asked {
			continue
		}
		if _, err := l.Handle(2, record(recordWatching, 1)); err != nil {
			t.Fatal(err)
		}
		if published, stream = say("the second"); !strings.Contains(published, "the second") || strings.Contains(stream, "the second") || stream == "" {
			t.Errorf("from %d: %q is published and %q sent; want the message published, and a reference sent", from, published, stream)
		}
		if payload, _ := l.Next(1, 64<<10, time.Now().Add(time.Minute)); payload != nil {
			t.Errorf("from %d: %q is sent behind that", from, payload)
		}
	}
}

// TestBodiesLeaveTogether publishes waiting bodies in one message, up to a bound and only
// for one channel. If all notifications are published, each body has its own message.
// References wait for the whole message.
func TestBodiesLeaveTogether(t *testing.T) {
	for _, test := range []struct {
		name      string
		shareFrom int
		want      string
	}{
		{"shared", 0, "1 2 3|4|5|6|7 8|"},
		{"all is published", 1, "1|2|3|4|5|6|7|8|"},
	} {
		a := NewAgentEnd(AgentEndConfig{Instance: "agent", ShareFrom: test.shareFrom, Connect: func(*AgentConn, Open) HostConn { return &stillHost{} }})
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
				t.Errorf("%s: another message is next before this one is published", test.name)
			}
			if payload, _ := l.Next(3, 64<<10, time.Now()); payload != nil {
				t.Errorf("%s: %d bytes leave before the bodies that they refer to", test.name, len(payload))
			}
			message, intact := openBodies(message)
			if !intact {
				t.Errorf("%s: the checksum of %q does not match", test.name, message)
			}
			readBodies(message, "agent", func(n uint64, _, start, end int) {
				number++
				got += fmt.Sprint(n-first, " ")
				if !bytes.HasPrefix(message[start:end], []byte(token)) {
					t.Errorf("%s: body %d is on the subject of %s", test.name, n, token)
				}
			})
			got = strings.TrimSuffix(got, " ") + "|"
			a.Published()
		}
		if got != test.want {
			t.Errorf("%s: bodies leave as %q; want %q", test.name, got, test.want)
		}
		if payload, _ := l.Next(3, 64<<10, time.Now().Add(time.Minute)); payload == nil {
			t.Errorf("%s: no reference is sent", test.name)
		}
	}
}
