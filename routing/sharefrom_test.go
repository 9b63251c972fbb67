package routing

import (
	"strings"
	"testing"
	"time"

	"ahprelay/link"
)

// TestOneViewersNotifications go in its own stream, and if that is wanted on the
// subject of their channel, as soon as the relay listens there.
func TestOneViewersNotifications(t *testing.T) {
	for from, want := range map[int]bool{0: false, 2: false, 1: true} {
		a := NewAgentEnd(AgentEndConfig{Instance: "agent", ShareFrom: from, Connect: func(*AgentConn, Open) HostConn { return &stillHost{} }})
		l := a.Accept("relay", link.Hello{Credit: 1 << 20, MaxFrame: 1 << 20, RefsCost: true}, &still{}).(*agentLink)
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
