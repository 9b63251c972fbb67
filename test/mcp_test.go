package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/test/locked"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// fetch requests a URL with a token, if it is not empty. It returns the body.
func fetch(t *testing.T, url, token string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// wantFrame waits until a client has received a frame that contains text, and returns
// the frame.
func wantFrame(t *testing.T, c *refclient.Client, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	frame, err := c.WaitFor(ctx, func(frame []byte) bool { return bytes.Contains(frame, []byte(text)) })
	if err != nil {
		t.Fatalf("no frame with %s arrives: %v", text, err)
	}
	return string(frame)
}

// mcpClient connects a client with the capabilities to a scripted host. It returns the
// client, and its connection at the host.
func mcpClient(t *testing.T, s *stack.Stack, host *scriptedHost, id string, capabilities map[string]any) (*refclient.Client, *scriptedConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	c, err := throughRelay(t, s)(ctx, refclient.Options{Unanswered: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Call(ctx, "initialize", map[string]any{"channel": "ahp-root://", "clientId": id, "capabilities": capabilities}); err != nil {
		t.Fatal(err)
	}
	return c, host.conn(id, 0)
}

const (
	mcpURI = "mcp://scripted/1/files"

	withApps = `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-session:/1","serverSeq":1,"action":{"type":"session/customizationsChanged","customizations":[` +
		`{"type":"plugin","id":"p","children":[{"type":"mcpServer","id":"s","name":"files","state":{"kind":"ready"},"channel":"` + mcpURI + `","mcpApp":{"capabilities":{"serverTools":{"listChanged":true}}}}]}]}}}`
	withoutApps = `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-session:/1","serverSeq":1,"action":{"type":"session/customizationsChanged","customizations":[` +
		`{"type":"plugin","id":"p","children":[{"type":"mcpServer","id":"s","name":"files","state":{"kind":"ready"}}]}]}}}`
	cleared = `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-session:/1","serverSeq":2,"action":{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"authRequired","reason":"expired"}}}}`
)

// tellClient makes a scripted host send a message, and waits until the client has received
// it.
func tellClient(t *testing.T, host *scriptedConn, c *refclient.Client, message string) {
	t.Helper()
	if err := host.say(message); err != nil {
		t.Fatal(err)
	}
	if got := wantFrame(t, c, message); got != message {
		t.Errorf("the client got %s; want %s", got, message)
	}
}

// Two clients share a session at a host that permits everything. Only one client has
// declared mcpApps. The relay itself must pass only this client's MCP messages, and
// only those that it serves.
func TestClientsGetOnlyTheirMCPCapabilities(t *testing.T) {
	t.Parallel()
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{Upstream: host.server.URL()})
	with, withConn := mcpClient(t, s, host, "with", map[string]any{"mcpApps": map[string]any{}})
	without, withoutConn := mcpClient(t, s, host, "without", map[string]any{})
	tellClient(t, withConn, with, withApps)
	tellClient(t, withoutConn, without, withoutApps)

	passes := func(c *refclient.Client, conn *scriptedConn, id, frame string) {
		t.Helper()
		if err := c.SendRaw([]byte(frame)); err != nil {
			t.Fatal(err)
		}
		if got := wantFrame(t, c, `"id":"`+id+`"`); strings.Contains(got, `"error"`) {
			t.Errorf("the answer to %s is %s; want no error", frame, got)
		}
		if got := conn.messages(); got[len(got)-1] != frame {
			t.Errorf("the host got %s; want %s", got[len(got)-1], frame)
		}
	}
	refused := func(c *refclient.Client, conn *scriptedConn, id, frame, code string) {
		t.Helper()
		before := len(conn.messages())
		if err := c.SendRaw([]byte(frame)); err != nil {
			t.Fatal(err)
		}
		if got := wantFrame(t, c, `"id":"`+id+`"`); !strings.Contains(got, `"code":`+code) || !strings.Contains(got, `"channel":"`+mcpURI+`"`) {
			t.Errorf("%s is answered with %s; want %s on the channel", frame, got, code)
		}
		if got := conn.messages(); len(got) != before {
			t.Errorf("the host got %s; want no further message", got[before:])
		}
	}
	passes(with, withConn, "top", `{ "jsonrpc":"2.0", "id":"top","channel":"`+mcpURI+`","method":"tools/call","params":{"name":"x", "é":[1.0]} }`)
	passes(with, withConn, "params", `{"method":"tools/list","params":{"channel":"mcp:\/\/scripted\/1\/files"},"id":"params"}`)
	refused(with, withConn, "init", `{"id":"init","channel":"`+mcpURI+`","method":"initialize","params":{}}`, "-32601")
	refused(with, withConn, "read", `{"id":"read","method":"resources/read","params":{"channel":"`+mcpURI+`"}}`, "-32601")
	// The relay drops a notification that it does not serve. It passes a notification that
	// belongs to a request.
	for _, method := range []string{"notifications/message", "notifications/cancelled"} {
		if err := with.SendRaw([]byte(`{"method":"` + method + `","channel":"` + mcpURI + `"}`)); err != nil {
			t.Fatal(err)
		}
	}
	passes(with, withConn, "behind", `{"id":"behind","method":"tools/call","channel":"`+mcpURI+`"}`)
	if got := withConn.messages(); !strings.Contains(got[len(got)-2], "cancelled") || strings.Contains(strings.Join(got, "\n"), "notifications/message") {
		t.Errorf("the host got %q; want the cancellation, and no notification of messages", got)
	}
	// The host has named no MCP channel to the client without mcpApps.
	refused(without, withoutConn, "other", `{"id":"other","method":"resources/read","channel":"`+mcpURI+`"}`, "-32008")

	if err := withConn.say(`{"method":"notifications/resources/list_changed","channel":"` + mcpURI + `"}`); err != nil {
		t.Fatal(err)
	}
	tellClient(t, withConn, with, `{"method":"notifications/progress","channel":"`+mcpURI+`","params":{"progressToken":1}}`)
	tellClient(t, withConn, with, `{"method":"notifications/tools/list_changed","channel":"`+mcpURI+`"}`)
	for _, c := range []*refclient.Client{with, without} {
		if all := string(bytes.Join(c.Frames(), nil)); strings.Contains(all, "resources/list_changed") || strings.Contains(all, "progressToken") != (c == with) {
			t.Errorf("a client got %s; want progress only at the client with the capability", all)
		}
	}
	tellClient(t, withConn, with, cleared)
	refused(with, withConn, "late", `{"id":"late","method":"tools/call","channel":"`+mcpURI+`"}`, "-32008")

	eventually(t, "admin pages and metrics tell of it", func() bool {
		page := fetch(t, s.Relay.AdminURL()+"/admin/runtime/mcp?details=1", "")
		metrics := fetch(t, s.Relay.AdminURL()+"/metrics", "")
		return strings.Contains(page, `"clientCapabilities":{"mcpApps":{}}`) && strings.Contains(page, `"channel":"`+mcpURI+`","state":"gone"`) &&
			strings.Contains(metrics, `ahp_relay_mcp_rejections_total{rejection_class="method_not_served"} 2`) &&
			strings.Contains(metrics, `ahp_relay_mcp_rejections_total{rejection_class="channel_unavailable"} 2`) &&
			strings.Contains(metrics, `ahp_relay_mcp_rejections_total{rejection_class="list_changed_not_served"} 1`) &&
			strings.Contains(metrics, `ahp_relay_mcp_rejections_total{rejection_class="notification_not_served"} 1`)
	})
}

// TestUndeclaredSamplingIsReportedOrRefused lets a host request sampling from a client
// that has not declared it. By default the relay passes the request and counts a
// warning. In strict mode it refuses the request.
func TestUndeclaredSamplingIsReportedOrRefused(t *testing.T) {
	t.Parallel()
	const ask = `{"jsonrpc":"2.0","id":"ask","method":"sampling/createMessage","params":{"channel":"` + mcpURI + `"}}`
	for _, strict := range []bool{false, true} {
		host := newScriptedHost(t)
		var log locked.Buffer
		cfg := stack.Config{Upstream: host.server.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))}
		if strict {
			cfg.Relay = gateway.RelayConfig{Gateway: gateway.Config{Strict: []string{"default/*"}}}
		}
		s := startStack(t, cfg)
		c, conn := mcpClient(t, s, host, "c", map[string]any{"mcpApps": map[string]any{}})
		if err := conn.say(ask); err != nil {
			t.Fatal(err)
		}
		metric := `ahp_relay_mcp_sampling_capability_warnings_total 1`
		if strict {
			metric = `ahp_relay_mcp_rejections_total{rejection_class="sampling_without_client_capability"} 1`
			eventually(t, "the host is told no", func() bool {
				// The host's last received message is the relay's error.
				got := conn.messages()
				return strings.Contains(got[len(got)-1], `"id":"ask","error":{"code":-32601`)
			})
		} else {
			wantFrame(t, c, ask)
		}
		eventually(t, metric+", and the log tells", func() bool {
			return strings.Contains(fetch(t, s.Relay.AdminURL()+"/metrics", ""), metric) && strings.Contains(log.String(), "sampling_without_client_capability")
		})
		if got := bytes.Contains(bytes.Join(c.Frames(), nil), []byte("createMessage")); got == strict {
			t.Errorf("strict %v: the client received createMessage: %v; want the opposite", strict, got)
		}
		if warned := strings.Contains(log.String(), "mcp.capability.warning"); warned == strict {
			t.Errorf("strict %v: the log warns in the wrong mode; want a warning only without it:\n%s", strict, log.String())
		}
	}
}

// A tool call waits for more rights, and clients connect with valid and invalid tokens
// in each place. No token may appear in the logs or on the pages of the relay. The
// search includes the bytes with which every JSON Web Token begins.
func TestNoTokenIsShown(t *testing.T) {
	t.Parallel()
	const secret, refusedSecret = "s3cret-grant", "s3cret-refused"
	_, server := newRefhost(t, func(cfg *agenthost.Config) {
		cfg.MCP = []agenthost.MCPServer{{Name: "tasks", Tokens: map[string][]string{secret: {"tasks.read", "tasks.publish"}}}}
	})
	var log locked.Buffer
	var pages strings.Builder
	s := startStack(t, stack.Config{Upstream: server.URL(), Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	look := func() {
		token, err := s.Token(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/metrics", "/admin/connections?details=1", "/admin/runtime/mcp?details=1", "/healthz", "/readyz"} {
			pages.WriteString(fetch(t, s.Relay.AdminURL()+path, ""))
		}
		for _, path := range []string{"/api/hosts", "/api/hosts/laptop", "/readyz"} {
			pages.WriteString(fetch(t, s.Relay.URL()+path, token))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*stepTime)
	defer cancel()
	var clients []*refclient.Client
	for i, place := range []refclient.TokenPlace{refclient.InHeader, refclient.InAccessToken, refclient.InTkn, refclient.InSubprotocol} {
		for _, bad := range []bool{true, false} {
			token, err := s.Token(func(c *auth.Client) { c.Subject = fmt.Sprint("ada", i) })
			if err != nil {
				t.Fatal(err)
			}
			if bad {
				token += "x"
			}
			c, err := refclient.Dial(ctx, s.URL(stack.Host), refclient.Options{Token: token, TokenIn: place})
			if (err != nil) != bad {
				t.Fatalf("a client with a token in place %d, bad %v: %v; want an error exactly with a bad token", place, bad, err)
			}
			if err == nil {
				t.Cleanup(func() { _ = c.Abort() })
				clients = append(clients, c)
			}
		}
	}
	c := clients[0]
	call := func(method string, params map[string]any) (string, error) {
		result, err := c.Call(ctx, method, params)
		return string(result), err
	}
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: "c", ProtocolVersions: []string{"0.9.0"}, Capabilities: map[string]any{"mcpApps": map[string]any{}}}); err != nil {
		t.Fatal(err)
	}
	vars := flowVars("demo", "70ce0000")
	for method, channel := range map[string]string{"createSession": vars["session"]} {
		if _, err := call(method, map[string]any{"channel": channel}); err != nil {
			t.Fatal(err)
		}
	}
	var channel string
	eventually(t, "the server is ready", func() bool {
		var answer struct {
			Snapshot struct {
				State struct{ Customizations []struct{ Channel string } }
			}
		}
		got, err := call("subscribe", map[string]any{"channel": vars["session"]})
		if err != nil || json.Unmarshal([]byte(got), &answer) != nil || len(answer.Snapshot.State.Customizations) == 0 {
			return false
		}
		channel = answer.Snapshot.State.Customizations[0].Channel
		return channel != ""
	})
	authenticate := func(token string) error {
		_, err := call("authenticate", map[string]any{"channel": "ahp-root://", "resource": "https://tasks.mcp.example/", "token": token})
		return err
	}
	publish := map[string]any{"channel": channel, "name": "publish", "arguments": map[string]any{}}
	if _, err := call("tools/call", publish); err == nil {
		t.Fatal("the server wants no more rights")
	}
	wantFrame(t, c, "insufficientScope")
	look()
	if err := authenticate(refusedSecret); err == nil {
		t.Error("authenticate with an unknown token succeeds; want an error")
	}
	look()
	if err := authenticate(secret); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tool can be called", func() bool {
		got, err := call("tools/call", publish)
		return err == nil && strings.Contains(got, "Published")
	})
	eventually(t, "the page shows what is served", func() bool {
		look()
		return strings.Contains(pages.String(), `"channel":"`+channel+`","state":"ready","methods":["tools/list","tools/call"`)
	})
	if err := s.StopAgent(); err != nil {
		t.Error(err)
	}
	look()
	s.Close()

	for where, text := range map[string]string{"logs": log.String(), "pages": pages.String()} {
		for _, token := range []string{"s3cret", "eyJ", "demo-grant"} {
			if i := strings.Index(text, token); i >= 0 {
				t.Errorf("the %s contain a token: …%s…", where, text[max(0, i-200):min(len(text), i+60)])
			}
		}
	}
	if !strings.Contains(log.String(), "event=disconnect") {
		t.Errorf("the log lacks the event disconnect:\n%s", log.String())
	}
}
