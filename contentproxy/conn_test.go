package contentproxy

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A client is a client's connection to a host, with its view.
type client struct {
	*Conn
	view *view.Conn
	t    *testing.T
}

// views has, for each Host, what is known about its host process.
var views sync.Map

func newHost(t *testing.T, cfg Config) *Host {
	h := NewHost(cfg)
	t.Cleanup(h.Close)
	return h
}

func (h *Host) client(t *testing.T) *client {
	known, _ := views.LoadOrStore(h, view.NewHost(nil))
	v := known.(*view.Host).Conn("ada")
	return &client{Conn: h.Conn(v.Host()), view: v, t: t}
}

// FromHost passes a host's message to the Conn, as the host-agent does.
func (c *client) FromHost(message []byte, env *ahp.Envelope) (Message, *Read) {
	said := c.view.FromHost(message, env)
	c.Conn.FromHost(said)
	if said != nil {
		message = said.Edit.Apply(message)
	}
	return c.Answer(message, env, said)
}

// sends passes a message from the client.
func (c *client) sends(format string, args ...any) {
	c.t.Helper()
	env, err := ahp.Peek(fmt.Appendf(nil, format, args...))
	if err != nil {
		c.t.Fatal(err)
	}
	c.FromClient(&env)
	c.view.Sent(&env)
}

// gets passes a message from the host, and returns what the client gets.
func (c *client) gets(format string, args ...any) string {
	c.t.Helper()
	message := fmt.Appendf(nil, format, args...)
	env, err := ahp.Peek(message)
	if err != nil {
		c.t.Fatal(err)
	}
	out, read := c.FromHost(message, &env)
	asks := c.Asks()
	if read != nil {
		asks = append(asks, read.Asks()...)
	}
	for _, ask := range asks {
		c.Settle(ask) // as if the host did not answer
	}
	if read != nil {
		out = read.Answer(c.t.Context())
	}
	return string(out.Bytes)
}

// opens subscribes to a canvas with this state. It returns what the client gets.
func (c *client) opens(id, state string) string {
	c.t.Helper()
	c.sends(`{"id":"s-%s","method":"subscribe","params":{"channel":"ahp-canvas:/%s"}}`, id, id)
	return c.gets(`{"id":"s-%s","result":{"snapshot":{"resource":"ahp-canvas:/%s","state":%s,"fromSeq":1}}}`, id, id, state)
}

func serverState(instance, url string) string {
	return fmt.Sprintf(`{"instanceId":%q,"canvasId":"c","provider":{"kind":"server"},"availability":"ready","url":%q}`, instance, url)
}

// reads reads an address, while the host answers the request with an error. It returns what the
// client gets.
func (c *client) reads(id, uri string, code any) answer {
	c.t.Helper()
	c.sends(`{"id":9,"method":"canvasReadResource","params":{"channel":"ahp-canvas:/%s","uri":%q}}`, id, uri)
	out := c.gets(`{"id":9,"error":{"code":%v,"message":"of the host"}}`, code)
	var a answer
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		c.t.Fatalf("reading the answer: %v in %s", err, out)
	}
	return a
}

type answer struct {
	ID     json.RawMessage
	Result struct {
		Contents []struct {
			URI, MimeType string
			Text, Blob    *string
		}
		Data, Encoding, ContentType string
	}
	Error struct {
		Code    int
		Message string
	}
}

func (a answer) wantRefused(t *testing.T, code int, text string) {
	t.Helper()
	if a.Error.Code != code || !strings.Contains(a.Error.Message, text) {
		t.Errorf("the answer is the error %d %q; want %d and %q in it", a.Error.Code, a.Error.Message, code, text)
	}
}

func (a answer) wantText(t *testing.T, mimeType, text string) {
	t.Helper()
	if len(a.Result.Contents) != 1 || a.Result.Contents[0].Text == nil {
		t.Fatalf("the answer is %+v; want one text", a)
	}
	if got := a.Result.Contents[0]; *got.Text != text || got.MimeType != mimeType {
		t.Errorf("the content is %s %q; want %s %q", got.MimeType, *got.Text, mimeType, text)
	}
}

// site starts a web server on the loopback interface. It also returns a counter of requests.
func site(t *testing.T) (*httptest.Server, *atomic.Int64) {
	asked := new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Method != http.MethodGet || r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Header.Get("Origin") != "" {
			t.Errorf("the site's server gets %s with the headers %v; want a GET without credentials and origin", r.Method, r.Header)
		}
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		switch r.URL.Path {
		case "/app/index.html":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("<p>ä &amp; \u2028</p>" + r.URL.RawQuery))
		case "/app/latin1":
			w.Header().Set("Content-Type", "text/plain; charset=iso-8859-1")
			_, _ = w.Write([]byte{'a', 0xe4})
		case "/app/pixel":
			w.Header()["Content-Type"] = nil
			_, _ = w.Write([]byte("\x89PNG\r\n\x1a\n"))
		case "/app/style.css":
			w.Header()["Content-Type"] = nil
			_, _ = w.Write([]byte("p{}"))
		case "/app/escapes":
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write(bytes.Repeat([]byte{1}, 999))
		case "/app/large":
			_, _ = w.Write(make([]byte, 1001))
		case "/app/away":
			http.Redirect(w, r, "/app/index.html", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s, asked
}

func TestMintsAndServes(t *testing.T) {
	t.Parallel()
	s, _ := site(t)
	c := newHost(t, Config{Limit: 1000}).client(t)
	got := c.opens("1", serverState("i1", s.URL+"/app/index.html?x=1#top"))
	want := `"url":"ahp-canvas-content:/i1/app/index.html?x=1#top"}`
	if !strings.Contains(got, want) {
		t.Fatalf("state %s; want %s in it", got, want)
	}
	c.reads("1", "ahp-canvas-content:/i1/app/index.html?x=1#top", -32601).wantText(t, "text/html; charset=utf-8", "<p>ä &amp; \u2028</p>x=1")
	c.reads("1", "ahp-canvas-content:/i1/app/style.css", -32601).wantText(t, "text/css; charset=utf-8", "p{}")
	for path, mimeType := range map[string]string{"escapes": "text/plain", "latin1": "text/plain; charset=iso-8859-1", "pixel": "image/png"} {
		a := c.reads("1", "ahp-canvas-content:/i1/app/"+path, -32601)
		if len(a.Result.Contents) != 1 || a.Result.Contents[0].Blob == nil || a.Result.Contents[0].MimeType != mimeType {
			t.Fatalf("%s: got %+v; want one blob of %s", path, a, mimeType)
		}
		if _, err := base64.StdEncoding.DecodeString(*a.Result.Contents[0].Blob); err != nil {
			t.Error(err)
		}
	}
	c.reads("1", "ahp-canvas-content:/i1/app/large", -32601).wantRefused(t, ahp.CodePermissionDenied, "larger than 1000 bytes")
	c.reads("1", "ahp-canvas-content:/i1/app/away", -32601).wantRefused(t, ahp.CodePermissionDenied, "redirects")
	c.reads("1", "ahp-canvas-content:/i1/app/none", -32601).wantRefused(t, ahp.CodeNotFound, "HTTP 404")
	s.Close()
	c.reads("1", "ahp-canvas-content:/i1/app/index.html", -32601).wantRefused(t, ahp.CodeNotFound, "does not answer")
}

// TestTheHostDecides has the host answer a read. The client must get the host's answer, unless the
// host does not know the method.
func TestTheHostDecides(t *testing.T) {
	t.Parallel()
	s, asked := site(t)
	c := newHost(t, Config{}).client(t)
	c.opens("1", serverState("i1", s.URL+"/app/index.html"))
	for _, code := range []int{-32009, -32008, -32602, -32000} {
		c.reads("1", "ahp-canvas-content:/i1/app/index.html", code).wantRefused(t, code, "of the host")
	}
	c.sends(`{"id":1,"method":"canvasReadResource","params":{"channel":"ahp-canvas:/1","uri":"ahp-canvas-content:/i1/x"}}`)
	const answer = `{"id":1, "result":{"contents":[]}}`
	if got := c.gets(answer); got != answer {
		t.Errorf("the host's successful answer reaches the client as %s; want it unchanged", got)
	}
	for _, code := range []string{"-32601.0", "-3.2601e4"} { // as a host with floating point writes it
		if a := c.reads("1", "ahp-canvas-content:/i1/app/none", code); a.Error.Message == "of the host" {
			t.Errorf("with the code %s, the client gets the host's error; want an answer in place of the host", code)
		}
	}
	asked.Add(-2)
	if asked.Load() != 0 {
		t.Error("the canvas's HTTP server got a request although the host has answered; want none")
	}
}

// TestWhoMayRead lists reads that must be refused according to the table in the Canvas proposal,
// §8.
func TestWhoMayRead(t *testing.T) {
	t.Parallel()
	s, asked := site(t)
	const index = "ahp-canvas-content:/i1/app/index.html"
	tests := map[string]struct {
		prepare func(h *Host, c *client)
		id, uri string
		code    int
		text    string
	}{
		"malformed":        {nil, "1", "ahp-canvas-content:/i1/../x", ahp.CodeInvalidParams, `".."`},
		"other scheme":     {nil, "1", s.URL + "/app/index.html", ahp.CodeInvalidParams, "want ahp-canvas-content"},
		"foreign instance": {func(h *Host, c *client) { c.opens("2", serverState("i2", s.URL+"/")) }, "1", "ahp-canvas-content:/i2/app/index.html", ahp.CodeInvalidParams, "different instance"},
		"foreign channel":  {func(h *Host, c *client) { h.client(t).opens("2", serverState("i2", s.URL+"/")) }, "2", "ahp-canvas-content:/i2/app/index.html", ahp.CodePermissionDenied, "not subscribed"},
		"unsubscribed, while the host says more": {func(h *Host, c *client) {
			c.sends(`{"method":"unsubscribe","params":{"channel":"ahp-canvas:/1"}}`)
			if got := c.updates("1", `"url":"`+s.URL+`/app/other"`); !strings.Contains(got, "ahp-canvas-content:") {
				t.Errorf("the client gets the state %s; want ahp-canvas-content: in place of the address", got)
			}
		}, "1", index, ahp.CodePermissionDenied, "not subscribed"},
		"unsubscribed":      {func(h *Host, c *client) { c.sends(`{"method":"unsubscribe","params":{"channel":"ahp-canvas:/1"}}`) }, "1", index, ahp.CodePermissionDenied, "not subscribed"},
		"address was taken": {func(h *Host, c *client) { c.updates("1", `"url":null`) }, "1", index, ahp.CodeNotFound, "no content"},
		"now elsewhere":     {func(h *Host, c *client) { c.updates("1", `"url":"https://example.com/"`) }, "1", index, ahp.CodeNotFound, "no content"},
		"closed": {func(h *Host, c *client) {
			c.gets(`{"method":"action","params":{"channel":"ahp-session:/s","action":{"type":"session/openCanvasesChanged","openCanvases":[{"instanceId":"i1","channel":"ahp-canvas:/1"}]}}}`)
			c.gets(`{"method":"action","params":{"channel":"ahp-session:/s","action":{"type":"session/openCanvasesChanged","openCanvases":[]}}}`)
		}, "1", index, ahp.CodeNotFound, "closed"},
		"closed, as the snapshot had it": {func(h *Host, c *client) {
			c.sends(`{"id":3,"method":"subscribe","params":{"channel":"ahp-session:/s"}}`)
			c.gets(`{"id":3,"result":{"snapshot":{"resource":"ahp-session:/s","state":{"openCanvases":[{"instanceId":"i1","channel":"ahp-canvas:/1"}]}}}}`)
			c.gets(`{"method":"action","params":{"channel":"ahp-session:/s","action":{"type":"session/openCanvasesChanged","openCanvases":[]}}}`)
		}, "1", index, ahp.CodeNotFound, "closed"},
		"closed, where params are unclear": {func(h *Host, c *client) {
			c.gets(`{"method":"action","params":{"channel":"ahp-session:/s","serverSeq":1,"serverSeq":2,"action":{"type":"session/openCanvasesChanged","openCanvases":[{"channel":"ahp-canvas:/1"}]}}}`)
			c.gets(`{"method":"action","params":{"channel":"ahp-session:/s","serverSeq":1,"serverSeq":2,"action":{"type":"session/openCanvasesChanged","openCanvases":[]}}}`)
		}, "1", index, ahp.CodeNotFound, "closed"},
		"closed, of which the type came last": {func(h *Host, c *client) {
			c.gets(`{"method":"action","params":{"channel":"ahp-session:/s","action":{"openCanvases":[{"channel":"ahp-canvas:/1"}],"type":"session/openCanvasesChanged"}}}`)
			c.gets(`{"method":"action","params":{"channel":"ahp-session:/s","action":{"openCanvases":[], "t\u0079pe" : "session\/openCanvasesChanged"}}}`)
		}, "1", index, ahp.CodeNotFound, "closed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, Config{})
			c := h.client(t)
			c.opens("1", serverState("i1", s.URL+"/app/index.html"))
			if test.prepare != nil {
				test.prepare(h, c)
			}
			c.reads(test.id, test.uri, -32601).wantRefused(t, test.code, test.text)
		})
	}
	if asked.Load() != 0 {
		t.Errorf("the canvas's HTTP server got %d requests from clients that may not read; want 0", asked.Load())
	}
}

// updates passes a host's action that changes these fields of a canvas. It returns what the client
// gets.
func (c *client) updates(id, fields string) string {
	c.t.Helper()
	return c.gets(`{"method":"action","params":{"channel":"ahp-canvas:/%s","action":{"type":"canvas/updated",%s},"serverSeq":2}}`, id, fields)
}

// TestFurtherMessagesPassUntouched has hosts send canvas states whose address must not be minted.
// The client must get the same bytes.
func TestFurtherMessagesPassUntouched(t *testing.T) {
	t.Parallel()
	const local = "http://127.0.0.1:3000/x"
	states := map[string]string{
		"client's":           `{"instanceId":"i1","provider":{"kind":"client","clientId":"x"},"url":"` + local + `"}`,
		"no provider":        `{"instanceId":"i1","url":"` + local + `"}`,
		"no instance":        `{"provider":{"kind":"server"},"url":"` + local + `"}`,
		"provider twice":     `{"instanceId":"i1","provider":{"kind":"client"},"provider":{"kind":"server"},"url":"` + local + `"}`,
		"url twice":          `{"instanceId":"i1","provider":{"kind":"server"},"url":"` + local + `","url":"` + local + `"}`,
		"https":              serverState("i1", "https://localhost:3000/x"),
		"in band":            serverState("i1", "ahp-canvas-content:/i1/x"),
		"denied port":        serverState("i1", "http://localhost:4000/x"),
		"the same, with 0":   serverState("i1", "http://localhost:04000/x"),
		"other IP notation":  serverState("i1", "http://0x7f000001:3000/x"),
		"a name":             serverState("i1", "http://localtest.me:3000/x"),
		"no string":          `{"instanceId":"i1","provider":{"kind":"server"},"url":7}`,
		"not a canvas state": `[1,2]`,
	}
	for name, state := range states {
		c := newHost(t, Config{DenyPorts: []string{"4000"}}).client(t)
		if got := c.opens("1", state); !strings.Contains(got, `"state":`+state+`,"fromSeq":1}}}`) {
			t.Errorf("%s: the client gets %s; want the host's state unchanged", name, got)
		}
		c.reads("1", "ahp-canvas-content:/i1/x", -32601)
	}
	off := newHost(t, Config{Off: true}).client(t)
	if got := off.opens("1", serverState("i1", local)); !strings.Contains(got, local) {
		t.Errorf("with Off, the client got %s; want the host's own address", got)
	}
	off.reads("1", "ahp-canvas-content:/i1/x", -32601).wantRefused(t, -32601, "of the host")
}

// TestAddressesAreMintedAnywhere has the host send an address in each message that can have a
// canvas's state. The client must get minted addresses, and all other bytes unchanged.
func TestAddressesAreMintedAnywhere(t *testing.T) {
	t.Parallel()
	const local, minted = `"http:\/\/localhost:3000/%61?b"`, `"ahp-canvas-content:/i%2F1/%61?b"`
	state := `{"url" : ` + local + `, "instanceId":"i/1", "x":[{}], "provider":{"kind":"server"} , "contentUri":` + local + `}`
	messages := map[string]struct{ request, message string }{
		"subscribe": {
			`{"id":1,"method":"subscribe","params":{"channel":"ahp-canvas:/1"}}`,
			`{"id":1, "result": {"snapshot":{"state":` + state + `,"resource":"ahp-canvas:/1"}}}`,
		},
		"initialize": {
			`{"id":"a","method":"initialize","params":{"channel":"ahp-root://","clientId":"c"}}`,
			`{"id":"\u0061","result":{"snapshots":[{"resource":"ahp-root://","state":{}} , {"resource":"ahp-canvas:/1","state":` + state + `}]}}`,
		},
		"reconnect, snapshots": {
			`{"id":1,"method":"reconnect","params":{"clientId":"c","lastSeenServerSeq":1,"subscriptions":["ahp-canvas:/1"]}}`,
			`{"id":1.0,"result":{"type":"snapshot","snapshots":[{"resource":"ahp-canvas:/1","state":` + state + `}]}}`,
		},
	}
	for name, m := range messages {
		h := newHost(t, Config{})
		c := h.client(t)
		c.sends("%s", m.request)
		if got, want := c.gets("%s", m.message), strings.ReplaceAll(m.message, local, minted); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
		const update = `{"method":"action","params":{"serverSeq":3, "action":{"type":"canvas/updated","title":null,"url":%s},"channel":"ahp-canvas:/1"}}`
		if got, want := c.gets(update, local), fmt.Sprintf(update, minted); got != want {
			t.Errorf("%s, update:\ngot  %s\nwant %s", name, got, want)
		}
		// The client reconnects, on a connection that has not seen the canvas's state.
		again := h.client(t)
		again.sends(`{"id":5,"method":"reconnect","params":{"clientId":"c","lastSeenServerSeq":1,"subscriptions":["ahp-canvas:/1","ahp-canvas:/2"]}}`)
		const replay = `{"id":5,"result":{"type":"replay","actions":[{"channel":"ahp-canvas:/1","action":{"type":"canvas/updated","url":%s}}],"missing":["ahp-canvas:/2"]}}`
		if got, want := again.gets(replay, local), fmt.Sprintf(replay, minted); got != want {
			t.Errorf("%s, replay:\ngot  %s\nwant %s", name, got, want)
		}
		if len(again.canvases) != 1 {
			t.Errorf("%s: after the reconnect, the view has %d canvases; want the one that the host still has", name, len(again.canvases))
		}
	}
}

// TestCanvasIsReadByResourceRead reads canvas content with resourceRead, as later drafts of the
// extension do.
func TestCanvasIsReadByResourceRead(t *testing.T) {
	t.Parallel()
	s, _ := site(t)
	c := newHost(t, Config{}).client(t)
	c.opens("1", `{"instanceId":"i1","provider":{"kind":"server"},"contentUri":"`+s.URL+`/app/index.html"}`)
	read := func(uri, failure string) (a answer) {
		c.sends(`{"id":9,"method":"resourceRead","params":{"channel":"ahp-root://","uri":%q}}`, uri)
		if err := json.Unmarshal([]byte(c.gets(`{"id":9,"error":{"code":%s,"message":"of the host"}}`, failure)), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := read("ahp-canvas-content:/i1/app/style.css", "-32008")
	if a.Result.Data != "p{}" || a.Result.Encoding != "utf-8" || a.Result.ContentType != "text/css; charset=utf-8" {
		t.Errorf("the content is %+v; want the style sheet as text", a)
	}
	if a := read("ahp-canvas-content:/i1/app/pixel", "-32602"); a.Result.Encoding != "base64" {
		t.Errorf("the content is %+v; want base64", a)
	}
	read("ahp-canvas-content:/i1/app/style.css", "-32009").wantRefused(t, -32009, "of the host")
	read("ahp-canvas-content:/i2/app/style.css", "-32008").wantRefused(t, ahp.CodePermissionDenied, "not subscribed")
	read("file:///etc/passwd", "-32008").wantRefused(t, -32008, "of the host")
}

// TestReadsAreShared has 20 clients read the same content at once. The content's server must get
// one request.
func TestReadsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, gate, asked := newHost(t, Config{}), make(chan struct{}), new(atomic.Int64)
		h.fetcher.client.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
			asked.Add(1)
			<-gate
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("x"))}, nil
		})
		var wg sync.WaitGroup
		for i := range 20 {
			c := h.client(t)
			c.opens("1", serverState("i1", "http://localhost"))
			c.sends(`{"id":%d,"method":"canvasReadResource","params":{"channel":"ahp-canvas:/1","uri":"ahp-canvas-content:/i1/"}}`, i)
			message := fmt.Appendf(nil, `{"id":%d,"error":{"code":-32601,"message":""}}`, i)
			env, err := ahp.Peek(message)
			if err != nil {
				t.Fatal(err)
			}
			_, read := c.FromHost(message, &env)
			wg.Go(func() {
				if got, want := string(read.Answer(t.Context()).Bytes), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":`, i); !strings.HasPrefix(got, want) {
					t.Errorf("got %s; want %s...", got, want)
				}
			})
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("the canvas's server got %d requests for equal reads; want one", n)
		}
	})
}

// asks reads an address in another goroutine, and calls got with the answer.
func (c *client) asks(ctx context.Context, wg *sync.WaitGroup, id int, uri string, got func(a answer)) {
	c.t.Helper()
	c.sends(`{"id":%d,"method":"canvasReadResource","params":{"channel":"ahp-canvas:/1","uri":%q}}`, id, uri)
	message := fmt.Appendf(nil, `{"id":%d,"error":{"code":-32601,"message":""}}`, id)
	env, err := ahp.Peek(message)
	if err != nil {
		c.t.Fatal(err)
	}
	_, read := c.FromHost(message, &env)
	wg.Go(func() {
		var a answer
		if err := json.Unmarshal(read.Answer(ctx).Bytes, &a); err != nil {
			c.t.Error(err)
		}
		got(a)
	})
}

// TestReadsWaitInTurn has a client read 200 pages from a slow server. Meanwhile, another client
// must get its pages at once. In the end, all 200 must be read. Queued pages that only a client
// that has left wanted must not be requested.
func TestReadsWaitInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pages = 200
		h, slow, asked := newHost(t, Config{}), make(chan struct{}), new(atomic.Int64)
		var atOnce, most atomic.Int64
		h.fetcher.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			most.Store(max(most.Load(), atOnce.Add(1)))
			defer atOnce.Add(-1)
			if n, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/")); n < pages-1 { // the others are quick
				select {
				case <-slow:
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(r.URL.Path))}, nil
		})
		greedy, other, gone := h.client(t), h.client(t), h.client(t)
		for _, c := range []*client{greedy, other, gone} {
			c.opens("1", serverState("i1", "http://localhost"))
		}
		page := func(n int) string { return fmt.Sprint("ahp-canvas-content:/i1/", n) }
		var wg sync.WaitGroup
		var read, quick atomic.Int64
		count := func(n *atomic.Int64) func(a answer) {
			return func(a answer) {
				if len(a.Result.Contents) == 1 {
					n.Add(1)
				} else {
					t.Errorf("a read gets error %d %q; want its content", a.Error.Code, a.Error.Message)
				}
			}
		}
		for i := range pages {
			greedy.asks(t.Context(), &wg, i, page(i), count(&read))
			synctest.Wait() // so that the last page is last in the queue
		}
		begin := time.Now()
		other.asks(t.Context(), &wg, 1, page(pages), count(&quick))
		other.asks(t.Context(), &wg, 2, page(pages-1), count(&quick))
		synctest.Wait()
		if quick.Load() != 2 || time.Since(begin) > 0 {
			t.Errorf("another client has %d answers after %v; want 2 at once", quick.Load(), time.Since(begin))
		}
		if read.Load() != 1 { // the page that both clients read
			t.Errorf("%d of the greedy client's pages are read; want 1", read.Load())
		}
		leave, cancel := context.WithCancel(t.Context())
		for i := range 20 {
			gone.asks(leave, &wg, i, fmt.Sprint("ahp-canvas-content:/i1/0?", i), func(answer) {})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(slow)
		wg.Wait()
		if read.Load() != pages {
			t.Errorf("%d pages were read; want %d", read.Load(), pages)
		}
		if n := asked.Load(); n != pages+1+clientFetches {
			t.Errorf("the server got %d requests; want %d, and %d for the client that left", n, pages+1, clientFetches)
		}
		if most.Load() > hostFetches {
			t.Errorf("%d requests at the same time; want at most %d", most.Load(), hostFetches)
		}
		if n := len(h.fetcher.flights); n != 0 {
			t.Errorf("%d fetches are still listed after their end; want none", n)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestContentIsFound fails unless From and To of a message delimit the content, in answers of the
// host and of the host-agent.
func TestContentIsFound(t *testing.T) {
	t.Parallel()
	s, _ := site(t)
	for _, cfg := range []Config{{}, {Off: true}} {
		c := newHost(t, cfg).client(t)
		c.opens("1", serverState("i1", s.URL+"/app/index.html"))
		for request, message := range map[string]string{
			`{"id":1,"method":"canvasReadResource","params":{"channel":"ahp-canvas:/1","uri":"ahp-canvas-content:/i1/x"}}`: `{"id":1,"result":{"contents":[{"uri":"x","text":"y"},{"uri":"z","blob":"largest"},{}]}}`,
			`{"id":1,"method":"resourceRead","params":{"channel":"ahp-root://","uri":"file:///x"}}`:                        `{"result": {"encoding":"utf-8", "data":"largest"}, "id":1}`,
		} {
			c.sends("%s", request)
			env, err := ahp.Peek([]byte(message))
			if err != nil {
				t.Fatal(err)
			}
			out, _ := c.FromHost([]byte(message), &env)
			if got := string(out.Bytes[out.From:out.To]); got != `"largest"` || string(out.Bytes) != message {
				t.Errorf("the content found is %q in %s; want largest", got, out.Bytes)
			}
		}
	}
	c := newHost(t, Config{}).client(t)
	c.opens("1", serverState("i1", s.URL+"/app/index.html"))
	c.sends(`{"id":9,"method":"canvasReadResource","params":{"channel":"ahp-canvas:/1","uri":"ahp-canvas-content:/i1/app/style.css"}}`)
	message := []byte(`{"id":9,"error":{"code":-32601,"message":""}}`)
	env, err := ahp.Peek(message)
	if err != nil {
		t.Fatal(err)
	}
	_, read := c.FromHost(message, &env)
	if out := read.Answer(t.Context()); string(out.Bytes[out.From:out.To]) != `"p{}"` {
		t.Errorf("the content found is %q in %s; want p{}", out.Bytes[out.From:out.To], out.Bytes)
	}
}

func FuzzFromHost(f *testing.F) {
	f.Add([]byte(`{"id":1,"result":{"snapshot":{"resource":"ahp-canvas:/1","state":` + serverState("i", "http://localhost/") + `}}}`))
	f.Add([]byte(`{"id":1,"result":{"snapshots":[{"resource":"ahp-canvas:/1","state":{}}],"actions":[{}],"missing":[""]}}`))
	f.Add([]byte(`{"method":"action","params":{"channel":"ahp-canvas:/1","action":{"type":"canvas/updated","url":"http://localhost"}}}`))
	f.Add([]byte(`{"method":"action","params":{"channel":"ahp-session:/1","action":{"type":"session/openCanvasesChanged","openCanvases":[{"channel":1}]}}}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		env, err := ahp.Peek(message)
		if err != nil {
			return
		}
		c := NewHost(Config{}).client(t)
		c.opens("1", serverState("i1", "http://localhost/"))
		c.sends(`{"id":1,"method":"reconnect","params":{"clientId":"c","lastSeenServerSeq":1,"subscriptions":["ahp-canvas:/1"]}}`)
		before := string(message)
		sent, _ := c.FromHost(message, &env)
		out := sent.Bytes
		if sent.From < 0 || sent.From > sent.To || sent.To > len(out) {
			t.Fatalf("the content is at %d to %d of %d bytes; want a place in the message", sent.From, sent.To, len(out))
		}
		if string(message) != before {
			t.Fatal("FromHost has changed the host's message; want a copy")
		}
		if out != nil && !json.Valid(out) {
			t.Fatalf("FromHost turned %q into %q; want valid JSON", message, out)
		}
		if !strings.Contains(before, "localhost") && !strings.Contains(before, "1") && !strings.Contains(before, `\u`) && out != nil && string(out) != before {
			t.Fatalf("FromHost turned %q into %q; want it unchanged, because it has no loopback address", message, out)
		}
	})
}
