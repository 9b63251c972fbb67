package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/gateway/wire"
	"ahprelay/test/locked"
	"ahprelay/test/natssite"
)

// startRelay starts a relay on free ports. change, unless nil, modifies its
// configuration.
func startRelay(t *testing.T, change func(*RelayConfig)) *Relay {
	t.Helper()
	cfg := RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0"}
	if change != nil {
		change(&cfg)
	}
	r, err := StartRelay(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func get(t *testing.T, address string, header http.Header) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, values := range header {
		r.Header[key] = values
	}
	return do(t, r)
}

func do(t *testing.T, r *http.Request) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

func bearerOf(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// A client requests hosts with impossible names. The names do no harm in paths, the
// API, logs and metrics, and no log line has a token.
func TestImpossibleHostNamesDoNoHarm(t *testing.T) {
	var log locked.Buffer
	r := startRelay(t, func(cfg *RelayConfig) { cfg.Gateway.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	natssite.Enrol(t, r.registry, "default", "laptop")
	token, err := r.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"a.b", "*", ">", "laptop.>", "a b", "a\nlevel=ERROR msg=forged", "laptop\x00", "\u202e", "\xff", "LAPTOP",
		"other.laptop", strings.Repeat("x", 5000), `"><script>`, "%2e",
	} {
		path := url.PathEscape(name)
		if status, body := get(t, r.URL()+"/api/hosts/"+path, bearerOf(token)); status != http.StatusNotFound || !strings.Contains(body, "unknown host") {
			t.Errorf("/api/hosts/%.50q: HTTP %d %s; want 404, unknown host", name, status, body)
		}
		upgrade := http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
		}
		wantRefused(t, r.public.Addr().String(), "/ahp/"+path+"?tkn="+token, upgrade)
		if status, _ := get(t, r.URL()+"/ahp/"+path+"?access_token="+token+"x", upgrade); status != http.StatusUnauthorized {
			t.Errorf("/ahp/%.50q with a bad token: HTTP %d; want 401", name, status)
		}
	}
	if status, body := get(t, r.AdminURL()+"/metrics", nil); status != http.StatusOK || strings.Contains(body, "<script") || strings.Contains(body, "forged") {
		t.Errorf("/metrics: HTTP %d; want 200, without names from clients", status)
	}
	for line := range strings.Lines(log.String()) {
		if strings.HasPrefix(line, "level=ERROR") || strings.Contains(line, token) {
			t.Errorf("the relay's log has the line %.300q; want no errors and no tokens", line)
		}
	}
}

// wantRefused requests a WebSocket at any target, without a client library. It fails
// unless the relay closes the WebSocket because the host is unknown.
func wantRefused(t *testing.T, address, target string, header http.Header) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: relay\r\n", target)
	_ = header.Write(conn)
	fmt.Fprint(conn, "\r\n")
	br := bufio.NewReader(conn)
	response, err := http.ReadResponse(br, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("%.80q: the handshake is answered %v, %v; want a WebSocket", target, response, err)
		return
	}
	first, payload, err := readFrame(br)
	if err != nil || first != wire.FinBit|wire.OpClose || !strings.HasPrefix(string(payload[2:]), "unknown host") {
		t.Errorf("%.80q: the first frame is %#x %q, %v; want close 4504", target, first, payload, err)
	}
}

// TestAPIListsOnlyTheTokensHosts: /api/hosts lists a tenant's hosts as far as the token
// permits them, and a different host is 404.
func TestAPIListsOnlyTheTokensHosts(t *testing.T) {
	r := startRelay(t, nil)
	for _, h := range []string{"laptop", "desktop"} {
		natssite.Enrol(t, r.registry, "default", h)
	}
	natssite.Enrol(t, r.registry, "other", "tower")
	token := func(tenant string, hosts ...string) string {
		made, err := r.Keys().Tokens().IssueClient(auth.Client{
			Tenant: tenant, Subject: "ada", Hosts: hosts, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	await(t, func() bool { return len(r.registry.Hosts("default")) == 2 && len(r.registry.Hosts("other")) == 1 })
	for _, test := range []struct{ token, want string }{
		{token("default", auth.AllHosts), "desktop laptop"},
		{token("default", "laptop", "tower"), "laptop"},
		{token("other", auth.AllHosts), "tower"},
		{token("third", auth.AllHosts), ""},
	} {
		status, body := get(t, r.URL()+"/api/hosts", bearerOf(test.token))
		var answer struct{ Hosts []hostsapi.Info }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK || answer.Hosts == nil {
			t.Fatalf("/api/hosts answers HTTP %d %s, %v; want 200 with a list", status, body, err)
		}
		var names []string
		for _, h := range answer.Hosts {
			names = append(names, h.Host)
			if h.State != registry.Offline || h.LastSeen != nil || h.Reason == "" || h.Since.IsZero() {
				t.Errorf("host that never connected = %+v; want it offline, never seen, with the reason", h)
			}
			if status, _ := get(t, r.URL()+"/api/hosts/"+h.Host, bearerOf(test.token)); status != http.StatusOK {
				t.Errorf("/api/hosts/%s: HTTP %d; want 200", h.Host, status)
			}
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("hosts = %q; want %q", got, test.want)
		}
	}
	if status, body := get(t, r.URL()+"/api/hosts/desktop", bearerOf(token("default", "laptop"))); status != http.StatusNotFound {
		t.Errorf("a host outside of the token's rule: HTTP %d %s; want 404", status, body)
	}
	// Query tokens work only for WebSockets: URLs end up in logs.
	if status, _ := get(t, r.URL()+"/api/hosts?access_token="+token("default", "laptop"), nil); status != http.StatusUnauthorized {
		t.Errorf("token in the query of the API: HTTP %d; want 401", status)
	}
}

// await polls until holds returns true: see [natssite.Eventually].
func await(t *testing.T, holds func() bool) {
	t.Helper()
	natssite.Eventually(t, "the condition holds", holds)
}

// Clients may close with any code. codeLabel maps all codes to 13 labels, so clients
// cannot create more.
func TestCloseCodesMakeNoLabels(t *testing.T) {
	labels := map[string]bool{}
	for code := range 5000 {
		labels[codeLabel(ahp.CloseCode(code))] = true
	}
	if len(labels) != 13 || !labels["other"] || !labels["1000"] || !labels["1001"] || !labels["4100"] {
		t.Errorf("the metrics have %d labels for close codes: %v; want 13", len(labels), labels)
	}
}

// TestLongAndIncompleteRequestsAreRefused: the relay refuses a header that is too long,
// and its HTTP servers have time limits for incomplete requests.
func TestLongAndIncompleteRequestsAreRefused(t *testing.T) {
	r := startRelay(t, nil)
	header := http.Header{"X-Long": {strings.Repeat("x", maxHeader+8<<10)}}
	if status, _ := get(t, r.URL()+"/healthz", header); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of %d bytes: HTTP %d; want 431", maxHeader+8<<10, status)
	}
	// A token with the maximum size fits into the query, the header and the
	// subprotocol.
	token := strings.Repeat("x", auth.MaxTokenSize)
	header = http.Header{"Authorization": {"Bearer " + token}, "Sec-Websocket-Protocol": {"bearer." + token}}
	if status, _ := get(t, r.URL()+"/ahp/x?tkn="+token, header); status != http.StatusUnauthorized {
		t.Errorf("long tokens: HTTP %d; want 401", status)
	}
	for _, server := range []*http.Server{r.public.http, r.admin.http} {
		if server.ReadHeaderTimeout == 0 || server.ReadTimeout == 0 || server.WriteTimeout < time.Minute || server.IdleTimeout == 0 {
			t.Errorf("HTTP server has times %v, %v, %v, %v; want all set", server.ReadHeaderTimeout, server.ReadTimeout, server.WriteTimeout, server.IdleTimeout)
		}
	}
}

// TestReadyReportsTheState: /readyz answers 200, and 503 while the relay drains.
// /healthz answers 200 even then.
func TestReadyReportsTheState(t *testing.T) {
	r := startRelay(t, nil)
	for _, base := range []string{r.URL(), r.AdminURL()} {
		if status, body := get(t, base+"/readyz", nil); status != http.StatusOK || body != "ready\n" {
			t.Errorf("/readyz: HTTP %d %q; want 200", status, body)
		}
	}
	r.Drain(context.Background(), 0)
	if status, _ := get(t, r.URL()+"/readyz", nil); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz while draining: HTTP %d; want 503", status)
	}
	if status, _ := get(t, r.URL()+"/healthz", nil); status != http.StatusOK {
		t.Errorf("/healthz while draining: HTTP %d; want 200", status)
	}
}
