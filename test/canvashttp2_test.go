package test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/testca"
)

// TestCanvasHTTP2 loads 300 modules over one HTTP/2 connection. No request is refused.
// An event stream on the same connection and a WebSocket on another stay open. Outside
// canvases, the relay speaks HTTP/1.1 only.
func TestCanvasHTTP2(t *testing.T) {
	t.Parallel()
	cert, key, err := testca.WriteFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := newApp(t)
	config := gateway.RelayConfig{TLS: gateway.TLSConfig{CertFile: cert, KeyFile: key}, Gateway: gateway.Config{CanvasDomain: "https://localhost:0"}}
	w := newCanvasWorldAt(t, config, func(*hostagent.Config) {}, agenthost.Canvas{ID: "app", URL: a.URL + "/start"})
	c, channel := w.client("c"), w.open("app")
	address := w.ticket(c, map[string]any{"channel": channel, "uri": w.show(c, channel)})

	b := w.browser()
	http1 := b.client.Transport.(*http.Transport)
	http1.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // the test certificate does not cover names below localhost
	http2 := http1.Clone()
	http2.ForceAttemptHTTP2, http2.MaxConnsPerHost = true, 1
	t.Cleanup(http2.CloseIdleConnections)
	jar := b.client.Jar.(safeJar)
	page := &browser{t, &http.Client{Transport: http2, Jar: jar}}
	base := strings.TrimSuffix(page.open(address).url, "/start")
	events := w.events(page, base)
	events.next()
	ws := b.socket(base)

	var wg sync.WaitGroup
	var good atomic.Int32
	for i := range 300 {
		wg.Go(func() {
			response, err := page.client.Get(fmt.Sprint(base, "/module/", i, ".js"))
			if err != nil {
				t.Error(err)
				return
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err == nil && response.StatusCode == http.StatusOK && response.ProtoMajor == 2 && string(body) == fmt.Sprint("<p>app /module/", i, ".js") {
				good.Add(1)
			}
		})
	}
	wg.Wait()
	if good.Load() != 300 {
		t.Errorf("%d of 300 modules arrived correctly; want all", good.Load())
	}
	a.release <- struct{}{}
	if line := events.next(); line != "data: 1" {
		t.Errorf("an event beside the modules: %q; want data: 1", line)
	}
	if got := ws.say("x"); got != "echo x" {
		t.Errorf("a WebSocket's answer beside the modules: %q; want echo x", got)
	}
	if up := page.send("POST", base+"/echo", map[string]string{"Origin": base}, strings.NewReader(strings.Repeat("y", 2<<20))); !strings.Contains(up.body, `"method":"POST"`) || len(up.body) < 2<<20 {
		t.Errorf("an upload: HTTP %d, %d bytes; want the echoed POST", up.status, len(up.body))
	}
	// The client unsubscribes from the canvas. The event stream and the WebSocket end.
	if err := c.Unsubscribe(channel); err != nil {
		t.Fatal(err)
	}
	events.ends()
	ws.ends()

	relay := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := relay.Get(w.stack.Relay.URL() + "/healthz")
	if err != nil || response.ProtoMajor != 1 {
		t.Fatalf("a request to the relay by HTTP/2: %v, %v; want HTTP/1.1", response, err)
	}
	_ = response.Body.Close()
	relay.CloseIdleConnections()
}
