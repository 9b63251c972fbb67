package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// Clients with different versions, capabilities and subscribe options watch one
// session. The host-agent sends bytes that several clients receive only once. Still,
// each client must receive exactly the messages that the host sends on its connection,
// in order.
func TestDifferentClientsGetTheirOwnMessages(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, func(cfg *agenthost.Config) {
		cfg.Protocol = agenthost.NewestProtocol
		cfg.MCP = []agenthost.MCPServer{{Name: "tasks"}}
	})
	s := startStack(t, stack.Config{Upstream: server.URL()})
	dial := throughRelay(t, s)
	vars := flowVars("demo", "00000000")
	viewers := []struct {
		name         string
		version      string
		capabilities string
		subscribe    string // further members of the subscribe request
	}{
		{"plain", "1.1.0", `{}`, ``},
		{"older", "0.9.0", `{}`, ``},
		{"canvas", "0.9.0", `{"canvas":{}}`, ``},
		{"lazy", "1.1.0", `{}`, `,"delivery":{"maxLatencyMs":40}`},
		{"windows", "1.1.0", `{}`, `,"flowControl":{"receive":{"windowBytes":100000000,"maximumFrameBytes":2000,"maximumMessageBytes":1000000}}`},
		{"same", "1.1.0", `{}`, ``},
		{"apps", "1.1.0", `{"mcpApps":{}}`, ``},
	}
	var clients []*refclient.Client
	for i, v := range viewers {
		c, err := dial(t.Context(), refclient.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Abort() })
		clients = append(clients, c)
		call(t, c, "initialize", fmt.Sprintf(
			`{"channel":"ahp-root://","clientId":%q,"protocolVersions":[%q],"capabilities":%s,"initialSubscriptions":["ahp-root://"]}`,
			v.name, v.version, v.capabilities))
		if i == 0 {
			create(t, c, vars)
		}
		call(t, c, "subscribe", fmt.Sprintf(`{"channel":%q}`, vars["session"]))
		call(t, c, "subscribe", fmt.Sprintf(`{"channel":%q%s}`, vars["chat"], v.subscribe))
	}
	for turn, text := range []string{"stream 60 3 50", "tool", `mcp tool count {"to":3}`, "mcp auth expired", "hello"} {
		say(t, clients[0], vars["chat"], turn, text)
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		count := 0
		_, err := clients[0].WaitFor(ctx, func(frame []byte) bool {
			if fits(frame, []string{"action", "chat/turnComplete"}) {
				count++
			}
			return count == turn+1
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, v := range viewers {
		wantAllOf(t, v.name, clients[i], s.Tap.Conns()[i])
	}
	wantDifferent := func(a, b int) {
		if x, y := notes(clients[a]), notes(clients[b]); bytes.Equal(x, y) {
			t.Errorf("%s and %s received the same; want differences, because the host treats them differently", viewers[a].name, viewers[b].name)
		}
	}
	wantDifferent(0, 1)
	wantDifferent(0, 3)
	x, y := notes(clients[5]), notes(clients[4])
	for end := time.Now().Add(stepTime); !bytes.Equal(x, y) && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		x, y = notes(clients[5]), notes(clients[4]) // the last summary may not have arrived at both clients yet
	}
	if !bytes.Equal(x, y) || bytes.Contains(y, []byte("channel/frame")) {
		t.Errorf("a client that requested flow control received\n%s\n\nand one that did not received\n%s\n\nwant the same notifications, without channel/frame", y, x)
	}
	for i, v := range viewers {
		if has := bytes.Contains(bytes.Join(clients[i].Frames(), nil), []byte("mcp://")); has != (v.name == "apps") {
			t.Errorf("%s receives a channel of an MCP server: %t; want it only for apps", v.name, has)
		}
	}
	if x, y := clients[0].Frames(), clients[2].Frames(); bytes.Contains(bytes.Join(x, nil), []byte(`"openCanvases"`)) || !bytes.Contains(bytes.Join(y, nil), []byte(`"openCanvases"`)) {
		t.Error("the client plain sees canvases, or the client canvas sees none; want the reverse")
	}
}

// notes joins the notifications about the chat that a client has received.
func notes(c *refclient.Client) []byte {
	var all [][]byte
	for _, frame := range c.Frames() {
		if bytes.Contains(frame, []byte(`"method":`)) && bytes.Contains(frame, []byte(`ahp-chat://`)) {
			all = append(all, frame)
		}
	}
	return bytes.Join(all, []byte{'\n'})
}

// call sends a request and returns its result. It fails the test on an error.
func call(t *testing.T, c *refclient.Client, method, params string) json.RawMessage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	result, err := c.Call(ctx, method, json.RawMessage(params))
	if err != nil {
		t.Fatalf("calling %s: %v; want no error", method, err)
	}
	return result
}
