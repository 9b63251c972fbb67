package agenthost_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/agenthost"
)

// rejected waits for the next action which the host has rejected. It returns the id of the
// action's turn, and the host's reason.
func (c *agentClient) rejected() (turn, reason string) {
	c.t.Helper()
	for {
		params := c.envelope()
		if reason, ok := params["rejectionReason"].(string); ok {
			return fmt.Sprint(params["action"].(map[string]any)["turnId"]), reason
		}
	}
}

// TestKnownTurnDoesNotStartAgain sends a prompt again with the id of its turn: during
// the turn, after it, after a restart of the host, and without a subscriber. The agent
// must not get the prompt a second time.
func TestKnownTurnDoesNotStartAgain(t *testing.T) {
	var prompts atomic.Int32
	proceed := make(chan bool)
	agent := newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		prompts.Add(1)
		select {
		case <-proceed:
		case <-ctx.Done():
		}
		turn.Text("m", "Done.")
		return agenthost.End{}, nil
	})
	cfg := agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: t.TempDir()}
	c := talkTo(t, cfg)
	refused := func(c *agentClient, when string) {
		t.Helper()
		c.prompt("t1", "again")
		if turn, reason := c.rejected(); turn != "t1" || reason != "Turn already exists: t1" {
			t.Errorf("%s, the repeated turn %s is rejected with %q; want t1, Turn already exists", when, turn, reason)
		}
	}
	c.prompt("t1", "go")
	c.until("chat/turnStarted")
	refused(c, "during the turn")
	proceed <- true
	c.until("chat/turnComplete")
	refused(c, "after the turn")
	c.prompt("t2", "more")
	proceed <- true
	c.until("chat/turnComplete")

	cfg.Storage = copyOf(t, cfg.Storage)
	d := reopen(t, cfg)
	d.prompt("t2", "again") // the host reads the turns from disk, because nobody is subscribed
	d.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	refused(d, "after a restart")
	if state := d.chatState(); len(state["turns"].([]any)) != 2 || state["activeTurn"] != nil {
		t.Errorf("after repeated prompts the chat is %v; want its two turns", state)
	}
	if n := prompts.Load(); n != 2 {
		t.Errorf("the agent got %d prompts; want 2", n)
	}
}

// TestSessionIsCreatedOnce sends createSession again while the agent starts. The agent
// opens only one conversation.
func TestSessionIsCreatedOnce(t *testing.T) {
	var opened atomic.Int32
	proceed := make(chan bool)
	agent := newFake(nil)
	open := agent.open
	agent.open = func(ctx context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		opened.Add(1)
		<-proceed
		return open(ctx, start, chat)
	}
	host := newHost(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	var clients []*agentClient
	answered := make(chan int, 2)
	for i := range 2 {
		c := &agentClient{pipeClient: connectPipe(t, host), t: t}
		c.call("initialize", fmt.Sprintf(`{"channel":"ahp-root://","clientId":"c%d","protocolVersions":["0.9.0"]}`, i))
		clients = append(clients, c)
	}
	for i, c := range clients {
		go func() {
			c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
			answered <- i
		}()
	}
	select {
	case i := <-answered:
		t.Errorf("request %d is answered before the agent has started; want it to wait", i)
		answered <- i
	case <-time.After(50 * time.Millisecond): // long enough for the host to answer too early
	}
	close(proceed)
	<-answered
	<-answered
	if n := opened.Load(); n != 1 {
		t.Errorf("the agent started %d times; want once", n)
	}
	clients[0].call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
	if n := opened.Load(); n != 1 {
		t.Errorf("after a repeated createSession the agent started %d times; want once", n)
	}
}
