package agenthost_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"ahprelay/agenthost"
)

// fill makes a storage with sessions, each with turns.
func fill(b *testing.B, sessions, turns int) agenthost.Config {
	b.Helper()
	words := strings.Repeat("An answer of ordinary length, with some code. ", 20)
	agent := newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Text("", words)
		turn.Tool(agenthost.ToolUpdate{ID: "t", Title: "go test", Kind: agenthost.ToolExecute, Status: agenthost.ToolCompleted, Content: []agenthost.ToolContent{{Text: "ok"}}})
		return agenthost.End{}, nil
	})
	cfg := agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: b.TempDir()}
	host, err := agenthost.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer host.Close()
	c := &agentClient{pipeClient: connectPipe(b, host), t: b}
	c.call("initialize", `{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"]}`)
	for i := range sessions {
		uri := fakeSession
		if i > 0 {
			uri = fmt.Sprintf("fake:/other%d", i)
		}
		c.call("createSession", fmt.Sprintf(`{"channel":%q,"provider":"fake"}`, uri))
	}
	c.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	for i := range turns {
		c.prompt(fmt.Sprint("t", i), "go")
		c.until("chat/turnComplete")
	}
	return cfg
}

// BenchmarkListAfterRestart starts a host with 50 sessions and lists them.
func BenchmarkListAfterRestart(b *testing.B) {
	cfg := fill(b, 50, 1)
	for b.Loop() {
		host, err := agenthost.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		c := &agentClient{pipeClient: connectPipe(b, host), t: b}
		c.call("initialize", `{"channel":"ahp-root://","clientId":"d","protocolVersions":["0.9.0"]}`)
		if n := len(c.call("listSessions", `{"channel":"ahp-root://"}`)["items"].([]any)); n != 50 {
			b.Fatalf("%d sessions", n)
		}
		host.Close()
	}
}

// BenchmarkOpenLongSession opens a session of 5,000 turns, in full.
func BenchmarkOpenLongSession(b *testing.B) {
	cfg := fill(b, 1, 5000)
	c := reopen(b, cfg)
	for b.Loop() {
		c.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"` + fakeChat + `"}}`)
		c.id++
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscribe","params":{"channel":%q}}`, c.id, fakeChat))
		if n := len(c.recv()); n < 5_000_000 {
			b.Fatalf("a snapshot of %d bytes", n)
		}
	}
}

// BenchmarkDelta takes a delta from an agent to a client.
func BenchmarkDelta(b *testing.B) {
	deltas := make(chan string)
	c := talkTo(b, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		for {
			select {
			case delta := <-deltas:
				turn.Text("", delta)
				turn.Notice("") // the next delta is not merged
			case <-ctx.Done():
				return agenthost.End{}, nil
			}
		}
	})}})
	c.prompt("t1", "go")
	for b.Loop() {
		deltas <- "word "
		c.until("chat/responsePart")
		c.until("chat/responsePart")
	}
}
