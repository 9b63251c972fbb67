package agenthost_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/fstest"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/test/refclient"
)

// joinCanvas connects and initializes a client with the capability canvas.
func joinCanvas(t *testing.T, url, clientID string, opts refclient.Options) *refclient.Client {
	t.Helper()
	c := dial(t, url, opts)
	_, err := c.Initialize(testContext(t), refclient.InitializeParams{ClientID: clientID, Capabilities: params{"canvas": params{}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// canvasHost starts a host with a session. It returns the host, its URL, and a client
// with the capability canvas that is subscribed to the session.
func canvasHost(t *testing.T, cfg agenthost.Config) (*agenthost.Host, string, *refclient.Client) {
	t.Helper()
	host, url := serve(t, cfg)
	c := joinCanvas(t, url, "a", refclient.Options{})
	mustCall(t, c, "createSession", params{"channel": testSession})
	subscribe(t, c, testSession)
	return host, url, c
}

func openCanvas(t *testing.T, host *agenthost.Host, id string) string {
	t.Helper()
	channel, err := host.OpenCanvas(testSession, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	return channel
}

// canvasState subscribes to a canvas, and returns the state in the snapshot.
func canvasState(t *testing.T, c *refclient.Client, channel string) params {
	t.Helper()
	var answer struct{ Snapshot struct{ State params } }
	if err := json.Unmarshal(mustCall(t, c, "subscribe", params{"channel": channel}), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Snapshot.State
}

// wantAction waits until a client receives an action of a type on a channel, with a
// text in it. It returns the frame.
func wantAction(t *testing.T, c *refclient.Client, channel, kind, containing string) string {
	t.Helper()
	frame, err := c.WaitFor(testContext(t), func(frame []byte) bool {
		return refclient.IsAction(channel, kind)(frame) && bytes.Contains(frame, []byte(containing))
	})
	if err != nil {
		t.Fatalf("no action %s on %s with %s arrives: %v", kind, channel, containing, err)
	}
	return string(frame)
}

func wantCode(t *testing.T, err error, code int) {
	t.Helper()
	if got, ok := errors.AsType[*refclient.RPCError](err); !ok || got.Code != code {
		t.Errorf("error %v; want code %d", err, code)
	}
}

// twoModes is a configuration with a canvas for each mode.
var twoModes = agenthost.Config{Canvases: []agenthost.Canvas{{ID: "notes"}, {ID: "notes-loopback", Mode: agenthost.CanvasLoopback}}}

func TestCanvasReadsItsOwnFilesOnly(t *testing.T) {
	host, url, c := canvasHost(t, agenthost.Config{Canvases: []agenthost.Canvas{
		{ID: "notes"},
		{ID: "other", Files: fstest.MapFS{
			"index.html": {Data: []byte("<p>other")}, "a b/%41.txt": {Data: []byte("once")}, "A.txt": {Data: []byte("twice")},
		}},
		{ID: "notes-loopback", Mode: agenthost.CanvasLoopback},
	}})
	notes, other, loopback := openCanvas(t, host, "notes"), openCanvas(t, host, "other"), openCanvas(t, host, "notes-loopback")
	closed := openCanvas(t, host, "other") // its channel ends with other-4
	for _, channel := range []string{notes, other, loopback, closed} {
		subscribe(t, c, channel)
	}
	if err := host.CloseCanvas(closed); err != nil {
		t.Fatal(err)
	}
	stranger := joinCanvas(t, url, "b", refclient.Options{})
	incapable := join(t, url, "c", refclient.Options{})
	if _, err := incapable.Subscribe(testContext(t), notes); err == nil {
		t.Error("a client without the capability subscribes to a canvas; want an error")
	}
	for _, tc := range []struct {
		name    string
		client  *refclient.Client
		channel string
		uri     string
		code    int
		want    string
	}{
		{"text", c, notes, "/notes-1/index.html", 0, "<title>Notes</title>"},
		{"the root", c, notes, "/notes-1/", 0, "<title>Notes</title>"},
		{"no slash", c, notes, "/notes-1", 0, "<title>Notes</title>"},
		{"query and fragment", c, notes, "/notes-1/lib/label.js?x=../#y", 0, "export function label"},
		{"decoded once", c, other, "/other-2/a%20b/%2541.txt", 0, "once"},
		{"not decoded twice", c, other, "/other-2/%2541.txt", ahp.CodeNotFound, ""},
		{"no such file", c, notes, "/notes-1/none.html", ahp.CodeNotFound, ""},
		{"a directory", c, notes, "/notes-1/lib", ahp.CodeInternalError, ""},
		{"traversal", c, notes, "/notes-1/../canvasapp/index.html", ahp.CodeInvalidParams, ""},
		{"traversal, escaped", c, notes, "/notes-1/lib/%2e%2e/index.html", ahp.CodeInvalidParams, ""},
		{"traversal, escaped slash", c, notes, "/notes-1/..%2findex.html", ahp.CodeInvalidParams, ""},
		{"backslash", c, notes, `/notes-1/lib\label.js`, ahp.CodeInvalidParams, ""},
		{"NUL", c, notes, "/notes-1/index.html%00", ahp.CodeInvalidParams, ""},
		{"absolute", c, notes, "/notes-1//etc/passwd", ahp.CodeInvalidParams, ""},
		{"no UTF-8", c, notes, "/notes-1/%ff", ahp.CodeInvalidParams, ""},
		{"malformed", c, notes, "/notes-1/%zz", ahp.CodeInvalidParams, ""},
		{"long", c, notes, "/notes-1/" + strings.Repeat("x", 5000), ahp.CodeInvalidParams, ""},
		{"another instance", c, notes, "/other-2/index.html", ahp.CodePermissionDenied, ""},
		{"another scheme", c, notes, "file:///etc/passwd", ahp.CodeInvalidParams, ""},
		{"no subscriber", stranger, notes, "/notes-1/index.html", ahp.CodePermissionDenied, ""},
		{"closed", c, closed, "/other-4/index.html", ahp.CodeNotFound, ""},
		{"never open", c, "ahp-canvas:/none", "/notes-1/index.html", ahp.CodeNotFound, ""},
		{"loopback", c, loopback, "/notes-loopback-3/index.html", ahp.CodeMethodNotFound, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			uri := tc.uri
			if uri[0] == '/' {
				uri = "ahp-canvas-content:" + uri
			}
			result, err := tc.client.Call(testContext(t), "canvasReadResource", params{"channel": tc.channel, "uri": uri})
			if tc.code != 0 {
				wantCode(t, err, tc.code)
				return
			}
			var got struct {
				Contents []struct{ URI, MIMEType, Text string }
			}
			if err != nil || json.Unmarshal(result, &got) != nil || len(got.Contents) != 1 ||
				got.Contents[0].URI != uri || !strings.Contains(got.Contents[0].Text, tc.want) {
				t.Errorf("read %s, %v; want %q", result, err, tc.want)
			}
		})
	}
	// Binary content is encoded in base64.
	var got struct {
		Contents []struct{ MIMEType, Blob string }
	}
	result := mustCall(t, c, "canvasReadResource", params{"channel": notes, "uri": "ahp-canvas-content:/notes-1/img/logo.png"})
	if err := json.Unmarshal(result, &got); err != nil {
		t.Fatal(err)
	}
	data, err := base64.StdEncoding.DecodeString(got.Contents[0].Blob)
	if err != nil || got.Contents[0].MIMEType != "image/png" || !bytes.HasPrefix(data, []byte("\x89PNG")) {
		t.Errorf("read %s, %v; want a PNG", result, err)
	}
	// A client that has unsubscribed from a canvas cannot read it.
	c.Notify("unsubscribe", params{"channel": notes})
	_, err = c.Call(testContext(t), "canvasReadResource", params{"channel": notes, "uri": "ahp-canvas-content:/notes-1/index.html"})
	wantCode(t, err, ahp.CodePermissionDenied)
}

func TestCanvasIsServedOnLoopback(t *testing.T) {
	host, _, c := canvasHost(t, agenthost.Config{Canvases: []agenthost.Canvas{{ID: "notes", Mode: agenthost.CanvasLoopback}}})
	channel := openCanvas(t, host, "notes")
	state := canvasState(t, c, channel)
	url, _ := state["url"].(string)
	if !strings.HasPrefix(url, "http://127.0.0.1:") || state["provider"].(params)["kind"] != "server" {
		t.Fatalf("state %v; want a loopback address, and the host as provider", state)
	}
	get := func(url string) (int, string) {
		t.Helper()
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if code, body := get(url); code != 200 || !strings.Contains(body, "<title>Notes</title>") {
		t.Errorf("GET %s = %d, %q; want 200 with the title Notes", url, code, body)
	}
	if code, _ := get(strings.TrimSuffix(url, "index.html") + "%2e%2e/app.js"); code != 404 {
		t.Errorf("GET of a path with an encoded ..: HTTP %d; want 404", code)
	}
	_, err := c.Call(testContext(t), "canvasReadResource", params{"channel": channel, "uri": "ahp-canvas-content:/notes-1/index.html"})
	wantCode(t, err, ahp.CodeMethodNotFound)
	// A provider becomes stale. The canvas loses its loopback address.
	if err := host.StaleCanvas(channel); err != nil {
		t.Fatal(err)
	}
	wantAction(t, c, channel, "canvas/updated", `"url":null`)
	http.DefaultClient.CloseIdleConnections()
}

// TestForbiddenCanvasActionsAreRejected sends actions and requests about canvases that
// clients must not send. The host rejects each.
func TestForbiddenCanvasActionsAreRejected(t *testing.T) {
	host, url, c := canvasHost(t, twoModes)
	channel := openCanvas(t, host, "notes")
	subscribe(t, c, channel)
	stranger := joinCanvas(t, url, "b", refclient.Options{})
	dispatch := func(c *refclient.Client, channel string, action params) {
		t.Helper()
		if _, err := c.Dispatch(channel, action); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		client  *refclient.Client
		channel string
		action  params
		reason  string
	}{
		{stranger, channel, params{"type": "canvas/message", "payload": 1}, "Not a renderer"},
		{stranger, channel, params{"type": "canvas/closeRequested"}, "Not a renderer"},
		{c, "ahp-canvas:/none", params{"type": "canvas/message", "payload": 1}, "not open"},
		{c, channel, params{"type": "canvas/message", "payload": 1, "instanceId": "notes-9"}, "not open"},
		{c, channel, params{"type": "canvas/updated", "title": "mine"}, "may not"},
	} {
		dispatch(tc.client, tc.channel, tc.action)
		kind := tc.action["type"].(string)
		if frame := wantAction(t, tc.client, tc.channel, kind, "rejectionReason"); !strings.Contains(frame, tc.reason) {
			t.Errorf("%v: %s; want the reason %q", tc.action, frame, tc.reason)
		}
	}
	for _, method := range []string{"canvasOpen", "canvasInvokeAction", "canvasClose"} {
		_, err := c.Call(testContext(t), method, params{"channel": testSession, "canvasId": "notes", "extensionId": "refhost.canvases", "instanceId": "notes-1"})
		wantCode(t, err, ahp.CodePermissionDenied)
	}
	// A request to close a canvas that is not open is ignored. The second client has
	// received no rejected action, and the canvas's state is unchanged.
	dispatch(c, "ahp-canvas:/none", params{"type": "canvas/closeRequested"})
	mustCall(t, c, "ping", nil)
	for _, frame := range c.Frames() {
		if bytes.Contains(frame, []byte(`"clientId":"b"`)) || bytes.Contains(frame, []byte(`closeRequested`)) {
			t.Errorf("client a received %s; want no rejected action, and no closeRequested", frame)
		}
	}
	if state := canvasState(t, c, channel); state["title"] != "Notes" {
		t.Errorf("title %v; want it unchanged", state["title"])
	}
	dispatch(c, channel, params{"type": "canvas/closeRequested"})
	wantAction(t, c, testSession, "session/openCanvasesChanged", `"openCanvases":[]`)
}

// TestCanvasClientProvider lets a client declare, provide and withdraw canvases. The
// host sends requests about these canvases to this client only.
func TestCanvasClientProvider(t *testing.T) {
	asked := make(chan string, 10)
	answering := func(name string) refclient.Options {
		return refclient.Options{Handlers: map[string]refclient.Handler{
			"canvasOpen": func(context.Context, json.RawMessage) (any, error) {
				asked <- name + " canvasOpen"
				return params{"url": "https://example.test/" + name, "title": "Editor"}, nil
			},
			"canvasInvokeAction": func(_ context.Context, raw json.RawMessage) (any, error) {
				asked <- name + " canvasInvokeAction"
				if bytes.Contains(raw, []byte(`"break"`)) {
					return nil, &refclient.RPCError{Code: ahp.CodeCanvasProviderError, Message: "broken",
						Data: json.RawMessage(`{"code":"canvas_action_no_handler","message":"broken"}`)}
				}
				return params{"value": 42}, nil
			},
			"canvasClose": func(context.Context, json.RawMessage) (any, error) {
				asked <- name + " canvasClose"
				return nil, nil
			},
		}}
	}
	host, url, c := canvasHost(t, twoModes)
	provider := joinCanvas(t, url, "p", answering("p"))
	subscribe(t, provider, testSession)
	declare := params{"type": "session/activeClientSet", "activeClient": params{"clientId": "p", "tools": []any{},
		"canvasProviders": []params{{"canvasId": "editor", "displayName": "Editor", "description": "Edits."}}}}
	if _, err := provider.Dispatch(testSession, declare); err != nil {
		t.Fatal(err)
	}
	wantAction(t, c, testSession, "session/canvasesChanged", `"source":{"kind":"client","clientId":"p"}`)
	channel := openCanvas(t, host, "editor")
	if state := canvasState(t, c, channel); state["url"] != "https://example.test/p" || state["title"] != "Editor" {
		t.Errorf("state %v; want what the provider said", state)
	}
	if value, err := host.InvokeCanvas(channel, "go", nil); err != nil || string(value) != "42" {
		t.Errorf("InvokeCanvas = %s, %v; want 42", value, err)
	}
	if _, err := host.InvokeCanvas(channel, "break", nil); err == nil || err.Error() != "broken" {
		t.Errorf("InvokeCanvas = %v; want the provider's error", err)
	}

	provider.Close()
	wantAction(t, c, channel, "canvas/updated", `"availability":"stale"`)
	wantAction(t, c, testSession, "session/openCanvasesChanged", `"availability":"stale"`)
	if _, err := host.OpenCanvas(testSession, "editor", nil); err == nil {
		t.Error("OpenCanvas without a provider succeeds; want an error")
	}
	if _, err := host.InvokeCanvas(channel, "go", nil); err == nil || err.Error() != "The canvas is stale" {
		t.Errorf("InvokeCanvas on a stale canvas = %v; want The canvas is stale", err)
	}

	back := dial(t, url, answering("back"))
	if _, err := back.Reconnect(testContext(t), refclient.ReconnectParams{ClientID: "p", LastSeenServerSeq: 0, Subscriptions: []string{testSession}}); err != nil {
		t.Fatal(err)
	}
	wantAction(t, c, channel, "canvas/updated", `"url":"https://example.test/back"`)
	if err := host.CloseCanvas(channel); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"p canvasOpen", "p canvasInvokeAction", "p canvasInvokeAction", "back canvasOpen", "back canvasClose"} {
		if got := <-asked; got != want {
			t.Errorf("asked %q; want %q", got, want)
		}
	}
}

// TestCanvasesAsRegistered opens canvases at a host of AHP 1.1. A client with AHP 0.10
// or later sees them in the chat's state: each change has the whole list, and only
// canvases on the web are in it. A client of AHP 0.9 with the capability canvas sees
// them in the form of the Canvas proposal.
func TestCanvasesAsRegistered(t *testing.T) {
	cfg := twoModes
	cfg.Protocol = agenthost.NewestProtocol
	host, url, seed := canvasHost(t, cfg)
	c := dial(t, url, refclient.Options{})
	if _, err := c.Initialize(testContext(t), refclient.InitializeParams{ClientID: "b", ProtocolVersions: []string{"1.1.0"}}); err != nil {
		t.Fatal(err)
	}
	subscribe(t, c, testChat)
	for _, id := range []string{"notes", "notes-loopback"} {
		channel := openCanvas(t, host, id)
		wantAction(t, c, testChat, "chat/canvasesChanged", channel)
		wantAction(t, seed, testSession, "session/openCanvasesChanged", channel)
		state := canvasState(t, c, channel)
		address, _ := state["url"].(string)
		if !strings.HasPrefix(address, "http://127.0.0.1:") || state["canvasId"] != id || state["provider"] != nil {
			t.Errorf("state %v; want a url on loopback, canvasId %s and no provider", state, id)
		}
		resp, err := http.Get(address)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("GET %s = %v, %v; want 200", address, resp, err)
		}
		if err == nil {
			resp.Body.Close()
		}
		if err := host.UpdateCanvas(channel, map[string]any{"title": "New"}); err != nil {
			t.Fatal(err)
		}
		wantAction(t, c, channel, "canvas/stateChanged", `"title":"New"`)
		if err := host.StaleCanvas(channel); err != nil {
			t.Fatal(err)
		}
		stale, err := c.WaitFor(testContext(t), func(frame []byte) bool {
			return refclient.IsAction(channel, "canvas/stateChanged")(frame) && !bytes.Contains(frame, []byte(`"url"`))
		})
		if err != nil {
			t.Errorf("a stale canvas has the state %s, %v; want none with its address", stale, err)
		}
		_, err = c.Call(testContext(t), "canvasReadResource", params{"channel": channel, "uri": "ahp-canvas-content:/x/y"})
		wantCode(t, err, ahp.CodeMethodNotFound)
		if err := host.CloseCanvas(channel); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Subscribe(testContext(t), channel); err == nil {
			t.Error("a subscribe to a closed canvas succeeds; want an error")
		}
	}
	wantAction(t, c, testChat, "chat/canvasesChanged", `"canvases":[]`)
}
