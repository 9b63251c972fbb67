package hostagent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"ahprelay/internal/meter"
	"ahprelay/routing"
)

// scrape requests the metrics page with this Host header, as if the agent listened at the address
// at.
func scrape(a *Agent, at net.Addr, host string) (status int, page string) {
	r := httptest.NewRequest(http.MethodGet, "http://"+host+"/metrics", nil)
	got := httptest.NewRecorder()
	meter.Page(a.metrics.registry, at).ServeHTTP(got, r)
	return got.Code, got.Body.String()
}

var (
	loopbackAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8486}
	networkAddr  = &net.TCPAddr{IP: net.IPv4zero, Port: 8486}
)

// TestCountersKeepDisconnectedClients connects a client, sends messages and disconnects it. The
// counters must include its messages, also after the client has gone.
func TestCountersKeepDisconnectedClients(t *testing.T) {
	inWorld(t, func(w *world) {
		w.agent.cfg.Version = "0.1.0+1a2b3c4d"
		w.agent.metrics = newMetrics(w.agent)
		want := func(when string, lines ...string) {
			t.Helper()
			_, page := scrape(w.agent, loopbackAddr, "localhost")
			for _, line := range lines {
				if !strings.Contains(page, "\n"+line+"\n") {
					t.Errorf("%s: the line %s is missing in\n%s", when, line, page)
				}
			}
		}
		want("before", "ahp_agent_host_up 1", "ahp_agent_links 1", "ahp_agent_clients 0", "ahp_agent_connected 0", `ahp_agent_frames_total{direction="to_host"} 0`)
		c := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "read"})
		const hello, refused = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"c1"}}`, `{"jsonrpc":"2.0","id":2,"method":"createSession","params":{"channel":"demo:/1"}}`
		c.send(hello)
		synctest.Wait()
		c.send(refused)
		synctest.Wait()
		counted := []string{
			`ahp_agent_frames_total{direction="to_host"} 2`, `ahp_agent_frames_total{direction="to_client"} 1`,
			fmt.Sprintf(`ahp_agent_frame_bytes_total{direction="to_host"} %d`, len(hello)+len(refused)), `ahp_agent_frame_bytes_total{direction="to_client"} 38`,
			"ahp_agent_client_connections_total 1", "ahp_agent_refused_frames_total 1",
		}
		want("connected", append(counted, "ahp_agent_clients 1")...)
		c.conn.Close(1000, "bye")
		synctest.Wait()
		want("gone", append(counted, "ahp_agent_clients 0")...)
	})
}

// TestMetricsAreServed requests the metrics over HTTP. On a loopback address, a request whose Host
// header names a web site must be refused.
func TestMetricsAreServed(t *testing.T) {
	a, err := newAgent(t, func(cfg *Config) { cfg.MetricsListen, cfg.Version = "127.0.0.1:0", "0.1.0+1a2b3c4d" })
	if err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	a.cfg.Log = slog.New(slog.NewTextHandler(in, nil))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.metrics.serve(ctx, a.cfg.MetricsListen, a.cfg.Log); close(ended) }()
	said := make([]byte, 1000)
	n, _ := out.Read(said)
	_, url, _ := bytes.Cut(said[:n], []byte("url="))
	r, err := http.Get(strings.TrimSpace(string(url)))
	if err != nil {
		t.Fatalf("requesting the address that the log names, %s: %v; want no error", said[:n], err)
	}
	page, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil || !strings.Contains(string(page), `ahp_agent_build_info{commit="1a2b3c4d"`) || !strings.Contains(string(page), "ahp_agent_host_up 0") {
		t.Errorf("the metrics are %[2]s, %[1]v; want the version, and the host reported as not up", err, page)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	<-ended
	for _, test := range []struct {
		at   net.Addr
		host string
		want int
	}{{loopbackAddr, "evil.example.com", 403}, {loopbackAddr, "127.0.0.1:8486", 200}, {networkAddr, "laptop.lan:8486", 200}} {
		if status, _ := scrape(a, test.at, test.host); status != test.want {
			t.Errorf("listening at %v, %s gets %d; want %d", test.at, test.host, status, test.want)
		}
	}
}

// TestUnusableMetricsAddressesAreRefused lists addresses. checkListen must refuse those at which no
// program can listen.
func TestUnusableMetricsAddressesAreRefused(t *testing.T) {
	for address, ok := range map[string]bool{"": true, "127.0.0.1:8486": true, ":8486": true, "[::1]:0": true, "8486": false, "localhost": false} {
		if err := checkListen(address); (err == nil) != ok {
			t.Errorf("checkListen(%q) = %v; want no error only for an empty or a complete address", address, err)
		}
	}
}
