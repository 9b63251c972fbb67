package agenthost_test

import (
	"context"
	"testing"

	"ahprelay/agenthost"
)

// A steeredConversation accepts messages during a turn.
type steeredConversation struct{ *fakeConversation }

func (c steeredConversation) Steer(_ context.Context, p agenthost.Prompt, turn *agenthost.Turn) error {
	turn.Notice("steered: " + p.Text)
	return nil
}

// TestMessageWithTheAgentWaitsNoLonger copies the storage after the agent has got a waiting message. A new
// host with the copy must not have the message a second time.
func TestMessageWithTheAgentWaitsNoLonger(t *testing.T) {
	for _, test := range []struct {
		kind   string
		steers bool
	}{{"queued", false}, {"steering", false}, {"steering", true}} {
		dir := t.TempDir()
		proceed := make(chan bool)
		prompt := func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			turn.Notice("prompt: " + p.Text)
			select {
			case <-proceed:
			case <-ctx.Done():
			}
			return agenthost.End{}, nil
		}
		agent := newFake(prompt)
		if test.steers {
			agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
				return steeredConversation{&fakeConversation{id: "c1", chat: chat, prompt: prompt}}, nil
			}
		}
		c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
		c.prompt("t1", "one")
		c.until("chat/responsePart")
		c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"`+test.kind+`","id":"m","message":{"text":"waited"}}`)
		c.until("chat/pendingMessageSet")
		if !test.steers {
			proceed <- true
		}
		c.until("chat/responsePart") // the agent has the message
		state := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)}).chatState()
		if state["queuedMessages"] != nil || state["steeringMessage"] != nil {
			t.Errorf("after a crash, the messages %v and %v wait; want none, because the agent has got the %s message (Steer: %v)",
				state["queuedMessages"], state["steeringMessage"], test.kind, test.steers)
		}
	}
}
