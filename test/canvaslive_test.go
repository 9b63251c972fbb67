package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/contentproxy"
	"ahprelay/gateway"
	"ahprelay/gateway/canvas"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
)

// A browser is an HTTP client that behaves like a browser: names below localhost resolve
// to this machine, and cookies are stored.
type browser struct {
	t      testing.TB
	client *http.Client
}

// got is a response to a browser, with the URL after all redirects.
type got struct {
	url    string
	status int
	header http.Header
	body   string
}

// toLoopback dials the port of an address on the loopback interface, and ignores the
// host name.
func toLoopback(ctx context.Context, network, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, network, "127.0.0.1:"+port)
}

// A safeJar is a cookie jar that treats http origins below localhost as secure, as
// browsers do.
type safeJar struct{ *cookiejar.Jar }

func safe(u *url.URL) *url.URL {
	at := *u
	at.Scheme = "https"
	return &at
}

func (j safeJar) SetCookies(u *url.URL, cookies []*http.Cookie) { j.Jar.SetCookies(safe(u), cookies) }
func (j safeJar) Cookies(u *url.URL) []*http.Cookie             { return j.Jar.Cookies(safe(u)) }

func (w *canvasWorld) browser() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	transport := &http.Transport{DialContext: toLoopback, DisableCompression: true}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &browser{w.t, &http.Client{Transport: transport, Jar: safeJar{jar}}}
}

// ticket requests a ticket for a canvas page. It returns the URL that opens the page.
func (w *canvasWorld) ticket(c *refclient.Client, ask map[string]any) string {
	w.t.Helper()
	var ticket struct{ URL string }
	if err := json.Unmarshal(w.call(c, "relay/canvasTicket", ask), &ticket); err != nil {
		w.t.Fatal(err)
	}
	return ticket.URL
}

func (b *browser) open(address string) got { return b.send(http.MethodGet, address, nil, nil) }

// send sends a request, follows redirects, and reads the whole response.
func (b *browser) send(method, address string, header map[string]string, body io.Reader) got {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), method, address, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := b.client.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	data, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		b.t.Fatalf("%s %s: %v after %d bytes; want the whole answer", method, address, err, len(data))
	}
	return got{response.Request.URL.String(), response.StatusCode, response.Header, string(data)}
}

// An app is a web server on the host's machine, like a development tool's.
type app struct {
	*httptest.Server
	release  chan struct{} // each value lets the event stream send a further event
	said     atomic.Int64  // bytes sent by /endless
	smuggled atomic.Int64  // requests for /smuggled, which no client sends by itself
}

func newApp(t testing.TB) *app {
	a := &app{release: make(chan struct{}, 16)}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "<p>app "+r.URL.RequestURI()) })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "host": r.Host, "header": r.Header, "body": string(body), "uri": r.RequestURI})
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-a.release:
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil) // accepts pages of the same origin only
		if err != nil {
			return
		}
		defer func() { _ = ws.CloseNow() }()
		for {
			kind, message, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), kind, append([]byte("echo "), message...)) != nil {
				return
			}
		}
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for piece := large[:64<<10]; ; {
			n, err := w.Write(piece)
			if a.said.Add(int64(n)); err != nil {
				return
			}
		}
	})
	over := make(chan struct{})
	mux.HandleFunc("/sink", func(http.ResponseWriter, *http.Request) { <-over }) // the handler reads nothing, so it does not notice the connection's end
	mux.HandleFunc("/smuggled", func(http.ResponseWriter, *http.Request) { a.smuggled.Add(1) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "large.bin", time.Time{}, bytes.NewReader(large))
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</large>; rel=preload")
		w.Header().Set("Set-Cookie", "hinted=1; Domain=localhost")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Set-Cookie")
		w.Header().Set("Trailer", "X-Announced")
		_, _ = io.WriteString(w, "hinted")
		w.Header().Set("X-Announced", "said")
		w.Header().Set(http.TrailerPrefix+"Set-Cookie", "behind=1")
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.FormValue("at"))
		w.WriteHeader(302)
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, name := range []string{"X-Frame-Options", "Strict-Transport-Security", "Clear-Site-Data", "Alt-Svc", "NEL", "X-App", "Cross-Origin-Opener-Policy"} {
			h.Set(name, "said")
		}
		h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; report-uri /x")
		h.Set("Cache-Control", "public, max-age=60")
		h.Add("Set-Cookie", "a=b; Domain=localhost; Path=/headers")
		h.Add("Set-Cookie", "ahp-canvas=mine; Path=/")
	})
	a.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		close(over)
		a.Server.Close()
	})
	return a
}

var large = bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16)

// liveApp opens a canvas at a new application, and the canvas's page in a browser.
// change, if not nil, edits the client's token. base is the page's origin.
func liveApp(t *testing.T, change func(*auth.Client)) (w *canvasWorld, a *app, c *refclient.Client, channel string, b *browser, base string) {
	t.Helper()
	return liveAppWith(t, change, func(*hostagent.Config) {})
}

// liveAppWith is liveApp, and lets agent edit the host-agent's configuration.
func liveAppWith(t *testing.T, change func(*auth.Client), agent func(*hostagent.Config)) (w *canvasWorld, a *app, c *refclient.Client, channel string, b *browser, base string) {
	t.Helper()
	a = newApp(t)
	w = newCanvasWorldWith(t, agent, agenthost.Canvas{ID: "app", URL: a.URL + "/start?x=1#frag"})
	channel = w.open("app")
	c = w.clientWith("c", change)
	b = w.browser()
	page := b.open(w.ticket(c, map[string]any{"channel": channel, "uri": w.show(c, channel)}))
	if page.status != http.StatusOK || page.body != "<p>app /start?x=1" || !strings.HasSuffix(page.url, "/start?x=1") {
		t.Fatalf("the page %s: HTTP %d %q; want 200 with the application's start", page.url, page.status, page.body)
	}
	return w, a, c, channel, b, strings.TrimSuffix(page.url, "/start?x=1")
}

// A browser uses an application through a canvas: methods, bodies, ranges, redirects
// and headers. The application must work as in a browser on its own machine.
func TestApplicationWorksAsOnItsMachine(t *testing.T) {
	t.Parallel()
	_, a, _, _, b, base := liveApp(t, nil)
	host := strings.TrimPrefix(a.URL, "http://")

	// The application gets the method and body, and headers as from a browser on its
	// machine.
	var seen struct {
		Method, Host, Body, URI string
		Header                  http.Header
	}
	echo := b.send("PUT", base+"/echo?a=1;b=2", map[string]string{
		"Origin": base, "Referer": base + "/start", "X-App": "y", "Cookie": "theirs=1", "X-Forwarded-For": "1.2.3.4", "Content-Type": "text/plain",
	}, strings.NewReader("hello"))
	if err := json.Unmarshal([]byte(echo.body), &seen); err != nil {
		t.Fatalf("the application's echo: HTTP %d %q; want JSON", echo.status, echo.body)
	}
	if seen.Method != "PUT" || seen.Body != "hello" || seen.Host != host || seen.URI != "/echo?a=1;b=2" {
		t.Errorf("the application received %+v; want the sent method, body, host and URI", seen)
	}
	for name, want := range map[string]string{
		"Origin": a.URL, "Referer": a.URL + "/start", "X-App": "y", "Cookie": "theirs=1", "X-Forwarded-For": "", "Forwarded": "", "Content-Type": "text/plain",
	} {
		if got := seen.Header.Get(name); got != want {
			t.Errorf("the application saw %s %q; want %q", name, got, want)
		}
	}

	// The browser requests a range of a file, and then the whole file.
	part := b.send("GET", base+"/large", map[string]string{"Range": "bytes=1000-1999"}, nil)
	if part.status != http.StatusPartialContent || part.body != string(large[1000:2000]) {
		t.Errorf("a range: HTTP %d, %d bytes; want 206, and 1000", part.status, len(part.body))
	}
	if all := b.open(base + "/large"); all.body != string(large) {
		t.Errorf("%d bytes; want %d", len(all.body), len(large))
	}
	upload := large[:1<<20]
	if up := b.send("POST", base+"/echo", nil, bytes.NewReader(upload)); json.Unmarshal([]byte(up.body), &seen) != nil || seen.Body != string(upload) {
		t.Errorf("an upload arrived as %d bytes; want 1048576", len(seen.Body))
	}

	// The application sends an informational response. The browser must not get it.
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		t.Errorf("the browser received the informational response %d, %v; want none", code, header)
		return nil
	}}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, base+"/hints", nil)
	if err != nil {
		t.Fatal(err)
	}
	hinted, err := b.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, hinted.Body)
	_ = hinted.Body.Close()
	if len(hinted.Trailer) > 0 {
		t.Errorf("the trailer behind the answer is %v; want none", hinted.Trailer)
	}
	if hinted.StatusCode != http.StatusOK || hinted.Header.Get("Link") == "" || hinted.Header.Get("Set-Cookie") != "" {
		t.Errorf("an answer after early hints: HTTP %d %v; want 200 with its links and without cookies", hinted.StatusCode, hinted.Header)
	}

	// A redirect within the application's origin is followed. A redirect to a different
	// place becomes HTTP 502.
	for at, want := range map[string]int{
		"/there?y=2": 200, a.URL + "/there?y=2": 200, "there?y=2": 200,
		"http://127.0.0.1:1/": 502, "https://example.com/": 502, "//example.com/": 502, "http://[::1]/": 502, "/\\example.com": 502, "javascript:alert(1)": 502,
	} {
		if r := b.open(base + "/to?at=" + url.QueryEscape(at)); r.status != want || want == 200 && r.url != base+"/there?y=2" {
			t.Errorf("a redirect to %s: HTTP %d at %s; want the status in the table", at, r.status, r.url)
		}
	}

	// The relay removes or changes some headers of a response, and passes on the rest.
	h := b.open(base + "/headers").header
	for name, want := range map[string]string{
		"X-App": "said", "Cross-Origin-Opener-Policy": "said",
		"X-Frame-Options": "", "Strict-Transport-Security": "", "Clear-Site-Data": "", "Alt-Svc": "", "Nel": "",
		"Content-Security-Policy": "default-src 'self'", "Cache-Control": "private, max-age=60", "Referrer-Policy": "same-origin",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q; want %q", name, got, want)
		}
	}
	if got := h["Set-Cookie"]; len(got) != 1 || got[0] != "a=b; Path=/headers; Secure; SameSite=None; Partitioned" {
		t.Errorf("the cookies are %q; want one, marked Secure, SameSite=None and Partitioned", got)
	}
}

// A page has an event stream, a WebSocket and a download. They go on after the
// host-agent and the client lost their connections, and end when the host closes the
// canvas.
func TestCanvasLiveStreams(t *testing.T) {
	t.Parallel()
	w, a, c, channel, b, base := liveApp(t, nil)
	events := w.events(b, base)
	for i := range 3 {
		if line := events.next(); line != fmt.Sprintf("data: %d", i) {
			t.Fatalf("event %d is %q; want its number", i, line)
		}
		a.release <- struct{}{}
	}
	events.next()
	ws := b.socket(base)
	for i := range 3 {
		if got := ws.say(fmt.Sprint(i)); got != fmt.Sprint("echo ", i) {
			t.Fatalf("the socket answers %q; want the echo", got)
		}
	}
	// The host-agent's connection to the relay is cut for a short time. The download
	// arrives complete, and the WebSocket stays open.
	download, err := b.client.Get(base + "/large")
	if err != nil {
		t.Fatal(err)
	}
	defer download.Body.Close()
	begun := make([]byte, len(large)/4)
	if _, err := io.ReadFull(download.Body, begun); err != nil {
		t.Fatal(err)
	}
	w.meter.Cut()
	rest, err := io.ReadAll(download.Body)
	if err != nil || string(begun)+string(rest) != string(large) {
		t.Errorf("a download over a drop: %v after %d bytes; want the large file", err, len(begun)+len(rest))
	}
	if got := ws.say("still"); got != "echo still" {
		t.Errorf("a WebSocket's answer after a drop: %q; want echo still", got)
	}

	// The client's own connection to the relay ends. The page works without it.
	_ = c.Abort()
	a.release <- struct{}{}
	if line := events.next(); line != "data: 4" {
		t.Errorf("an event after the client's connection has ended: %q; want data: 4", line)
	}
	if got := ws.say("x"); got != "echo x" {
		t.Errorf("a WebSocket's answer after the client's connection has ended: %q; want echo x", got)
	}
	if got := b.open(base + "/start"); got.status != http.StatusOK {
		t.Errorf("a page after the client's connection has ended: HTTP %d; want 200", got.status)
	}
	again := w.resume("c", lastServerSeq(c), w.session, channel)
	if got := b.open(base + "/start"); got.status != http.StatusOK {
		t.Errorf("a page after the client's return: HTTP %d; want 200", got.status)
	}
	// The host closes the canvas. The page's streams end.
	if err := w.host.CloseCanvas(channel); err != nil {
		t.Fatal(err)
	}
	if _, err := again.WaitFor(t.Context(), refclient.IsAction(w.session, "session/openCanvasesChanged")); err != nil {
		t.Fatal(err)
	}
	events.ends()
	ws.ends()
	if got := b.open(base + "/start"); got.status != http.StatusGone {
		t.Errorf("after the canvas's close: HTTP %d %q; want 410", got.status, got.body)
	}
}

// streamTime limits the life of an event stream. It must be longer than a whole test.
const streamTime = 3 * stepTime

// An eventStream reads a page's event stream line by line.
type eventStream struct {
	t     testing.TB
	lines *bufio.Scanner
}

func (w *canvasWorld) events(b *browser, base string) *eventStream {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), streamTime)
	w.t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := b.client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		w.t.Fatalf("opening the event stream: HTTP %d; want 200", response.StatusCode)
	}
	return &eventStream{w.t, bufio.NewScanner(response.Body)}
}

// next waits for the next line that is not empty, and returns it. At the end of the
// stream it returns "".
func (e *eventStream) next() string {
	for e.lines.Scan() {
		if text := e.lines.Text(); text != "" {
			return text
		}
	}
	return ""
}

func (e *eventStream) ends() {
	e.t.Helper()
	if line := e.next(); line != "" || errors.Is(e.lines.Err(), context.DeadlineExceeded) {
		e.t.Errorf("the event stream continues with %q; want its end", line)
	}
}

// A socketPage is a WebSocket that a page has opened.
type socketPage struct {
	t  testing.TB
	ws *websocket.Conn
}

func (b *browser) dial(base, origin string) (*websocket.Conn, int) {
	b.t.Helper()
	ws, response, err := websocket.Dial(b.t.Context(), base+"/socket", &websocket.DialOptions{HTTPClient: b.client, HTTPHeader: http.Header{"Origin": {origin}}})
	if err == nil {
		b.t.Cleanup(func() { _ = ws.CloseNow() })
		return ws, http.StatusSwitchingProtocols
	}
	if response == nil {
		b.t.Fatal(err)
	}
	return nil, response.StatusCode
}

func (b *browser) socket(base string) *socketPage {
	b.t.Helper()
	ws, status := b.dial(base, base)
	if ws == nil {
		b.t.Fatalf("opening the socket: HTTP %d; want 101", status)
	}
	return &socketPage{b.t, ws}
}

func (p *socketPage) say(text string) string {
	p.t.Helper()
	if err := p.ws.Write(p.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		p.t.Fatal(err)
	}
	_, answer, err := p.ws.Read(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return string(answer)
}

func (p *socketPage) ends() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), stepTime)
	defer cancel()
	if _, answer, err := p.ws.Read(ctx); err == nil || ctx.Err() != nil {
		p.t.Errorf("the WebSocket continues with %q; want its end", answer)
	}
}

// The relay refuses requests from other origins, for other host names, with used
// tickets, from clients without a subscription, and from clients with too low a level.
func TestCanvasLiveGate(t *testing.T) {
	t.Parallel()
	w, _, c, channel, b, base := liveApp(t, nil)

	// A page of another origin sends requests with this browser's cookies. The relay
	// refuses them.
	for name, header := range map[string]map[string]string{
		"fetch of another site":      {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "https://example.com"},
		"picture of a canvas beside": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
	} {
		if got := b.send("GET", base+"/start", header, nil); got.status != http.StatusForbidden {
			t.Errorf("%s: HTTP %d; want 403", name, got.status)
		}
	}
	if got := b.send("POST", base+"/echo", map[string]string{"Origin": "https://example.com"}, strings.NewReader("x")); got.status != http.StatusForbidden {
		t.Errorf("a form from a different site: HTTP %d; want 403", got.status)
	}
	if _, status := b.dial(base, "https://example.com"); status != http.StatusForbidden {
		t.Errorf("a WebSocket from a different site: HTTP %d; want 403", status)
	}

	// A request for another canvas's host name carries this canvas's cookie. The relay
	// refuses it.
	other := strings.Replace(base, "http://c", "http://d", 1)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, other+"/start", nil)
	for _, cookie := range b.client.Jar.Cookies(mustURL(t, base)) {
		request.AddCookie(cookie)
	}
	response, err := b.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("a request with a different canvas's name: HTTP %d; want 403", response.StatusCode)
	}

	// A ticket works once only.
	ticket := w.ticket(c, map[string]any{"channel": channel, "uri": w.show(c, channel)})
	if got := w.browser().open(ticket); got.status != http.StatusOK {
		t.Errorf("a new ticket: HTTP %d; want 200", got.status)
	}
	if got := w.browser().open(ticket); got.status != http.StatusForbidden {
		t.Errorf("a used ticket: HTTP %d; want 403", got.status)
	}

	// A second client of the subject has no subscription, and a client at the level look
	// must not use the first client's address. Neither gets a ticket.
	second := w.clientWith("second", nil)
	_, err = w.try(second, "relay/canvasTicket", map[string]any{"channel": channel, "uri": "ahp-canvas-content:/app-1/"})
	wantRPCError(t, err, ahp.CodePermissionDenied)
	weaker := w.clientWith("c", func(c *auth.Client) { c.Access = auth.AccessRead })
	_, err = w.try(weaker, "relay/canvasTicket", map[string]any{"channel": channel, "uri": "ahp-canvas-content:/app-1/"})
	wantRPCError(t, err, ahp.CodePermissionDenied)

	// The client unsubscribes from the canvas. Its page ends.
	events := w.events(b, base)
	events.next()
	if err := c.Unsubscribe(channel); err != nil {
		t.Fatal(err)
	}
	events.ends()
	if got := b.open(base + "/start"); got.status != http.StatusForbidden {
		t.Errorf("after the unsubscribe: HTTP %d; want 403", got.status)
	}
}

func mustURL(t testing.TB, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestCanvasLiveReadOnly opens a page for a client at the level look. The client can
// read the page, and can neither send data nor open a WebSocket.
func TestCanvasLiveReadOnly(t *testing.T) {
	t.Parallel()
	_, _, _, _, b, base := liveApp(t, func(c *auth.Client) { c.Access = auth.AccessRead })
	if got := b.send("HEAD", base+"/start", nil, nil); got.status != http.StatusOK {
		t.Errorf("a HEAD of a person who looks: HTTP %d; want 200", got.status)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"} {
		if got := b.send(method, base+"/echo", map[string]string{"Origin": base}, nil); got.status != http.StatusMethodNotAllowed {
			t.Errorf("a %s of a person who looks: HTTP %d %q; want 405", method, got.status, got.body)
		}
	}
	if got := b.send("GET", base+"/echo", nil, strings.NewReader("x")); got.status != http.StatusBadRequest {
		t.Errorf("a GET with a body: HTTP %d; want 400", got.status)
	}
	if _, status := b.dial(base, base); status != http.StatusForbidden {
		t.Errorf("a socket of a person who looks: HTTP %d; want 403", status)
	}
}

// Some headers make an application treat a GET as a different method. They reach the
// application from a viewer with the level to use the canvas, and are removed for a
// viewer at the level look.
func TestLookersHeadersCannotOverrideTheMethod(t *testing.T) {
	t.Parallel()
	overriding := []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Method", "X-Rewrite-Url"}
	plain := []string{"Accept", "Accept-Language", "If-None-Match", "Last-Event-Id", "Range", "X-Requested-With"}
	for _, access := range []auth.Access{auth.AccessRead, auth.AccessApprove, auth.AccessWrite} {
		t.Run(string(access), func(t *testing.T) {
			t.Parallel()
			_, _, _, _, b, base := liveApp(t, func(c *auth.Client) { c.Access = access })
			header := map[string]string{}
			for _, name := range slices.Concat(overriding, plain) {
				header[name] = "DELETE"
			}
			var seen struct{ Header http.Header }
			got := b.send("GET", base+"/echo", header, nil)
			if err := json.Unmarshal([]byte(got.body), &seen); err != nil {
				t.Fatalf("the application's echo: HTTP %d %q; want JSON", got.status, got.body)
			}
			for _, name := range plain {
				if seen.Header.Get(name) != "DELETE" {
					t.Errorf("the header %s does not reach the application; want DELETE", name)
				}
			}
			for _, name := range overriding {
				if reached := seen.Header.Get(name) != ""; reached != (access == auth.AccessWrite) {
					t.Errorf("the header %s reaches the application: %v; want it only at the level operate", name, reached)
				}
			}
		})
	}
}

// TestCanvasDomain checks canvas domains with canvas.CheckDomain. It accepts the
// relay's own, and names the reason for each domain that does not lead to the relay.
func TestCanvasDomain(t *testing.T) {
	t.Parallel()
	w := newCanvasWorld(t, contentproxy.Config{})
	port := mustURL(t, w.stack.Relay.URL()).Port()
	if err := canvas.CheckDomain(t.Context(), "http://localhost:"+port); err != nil {
		t.Error(err)
	}
	_, other, _ := net.SplitHostPort(newApp(t).Listener.Addr().String())
	unknown := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(unknown.Close)
	for domain, want := range map[string]string{
		"http://localhost:" + other: "is not served by a relay with that domain", "http://localhost:1": "the relay, or a proxy in front of it, must serve", "http://127.0.0.1:" + port: "want a name",
		"https://localhost:" + mustURL(t, unknown.URL).Port(): "get a certificate for *.localhost", "https://canvas.invalid": "add a DNS record for *.canvas.invalid",
	} {
		if err := canvas.CheckDomain(t.Context(), domain); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", domain, err, want)
		}
	}
}

// The operator revokes a subject's tokens. The subject's open page ends, and its unused
// ticket opens nothing.
func TestCanvasLiveRevoked(t *testing.T) {
	t.Parallel()
	w, _, c, channel, b, base := liveApp(t, func(c *auth.Client) { c.Subject = "bob" })
	events, ws := w.events(b, base), b.socket(base)
	events.next()
	ws.say("x")
	unused := w.ticket(c, map[string]any{"channel": channel, "uri": w.show(c, channel)})
	if err := w.stack.Relay.Revocations().Add(auth.Revocation{Tenant: "default", Subject: "bob", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	events.ends()
	ws.ends()
	if got := b.open(base + "/start"); got.status != http.StatusGone {
		t.Errorf("after the revocation: HTTP %d %q; want 410", got.status, got.body)
	}
	if got := w.browser().open(unused); got.status != http.StatusGone {
		t.Errorf("an unused ticket of the revoked client: HTTP %d, %q; want 410", got.status, got.body)
	}
}

// The operator revokes the subject of a viewer with an audience. The viewer's page
// ends, although the host-agent knows the viewer by the audience's name only.
func TestCanvasLiveRevokedViewer(t *testing.T) {
	t.Parallel()
	w, _, _, _, b, base := liveApp(t, func(c *auth.Client) { c.Subject, c.Access, c.Audience = "bob", auth.AccessRead, "team" })
	events := w.events(b, base)
	events.next()
	if err := w.stack.Relay.Revocations().Add(auth.Revocation{Tenant: "default", Subject: "bob", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	events.ends()
	if got := b.open(base + "/start"); got.status != http.StatusGone {
		t.Errorf("after the revocation: HTTP %d %q; want 410", got.status, got.body)
	}
}

// The host's owner limits canvas pages: to reading, with WebSockets at every level, to
// none, and by port.
func TestCanvasLiveOwner(t *testing.T) {
	t.Parallel()
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		_, _, _, _, b, base := liveAppWith(t, nil, func(cfg *hostagent.Config) { cfg.CanvasLive = hostagent.CanvasRead })
		if got := b.send("POST", base+"/echo", map[string]string{"Origin": base}, nil); got.status != http.StatusMethodNotAllowed {
			t.Errorf("a POST where the owner allows reading: HTTP %d; want 405", got.status)
		}
		if _, status := b.dial(base, base); status != http.StatusForbidden {
			t.Errorf("a socket where the owner allows reading: HTTP %d; want 403", status)
		}
	})
	t.Run("sockets", func(t *testing.T) {
		t.Parallel()
		_, _, _, _, b, base := liveAppWith(t, func(c *auth.Client) { c.Access = auth.AccessRead }, func(cfg *hostagent.Config) { cfg.CanvasSockets = true })
		if got := b.socket(base).say("x"); got != "echo x" {
			t.Errorf("the socket answers %q; want the echo", got)
		}
		if got := b.send("POST", base+"/echo", map[string]string{"Origin": base}, nil); got.status != http.StatusMethodNotAllowed {
			t.Errorf("a POST where the owner allows sockets: HTTP %d; want 405", got.status)
		}
	})
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		w := newCanvasWorldWith(t, func(cfg *hostagent.Config) { cfg.CanvasLive = hostagent.CanvasOff }, agenthost.Canvas{ID: "app", URL: newApp(t).URL}, agenthost.Canvas{ID: "notes"})
		c := w.client("c")
		for _, id := range []string{"app", "notes"} { // the host serves the content of notes itself
			channel := w.open(id)
			ask := map[string]any{"channel": channel, "uri": w.show(c, channel)}
			_, err := w.try(c, "relay/canvasTicket", ask)
			wantRPCError(t, err, ahp.CodePermissionDenied)
			if _, err := w.read(c, channel, ask["uri"].(string)); err != nil {
				t.Errorf("reading the canvas %s by AHP: %v; want no error", id, err)
			}
		}
	})
	t.Run("ports", func(t *testing.T) {
		t.Parallel()
		a := newApp(t)
		_, port, _ := net.SplitHostPort(a.Listener.Addr().String())
		w := newCanvasWorld(t, contentproxy.Config{DenyPorts: []string{port}}, agenthost.Canvas{ID: "app", URL: a.URL})
		c, channel := w.client("c"), w.open("app")
		if url := w.show(c, channel); !strings.HasPrefix(url, "http:") { // the client gets the host's own address
			t.Errorf("a canvas at a denied port has the address %s; want the host's own", url)
		}
		ticket, err := w.try(c, "relay/canvasTicket", map[string]any{"channel": channel, "uri": "ahp-canvas-content:/app-1/"})
		var got struct{ URL string }
		if err == nil && json.Unmarshal(ticket, &got) == nil {
			if page := w.browser().open(got.URL); strings.Contains(page.body, "<p>app") {
				t.Errorf("a page from a denied port: HTTP %d, %q; want none", page.status, page.body)
			}
		}
	})
}

// Canvases have addresses that lead to this machine but are not literal loopback
// addresses, or have another scheme. The host-agent must not connect to any, and
// clients get the address unchanged.
func TestCanvasLiveElsewhere(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	_, port, _ := net.SplitHostPort(a.Listener.Addr().String())
	var canvases []agenthost.Canvas
	for i, host := range []string{"0.0.0.0", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "localhost.", "LOCALHOST", "a.localhost", "127.0.0.2", "user@127.0.0.1", "localtest.me"} {
		canvases = append(canvases, agenthost.Canvas{ID: fmt.Sprint("app", i), URL: "http://" + host + ":" + port + "/"})
	}
	canvases = append(canvases, agenthost.Canvas{ID: "tls", URL: "https://localhost:" + port + "/"}, agenthost.Canvas{ID: "file", URL: "file:///etc/passwd"})
	w := newCanvasWorld(t, contentproxy.Config{}, canvases...)
	c := w.client("c")
	for _, canvas := range canvases {
		channel := w.open(canvas.ID)
		if url := w.show(c, channel); url != canvas.URL {
			t.Errorf("the canvas %s is at %s; want its own address", canvas.URL, url)
		}
		ticket, err := w.try(c, "relay/canvasTicket", map[string]any{"channel": channel, "uri": "ahp-canvas-content:/" + strings.TrimPrefix(channel, "ahp-canvas:/") + "/"})
		var got struct{ URL string }
		if err == nil && json.Unmarshal(ticket, &got) == nil {
			if page := w.browser().open(got.URL); strings.Contains(page.body, "<p>app") {
				t.Errorf("the canvas %s: HTTP %d %q; want no page of the application", canvas.URL, page.status, page.body)
			}
		}
	}
}

// TestCanvasLiveKicked lets the host's owner kick the client's subject. The client's
// page and its streams end.
func TestCanvasLiveKicked(t *testing.T) {
	t.Parallel()
	control := hostagent.Control{Path: t.TempDir() + "/control"}
	w, _, _, channel, b, base := liveAppWith(t, nil, func(cfg *hostagent.Config) { cfg.Control = control.Path })
	events, ws := w.events(b, base), b.socket(base)
	events.next()
	ws.say("x")
	if _, err := control.Kick(t.Context(), hostagent.Kick{Subject: "ada", For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	events.ends()
	ws.ends()
	if got := b.open(base + "/start"); got.status != http.StatusForbidden {
		t.Errorf("the page of the canvas %s after a kick: HTTP %d, %q; want 403", channel, got.status, got.body)
	}
}

// TestCanvasLiveCluster gets tickets at one relay, and opens page, ticket and WebSocket
// at a second relay.
func TestCanvasLiveCluster(t *testing.T) {
	t.Parallel()
	a, keys, first := newApp(t), t.TempDir(), natssite.FreePort(t)
	config := gateway.RelayConfig{
		DataDir: copyKeys(t, keys), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener, NATSListen: "127.0.0.1:0",
		ClusterListen: first, Gateway: gateway.Config{CanvasDomain: "http://localhost:0"},
	}
	other, err := gateway.StartRelay(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	config.DataDir, config.ClusterListen, config.ClusterRoutes = keys, natssite.FreePort(t), []string{first}
	w := newCanvasWorldAt(t, config, func(*hostagent.Config) {}, agenthost.Canvas{ID: "app", URL: a.URL + "/start"})
	c, channel, b := w.client("c"), w.open("app"), w.browser()
	ask := map[string]any{"channel": channel, "uri": w.show(c, channel)}
	one, two := mustURL(t, w.ticket(c, ask)), mustURL(t, w.ticket(c, ask))
	if one.Host != two.Host || one.Path == two.Path {
		t.Fatalf("tickets %s and %s: want one origin", one, two)
	}
	elsewhere := func(u *url.URL) string {
		at := *u
		at.Host = u.Hostname() + ":" + mustURL(t, other.URL()).Port()
		return at.String()
	}
	// The second relay may not know the host yet, so the test tries until the page is
	// there.
	page := b.open(one.String())
	deadline := time.Now().Add(stepTime)
	for page.status = 0; page.status != http.StatusOK && time.Now().Before(deadline); {
		page = b.open(elsewhere(mustURL(t, "http://"+one.Host+"/start")))
	}
	if page.status != http.StatusOK || page.body != "<p>app /start" {
		t.Errorf("a page at the second relay: HTTP %d, %q; want 200, and the app's page", page.status, page.body)
	}
	if page := w.browser().open(elsewhere(two)); page.status != http.StatusOK {
		t.Errorf("a ticket at the second relay: HTTP %d, %q; want 200", page.status, page.body)
	}
	if got := b.socket(elsewhere(mustURL(t, "http://"+one.Host))).say("x"); got != "echo x" {
		t.Errorf("a WebSocket's answer at the second relay: %q; want echo x", got)
	}
}

// TestCanvasLiveAllowed lets the owner allow origins that are not literal loopback
// addresses, with a pin for the certificate. Canvases at these origins work; canvases
// at others do not.
func TestCanvasLiveAllowed(t *testing.T) {
	t.Parallel()
	plain := newApp(t)
	secure := httptest.NewTLSServer(plain.Config.Handler)
	t.Cleanup(secure.Close)
	_, port, _ := net.SplitHostPort(plain.Listener.Addr().String())
	_, securePort, _ := net.SplitHostPort(secure.Listener.Addr().String())
	canvases := []agenthost.Canvas{
		{ID: "name", URL: "http://app.localhost:" + port + "/start"}, {ID: "any", URL: "http://0.0.0.0:" + port + "/start"},
		{ID: "tls", URL: "https://localhost:" + securePort + "/start"}, {ID: "other", URL: "http://127.0.0.2:" + port + "/start"},
	}
	allow := func(cfg *hostagent.Config, pin [32]byte) {
		for _, text := range []string{"http://*.localhost:*", "http://0.0.0.0:" + port, "https://localhost:*"} {
			allowed, err := contentproxy.ParseAllowed(text)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Canvas.Allow = append(cfg.Canvas.Allow, allowed)
		}
		cfg.Canvas.Pins = [][32]byte{pin}
	}
	for name, pin := range map[string][32]byte{"pinned": sha256.Sum256(secure.Certificate().Raw), "of another": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCanvasWorldWith(t, func(cfg *hostagent.Config) { allow(cfg, pin) }, canvases...)
			c := w.client("c")
			for _, canvas := range canvases[:3] {
				channel := w.open(canvas.ID)
				b := w.browser()
				page := b.open(w.ticket(c, map[string]any{"channel": channel, "uri": w.show(c, channel)}))
				if canvas.ID == "tls" && name != "pinned" {
					if page.status != http.StatusBadGateway {
						t.Errorf("%s with a certificate that is not pinned: HTTP %d, %q; want 502", canvas.URL, page.status, page.body)
					}
					continue
				}
				if page.status != http.StatusOK || page.body != "<p>app /start" {
					t.Fatalf("the canvas %s: HTTP %d %q; want 200 with the application's start", canvas.URL, page.status, page.body)
				}
				base := strings.TrimSuffix(page.url, "/start")
				if got := b.socket(base).say("x"); got != "echo x" {
					t.Errorf("%s: a WebSocket's answer is %q; want echo x", canvas.URL, got)
				}
				if r := b.open(base + "/to?at=" + url.QueryEscape(strings.TrimSuffix(canvas.URL, "start")+"there")); r.body != "<p>app /there" {
					t.Errorf("%s: a redirect: HTTP %d, %q; want the app's page /there", canvas.URL, r.status, r.body)
				}
			}
			if at := w.show(c, w.open("other")); at != canvases[3].URL {
				t.Errorf("%s, which is not permitted, has the address %s; want the host's own", canvases[3].URL, at)
			}
		})
	}
}
