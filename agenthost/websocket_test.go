package agenthost_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/ahp"
	"ahprelay/test/refclient"
)

// testContext returns a context that ends after a minute, before the test's own time
// limit.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// serve starts a host, and returns it with its ws: URL.
func serve(t *testing.T, cfg agenthost.Config) (*agenthost.Host, string) {
	t.Helper()
	host := newHost(t, cfg)
	server := httptest.NewServer(host)
	t.Cleanup(server.Close)
	return host, "ws" + strings.TrimPrefix(server.URL, "http")
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

// join connects a client and initializes it.
func join(t *testing.T, url, clientID string, opts refclient.Options) *refclient.Client {
	t.Helper()
	c := dial(t, url, opts)
	if _, err := c.Initialize(testContext(t), refclient.InitializeParams{ClientID: clientID}); err != nil {
		t.Fatal(err)
	}
	return c
}

func mustCall(t *testing.T, c *refclient.Client, method string, params any) json.RawMessage {
	t.Helper()
	result, err := c.Call(testContext(t), method, params)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func subscribe(t *testing.T, c *refclient.Client, channel string) {
	t.Helper()
	if _, err := c.Subscribe(testContext(t), channel); err != nil {
		t.Fatal(err)
	}
}

type params = map[string]any

const (
	testSession = "demo:/s1"
	testChat    = "ahp-chat://default/ZGVtbzovczE"
)

func startTurn(t *testing.T, c *refclient.Client, turnID, prompt string) {
	t.Helper()
	_, err := c.Dispatch(testChat, params{
		"type": "chat/turnStarted", "turnId": turnID, "startedAt": "2000-01-01T00:00:00.000Z", "message": params{"text": prompt},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestConnectionTokenIsRequired(t *testing.T) {
	_, url := serve(t, agenthost.Config{ConnectionToken: "secret"})
	for _, tc := range []struct {
		name, query string
		ok          bool
	}{
		{"none", "", false},
		{"wrong", "?tkn=Secret", false},
		{"right", "?tkn=secret", true},
		{"twice", "?tkn=secret&tkn=secret", false},
		{"another name", "?token=secret", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := refclient.Dial(testContext(t), url+"/any/path"+tc.query, refclient.Options{})
			if err == nil {
				c.Close()
			}
			handshake, refused := errors.AsType[*refclient.HandshakeError](err)
			if tc.ok && err != nil || !tc.ok && (!refused || handshake.Status != http.StatusForbidden) {
				t.Errorf("Dial(%q) = %v; want it to succeed: %t", tc.query, err, tc.ok)
			}
		})
	}
}

func TestAnyOriginAndBinaryFrames(t *testing.T) {
	_, url := serve(t, agenthost.Config{})
	c := dial(t, url+"/some/where", refclient.Options{Header: http.Header{"Origin": {"https://evil.example"}}})
	if err := c.SendBinary([]byte(`{"jsonrpc":"2.0","id":900,"method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	want := []byte(`{"jsonrpc":"2.0","id":900,"result":null}`)
	if _, err := c.WaitFor(testContext(t), func(frame []byte) bool { return bytes.Equal(frame, want) }); err != nil {
		t.Errorf("after a binary ping: %v; want %s", err, want)
	}
}

func TestLargeFramesPass(t *testing.T) {
	const size = 3 << 20 // larger frames would take long with the race detector
	_, url := serve(t, agenthost.Config{})
	c := join(t, url, "a", refclient.Options{})
	var content struct{ Data string }
	result := mustCall(t, c, "resourceRead", params{"channel": "ahp-root://", "uri": fmt.Sprintf("demo-blob:/%d", size)})
	if err := json.Unmarshal(result, &content); err != nil || len(content.Data) != size {
		t.Errorf("read %d bytes, %v; want %d", len(content.Data), err, size)
	}
	mustCall(t, c, "completions", params{"channel": "ahp-root://", "text": content.Data})
}

func TestFrameOverTheLimitEndsTheConnection(t *testing.T) {
	const limit = 4096
	_, url := serve(t, agenthost.Config{MaxFrame: limit})
	c := dial(t, url, refclient.Options{})
	frame := func(size int) []byte {
		head, tail := `{"jsonrpc":"2.0","id":1,"method":"ping","x":"`, `"}`
		return []byte(head + strings.Repeat("x", size-len(head)-len(tail)) + tail)
	}
	if err := c.SendRaw(frame(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitFor(testContext(t), func([]byte) bool { return true }); err != nil {
		t.Errorf("a frame at the limit: %v; want an answer", err)
	}
	c.SendRaw(frame(limit + 1))
	<-c.Done()
	if code, _ := c.CloseStatus(); code != int(ahp.CloseMessageTooBig) {
		t.Errorf("a frame over the limit: close code %d; want %d", code, ahp.CloseMessageTooBig)
	}
}

func TestCloseSaysGoingAway(t *testing.T) {
	host := newHostOf(t, agenthost.Config{}, func(cfg agenthost.Config) (*agenthost.Host, error) { return scripted.New(cfg, scripted.Demo{}) })
	server := httptest.NewServer(host)
	t.Cleanup(server.Close)
	url := "ws" + strings.TrimPrefix(server.URL, "http")
	c := join(t, url, "a", refclient.Options{})
	mustCall(t, c, "createSession", params{"channel": testSession})
	startTurn(t, c, "t1", "stream 1000 1000")
	mustCall(t, c, "createTerminal", params{"channel": "agenthost-terminal:/1"})
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	<-c.Done()
	if code, reason := c.CloseStatus(); code != 1001 || reason != "host shutting down" {
		t.Errorf("CloseStatus() = %d, %q; want 1001", code, reason)
	}
	c, err := refclient.Dial(testContext(t), url, refclient.Options{})
	if err != nil {
		return // the host has refused the connection
	}
	defer c.Close()
	if _, err := c.Initialize(testContext(t), refclient.InitializeParams{ClientID: "b"}); err == nil {
		t.Error("a closed host answers initialize; want an error")
	}
}

func TestSlowClientIsCut(t *testing.T) {
	_, url := serve(t, agenthost.Config{SendQueue: 1 << 20})
	slowRead := make(chan struct{})
	slow := join(t, url, "slow", refclient.Options{OnFrame: func(frame []byte) {
		if bytes.Contains(frame, []byte(`"chat/delta"`)) {
			<-slowRead
		}
	}})
	other := join(t, url, "other", refclient.Options{})
	mustCall(t, other, "createSession", params{"channel": testSession})
	subscribe(t, slow, testChat)
	subscribe(t, other, testSession)
	startTurn(t, other, "t1", "stream 200 1 100000") // more than the sockets' buffers can hold
	idle := func(frame []byte) bool { return bytes.Contains(frame, []byte(`"changes":{"status":1}`)) }
	if _, err := other.WaitFor(testContext(t), idle); err != nil {
		t.Errorf("the client that reads does not receive the turn's end: %v", err)
	}
	close(slowRead)
	select {
	case <-slow.Done():
	case <-testContext(t).Done():
		t.Error("the client that does not read is still connected; want it closed")
	}
	mustCall(t, other, "ping", nil)
}

// TestSameBytesForAll lets several clients send random actions. All clients must
// receive the same bytes.
func TestSameBytesForAll(t *testing.T) {
	_, url := serve(t, agenthost.Config{})
	const clients = 8
	var all []*refclient.Client
	for i := range clients {
		c := join(t, url, fmt.Sprintf("client-%d", i), refclient.Options{})
		mustCall(t, c, "createSession", params{"channel": testSession})
		mustCall(t, c, "createTerminal", params{"channel": fmt.Sprintf("agenthost-terminal:/%d", i)})
		all = append(all, c)
	}
	for _, c := range all {
		for _, channel := range []string{"ahp-root://", testSession, testChat, "agenthost-terminal:/0"} {
			subscribe(t, c, channel)
		}
	}
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			for n := range 10 {
				c.Dispatch("agenthost-terminal:/0", params{"type": "terminal/input", "data": fmt.Sprintf("%d %d\r", i, n)})
				c.Dispatch(testSession, params{"type": "session/titleChanged", "title": fmt.Sprintf("%d %d", i, n)})
				c.Call(context.Background(), "listSessions", params{"channel": "ahp-root://"})
			}
		})
	}
	startTurn(t, all[0], "t1", "stream 100 1")
	wg.Wait()
	bySeq := make(map[int64]string)
	for i, c := range all {
		if _, err := c.WaitFor(testContext(t), refclient.IsAction(testChat, "chat/turnComplete")); err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for _, frame := range c.Frames() {
			a, ok := refclient.ReadAction(frame)
			if !ok || a.Type() == "root/terminalsChanged" { // some clients were not subscribed yet
				continue
			}
			if a.ServerSeq <= last {
				t.Fatalf("client %d got serverSeq %d after %d; want an increase", i, a.ServerSeq, last)
			}
			last = a.ServerSeq
			if i == 0 {
				bySeq[a.ServerSeq] = string(frame)
			} else if bySeq[a.ServerSeq] != string(frame) {
				t.Fatalf("client %d got %s; client 0 got %s; want the same", i, frame, bySeq[a.ServerSeq])
			}
		}
	}
}

func TestRecorderGetsEveryFrame(t *testing.T) {
	var mu sync.Mutex
	var frames []agenthost.Frame
	host, url := serve(t, agenthost.Config{Recorder: func(f agenthost.Frame) {
		mu.Lock()
		defer mu.Unlock()
		frames = append(frames, f)
	}})
	mustCall(t, dial(t, url, refclient.Options{}), "ping", nil)
	host.Close()
	mu.Lock()
	defer mu.Unlock()
	if len(frames) != 2 || !frames[0].Received || frames[1].Received || frames[0].Conn != 1 ||
		string(frames[1].Data) != `{"jsonrpc":"2.0","id":1,"result":null}` {
		t.Errorf("recorded %+v; want a ping and its answer", frames)
	}
}

func TestBadConfigIsRefused(t *testing.T) {
	for _, tc := range []struct {
		cfg  agenthost.Config
		want string
	}{
		{agenthost.Config{MaxFrame: -1}, "MaxFrame"},
		{agenthost.Config{Terminals: "vt100"}, "Terminals"},
		{agenthost.Config{Root: "relative"}, "Root"},
		{agenthost.Config{Root: "/nonexistent"}, "Root"},
		{agenthost.Config{Writable: true}, "Writable"},
		{agenthost.Config{Files: map[string]string{"a": ""}}, "Files"},
		{agenthost.Config{Root: "/tmp", Files: map[string]string{"/a": ""}}, "Files"},
	} {
		if _, err := scripted.New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("New(%+v) = %v; want an error about %s", tc.cfg, err, tc.want)
		}
	}
}

// chatOf returns the URI of a session's default chat.
func chatOf(session string) string {
	return "ahp-chat://default/" + base64.RawURLEncoding.EncodeToString([]byte(session))
}
