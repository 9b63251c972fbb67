package refclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/test/refclient"
)

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// serveHost starts a reference host and returns its ws: URL.
func serveHost(t *testing.T) string {
	host, err := scripted.New(agenthost.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return serveHTTP(t, host)
}

func serveHTTP(t *testing.T, handler http.Handler) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http")
}

func dial(t *testing.T, url string, opts refclient.Options) *refclient.Client {
	t.Helper()
	c, err := refclient.Dial(testContext(t), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestTokenIsSentInEachPlace(t *testing.T) {
	var seen *http.Request
	url := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"ahp"}})
		if err == nil {
			ws.Close(4100, "host offline")
		}
	}))
	for _, tc := range []struct {
		name        string
		place       refclient.TokenPlace
		got         func() string
		want        string
		subprotocol string
	}{
		{"header", refclient.InHeader, func() string { return seen.Header.Get("Authorization") }, "Bearer s3cret", ""},
		{"access_token", refclient.InAccessToken, func() string { return seen.URL.RawQuery }, "access_token=s3cret&x=1", ""},
		{"tkn", refclient.InTkn, func() string { return seen.URL.RawQuery }, "tkn=s3cret&x=1", ""},
		{"subprotocol", refclient.InSubprotocol, func() string { return seen.Header.Get("Sec-WebSocket-Protocol") }, "ahp,bearer.s3cret", "ahp"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dial(t, url+"/?x=1", refclient.Options{Token: "s3cret", TokenIn: tc.place, Header: http.Header{"X-Own": {"yes"}}})
			<-c.Done()
			if got := tc.got(); got != tc.want || seen.Header.Get("X-Own") != "yes" {
				t.Errorf("the host got %q; want %q, and X-Own", got, tc.want)
			}
			if c.Subprotocol() != tc.subprotocol {
				t.Errorf("Subprotocol() = %q; want %q", c.Subprotocol(), tc.subprotocol)
			}
			if code, reason := c.CloseStatus(); code != 4100 || reason != "host offline" {
				t.Errorf("CloseStatus() = %d, %q; want 4100", code, reason)
			}
		})
	}
}

func TestRefusedHandshakeHidesTheToken(t *testing.T) {
	url := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	_, err := refclient.Dial(testContext(t), url+"?tkn=s3cret", refclient.Options{})
	e, ok := errors.AsType[*refclient.HandshakeError](err)
	if !ok || e.Status != 401 || e.Header.Get("WWW-Authenticate") != "Bearer" || string(e.Body) != "no\n" {
		t.Errorf("Dial() = %v; want a HandshakeError with what the server said", err)
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error contains the token: %v; want it hidden", err)
	}
}

func TestCallsGetTheirAnswers(t *testing.T) {
	c := dial(t, serveHost(t), refclient.Options{})
	ctx := testContext(t)
	_, err := c.Call(ctx, "listSessions", nil)
	if e, ok := errors.AsType[*refclient.RPCError](err); !ok || e.Code != -32601 {
		t.Errorf("Call() before initialize = %v; want -32601", err)
	}
	init, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: "a", InitialSubscriptions: []string{"ahp-root://"}})
	if err != nil || init.ProtocolVersion != "0.9.0" || len(init.Snapshots) != 1 || !strings.Contains(string(init.Raw), "telemetry") {
		t.Fatalf("Initialize() = %+v, %v; want version 0.9.0, one snapshot, and telemetry", init, err)
	}
	if err := c.SendRaw([]byte(`{"jsonrpc":"2.0","id":"raw","method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if raw, err := c.Call(ctx, "ping", nil); err != nil || string(raw) != "null" {
		t.Errorf("ping = %s, %v; want null", raw, err)
	}
	frames := c.Frames()
	var last []string
	for _, frame := range frames[len(frames)-2:] {
		last = append(last, string(frame))
	}
	want := []string{`{"jsonrpc":"2.0","id":"raw","result":null}`, `{"jsonrpc":"2.0","id":3,"result":null}`}
	if !slices.Equal(last, want) {
		t.Errorf("last frames %q; want %q", last, want)
	}
}

func TestDispatchedActionsAreEchoed(t *testing.T) {
	url := serveHost(t)
	ctx := testContext(t)
	c := dial(t, url, refclient.Options{})
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(ctx, "createSession", map[string]string{"channel": "demo:/1"}); err != nil {
		t.Fatal(err)
	}
	snap, err := c.Subscribe(ctx, "demo:/1")
	if err != nil || snap.Resource != "demo:/1" {
		t.Fatalf("Subscribe() = %+v, %v; want demo:/1", snap, err)
	}
	if snap, err := c.Subscribe(ctx, "ahp-otlp://logs/error"); snap != nil || err != nil {
		t.Errorf("Subscribe(log) = %+v, %v; want no snapshot", snap, err)
	}
	seq, err := c.Dispatch("demo:/1", map[string]string{"type": "session/titleChanged", "title": "x"})
	if seq != 1 || err != nil {
		t.Errorf("Dispatch() = %d, %v; want 1", seq, err)
	}
	frame, n, err := c.WaitAfter(ctx, 0, refclient.IsAction("demo:/1", "session/titleChanged"))
	if err != nil {
		t.Fatal(err)
	}
	a, ok := refclient.ReadAction(frame)
	if !ok || a.Origin == nil || a.Origin.ClientID != "a" || a.Origin.ClientSeq != 1 || a.ServerSeq == 0 {
		t.Errorf("ReadAction(%s) = %+v, %t; want a's first action, with a serverSeq", frame, a, ok)
	}
	if _, _, err := c.WaitAfter(ctx, n, refclient.IsNotification("root/sessionSummaryChanged")); err != nil {
		t.Error(err)
	}

	again := dial(t, url, refclient.Options{})
	r, err := again.Reconnect(ctx, refclient.ReconnectParams{ClientID: "a", LastSeenServerSeq: a.ServerSeq, Subscriptions: []string{"demo:/1", "demo:/2"}})
	if err != nil || r.Type != "replay" || len(r.Actions) != 0 || !slices.Equal(r.Missing, []string{"demo:/2"}) {
		t.Errorf("Reconnect() = %+v, %v; want a replay without actions, and demo:/2 missing", r, err)
	}
}

func TestHandlersAnswerTheHost(t *testing.T) {
	url := serveHost(t)
	ctx := testContext(t)
	owner := dial(t, url, refclient.Options{Handlers: map[string]refclient.Handler{
		"resourceRead": func(_ context.Context, params json.RawMessage) (any, error) {
			if strings.Contains(string(params), "secret") {
				return nil, &refclient.RPCError{Code: -32009, Message: "no"}
			}
			return map[string]string{"data": "mine", "encoding": "utf-8"}, nil
		},
		"resourceResolve": func(context.Context, json.RawMessage) (any, error) { return struct{}{}, nil },
	}})
	reader := dial(t, url, refclient.Options{})
	for id, c := range map[string]*refclient.Client{"owner": owner, "reader": reader} {
		if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: id}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(uri string) (string, error) {
		raw, err := reader.Call(ctx, "resourceRead", map[string]string{"channel": "ahp-root://", "uri": uri})
		return string(raw), err
	}
	if got, err := read("vscode-agent-client://owner/file/-/a.txt"); err != nil || !strings.Contains(got, `"mine"`) {
		t.Errorf("read = %s, %v; want mine", got, err)
	}
	_, err := read("vscode-agent-client://owner/file/-/secret")
	if e, ok := errors.AsType[*refclient.RPCError](err); !ok || e.Code != -32009 {
		t.Errorf("read of a secret = %v; want -32009", err)
	}
	if _, err := read("vscode-agent-client://reader/file/-/a.txt"); err == nil {
		t.Error("a client without handlers answers a read; want an error")
	}
}

// TestPendingCallsEndWithTheConnection ends a connection in every way while a call and
// a wait run. Both must return ErrClosed.
func TestPendingCallsEndWithTheConnection(t *testing.T) {
	const anyCode = 0 // the client may or may not read the host's answer to its close frame
	for _, tc := range []struct {
		name string
		end  func(c *refclient.Client, ws *websocket.Conn)
		code int // code that CloseStatus must return
	}{
		{"host closes", func(_ *refclient.Client, ws *websocket.Conn) { ws.Close(1012, "resync") }, 1012},
		{"host vanishes", func(_ *refclient.Client, ws *websocket.Conn) { ws.CloseNow() }, -1},
		{"client closes", func(c *refclient.Client, _ *websocket.Conn) { c.Close() }, anyCode},
		{"client aborts", func(c *refclient.Client, _ *websocket.Conn) { c.Abort() }, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opened := make(chan *websocket.Conn, 1)
			url := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					return
				}
				opened <- ws
				for err == nil {
					_, _, err = ws.Read(context.Background())
				}
			}))
			c := dial(t, url, refclient.Options{})
			errs := make(chan error, 2)
			go func() { _, err := c.Call(testContext(t), "ping", nil); errs <- err }()
			go func() {
				_, err := c.WaitFor(testContext(t), func([]byte) bool { return false })
				errs <- err
			}()
			tc.end(c, <-opened)
			<-c.Done()
			for range 2 {
				if err := <-errs; err == nil {
					t.Error("a call or a wait succeeds on a closed connection; want an error")
				}
			}
			if code, _ := c.CloseStatus(); code != tc.code && tc.code != anyCode {
				t.Errorf("CloseStatus() = %d; want %d; the end was %v", code, tc.code, c.Err())
			}
			c.Close()
			if _, err := c.Call(testContext(t), "ping", nil); err == nil {
				t.Error("Call() succeeds after Close; want an error")
			}
		})
	}
}

func TestClientSpeaksOverAStream(t *testing.T) {
	host, err := scripted.New(agenthost.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	hostIn, clientOut := io.Pipe()
	clientIn, hostOut := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- host.ServeStdio(t.Context(), hostIn, hostOut) }()
	c := refclient.NewStream(clientIn, clientOut, refclient.Options{})
	if _, err := c.Initialize(testContext(t), refclient.InitializeParams{ClientID: "a"}); err != nil {
		t.Error(err)
	}
	if err := c.SendBinary(nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SendBinary() = %v; want ErrUnsupported", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("Close = %v; want no error", err)
	}
	if err := <-served; err != nil {
		t.Errorf("ServeStdio = %v; want no error", err)
	}
}
