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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/coder/websocket"

	"ahprelay/test/hostrpc"
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
func canvas(b *testbed) ([]Figure, error) {
	large := canvasLarge
	if b.o.Tiny {
		large = 1 << 20
	}
	app := canvasApp(large)
	b.ends = append(b.ends, app.Close)
	w, err := b.canvasWorld(app.URL)
	if err != nil {
		return nil, err
	}
	few := &http.Client{Transport: &http.Transport{MaxConnsPerHost: browserConns, MaxIdleConnsPerHost: browserConns}}
	b.ends = append(b.ends, few.CloseIdleConnections)
	straight := &canvasWay{base: app.URL, client: few, sockets: few}
	var m [2]canvasSeries
	var proxied, page, pageStraight series
	var alone, beside [2]series
	err = b.rounds(func(int) error {
		for i, way := range []*canvasWay{straight, w.way} {
			if err := way.measure(b, &m[i], large); err != nil {
				return err
			}
		}
		took, err := w.proxied.modules(b)
		if err != nil {
			return err
		}
		proxied = append(proxied, ms(took))
		if !b.o.Tiny { // there may be no browser
			there, here, err := w.pages(b, app.URL)
			if err != nil {
				return err
			}
			page, pageStraight = append(page, there), append(pageStraight, here)
		}
		before, err := w.keystrokes(b, nil)
		if err != nil {
			return err
		}
		during, err := w.keystrokes(b, func(ctx context.Context) error { return w.way.download(ctx) })
		for i := range before {
			alone[i], beside[i] = append(alone[i], before[i]), append(beside[i], during[i])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
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
		added := beside[i].less(alone[i])
		f := newFigure("request and answer of another client during a download, added "+name, "ms", added).beside("without it", beside[i], alone[i])
		if i == 1 {
			f = f.orient(atMost(20)).means("Who types next to a download hardly notices.")
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// canvasApp is an application: modules, a download, and an echo.
func canvasApp(large int) *httptest.Server {
	module, all := bytes.Repeat([]byte("export const a = 1;\n"), canvasModule/20), bytes.Repeat([]byte("x"), large)
	code := append([]byte("export const a = 1;\n"), bytes.Repeat([]byte("// what a module says\n"), canvasModule/22)...)
	mux := http.NewServeMux()
	mux.HandleFunc("/module/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write(module)
	})
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		_, _ = io.WriteString(w, `<!doctype html><title>page</title><script type="module" src="/main.js"></script>`)
	})
	mux.HandleFunc("/main.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		w.Header().Set("Cache-Control", "no-store")
		for i := range canvasModules {
			_, _ = fmt.Fprintf(w, "import \"/page/%d.js\";\n", i)
		}
		_, _ = io.WriteString(w, "window.took = performance.now();\n")
	})
	mux.HandleFunc("/page/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(code)
	})
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
	shown   func() (string, error) // returns an address with a new ticket
	address string                 // that all names lead to
}

// canvasSession is where the canvas is opened.
const canvasSession = "demo:/notes"

func (b *testbed) canvasWorld(app string) (*canvasWorld, error) {
	address, err := procs.FreeAddress()
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(hostrpc.Config{Canvases: []hostrpc.Canvas{{ID: "notes"}, {ID: "app", URL: app + "/"}}})
	if err != nil {
		return nil, err
	}
	file, control := filepath.Join(b.dir, "host.json"), net.JoinHostPort(address, "18991")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	host := b.bench.Process("", "canvas-host", procs.HostProgram, "--demo", "--listen", net.JoinHostPort(address, "18990"), "--control", control, "--config", file)
	if err := host.Launch(b.ctx, func() error {
		conn, err := net.Dial("tcp", control)
		if err == nil {
			err = conn.Close()
		}
		return err
	}); err != nil {
		return nil, err
	}
	s, err := b.site(siteConfig{upstreams: []string{"ws://" + net.JoinHostPort(address, "18990")}, tls: true, relayFlags: []string{"--canvas-domain", "https://localhost:" + relayPort}})
	if err != nil {
		return nil, err
	}
	return b.showCanvas(s, control)
}

// showCanvas opens the canvas, and a page of it.
func (b *testbed) showCanvas(s *site, control string) (*canvasWorld, error) {
	rpc, err := hostrpc.Dial(control)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rpc.Close() }()
	channel, err := rpc.OpenCanvas(canvasSession, "app")
	if err != nil {
		return nil, err
	}
	system, err := s.system(0)
	if err != nil {
		return nil, err
	}
	var clients []*refclient.Client
	for i := range 2 {
		c, err := refclient.Dial(b.ctx, system.url, refclient.Options{Token: system.tokens[i], HTTPClient: s.http})
		if err != nil {
			return nil, err
		}
		b.ends = append(b.ends, func() { _ = c.Close() })
		params := refclient.InitializeParams{ClientID: fmt.Sprint("c", i), ProtocolVersions: []string{"0.9.0"}, Capabilities: map[string]any{"canvas": map[string]any{}}}
		if _, err := c.Initialize(b.ctx, params); err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	var shown struct {
		Snapshot struct{ State struct{ URL string } }
	}
	if err := call(b.ctx, clients[0], "subscribe", map[string]any{"channel": channel}, &shown); err != nil {
		return nil, err
	}
	var ticket struct{ URL, Origin string }
	ask := func() (string, error) {
		err := call(b.ctx, clients[0], "relay/canvasTicket", map[string]any{"channel": channel, "uri": shown.Snapshot.State.URL}, &ticket)
		return ticket.URL, err
	}
	if _, err := ask(); err != nil {
		return nil, err
	}
	way, err := b.newCanvasWay(ticket.URL, ticket.Origin, s.at(relayPort))
	if err != nil {
		return nil, err
	}
	front := canvasProxy(s)
	b.ends = append(b.ends, front.Close)
	return &canvasWorld{way, b.canvasWayTo(ticket.Origin, front.Listener.Addr().String(), way.client.Jar), clients[1], ask, s.address}, nil
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

func call(ctx context.Context, c *refclient.Client, method string, params, result any) error {
	raw, err := c.Call(ctx, method, params)
	if err == nil {
		err = json.Unmarshal(raw, result)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
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
func (b *testbed) newCanvasWay(ticket, origin, relay string) (*canvasWay, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	way := b.canvasWayTo(origin, relay, jar)
	_, err = way.get(b.ctx, strings.TrimPrefix(ticket, origin))
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound { // the application has no page there
		err = nil
	}
	return way, err
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
func (w *canvasWay) download(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, err := w.get(ctx, "/large"); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// canvasSeries is the measurements of one canvasWay, a value for each round.
type canvasSeries struct{ echo, download, modules series }

// browserConns is the number of connections that browsers make to an origin in
// HTTP/1.1.
const browserConns = 6

func (w *canvasWay) measure(b *testbed, to *canvasSeries, large int) error {
	echo, err := w.echo(b)
	if err != nil {
		return err
	}
	began := time.Now()
	n, err := w.get(b.ctx, "/large")
	if err == nil && n != int64(large) {
		err = fmt.Errorf("the canvas's large answer has %d bytes; want %d", n, large)
	}
	if err != nil {
		return err
	}
	rate := float64(n) / time.Since(began).Seconds() / 1e6
	took, err := w.modules(b)
	if err != nil {
		return err
	}
	to.echo, to.download, to.modules = append(to.echo, ms(echo)), append(to.download, rate), append(to.modules, ms(took))
	return nil
}

// modules loads all modules at once, as a page does, and returns the duration.
func (w *canvasWay) modules(b *testbed) (time.Duration, error) {
	var wg sync.WaitGroup
	failed := make([]error, canvasModules)
	began := time.Now()
	for i := range canvasModules {
		wg.Go(func() { _, failed[i] = w.get(b.ctx, fmt.Sprint("/module/", i)) })
	}
	wg.Wait()
	return time.Since(began), errors.Join(failed...)
}

// echo returns the median round-trip time.
func (w *canvasWay) echo(b *testbed) (time.Duration, error) {
	ws, _, err := websocket.Dial(b.ctx, w.base+"/echo", &websocket.DialOptions{HTTPClient: w.sockets, HTTPHeader: http.Header{"Origin": {w.base}}})
	if err != nil {
		return 0, err
	}
	defer func() { _ = ws.CloseNow() }()
	var took []time.Duration
	message := bytes.Repeat([]byte("k"), 100)
	for range b.many(200) {
		began := time.Now()
		if err := ws.Write(b.ctx, websocket.MessageText, message); err != nil {
			return 0, err
		}
		if _, _, err := ws.Read(b.ctx); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// pages loads a page of modules in a browser, through the relay and straight, and
// returns how long each took, in ms.
func (w *canvasWorld) pages(l *testbed, app string) (there, here float64, err error) {
	b, err := l.browser(chromedp.Flag("ignore-certificate-errors", true), chromedp.Flag("host-resolver-rules", "MAP *.localhost "+w.address))
	if err != nil {
		return 0, 0, err
	}
	defer b.close()
	ticket, err := w.shown()
	if err != nil {
		return 0, 0, err
	}
	if _, err := b.page(ticket); err != nil { // has its session, and connections, from then on
		return 0, 0, err
	}
	if _, err := b.page(app + "/"); err != nil {
		return 0, 0, err
	}
	if there, err = b.page(w.way.base + "/"); err == nil {
		here, err = b.page(app + "/")
	}
	return there, here, err
}

// page loads a page that reports its load time.
func (b *browser) page(address string) (float64, error) {
	if err := chromedp.Do(b.ctx, chromedp.Navigate(address)); err != nil {
		return 0, err
	}
	if err := b.until("window.took > 0"); err != nil {
		return 0, err
	}
	return b.number("window.took")
}

// keystrokes returns the p50 and p99, in ms, of a second client's requests during an
// activity.
func (w *canvasWorld) keystrokes(b *testbed, meanwhile func(ctx context.Context) error) (p [2]float64, err error) {
	ctx, cancel := context.WithCancel(b.ctx)
	var wg sync.WaitGroup
	var failed error
	if meanwhile != nil {
		wg.Go(func() { failed = meanwhile(ctx) })
	}
	var took []time.Duration
	for range b.many(100) {
		began := time.Now()
		if _, err = w.other.Call(b.ctx, "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
			break
		}
		took = append(took, time.Since(began))
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	wg.Wait()
	if err = errors.Join(err, failed); err != nil {
		return p, err
	}
	slices.Sort(took)
	return [2]float64{ms(took[len(took)/2]), ms(took[len(took)*99/100])}, nil
}
