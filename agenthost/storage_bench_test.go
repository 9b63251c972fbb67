package agenthost_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"ahprelay/agenthost"
)

// fill makes a storage with a number of sessions that have a number of turns each. It
// returns a configuration for a host with this storage.
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

// BenchmarkListAfterRestart measures how long a host with 50 sessions takes to start
// and to list them.
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
			b.Fatalf("the list has %d sessions; want 50", n)
		}
		host.Close()
	}
}

// BenchmarkOpenLongSession measures how long a client takes to open a session with
// 5,000 turns: the first time after the host's start, a further time, and for
// comparison the same bytes through a pipe.
func BenchmarkOpenLongSession(b *testing.B) {
	cfg := fill(b, 1, 5000)
	var snapshot string
	open := func(c *agentClient) {
		c.id++
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscribe","params":{"channel":%q}}`, c.id, fakeChat))
		if snapshot = c.recv(); len(snapshot) < 5_000_000 {
			b.Fatalf("the snapshot has %d bytes; want at least 5000000", len(snapshot))
		}
	}
	b.Run("restarted", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			host, err := agenthost.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			c := &agentClient{pipeClient: connectPipe(b, host), t: b}
			c.call("initialize", `{"channel":"ahp-root://","clientId":"d","protocolVersions":["0.9.0"]}`)
			b.StartTimer()
			open(c)
			b.StopTimer()
			if err := host.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("again", func(b *testing.B) {
		c := reopen(b, cfg)
		open(c)
		for b.Loop() {
			c.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"` + fakeChat + `"}}`)
			open(c)
		}
	})
	b.Run("bare", func(b *testing.B) {
		out, in := io.Pipe()
		defer in.Close()
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<26)
		for b.Loop() {
			go fmt.Fprintln(in, snapshot)
			if !lines.Scan() || lines.Text() != snapshot {
				b.Fatal(lines.Err())
			}
		}
	})
}

// BenchmarkDelta measures how long a delta takes from an agent to a client.
func BenchmarkDelta(b *testing.B) {
	deltas := make(chan string)
	c := talkTo(b, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		for {
			select {
			case delta := <-deltas:
				turn.Text("", delta)
				turn.Notice("") // keeps the host from merging this delta with the next
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
