package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/test/carriers"
)

// carried passes messages of client and host through the gate. It returns the text that the client
// gets.
func (c *conn) carried(list []carriers.Message) (got string) {
	c.Helper()
	for _, m := range list {
		if m.FromHost {
			got += c.host(m.Text)
			continue
		}
		c.gate.FromClient([]byte(m.Text), peek(c, m.Text))
	}
	return got
}

// forAll calls f for each form in which a host can send a part of a state, in each protocol
// version. The client's token covers one session.
func forAll(t *testing.T, f func(c *conn, carrier carriers.Carrier)) {
	for _, version := range carriers.Versions {
		for _, carrier := range carriers.Of(version) {
			t.Run(version+" "+carrier.Name, func(t *testing.T) {
				c := limited(t, nil, "mock:/1", "x:/1")
				c.carried(carriers.Greeting(version, "c", "{}"))
				f(c, carrier)
			})
		}
	}
}

// TestCarriersLeakNothing sends a secret in each form. The client must see it in the session of its
// token, and nowhere else.
func TestCarriersLeakNothing(t *testing.T) {
	forAll(t, func(c *conn, carrier carriers.Carrier) {
		for i, test := range []struct {
			channel, json string
			seen          bool
		}{
			{"mock:/1", `{"type":"session/x","config":"secret"}`, true},
			{"mock:/2", `{"type":"session/x","config":"secret"}`, false},
			{"ahp-root://", `{"type":"root/configChanged","agents":[],"config":"secret"}`, false},
			{"ahp-root://", `{"type":"root/terminalsChanged","terminals":[{"resource":"term:/1","title":"secret"}]}`, false},
		} {
			part := carriers.Part{Channel: test.channel, JSON: test.json, Seq: i + 2, ID: i + 1}
			if got := c.carried(carrier.Wrap(part)); strings.Contains(got, "secret") != test.seen && !(carrier.Pieces && test.seen) {
				c.Errorf("for %s, the client gets %s; want the text secret in it: %v", test.channel, got, test.seen)
			}
		}
	})
}

// TestEveryCarrierChangesReach adds a chat to the client's session in each form, and removes it.
// The client may use the chat only while it belongs to the session.
func TestEveryCarrierChangesReach(t *testing.T) {
	forAll(t, func(c *conn, carrier carriers.Carrier) {
		added, removed := `{"chats":[{"resource":"ahp-chat:/1"}]}`, `{"chats":[]}`
		if carrier.Action {
			added, removed = `{"type":"session/chatAdded","summary":{"resource":"ahp-chat:/1"}}`, `{"type":"session/chatRemoved","chat":"ahp-chat:/1"}`
		}
		c.id = 9
		want := func(when string, want bool) {
			c.Helper()
			c.want("subscribe "+when, c.subscribes("ahp-chat:/1"), want)
			c.want("notification "+when, c.hears("ahp-chat:/1"), want)
		}
		want("before", false)
		c.carried(carrier.Wrap(carriers.Part{Channel: "mock:/1", JSON: added, Seq: 7, ID: 1}))
		want("when it is in the session", true)
		c.carried(carrier.Wrap(carriers.Part{Channel: "mock:/1", JSON: removed, Seq: 8, ID: 2}))
		want("when it has moved away", false)
	})
}

// TestMovedChatLeavesReachOfAllClients has the host tell a client that a chat has left its session.
// No client with a token for this session may use the chat any more, whether or not it got this
// message.
func TestMovedChatLeavesReachOfAllClients(t *testing.T) {
	h := view.NewHost(nil)
	told, other := limited(t, h, "mock:/1"), limited(t, h, "mock:/1")
	say := func(kind, chat string, seq int) {
		told.host(fmt.Sprintf(`{"method":"action","params":{"channel":"mock:/1","action":{"type":%q,"chat":%q},"serverSeq":%d}}`, kind, chat, seq))
	}
	say("session/chatUpdated", "ahp-chat:/1", 3)
	other.want("before it moves", other.hears("ahp-chat:/1"), true)
	say("session/chatRemoved", "ahp-chat:/1", 4)
	other.want("after it has moved", other.hears("ahp-chat:/1"), false)
	other.want("subscribe after it has moved", other.subscribes("ahp-chat:/1"), false)
}

// TestMovedChatLeavesReachWithoutItsSession moves a chat while no connection hears the actions of its
// session. The chat must leave the reach of the session's clients when the host answers the move, or
// names the chats of the session in its summary.
func TestMovedChatLeavesReachWithoutItsSession(t *testing.T) {
	for name, moves := range map[string]func(mover *conn){
		"answer": func(mover *conn) {
			mover.ask("moveChat", `{"channel":"ahp-chat:/1","destination":{"kind":"session","session":"mock:/2"}}`, `{"session":"mock:/2"}`)
		},
		"summary": func(mover *conn) {
			mover.host(`{"method":"root/sessionSummaryChanged","params":{"channel":"ahp-root://","session":"mock:/1","changes":{"chats":[{"resource":"ahp-chat:/2"}]}}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := view.NewHost(gate.Key)
			mover, viewer := limited(t, h, "mock:/*"), limited(t, h, "mock:/1")
			mover.ask("listSessions", `{"channel":"ahp-root://"}`, `{"items":[{"resource":"mock:/1","chats":[{"resource":"ahp-chat:/1"},{"resource":"ahp-chat:/2"}]}]}`)
			viewer.want("before the move", viewer.hears("ahp-chat:/1"), true)
			moves(mover)
			viewer.want("notification after the move", viewer.hears("ahp-chat:/1"), false)
			viewer.want("subscribe after the move", viewer.subscribes("ahp-chat:/1"), false)
			viewer.want("subscribe to a chat that stays", viewer.subscribes("ahp-chat:/2"), true)
		})
	}
}
