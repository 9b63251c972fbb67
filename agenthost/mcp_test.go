package agenthost_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/agenthost/tasks"
	"ahprelay/ahp"
	"ahprelay/test/locked"
	"ahprelay/test/refclient"
)

// runAsMCP is an environment variable. With it, the test binary serves MCP on standard
// input and output, as the reference host's program does.
const runAsMCP = "REFHOST_TEST_MCP"

func serveMCPIfAsked() {
	if os.Getenv(runAsMCP) == "" {
		return
	}
	if err := tasks.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bothTransports returns two configurations with an MCP server: within the host's
// process, and as a separate process whose entry is nested in another customization.
func bothTransports(t *testing.T) map[string]agenthost.Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]agenthost.Config{
		"memory": {MCP: []agenthost.MCPServer{{Name: "tasks"}}},
		"stdio": {MCP: []agenthost.MCPServer{{Name: "tasks", Transport: agenthost.MCPStdio, Nested: true,
			Command: []string{"env", runAsMCP + "=1", self}}}},
	}
}

// joinMCP connects a client with the capability mcpApps, creates the test's session,
// and subscribes to its chat.
func joinMCP(t *testing.T, url, clientID string) *refclient.Client {
	t.Helper()
	c := dial(t, url, refclient.Options{})
	_, err := c.Initialize(testContext(t), refclient.InitializeParams{ClientID: clientID, Capabilities: params{"mcpApps": params{}}})
	if err != nil {
		t.Fatal(err)
	}
	mustCall(t, c, "createSession", params{"channel": testSession})
	subscribe(t, c, testChat)
	return c
}

// mcpServer waits until the session has an MCP server with a channel, and returns the
// server's entry.
func mcpServer(t *testing.T, c *refclient.Client) (server mcpCustomization) {
	t.Helper()
	for server.Channel == "" {
		if err := testContext(t).Err(); err != nil {
			t.Fatalf("the server %+v has no channel; want one", server)
		}
		server = findMCP(t, c)
	}
	return server
}

type mcpCustomization struct {
	Type, ID, Channel string
	Enabled           bool
	State             struct{ Kind, Reason, Description string }
	MCPApp            json.RawMessage
	Children          []mcpCustomization
}

// findMCP returns the first MCP server in a snapshot of the session.
func findMCP(t *testing.T, c *refclient.Client) mcpCustomization {
	t.Helper()
	var answer struct {
		Snapshot struct {
			State struct{ Customizations []mcpCustomization }
		}
	}
	raw := mustCall(t, c, "subscribe", params{"channel": testSession})
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	for _, top := range answer.Snapshot.State.Customizations {
		for _, s := range append(top.Children, top) {
			if s.Type == "mcpServer" {
				return s
			}
		}
	}
	t.Fatalf("the state has no MCP server: %s", raw)
	return mcpCustomization{}
}

// callTop sends a request whose mcp:// channel stands beside the method, not in the
// params. It returns the whole response.
func callTop(t *testing.T, c *refclient.Client, id, channel, method string, p any) string {
	t.Helper()
	frame, err := json.Marshal(params{"jsonrpc": "2.0", "id": id, "channel": channel, "method": method, "params": p})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SendRaw(frame); err != nil {
		t.Fatal(err)
	}
	return string(waitID(t, c, id))
}

// waitID waits for the response with an id, and returns it.
func waitID(t *testing.T, c *refclient.Client, id string) []byte {
	t.Helper()
	frame, err := c.WaitFor(testContext(t), func(frame []byte) bool { return bytes.Contains(frame, []byte(`"id":"`+id+`"`)) })
	if err != nil {
		t.Fatalf("no answer to the request %s arrives: %v", id, err)
	}
	return frame
}

func TestMCPChannelServesToolsAndResources(t *testing.T) {
	for name, cfg := range bothTransports(t) {
		t.Run(name, func(t *testing.T) {
			_, url := serve(t, cfg)
			c := joinMCP(t, url, "a")
			server := mcpServer(t, c)
			if want := `{"capabilities":{"serverTools":{"listChanged":true},"serverResources":{"listChanged":true},"logging":{},"sampling":{}}}`; string(server.MCPApp) != want {
				t.Errorf("mcpApp is %s; want %s", server.MCPApp, want)
			}
			for _, tc := range []struct {
				method string
				params params
				want   string
			}{
				{"tools/list", params{}, `"_meta":{"ui":{"resourceUri":"ui://tasks/board"}}`},
				{"tools/call", params{"name": "add_task", "arguments": params{"text": "Rest"}}, `"structuredContent":{"tasks":["Read the report","Answer Ada","Rest"]}`},
				{"tools/call", params{"name": "fail", "arguments": params{}}, `"isError":true`},
				{"tools/call", params{"name": "none", "arguments": params{}}, `"error":{"code":-32602`},
				{"tools/call", params{"name": "add_task", "arguments": params{"text": 1}}, `"isError":true`},
				{"resources/list", nil, `"uri":"ui://tasks/board"`},
				{"resources/templates/list", params{}, `"uriTemplate":"tasks://task/{number}"`},
				{"resources/read", params{"uri": "tasks://task/3"}, `"text":"Rest"`},
				{"resources/read", params{"uri": "tasks://task/99"}, `"error":{"code":-32`},
				{"resources/read", params{"uri": "tasks://dot"}, `"blob":"R0lGODlh`},
				{"resources/read", params{"uri": "ui://tasks/board"}, `"mimeType":"text/html;profile=mcp-app"`},
				{"logging/setLevel", params{"level": "debug"}, `"result":{}`},
				{"sampling/createMessage", params{"messages": []any{params{"role": "user", "content": params{"type": "text", "text": "hi"}}}}, `"text":"You said: hi"`},
				{"sampling/createMessage", params{}, `"error":{"code":-32602`},
				{"initialize", params{}, `"error":{"code":-32601`},
				{"prompts/list", params{}, `"error":{"code":-32601`},
				{"completion/complete", params{}, `"error":{"code":-32601`},
				{"resources/subscribe", params{"uri": "tasks://about"}, `"error":{"code":-32601`},
				{"ping", params{}, `"error":{"code":-32601`},
			} {
				id := fmt.Sprintf("top-%d", nextID.Add(1))
				if got := callTop(t, c, id, server.Channel, tc.method, tc.params); !strings.Contains(got, tc.want) || !strings.Contains(got, `"channel":"`+server.Channel+`"`) {
					t.Errorf("%s %v: %s; want %s, and the channel", tc.method, tc.params, got, tc.want)
				}
			}
			// The channel may also stand in the params.
			if got, err := c.Call(testContext(t), "resources/read", params{"channel": server.Channel, "uri": "tasks://about"}); err != nil || !bytes.Contains(got, []byte("demonstration")) {
				t.Errorf("resources/read with the channel in params: %s, %v; want the resource's text", got, err)
			}
			if got := callTop(t, c, "two", server.Channel, "tools/list", params{"channel": "mcp://other/x"}); !strings.Contains(got, "-32602") {
				t.Errorf("a request that names two channels is answered %s; want an error", got)
			}
			if got := callTop(t, c, "none", "mcp://other/x", "tools/list", params{}); !strings.Contains(got, "-32008") {
				t.Errorf("a request to an unknown channel is answered %s; want -32008", got)
			}
			mustNotify(t, c, server.Channel, "notifications/message", params{"level": "info", "data": "from a client"})
			waitLog(t, c, server.Channel, `info: \"from a client\"`)
		})
	}
}

var nextID atomic.Int64

func mustNotify(t *testing.T, c *refclient.Client, channel, method string, p params) {
	t.Helper()
	frame, err := json.Marshal(params{"jsonrpc": "2.0", "channel": channel, "method": method, "params": p})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SendRaw(frame); err != nil {
		t.Fatal(err)
	}
}

// waitLog calls the server's tool read_log until the result contains a text.
func waitLog(t *testing.T, c *refclient.Client, channel, want string) {
	t.Helper()
	ctx := testContext(t)
	for {
		got, err := c.Call(ctx, "tools/call", params{"channel": channel, "name": "read_log", "arguments": params{}})
		if err != nil {
			t.Fatalf("read_log, while waiting for %s in the server's log: %v; want no error", want, err)
		}
		if strings.Contains(string(got), want) {
			return
		}
	}
}

// TestOnlyAdvertisedMCPMethodsAreServed calls every method at servers with different
// capabilities. A method that a server does not advertise is refused.
func TestOnlyAdvertisedMCPMethodsAreServed(t *testing.T) {
	methods := []string{"tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read", "logging/setLevel", "sampling/createMessage"}
	_, url := serve(t, agenthost.Config{MCP: []agenthost.MCPServer{
		{Name: "none", Capabilities: &agenthost.MCPCapabilities{}},
		{Name: "tools", Capabilities: &agenthost.MCPCapabilities{ServerTools: &agenthost.MCPListCapability{}}},
		{Name: "resources", Capabilities: &agenthost.MCPCapabilities{ServerResources: &agenthost.MCPListCapability{ListChanged: true}}},
		{Name: "logging", Capabilities: &agenthost.MCPCapabilities{Logging: &struct{}{}}},
		{Name: "sampling", Capabilities: &agenthost.MCPCapabilities{Sampling: &struct{}{}}},
	}})
	c := joinMCP(t, url, "a")
	channel := strings.TrimSuffix(mcpServer(t, c).Channel, "none")
	serves := map[string]string{"none": "", "tools": "tools/", "resources": "resources/", "logging": "logging/", "sampling": "sampling/"}
	for name, prefix := range serves {
		for _, method := range methods {
			waitReady(t, c, channel+name)
			_, err := c.Call(testContext(t), method, params{"channel": channel + name})
			rpc, _ := errors.AsType[*refclient.RPCError](err)
			if refused := rpc != nil && rpc.Code == ahp.CodeMethodNotFound; refused == (prefix != "" && strings.HasPrefix(method, prefix)) {
				t.Errorf("%s on the server with the capability %q: %v; want -32601 exactly for methods without a capability", method, name, err)
			}
		}
	}
	// The server has promised notifications about changed lists only for resources, so
	// only these are sent.
	subscribe(t, c, testSession)
	startTurn(t, c, "t1", `mcp tool tools/grow {"name":"late"}`)
	wantAction(t, c, testChat, "chat/turnComplete", "t1")
	startTurn(t, c, "t2", `mcp tool resources/grow {"name":"late"}`)
	waitNotification(t, c, channel+"resources", "notifications/resources/list_changed")
	for _, frame := range c.Frames() {
		if bytes.Contains(frame, []byte("list_changed")) && !bytes.Contains(frame, []byte(channel+"resources")) {
			t.Errorf("a notification without the channel resources arrives: %s; want it there only", frame)
		}
	}
}

// waitReady waits until the server behind a channel answers.
func waitReady(t *testing.T, c *refclient.Client, channel string) {
	t.Helper()
	ctx := testContext(t)
	for {
		_, err := c.Call(ctx, "prompts/list", params{"channel": channel})
		if rpc, ok := errors.AsType[*refclient.RPCError](err); !ok || rpc.Code != ahp.CodeNotFound {
			return
		}
	}
}

func waitNotification(t *testing.T, c *refclient.Client, channel, method string) string {
	t.Helper()
	frame, err := c.WaitFor(testContext(t), func(frame []byte) bool {
		return bytes.Contains(frame, []byte(`"channel":"`+channel+`"`)) && bytes.Contains(frame, []byte(`"method":"`+method+`"`))
	})
	if err != nil {
		t.Fatalf("no notification %s on %s arrives: %v", method, channel, err)
	}
	return string(frame)
}

// TestMCPIsPrivate lets two clients call tools with the same request ids and progress
// tokens. Each client receives only its own progress, and can cancel only its own call.
func TestMCPIsPrivate(t *testing.T) {
	_, url := serve(t, agenthost.Config{MCP: []agenthost.MCPServer{{Name: "tasks"}}})
	a, b := joinMCP(t, url, "a"), joinMCP(t, url, "b")
	channel := mcpServer(t, a).Channel
	count := func(c *refclient.Client, to, pause int) {
		t.Helper()
		frame, err := json.Marshal(params{"jsonrpc": "2.0", "id": "same", "channel": channel, "method": "tools/call", "params": params{
			"name": "count", "arguments": params{"to": to, "pause": pause}, "_meta": params{"progressToken": "p"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SendRaw(frame); err != nil {
			t.Fatal(err)
		}
	}
	count(a, 1000, 60_000)
	count(b, 3, 0)
	if got := string(waitID(t, b, "same")); !strings.Contains(got, "Counted to 3.") {
		t.Errorf("b's answer is %s; want Counted to 3", got)
	}
	if got := waitNotification(t, b, channel, "notifications/progress"); !strings.Contains(got, `"progressToken":"p"`) || !strings.Contains(got, `"total":3`) {
		t.Errorf("b's progress is %s; want the token p and the total 3", got)
	}
	mustNotify(t, b, channel, "notifications/cancelled", params{"requestId": "same"}) // this request of b has ended already
	if got := callTop(t, a, "meanwhile", channel, "tools/list", params{}); !strings.Contains(got, `"tools":[`) {
		t.Errorf("a's answer is %s; want the list of tools", got)
	}
	for _, frame := range a.Frames() {
		if bytes.Contains(frame, []byte("notifications/progress")) || bytes.Contains(frame, []byte(`"id":"same"`)) {
			t.Errorf("a received b's message %s; want only a's own", frame)
		}
	}
	mustNotify(t, a, channel, "notifications/cancelled", params{"requestId": "same", "reason": "enough"})
	if got := string(waitID(t, a, "same")); !strings.Contains(got, `"error"`) && !strings.Contains(got, `"isError":true`) {
		t.Errorf("the cancelled call of a got %s; want an error", got)
	}
}

// TestMCPWithoutCapability connects clients with and without mcpApps. Only those with
// mcpApps may see the server's channel, in actions and in a replay.
func TestMCPWithoutCapability(t *testing.T) {
	for name, cfg := range bothTransports(t) {
		t.Run(name, func(t *testing.T) {
			host, url := serve(t, cfg)
			with, without := joinMCP(t, url, "with"), join(t, url, "without", refclient.Options{})
			channel := mcpServer(t, with).Channel
			if got := findMCP(t, without); got.Channel != "" || got.MCPApp != nil || got.ID != "mcp-tasks" || got.State.Kind != "ready" {
				t.Errorf("a client without mcpApps receives the server %+v; want it ready, without channel and app", got)
			}
			if _, err := without.Call(testContext(t), "tools/list", params{"channel": channel}); err == nil {
				t.Error("tools/list by a client without mcpApps succeeds; want an error")
			} else {
				wantCode(t, err, ahp.CodeMethodNotFound)
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(host.RestartMCP(testSession, "tasks"))
			must(host.HideMCP(testSession, "tasks", true))
			must(host.HideMCP(testSession, "tasks", false))
			must(host.RemoveMCP(testSession, "tasks", true))
			wantCode(t, second(with.Call(testContext(t), "tools/list", params{"channel": channel})), ahp.CodeNotFound)
			must(host.RemoveMCP(testSession, "tasks", false))
			kinds := []string{"session/mcpServerStateChanged", "session/customizationUpdated", "session/customizationRemoved", "session/customizationsChanged"}
			for _, kind := range kinds {
				frame := wantAction(t, without, testSession, kind, "")
				if strings.Contains(frame, "mcpApp") || strings.Contains(frame, "mcp://") {
					t.Errorf("a client without mcpApps receives %s; want neither app nor channel", frame)
				}
			}
			if frame := wantAction(t, with, testSession, "session/customizationsChanged", ""); !strings.Contains(frame, channel+".1") {
				t.Errorf("the client with mcpApps got %s; want the channel %s.1", frame, channel)
			}
			wantAction(t, with, testSession, "session/mcpServerStateChanged", channel+".1")
			for id, apps := range map[string]bool{"with": true, "without": false} {
				again := dial(t, url, refclient.Options{})
				result := mustCall(t, again, "reconnect", params{"channel": "ahp-root://", "clientId": id, "lastSeenServerSeq": 1, "subscriptions": []string{testSession}})
				if !bytes.Contains(result, []byte(`"type":"replay"`)) || !bytes.Contains(result, []byte("session/customizationsChanged")) || bytes.Contains(result, []byte("mcp://")) != apps {
					t.Errorf("the replay for the client %s mcpApps: %s; want the channel only with the capability", id, result)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// TestClientsCannotForgeAnMCPServersState lets a client turn a server off and on.
// Actions with which a client sets the server's state itself are rejected.
func TestClientsCannotForgeAnMCPServersState(t *testing.T) {
	_, url := serve(t, agenthost.Config{MCP: []agenthost.MCPServer{{Name: "tasks"}}})
	c := joinMCP(t, url, "a")
	channel := mcpServer(t, c).Channel
	dispatch := func(action params) {
		t.Helper()
		if _, err := c.Dispatch(testSession, action); err != nil {
			t.Fatal(err)
		}
	}
	dispatch(params{"type": "session/customizationToggled", "id": "mcp-tasks", "enabled": false})
	wantAction(t, c, testSession, "session/mcpServerStateChanged", `"state":{"kind":"stopped"}}`)
	wantCode(t, second(c.Call(testContext(t), "tools/list", params{"channel": channel})), ahp.CodeNotFound)
	dispatch(params{"type": "session/customizationToggled", "id": "mcp-tasks", "enabled": true})
	wantAction(t, c, testSession, "session/mcpServerStateChanged", channel)
	mustCall(t, c, "tools/list", params{"channel": channel})
	for _, off := range []params{
		{"type": "session/customizationToggled", "id": "mcp-tasks", "enabled": true, "enablement": []params{{"kind": "global", "enabled": true}, {"kind": "session", "enabled": false}}},
		{"type": "session/mcpServerStopRequested", "id": "mcp-tasks"},
	} {
		dispatch(off)
		wantAction(t, c, testSession, "session/mcpServerStateChanged", `"state":{"kind":"stopped"}}`)
		wantCode(t, second(c.Call(testContext(t), "tools/list", params{"channel": channel})), ahp.CodeNotFound)
		on := params{"type": "session/mcpServerStartRequested", "id": "mcp-tasks"}
		if off["enablement"] != nil {
			on = params{"type": "session/customizationToggled", "id": "mcp-tasks", "enablement": []params{{"kind": "session", "enabled": true}}}
		}
		dispatch(on)
		wantAction(t, c, testSession, "session/mcpServerStateChanged", channel)
	}
	for _, kind := range []string{"session/mcpServerStateChanged", "session/customizationUpdated", "session/customizationsChanged", "session/customizationRemoved"} {
		dispatch(params{"type": kind, "id": "mcp-tasks", "state": params{"kind": "ready"}, "channel": "mcp://forged"})
		wantAction(t, c, testSession, kind, `"rejectionReason"`)
	}
	if got := mcpServer(t, c); got.Channel != channel {
		t.Errorf("the channel is %s; want %s", got.Channel, channel)
	}
}

// TestMCPToolCall lets the agent call tools of an MCP server, which appear in the turn.
func TestMCPToolCall(t *testing.T) {
	for name, cfg := range bothTransports(t) {
		t.Run(name, func(t *testing.T) {
			_, url := serve(t, cfg)
			c := joinMCP(t, url, "a")
			mcpServer(t, c)
			ends := func(turn string) { // otherwise the next turn could replace this turn in the snapshot
				t.Helper()
				wantAction(t, c, testChat, "chat/turnComplete", turn)
			}
			startTurn(t, c, "t1", "mcp app")
			wantAction(t, c, testChat, "chat/toolCallStart",
				`"toolName":"show_board","displayName":"Task board","contributor":{"kind":"mcp","customizationId":"mcp-tasks"},"_meta":{"ui":{"resourceUri":"ui://tasks/board"}}`)
			wantAction(t, c, testChat, "chat/toolCallComplete", `"structuredContent":{"tasks":["Read the report","Answer Ada"]}`)
			ends("t1")
			startTurn(t, c, "t2", `mcp tool count {"to":2}`)
			wantAction(t, c, testChat, "chat/toolCallContentChanged", `2 of 2`)
			wantAction(t, c, testChat, "chat/toolCallComplete", `Counted to 2.`)
			ends("t2")
			startTurn(t, c, "t3", `mcp tool fail`)
			wantAction(t, c, testChat, "chat/toolCallComplete", `"success":false`)
			ends("t3")
			startTurn(t, c, "t4", `mcp tool none`)
			wantAction(t, c, testChat, "chat/error", `No MCP server has this tool`)
			startTurn(t, c, "t5", `mcp tool count {"to":1000,"pause":60000}`)
			wantAction(t, c, testChat, "chat/toolCallReady", `t5`)
			if _, err := c.Dispatch(testChat, params{"type": "chat/turnCancelled", "turnId": "t5", "duration": 1}); err != nil {
				t.Fatal(err)
			}
			wantAction(t, c, testChat, "chat/turnCancelled", `t5`)
			snapshot := mustCall(t, c, "subscribe", params{"channel": testChat})
			if !bytes.Contains(snapshot, []byte(`"contributor":{"kind":"mcp"`)) || !bytes.Contains(snapshot, []byte(`"structuredContent":{"tasks"`)) {
				t.Errorf("the chat's state is %s; want the tool's contributor and structured content", snapshot)
			}
		})
	}
}

// TestMCPServerStepsThroughItsAuthorization lets an MCP server require authorization in
// each state. Clients see the state, and a token ends it.
func TestMCPServerStepsThroughItsAuthorization(t *testing.T) {
	const secret, weak = "s3cret-strong", "s3cret-weak"
	var log locked.Buffer
	host, url := serve(t, agenthost.Config{
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 10})),
		MCP:    []agenthost.MCPServer{{Name: "tasks", Tokens: map[string][]string{secret: {"tasks.read", "tasks.publish"}, weak: {"tasks.read"}}}},
	})
	c := joinMCP(t, url, "a")
	channel := mcpServer(t, c).Channel
	subscribe(t, c, "ahp-root://")
	authenticate := func(token string) error {
		t.Helper()
		return second(c.Call(testContext(t), "authenticate", params{"channel": "ahp-root://", "resource": "https://tasks.mcp.example/", "token": token}))
	}
	wantCode(t, authenticate(secret), ahp.CodeAuthRequired) // no request waits for a token

	// A tool call needs more rights, and waits for a token.
	startTurn(t, c, "t1", "mcp tool publish")
	state := wantAction(t, c, testSession, "session/mcpServerStateChanged", "authRequired")
	for _, want := range []string{`"reason":"insufficientScope"`, `"resource":"https://tasks.mcp.example/"`, `"requiredScopes":["tasks.publish"]`, `"authorization_servers":[`, `"description":"This needs the scope tasks.publish."}}`} {
		if !strings.Contains(state, want) {
			t.Errorf("the state is %s; want %s", state, want)
		}
	}
	wantAction(t, c, testSession, "session/chatUpdated", `"status":24`)
	wantAction(t, c, testSession, "session/inputNeededSet", `"kind":"toolAuthentication"`)
	if _, err := c.WaitFor(testContext(t), func(f []byte) bool {
		return refclient.IsNotification("root/sessionSummaryChanged")(f) && bytes.Contains(f, []byte(`"status":24`))
	}); err != nil {
		t.Errorf("the list of sessions does not report that input is needed: %v; want status 24", err)
	}
	wantCode(t, second(c.Call(testContext(t), "tools/list", params{"channel": channel})), ahp.CodeNotFound)
	wantCode(t, authenticate("no token of ours"), ahp.CodeAuthRequired)
	wantCode(t, authenticate(weak), ahp.CodeAuthRequired)
	wantAction(t, c, testSession, "session/mcpServerStateChanged", "does not grant")
	if err := authenticate(secret); err != nil {
		t.Fatal(err)
	}
	wantAction(t, c, testSession, "session/mcpServerStateChanged", channel)
	wantAction(t, c, testSession, "session/inputNeededRemoved", "toolAuthentication")
	wantAction(t, c, testChat, "chat/toolCallComplete", "Published 2 tasks.")
	wantAction(t, c, testChat, "chat/turnComplete", "t1")

	// The server requires a token outside a turn, and while an app uses it.
	for _, reason := range []string{"required", "expired"} {
		if err := host.RequireMCPAuth(testSession, "tasks", reason); err != nil {
			t.Fatal(err)
		}
		wantAction(t, c, testSession, "session/mcpServerStateChanged", `"reason":"`+reason+`"`)
		if err := authenticate(weak); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.Call(testContext(t), "tools/call", params{"channel": channel, "name": "publish", "arguments": params{}})
	wantCode(t, err, ahp.CodeAuthRequired)
	if err := authenticate(secret); err != nil {
		t.Fatal(err)
	}
	if got := mustCall(t, c, "tools/call", params{"channel": channel, "name": "publish", "arguments": params{}}); !bytes.Contains(got, []byte("Published")) {
		t.Errorf("after the sign-in, the tool's answer is %s; want Published", got)
	}

	// A cancelled turn does not wait for a token.
	if err := host.RequireMCPAuth(testSession, "tasks", "expired"); err != nil {
		t.Fatal(err)
	}
	startTurn(t, c, "t2", "mcp tool list_tasks")
	wantAction(t, c, testSession, "session/inputNeededSet", "t2")
	if _, err := c.Dispatch(testChat, params{"type": "chat/turnCancelled", "turnId": "t2", "duration": 1}); err != nil {
		t.Fatal(err)
	}
	wantAction(t, c, testSession, "session/inputNeededRemoved", "t2")

	for _, frame := range c.Frames() {
		if bytes.Contains(frame, []byte("s3cret")) {
			t.Errorf("a message contains the token: %s; want it in none", frame)
		}
	}
	host.Close()
	if strings.Contains(log.String(), "s3cret") || !strings.Contains(log.String(), "authenticate") {
		t.Error("the log must contain authenticate, but no token")
	}
}

// TestMCPServerDies starts an MCP server with a process that ends by itself. The session
// shows the error.
func TestMCPServerDies(t *testing.T) {
	_, url := serve(t, agenthost.Config{MCP: []agenthost.MCPServer{{Name: "tasks", Transport: agenthost.MCPStdio, Command: []string{"true"}}}})
	c := joinMCP(t, url, "a")
	ctx := testContext(t)
	for {
		got := findMCP(t, c)
		if got.State.Kind == "error" && got.Channel == "" {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the server is %+v; want an error", got)
		}
	}
}
