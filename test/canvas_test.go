package test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/contentproxy"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A canvasWorld is a host with canvases behind a relay and a host-agent. Its methods
// connect clients and use the canvases.
type canvasWorld struct {
	t       testing.TB
	host    *agenthost.Host
	stack   *stack.Stack
	meter   *stack.Meter // counts the bytes from the host-agent to NATS
	session string
}

func newCanvasWorld(t testing.TB, canvas contentproxy.Config, canvases ...agenthost.Canvas) *canvasWorld {
	t.Helper()
	return newCanvasWorldWith(t, func(cfg *hostagent.Config) { cfg.Canvas = canvas }, canvases...)
}

// newCanvasWorldWith is newCanvasWorld, and lets change edit the host-agent's
// configuration.
func newCanvasWorldWith(t testing.TB, change func(*hostagent.Config), canvases ...agenthost.Canvas) *canvasWorld {
	t.Helper()
	return newCanvasWorldAt(t, gateway.RelayConfig{}, change, canvases...)
}

// newCanvasWorldAt is newCanvasWorldWith, with a configuration for the relay.
func newCanvasWorldAt(t testing.TB, relay gateway.RelayConfig, change func(*hostagent.Config), canvases ...agenthost.Canvas) *canvasWorld {
	t.Helper()
	relay.Gateway.CanvasDomain = cmp.Or(relay.Gateway.CanvasDomain, "http://localhost:0")
	host, server := newRefhost(t, func(cfg *agenthost.Config) { cfg.Canvases = canvases })
	var meter *stack.Meter
	s := startStackWith(t, stack.Config{DataDir: relay.DataDir, Upstream: server.URL(), NATSOverTCP: true, Relay: relay}, func(relay *stack.Stack, cfg *hostagent.Config) (err error) {
		if meter == nil { // nil at the host-agent's first start only
			if meter, err = stack.NewMeter(relay.Relay.NATSAddr().String()); err != nil {
				return err
			}
			t.Cleanup(meter.Close)
		}
		cfg.NATSURLs = []string{"nats://" + meter.Addr()}
		change(cfg)
		return nil
	})
	w := &canvasWorld{t, host, s, meter, flowVars("demo", "ca17a500")["session"]}
	w.call(w.client("creator"), "createSession", map[string]any{"channel": w.session, "provider": "demo"})
	return w
}

func (w *canvasWorld) client(id string) *refclient.Client {
	w.t.Helper()
	return w.clientWith(id, nil)
}

// clientWith connects a client whose token change edits. A nil change leaves the usual
// token.
func (w *canvasWorld) clientWith(id string, change func(*auth.Client)) *refclient.Client {
	w.t.Helper()
	token, err := w.stack.Token(change)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.clientOf(id, token)
}

// clientOf connects and initializes a client with a token.
func (w *canvasWorld) clientOf(id, token string) *refclient.Client {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), stepTime)
	defer cancel()
	c, err := throughRelay(w.t, w.stack)(ctx, refclient.Options{Token: token})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Initialize(ctx, refclient.InitializeParams{
		ClientID: id, ProtocolVersions: []string{"0.9.0"}, Capabilities: map[string]any{"canvas": map[string]any{}},
	}); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *canvasWorld) call(c *refclient.Client, method string, params map[string]any) json.RawMessage {
	w.t.Helper()
	result, err := w.try(c, method, params)
	if err != nil {
		w.t.Fatalf("calling %s: %v; want no error", method, err)
	}
	return result
}

func (w *canvasWorld) try(c *refclient.Client, method string, params map[string]any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), stepTime)
	defer cancel()
	return c.Call(ctx, method, params)
}

func (w *canvasWorld) open(id string) (channel string) {
	w.t.Helper()
	channel, err := w.host.OpenCanvas(w.session, id, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return channel
}

// show subscribes to a canvas and returns the address of its content.
func (w *canvasWorld) show(c *refclient.Client, channel string) (url string) {
	w.t.Helper()
	var result struct {
		Snapshot struct{ State struct{ URL string } }
	}
	if err := json.Unmarshal(w.call(c, "subscribe", map[string]any{"channel": channel}), &result); err != nil {
		w.t.Fatal(err)
	}
	return result.Snapshot.State.URL
}

type canvasContent struct{ URI, MimeType, Text, Blob string }

func (w *canvasWorld) read(c *refclient.Client, channel, uri string) (canvasContent, error) {
	w.t.Helper()
	raw, err := w.try(c, "canvasReadResource", map[string]any{"channel": channel, "uri": uri})
	if err != nil {
		return canvasContent{}, err
	}
	var result struct{ Contents []canvasContent }
	if err := json.Unmarshal(raw, &result); err != nil {
		w.t.Fatal(err)
	}
	if len(result.Contents) != 1 {
		w.t.Fatalf("the result has %d contents; want 1", len(result.Contents))
	}
	return result.Contents[0], nil
}

func wantRPCError(t *testing.T, err error, code int) {
	t.Helper()
	var refused *refclient.RPCError
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("got %v; want error %d", err, code)
	}
}

// A client reads two canvases, one with content over the host's channel and one at a
// loopback address. Both have the same content.
func TestBothAddressFormsShowTheSame(t *testing.T) {
	t.Parallel()
	w := newCanvasWorld(t, contentproxy.Config{}, agenthost.Canvas{ID: "notes"}, agenthost.Canvas{ID: "notes-loopback", Mode: agenthost.CanvasLoopback})
	c := w.client("c")
	texts := map[string][]canvasContent{}
	for _, id := range []string{"notes", "notes-loopback"} {
		channel := w.open(id)
		url := w.show(c, channel)
		if !strings.HasPrefix(url, "ahp-canvas-content:/") {
			t.Fatalf("the canvas %s is at %s; want an address of the host-agent", id, url)
		}
		base := strings.TrimSuffix(url, "index.html")
		for _, name := range []string{"index.html", "app.js", "style.css"} {
			content, err := w.read(c, channel, base+name)
			if err != nil {
				t.Fatalf("reading %s%s: %v; want no error", base, name, err)
			}
			if content.URI != base+name {
				t.Errorf("reading %s returns the content of %s; want the same URI", base+name, content.URI)
			}
			content.URI = ""
			content.MimeType, _, _ = strings.Cut(content.MimeType, ";")
			texts[id] = append(texts[id], content)
		}
	}
	for i, direct := range texts["notes"] {
		if proxied := texts["notes-loopback"][i]; proxied != direct || direct.Text == "" {
			t.Errorf("%d: got %.80v; want %.80v", i, proxied, direct)
		}
	}
}

// TestCanvasLoopbackLife reads a canvas at a loopback address: with and without a
// subscription, after a reconnect, after a restart of the host-agent, and after the
// canvas is closed.
func TestCanvasLoopbackLife(t *testing.T) {
	t.Parallel()
	w := newCanvasWorld(t, contentproxy.Config{}, agenthost.Canvas{ID: "app", Mode: agenthost.CanvasLoopback})
	c, other := w.client("c"), w.client("other")
	w.call(c, "subscribe", map[string]any{"channel": w.session})
	channel := w.open("app")
	url := w.show(c, channel)
	if _, err := w.read(c, channel, url); err != nil {
		t.Fatal(err)
	}
	_, err := w.read(other, channel, url)
	wantRPCError(t, err, ahp.CodePermissionDenied)
	_, err = w.read(c, channel, "ahp-canvas-content:/another/index.html")
	wantRPCError(t, err, ahp.CodeInvalidParams)

	// A client that resumes by a replay gets no snapshot of the canvas. It can still read
	// the content, even through a new host-agent, which has not seen that snapshot either.
	last := lastServerSeq(c)
	_ = c.Abort()
	again := w.resume("c", last, w.session, channel)
	if _, err := w.read(again, channel, url); err != nil {
		t.Errorf("reading the canvas after a reconnect: %v; want no error", err)
	}
	if err := errors.Join(w.stack.StopAgent(), w.stack.StartAgent()); err != nil {
		t.Fatal(err)
	}
	again = w.resume("c", last, w.session, channel)
	if _, err := w.read(again, channel, url); err != nil {
		t.Errorf("reading the canvas after the host-agent's restart: %v; want no error", err)
	}

	// After the host closes the canvas, no client can read it. This holds for a client
	// without a subscription to the session, too.
	only := w.client("only")
	w.show(only, channel)
	if _, err := w.read(only, channel, url); err != nil {
		t.Fatal(err)
	}
	if err := w.host.CloseCanvas(channel); err != nil {
		t.Fatal(err)
	}
	if _, err := again.WaitFor(t.Context(), refclient.IsAction(w.session, "session/openCanvasesChanged")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*refclient.Client{again, only} {
		deadline := time.Now().Add(stepTime)
		for err = nil; err == nil && time.Now().Before(deadline); {
			_, err = w.read(c, channel, url)
		}
		wantRPCError(t, err, ahp.CodeNotFound)
	}
}

// resume connects a client with the clientId id on a new connection. It reconnects with
// the serverSeq last and the subscriptions.
func (w *canvasWorld) resume(id string, last int64, subscriptions ...string) *refclient.Client {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), stepTime)
	defer cancel()
	c, err := throughRelay(w.t, w.stack)(ctx, refclient.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Reconnect(ctx, refclient.ReconnectParams{ClientID: id, LastSeenServerSeq: last, Subscriptions: subscriptions}); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// lastServerSeq returns the serverSeq of the last action that a client received.
func lastServerSeq(c *refclient.Client) (last int64) {
	for _, frame := range c.Frames() {
		if a, ok := refclient.ReadAction(frame); ok {
			last = max(last, a.ServerSeq)
		}
	}
	return last
}

// A browser opens a canvas by URL. The result is the same whether the host or the
// host-agent serves the content.
func TestCanvasByURL(t *testing.T) {
	t.Parallel()
	w := newCanvasWorld(t, contentproxy.Config{}, agenthost.Canvas{ID: "notes"}, agenthost.Canvas{ID: "notes-loopback", Mode: agenthost.CanvasLoopback})
	for _, id := range []string{"notes", "notes-loopback"} {
		c, other := w.client("c-"+id), w.client("other-"+id)
		channel := w.open(id)
		ask := map[string]any{"channel": channel, "uri": w.show(c, channel)}
		b := w.browser()
		page := b.open(w.ticket(c, ask))
		if page.status != http.StatusOK {
			t.Fatalf("the page of %s: HTTP %d %.80q; want 200", id, page.status, page.body)
		}
		for name, kind := range map[string]string{"index.html": "text/html", "app.js": "text/javascript", "style.css": "text/css"} {
			inBand, err := w.read(c, channel, strings.TrimSuffix(ask["uri"].(string), "index.html")+name)
			if err != nil {
				t.Fatal(err)
			}
			got := b.open(strings.TrimSuffix(page.url, "index.html") + name)
			if got.status != http.StatusOK || got.body != inBand.Text || !strings.HasPrefix(got.header.Get("Content-Type"), kind) {
				t.Errorf("the page's %s: HTTP %d %s, %.80q; want 200 with the same content and its type", name, got.status, got.header.Get("Content-Type"), got.body)
			}
		}
		if got := b.open(page.url + "x"); got.status != http.StatusNotFound {
			t.Errorf("a missing page: HTTP %d, %q; want 404", got.status, got.body)
		}
		// A client without a subscription gets no ticket.
		_, err := w.try(other, "relay/canvasTicket", ask)
		wantRPCError(t, err, ahp.CodePermissionDenied)
		// A browser without the page's cookie gets nothing by the page's address, and a
		// ticket works only once.
		if got := w.browser().open(page.url); got.status != http.StatusForbidden {
			t.Errorf("a browser without the page's cookie: HTTP %d, %q; want 403", got.status, got.body)
		}
	}
}

// TestCanvasTurnedOff turns canvases off at the host-agent. The client gets the host's
// own loopback address, and cannot read content through the relay.
func TestCanvasTurnedOff(t *testing.T) {
	t.Parallel()
	w := newCanvasWorld(t, contentproxy.Config{Off: true}, agenthost.Canvas{ID: "app", Mode: agenthost.CanvasLoopback})
	c := w.client("c")
	channel := w.open("app")
	if url := w.show(c, channel); !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("the canvas is at %s; want the host's own address", url)
	}
	_, err := w.read(c, channel, "ahp-canvas-content:/app-1/index.html")
	wantRPCError(t, err, ahp.CodeMethodNotFound)
}

// Many clients read large content at once. The host-agent sends it to the relay once,
// whether the host or the host-agent serves it.
func TestSharedContentCrossesOnce(t *testing.T) {
	t.Parallel()
	for mode, id := range map[agenthost.CanvasMode]string{agenthost.CanvasChannel: "channel", agenthost.CanvasLoopback: "loopback"} {
		t.Run(id, func(t *testing.T) { manyRead(t, mode, 8) })
	}
}

// TestManyReadsAtOnce reads 24 files at once, more bytes than the queue of a client
// holds. Each file arrives complete.
func TestManyReadsAtOnce(t *testing.T) {
	t.Parallel()
	const files, size, queue = 24, 64 << 10, 1 << 20
	site := fstest.MapFS{"index.html": {Data: []byte("x")}}
	for i := range files {
		site[fmt.Sprint(i, ".txt")] = &fstest.MapFile{Data: []byte(strings.Repeat(fmt.Sprintf("%7d ", i), size/8))}
	}
	relay := gateway.RelayConfig{Gateway: gateway.Config{QueueLimit: queue}}
	w := newCanvasWorldAt(t, relay, func(*hostagent.Config) {}, agenthost.Canvas{ID: "app", Mode: agenthost.CanvasLoopback, Files: site})
	channel := w.open("app")
	c := w.client("c")
	base := strings.TrimSuffix(w.show(c, channel), "index.html")
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() {
			name := fmt.Sprint(i, ".txt")
			if content, err := w.read(c, channel, base+name); err != nil || content.Text != string(site[name].Data) {
				t.Errorf("reading %s: %d bytes, %v; want its content", name, len(content.Text), err)
			}
		})
	}
	wg.Wait()
}

// BenchmarkCanvasReaders measures how long 200 clients take to read 256 KiB each, and
// how many bytes the host-agent sends for it.
func BenchmarkCanvasReaders(b *testing.B) {
	for b.Loop() {
		sent, took := manyRead(b, agenthost.CanvasLoopback, 200)
		b.ReportMetric(float64(sent), "uplink-B")
		b.ReportMetric(took.Seconds(), "s")
	}
}

func manyRead(t testing.TB, mode agenthost.CanvasMode, readers int) (uplink int64, took time.Duration) {
	const size = 256 << 10
	large := []byte(strings.Repeat("0123456789abcde-", size/16))
	w := newCanvasWorld(t, contentproxy.Config{}, agenthost.Canvas{
		ID: "app", Mode: mode, Files: fstest.MapFS{"index.html": {Data: []byte("x")}, "large.txt": {Data: large}},
	})
	channel := w.open("app")
	var clients []*refclient.Client
	var address string
	for i := range readers {
		c := w.client(fmt.Sprint("c", i))
		address = strings.TrimSuffix(w.show(c, channel), "index.html") + "large.txt"
		clients = append(clients, c)
	}
	before, begun := w.meter.Bytes(), time.Now()
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			content, err := w.read(c, channel, address)
			if err != nil || content.Text != string(large) {
				t.Errorf("reader %d: %d bytes, %v; want the large file", i, len(content.Text), err)
			}
		})
	}
	wg.Wait()
	uplink, took = w.meter.Bytes()-before, time.Since(begun)
	t.Logf("%d readers of %d bytes: %d bytes from the host-agent to NATS", readers, size, uplink)
	if limit := int64(size + size/10 + 2000*readers); uplink > limit {
		t.Errorf("host-agent sent %d bytes; want at most %d", uplink, limit)
	}
	return uplink, took
}

// A client provides a canvas at one relay, and another client shows it at a second
// relay, as in §6 of the Canvas proposal. The provider answers requests, loses its
// connection and returns.
func TestCanvasFollowsTheProposal(t *testing.T) {
	t.Parallel()
	cl := startClusterOf(t, func(cfg *agenthost.Config) { cfg.Canvases = []agenthost.Canvas{{ID: "notes"}} })
	cl.first.await(t, "online")
	session := flowVars("demo", "ca17a500")["session"]
	asked := make(chan string, 16)
	connect := func(dial dialer, id string, handlers map[string]refclient.Handler) *refclient.Client {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		c, err := dial(ctx, refclient.Options{Handlers: handlers})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Abort() })
		if _, err := c.Initialize(ctx, refclient.InitializeParams{
			ClientID: id, ProtocolVersions: []string{"0.9.0"}, Capabilities: map[string]any{"canvas": map[string]any{}},
		}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	answers := func(who string) map[string]refclient.Handler {
		answer := func(method string, result any) refclient.Handler {
			return func(context.Context, json.RawMessage) (any, error) {
				asked <- who + " " + method
				return result, nil
			}
		}
		return map[string]refclient.Handler{
			"canvasOpen":         answer("canvasOpen", map[string]any{"url": "http://127.0.0.1:1/" + who, "title": "Editor"}),
			"canvasInvokeAction": answer("canvasInvokeAction", map[string]any{"value": 42}),
			"canvasClose":        answer("canvasClose", nil),
		}
	}
	one, two := throughRelay(t, cl.Stack), dialer(cl.first.dial)
	w := &canvasWorld{t: t, host: cl.host, session: session}
	renderer := connect(two, "renderer", answers("renderer"))
	w.call(renderer, "createSession", map[string]any{"channel": session, "provider": "demo"})
	w.call(renderer, "subscribe", map[string]any{"channel": session})
	provider := connect(one, "provider", answers("provider"))
	w.call(provider, "subscribe", map[string]any{"channel": session})
	if _, err := provider.Dispatch(session, map[string]any{"type": "session/activeClientSet", "activeClient": map[string]any{
		"clientId": "provider", "tools": []any{},
		"canvasProviders": []any{map[string]any{"canvasId": "editor", "displayName": "Editor", "description": "Edits."}},
	}}); err != nil {
		t.Fatal(err)
	}
	w.await(renderer, session, "session/canvasesChanged", `"editor"`)

	editor := w.open("editor")
	if url := w.show(renderer, editor); url != "http://127.0.0.1:1/provider" {
		t.Errorf("the canvas of a client is at %s; want what the client said", url)
	}
	_, err := w.read(renderer, editor, "ahp-canvas-content:/editor-1/provider")
	wantRPCError(t, err, ahp.CodeNotFound) // the host serves the method, but not for a canvas of a client
	if value, err := cl.host.InvokeCanvas(editor, "go", nil); err != nil || string(value) != "42" {
		t.Errorf("InvokeCanvas = %s, %v; want 42", value, err)
	}
	_, err = w.try(renderer, "canvasInvokeAction", map[string]any{"channel": session, "canvasId": "editor"})
	if err == nil {
		t.Error("a client invokes an action of a foreign canvas; want an error")
	}

	// The host and a client send each other messages through a canvas of the host. The
	// host then clears its status with null.
	notes := w.open("notes")
	w.show(renderer, notes)
	w.show(provider, notes)
	if err := cl.host.MessageCanvas(notes, map[string]any{"hello": "view"}); err != nil {
		t.Fatal(err)
	}
	w.await(renderer, notes, "canvas/message", `"hello":"view"`)
	if _, err := renderer.Dispatch(notes, map[string]any{"type": "canvas/message", "payload": map[string]any{"type": "add", "text": "buy milk"}}); err != nil {
		t.Fatal(err)
	}
	w.await(provider, notes, "canvas/message", `buy milk`)
	if err := cl.host.UpdateCanvas(notes, map[string]any{"title": "New", "status": nil}); err != nil {
		t.Fatal(err)
	}
	w.await(renderer, notes, "canvas/updated", `"status":null`)

	// The provider loses its connection. The canvas is stale until the provider
	// reconnects.
	_ = provider.Abort()
	w.await(renderer, editor, "canvas/updated", `"availability":"stale"`)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	back, err := two(ctx, refclient.Options{Handlers: answers("back")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = back.Abort() })
	if _, err := back.Reconnect(ctx, refclient.ReconnectParams{ClientID: "provider", LastSeenServerSeq: 0, Subscriptions: []string{session}}); err != nil {
		t.Fatal(err)
	}
	w.await(renderer, editor, "canvas/updated", `"availability":"ready"`)

	// The client that shows the provider's canvas closes it.
	if _, err := renderer.Dispatch(editor, map[string]any{"type": "canvas/closeRequested"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"provider canvasOpen", "provider canvasInvokeAction", "back canvasOpen", "back canvasClose"} {
		select {
		case got := <-asked:
			if got != want {
				t.Errorf("asked %q; want %q", got, want)
			}
		case <-time.After(stepTime):
			t.Fatalf("nobody was asked; want %q", want)
		}
	}
}

// await waits until a client receives an action of the kind on a channel, with the text
// in it.
func (w *canvasWorld) await(c *refclient.Client, channel, kind, text string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), stepTime)
	defer cancel()
	if _, err := c.WaitFor(ctx, func(frame []byte) bool {
		return refclient.IsAction(channel, kind)(frame) && strings.Contains(string(frame), text)
	}); err != nil {
		w.t.Fatalf("no action %s on %s with %s arrives: %v", kind, channel, text, err)
	}
}

// The relay has a canvas's content in its cache. It refuses the content to a client
// without a subscription, as the host would.
func TestCanvasReadsAreTheHostsToAllow(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcde-", 1<<12)
	w := newCanvasWorld(t, contentproxy.Config{}, agenthost.Canvas{ID: "app", Files: fstest.MapFS{"index.html": {Data: []byte(large)}}})
	channel := w.open("app")
	c, other := w.client("c"), w.client("other")
	address := w.show(c, channel)
	for range 2 {
		if content, err := w.read(c, channel, address); err != nil || content.Text != large {
			t.Fatalf("reading the canvas: %d bytes, %v; want its content", len(content.Text), err)
		}
	}
	before := w.meter.Bytes()
	_, err := w.read(other, channel, address)
	wantRPCError(t, err, ahp.CodePermissionDenied)
	if err := c.Notify("unsubscribe", map[string]any{"channel": channel}); err != nil {
		t.Fatal(err)
	}
	_, err = w.read(c, channel, address)
	wantRPCError(t, err, ahp.CodePermissionDenied)
	w.show(other, channel)
	if content, err := w.read(other, channel, address); err != nil || content.Text != large {
		t.Fatalf("reading the canvas: %d bytes, %v; want its content", len(content.Text), err)
	}
	if sent := w.meter.Bytes() - before; sent > int64(len(large)) {
		t.Errorf("the host-agent sent %d bytes; want at most %d, because the relay keeps the file", sent, len(large))
	}
}
