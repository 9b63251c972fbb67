package test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/testca"
)

// TestCookiesOfAnotherCanvasDoNotShutACanvas sends requests with as many and as long
// cookies as a browser stores for a domain. The relay must still serve the page, and
// pass on the cookies that the application itself has set.
func TestCookiesOfAnotherCanvasDoNotShutACanvas(t *testing.T) {
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
	http1 := w.browser()
	transport := http1.client.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // the test certificate does not cover names below localhost
	modern := transport.Clone()
	modern.ForceAttemptHTTP2 = true
	t.Cleanup(modern.CloseIdleConnections)
	http2 := &browser{t, &http.Client{Transport: modern, Jar: http1.client.Jar}}
	base := strings.TrimSuffix(http1.open(address).url, "/start")
	http1.open(base + "/headers") // the application sets the cookie a

	for _, count := range []int{60, 176} {
		var cookies []string
		for i := range count {
			cookies = append(cookies, fmt.Sprintf("bomb%d=%s", i, strings.Repeat("x", 4000)))
		}
		header := map[string]string{"Cookie": strings.Join(append(cookies, "a=set", "b=not set"), "; ")}
		for name, b := range map[string]*browser{"HTTP/1.1": http1, "HTTP/2": http2} {
			got := b.send("GET", base+"/echo", header, nil)
			var seen struct{ Header http.Header }
			if err := json.Unmarshal([]byte(got.body), &seen); err != nil {
				t.Errorf("%s, %d cookies: HTTP %d, %.80q; want the echoed request", name, count, got.status, got.body)
				continue
			}
			if reached := seen.Header.Get("Cookie"); !strings.Contains(reached, "; a=set") || len(reached) > 9<<10 {
				t.Errorf("%s, %d cookies: %d bytes reach the application, with its own cookie: %v; want at most 9 KiB, and true", name, count, len(reached), strings.Contains(reached, "a=set"))
			}
		}
	}
	long := map[string]string{"X-Long": strings.Repeat("x", 80<<10)}
	for name, b := range map[string]*browser{"HTTP/1.1": http1, "HTTP/2": http2} {
		if got := b.send("GET", base+"/echo", long, nil); got.status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s, a different long header: HTTP %d; want 431", name, got.status)
		}
	}
}
