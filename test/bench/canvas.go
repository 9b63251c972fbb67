package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/coder/websocket"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/hostrpc"
	"ahprelay/test/must"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
)

// Sizes of a canvas's contents.
const (
	canvasModules = 300
	canvasModule  = 20 << 10
	canvasLarge   = 64 << 20
)

// canvas measures the cost of viewing an application on the host's machine through a
// relay, and its effect on a second client.
func canvas(b *testbed) []Figure {
	large := b.unlessTiny(canvasLarge, 1<<20)
	app := canvasApp(large)
	b.ends = append(b.ends, app.Close)
	w := b.canvasWorld(app.URL)
	few := &http.Client{Transport: &http.Transport{MaxConnsPerHost: browserConns, MaxIdleConnsPerHost: browserConns}}
	b.ends = append(b.ends, few.CloseIdleConnections)
	straight := &canvasWay{base: app.URL, client: few, sockets: few}
	var m [2]canvasSeries
	var proxied, page, pageStraight series
	var alone, during [2]series
	b.rounds(func(int) {
		for i, way := range []*canvasWay{straight, w.way} {
			way.measure(b, &m[i], large)
		}
		proxied = append(proxied, ms(w.proxied.modules(b)))
		if !b.o.Tiny { // there may be no browser
			there, here := w.pages(b, app.URL)
			page, pageStraight = append(page, there), append(pageStraight, here)
		}
		w.keystrokes(b, &alone)
		ctx, cancel := context.WithCancel(b.ctx)
		must.Both(func() {
			defer cancel()
			w.keystrokes(b, &during)
		}, func() { w.way.download(ctx) })
	})
	figures := []Figure{
		newFigure("echo of 100 B over a canvas's WebSocket, p50", "ms", m[1].echo).beside(directName, m[1].echo, m[0].echo).means("What is typed into an application is there as soon as in a chat."),
		newFigure("request and answer of AHP on the same way, p50", "ms", alone[0]),
		newFigure("a download", "MB/s", m[1].download).beside(directName, m[1].download, m[0].download).means("Large files come at the pace of the network."),
	}
	modules := fmt.Sprintf("%d modules of %d KiB, HTTP/2", canvasModules, canvasModule>>10)
	six := fmt.Sprintf("%s, HTTP/1.1 on %d connections", directName, browserConns)
	figures = append(figures,
		newFigure(modules+", the relay's own TLS", "ms", m[1].modules).beside(six, m[1].modules, m[0].modules).means("What a development server's page loads beside what it takes to run it; none is refused."),
		newFigure(modules+", a proxy in front", "ms", proxied).beside(six, proxied, m[0].modules),
	)
	if !b.o.Tiny {
		figures = append(figures, newFigure(fmt.Sprintf("a page of %d modules in Chromium, HTTP/2", canvasModules), "ms", page).
			beside("straight on the host, in Chromium", page, pageStraight).want(ratioAtMost(2)).means("A development server's page opens as on the host."))
	}
	for i, name := range []string{"p50", "p99"} {
		added := during[i].less(alone[i])
		f := newFigure("request and answer of another client during a download, added "+name, "ms", added).beside("without it", during[i], alone[i])
		if i == 1 {
			f = f.orient(atMost(20)).means("Who types next to a download hardly notices.")
		}
		figures = append(figures, f)
	}
	return figures
}

// canvasApp is an application: modules, a download, and an echo.
func canvasApp(large int) *httptest.Server {
	module, all := bytes.Repeat([]byte("export const a = 1;\n"), canvasModule/20), bytes.Repeat([]byte("x"), large)
	code := append([]byte("export const a = 1;\n"), bytes.Repeat([]byte("// what a module says\n"), canvasModule/22)...)
	var main bytes.Buffer
	for i := range canvasModules {
		fmt.Fprintf(&main, "import \"/page/%d.js\";\n", i)
	}
	main.WriteString("window.took = performance.now();\n")
	mux := http.NewServeMux()
	serve := func(path, kind, cache string, body []byte) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			if cache != "" {
				w.Header().Set("Cache-Control", cache)
			}
			_, _ = w.Write(body)
		})
	}
	serve("/module/", "text/javascript", "", module)
	serve("/{$}", "text/html; charset=utf-8", "no-store", []byte(`<!doctype html><title>page</title><script type="module" src="/main.js"></script>`))
	serve("/main.js", "text/javascript", "no-store", main.Bytes())
	serve("/page/", "text/javascript", "no-store", code)
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "large.bin", time.Time{}, bytes.NewReader(all))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = ws.CloseNow() }()
		for {
			kind, message, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	})
	return httptest.NewServer(mux)
}

// A canvasWorld is a host with a canvas, a client that views it, and a second client.
type canvasWorld struct {
	way     *canvasWay
	proxied *canvasWay // the same behind a proxy
	other   *refclient.Client
	shown   func() string // returns an address with a new ticket
	address string        // that all names lead to
}

// canvasSession is where the canvas is opened.
const canvasSession = "demo:/notes"

func (b *testbed) canvasWorld(app string) *canvasWorld {
	address := must.Get(procs.FreeAddress())
	config := must.Get(json.Marshal(hostrpc.Config{Canvases: []hostrpc.Canvas{{ID: "notes"}, {ID: "app", URL: app + "/"}}}))
	file, control := filepath.Join(b.dir, "host.json"), net.JoinHostPort(address, "18991")
	must.Do(os.WriteFile(file, config, 0o600))
	host := b.demoHost(address, "--control", control, "--config", file)
	s := b.site(siteConfig{upstreams: []string{host}, tls: true, relayFlags: []string{"--canvas-domain", "https://localhost:" + relayPort}})
	return b.showCanvas(s, control)
}

// showCanvas opens the canvas, and a page of it.
func (b *testbed) showCanvas(s *site, control string) *canvasWorld {
	rpc := must.Get(hostrpc.Dial(control))
	defer func() { _ = rpc.Close() }()
	channel := must.Get(rpc.OpenCanvas(canvasSession, "app"))
	system := s.system(0)
	var clients []*refclient.Client
	for i := range 2 {
		c := must.Get(refclient.Dial(b.ctx, system.url, refclient.Options{Token: system.tokens[i], HTTPClient: s.http}))
		b.ends = append(b.ends, func() { _ = c.Close() })
		params := refclient.InitializeParams{ClientID: fmt.Sprint("c", i), ProtocolVersions: []string{"0.9.0"}, Capabilities: map[string]any{"canvas": map[string]any{}}}
		must.Get(c.Initialize(b.ctx, params))
		clients = append(clients, c)
	}
	var shown struct {
		Snapshot struct{ State struct{ URL string } }
	}
	call(b.ctx, clients[0], "subscribe", map[string]any{"channel": channel}, &shown)
	var ticket struct{ URL, Origin string }
	ask := func() string {
		call(b.ctx, clients[0], "relay/canvasTicket", map[string]any{"channel": channel, "uri": shown.Snapshot.State.URL}, &ticket)
		return ticket.URL
	}
	ask()
	way := b.newCanvasWay(ticket.URL, ticket.Origin, s.at(relayPort))
	front := canvasProxy(s)
	b.ends = append(b.ends, front.Close)
	return &canvasWorld{way, b.canvasWayTo(ticket.Origin, front.Listener.Addr().String(), way.client.Jar), clients[1], ask, s.address}
}

// proxyConns is the size of the pool of the proxy's connections.
const proxyConns = 64

// canvasProxy is a proxy with HTTP/2 and TLS in front of a relay.
func canvasProxy(s *site) *httptest.Server {
	to := &url.URL{Scheme: "https", Host: s.at(relayPort)}
	// Proxies keep a pool of connections. The relay ends a connection without a request
	// after 10 s, which 300 handshakes at once take on a busy machine.
	transport := &http.Transport{MaxConnsPerHost: proxyConns, MaxIdleConnsPerHost: proxyConns, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	s.bed.ends = append(s.bed.ends, transport.CloseIdleConnections)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
		},
	})
	front.EnableHTTP2 = true
	front.StartTLS()
	return front
}

func call(ctx context.Context, c *refclient.Client, method string, params, result any) {
	must.Within(method, func() { must.Do(json.Unmarshal(must.Get(c.Call(ctx, method, params)), result)) })
}

// A canvasWay is a path to an application.
type canvasWay struct {
	base    string
	client  *http.Client
	sockets *http.Client // for WebSockets, in HTTP/1.1
}

// canvasWayTo returns a way whose connections all lead to address, whatever host a URL names.
// Requests use HTTP/2 if the server offers it.
func (b *testbed) canvasWayTo(origin, address string, jar http.CookieJar) *canvasWay {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	one := &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	both := one.Clone()
	both.ForceAttemptHTTP2 = true
	way := &canvasWay{origin, &http.Client{Transport: both, Jar: jar}, &http.Client{Transport: one, Jar: jar}}
	b.ends = append(b.ends, one.CloseIdleConnections, both.CloseIdleConnections)
	return way
}

// newCanvasWay opens a canvas's ticket, which sets the cookie, and returns a way to the canvas
// through the relay at an address.
func (b *testbed) newCanvasWay(ticket, origin, relay string) *canvasWay {
	jar := must.Get(cookiejar.New(nil))
	way := b.canvasWayTo(origin, relay, jar)
	_, err := way.get(b.ctx, strings.TrimPrefix(ticket, origin))
	var status *statusError
	if !errors.As(err, &status) || status.code != http.StatusNotFound { // the application has no page there
		must.Do(err)
	}
	return way
}

type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.body) }

// get requests a path, and returns the number of bytes in the response.
func (w *canvasWay) get(ctx context.Context, path string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+path, nil)
	if err != nil {
		return 0, err
	}
	response, err := w.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return 0, errors.Join(err, &statusError{response.StatusCode, string(body)})
	}
	return io.Copy(io.Discard, response.Body)
}

// download loads a large file repeatedly until ctx ends.
func (w *canvasWay) download(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := w.get(ctx, "/large"); ctx.Err() == nil {
			must.Do(err)
		}
	}
}

// canvasSeries is the measurements of one canvasWay, a value for each round.
type canvasSeries struct{ echo, download, modules series }

// browserConns is the number of connections that browsers make to an origin in
// HTTP/1.1.
const browserConns = 6

func (w *canvasWay) measure(b *testbed, to *canvasSeries, large int) {
	echo := w.echo(b)
	began := time.Now()
	n := must.Get(w.get(b.ctx, "/large"))
	if n != int64(large) {
		must.Fail("the canvas's large answer has %d bytes; want %d", n, large)
	}
	rate := float64(n) / time.Since(began).Seconds() / 1e6
	took := w.modules(b)
	to.echo, to.download, to.modules = append(to.echo, ms(echo)), append(to.download, rate), append(to.modules, ms(took))
}

// modules loads all modules at once, as a page does, and returns the duration.
func (w *canvasWay) modules(b *testbed) time.Duration {
	var wg sync.WaitGroup
	failed := make([]error, b.unlessTiny(canvasModules, 30))
	began := time.Now()
	for i := range failed {
		wg.Go(func() { _, failed[i] = w.get(b.ctx, fmt.Sprint("/module/", i)) })
	}
	wg.Wait()
	must.Do(errors.Join(failed...))
	return time.Since(began)
}

// echo returns the median round-trip time.
func (w *canvasWay) echo(b *testbed) time.Duration {
	ws, _, err := websocket.Dial(b.ctx, w.base+"/echo", &websocket.DialOptions{HTTPClient: w.sockets, HTTPHeader: http.Header{"Origin": {w.base}}})
	must.Do(err)
	defer func() { _ = ws.CloseNow() }()
	var took []time.Duration
	message := bytes.Repeat([]byte("k"), 100)
	for range b.many(200) {
		began := time.Now()
		must.Do(ws.Write(b.ctx, websocket.MessageText, message))
		_, _, err := ws.Read(b.ctx)
		must.Do(err)
		took = append(took, time.Since(began))
	}
	return loadgen.Summary(took).P50
}

// pages loads a page of modules in a browser, through the relay and straight, and
// returns how long each took, in ms.
func (w *canvasWorld) pages(l *testbed, app string) (there, here float64) {
	b := l.browser(chromedp.Flag("ignore-certificate-errors", true), chromedp.Flag("host-resolver-rules", "MAP *.localhost "+w.address))
	defer b.close()
	b.page(w.shown()) // has its session, and connections, from then on
	b.page(app + "/")
	return b.page(w.way.base + "/"), b.page(app + "/")
}

// page loads a page that reports its load time.
func (b *browser) page(address string) float64 {
	must.Do(chromedp.Do(b.ctx, chromedp.Navigate(address)))
	b.until("window.took > 0")
	return b.number("window.took")
}

// keystrokes adds the p50 and p99, in ms, of a second client's requests to two series.
func (w *canvasWorld) keystrokes(b *testbed, to *[2]series) {
	var took []time.Duration
	for range b.many(100) {
		began := time.Now()
		must.Get(w.other.Call(b.ctx, "ping", map[string]any{"channel": "ahp-root://"}))
		took = append(took, time.Since(began))
		time.Sleep(10 * time.Millisecond)
	}
	note(to, loadgen.Summary(took))
}
