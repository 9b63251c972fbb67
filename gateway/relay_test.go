package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	agentsapi "ahprelay/gateway/api/agents"
	"ahprelay/gateway/canvas"
	"ahprelay/gateway/notify"
	"ahprelay/gateway/wire"
	"ahprelay/test/locked"
	"ahprelay/test/natssite"
)

// StartRelay refuses an invalid configuration with advice. It leaves nothing behind
// (see TestMain), so the next relay can start.
func TestStartRelayFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	free := natssite.FreePort(t)
	for _, test := range []struct {
		name   string
		change func(*RelayConfig)
		want   []string
	}{
		{"public port in use", func(c *RelayConfig) { c.Listen = address },
			[]string{"--listen " + address, "address already in use", "choose another"}},
		{"admin port in use", func(c *RelayConfig) { c.AdminListen = address },
			[]string{"--admin-listen " + address, "address already in use", "choose another"}},
		{"NATS port in use", func(c *RelayConfig) { c.NATSListen = address },
			[]string{address, "address already in use"}},
		{"no address", func(c *RelayConfig) { c.Listen = "8484" }, []string{`--listen "8484"`, "want host:port"}},
		{"no NATS address", func(c *RelayConfig) { c.NATSListen = "4222" }, []string{`--nats-listen "4222"`, "want host:port"}},
		{"data directory is a file", func(c *RelayConfig) { c.DataDir = file }, []string{file}},
		{"data directory is nowhere", func(c *RelayConfig) { c.DataDir = filepath.Join(file, "x") }, []string{file}},
		{"data directory is in use", func(c *RelayConfig) {
			c.DataDir = t.TempDir()
			r, err := StartRelay(t.Context(), RelayConfig{DataDir: c.DataDir, Listen: "127.0.0.1:0", AdminListen: NoListener})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
		}, []string{"in use by another relay", "copy of the keys"}},
		{"cluster port in use", func(c *RelayConfig) { c.ClusterListen = address }, []string{"--cluster-listen " + address, "address already in use"}},
		{"cluster and external NATS", func(c *RelayConfig) { c.ClusterListen, c.NATSURL = "127.0.0.1:0", "nats://127.0.0.1:1" },
			[]string{"--cluster-listen", "--nats-url", "choose one"}},
		{"cluster route without a listener", func(c *RelayConfig) { c.ClusterRoutes = []string{"10.0.0.1:6222"} },
			[]string{"10.0.0.1:6222", "add --cluster-listen"}},
		{"cluster size without a listener", func(c *RelayConfig) { c.ClusterSize = 3 }, []string{"--cluster-size 3", "add --cluster-listen"}},
		{"cluster size of one", func(c *RelayConfig) { c.ClusterListen, c.ClusterSize = "127.0.0.1:0", 1 }, []string{"--cluster-size 1", "2 or more"}},
		{"cluster smaller than its list", func(c *RelayConfig) {
			c.ClusterListen, c.ClusterRoutes, c.ClusterSize = "127.0.0.1:0", []string{"10.0.0.1:6222", "10.0.0.2:6222"}, 2
		}, []string{"cluster of 2", "make 3"}},
		{"NATS URL of another kind", func(c *RelayConfig) { c.NATSURL = "http://127.0.0.1:1" },
			[]string{"http://127.0.0.1:1", "nats://, tls://"}},
		{"no NATS server", func(c *RelayConfig) { c.NATSURL = "nats://127.0.0.1:1" },
			[]string{"connection refused", TrustFile}},
		{"bad limit", func(c *RelayConfig) { c.Gateway.MaxFrame = -1 }, []string{"--max-frame is -1", "at least 1"}},
		{"bad first limit", func(c *RelayConfig) { c.Gateway.MaxFirstFrame = 1 << 20 }, []string{"Config.MaxFirstFrame is 1048576", "1 to 262144"}},
		{"bad queue", func(c *RelayConfig) { c.Gateway.QueueLimit = 1 }, []string{"Config.QueueLimit is 1", "at least"}},
		{"bad hold", func(c *RelayConfig) { c.Gateway.HoldTime = -time.Second }, []string{"--hold is -1s"}},
		{"bad resume", func(c *RelayConfig) { c.Gateway.Resume = -time.Second }, []string{"--resume is -1s"}},
		{"bad stall", func(c *RelayConfig) { c.Gateway.Stall = -time.Second }, []string{"Config.Stall is -1s"}},
		{"bad origin", func(c *RelayConfig) { c.Gateway.Origins = []string{"[x"} }, []string{`--allow-origin "[x"`, "*.example.com"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := RelayConfig{DataDir: dir, Listen: free, AdminListen: "127.0.0.1:0"}
			test.change(&cfg)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			r, err := StartRelay(ctx, cfg)
			if err == nil {
				r.Close()
				t.Fatal("StartRelay returns no error; want one")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error is %q; want %q in it", err, want)
				}
			}
		})
	}
	r, err := StartRelay(t.Context(), RelayConfig{DataDir: dir, Listen: free, AdminListen: NoListener})
	if err != nil {
		t.Fatalf("StartRelay with a free address: %v; want no error", err)
	}
	if r.AdminURL() != "" || r.NATSAddr() != nil {
		t.Errorf("without addresses for them, the relay serves admin at %q and NATS at %v; want neither", r.AdminURL(), r.NATSAddr())
	}
	r.Close()
	r.Close() // a second Close does nothing
}

// TestCheckNamesTheFlag checks configurations without a start. Check must find each fault before NATS and the store start, and name
// the flag of relay serve. It accepts the defaults.
func TestCheckNamesTheFlag(t *testing.T) {
	var cfg RelayConfig
	if err := cfg.Check(t.Context()); err != nil {
		t.Errorf("Check of the defaults = %v; want no error", err)
	}
	for flag, change := range map[string]func(*RelayConfig){
		"--max-frame is -1":        func(c *RelayConfig) { c.Gateway.MaxFrame = -1 },
		"--max-queued is 1;":       func(c *RelayConfig) { c.Gateway.MaxQueued = 1 },
		"--ping is -1ns":           func(c *RelayConfig) { c.Gateway.Ping = -1 },
		"--credential-ttl is -1ns": func(c *RelayConfig) { c.Gateway.CredentialTTL = -1 },
		"--compress-clients is":    func(c *RelayConfig) { c.Gateway.Compress = "x" },
		"--minority":               func(c *RelayConfig) { c.Gateway.Minority = "x" },
		"--public-url":             func(c *RelayConfig) { c.Gateway.PublicURL = "https://example.com/relay" },
		"--own-url":                func(c *RelayConfig) { c.Gateway.OwnURL = "relay.example.com" },
		"--console-origin":         func(c *RelayConfig) { c.Gateway.ConsoleOrigins = []string{"https://console.example.com/"} },
		"--strict":                 func(c *RelayConfig) { c.Gateway.Strict = []string{"laptop"} },
		"--canvas-domain":          func(c *RelayConfig) { c.Gateway.CanvasDomain = "canvas.example.com/x" },
		"--nats-url":               func(c *RelayConfig) { c.NATSURL = "nats://127.0.0.1:99999" },
		"--cluster-route":          func(c *RelayConfig) { c.ClusterListen, c.ClusterRoutes = "127.0.0.1:0", []string{"::1:6222"} },
		"--region":                 func(c *RelayConfig) { c.Region, c.GatewayListen = "EU West", "127.0.0.1:0" },
		"--acme-directory":         func(c *RelayConfig) { c.TLS.ACMEDomains, c.TLS.ACMEDirectory = []string{"a.example"}, "nowhere" },
		`--acme-domain "https://a.example"`: func(c *RelayConfig) {
			c.TLS.ACMEDomains, c.Gateway.PublicURL = []string{"https://a.example"}, "https://https://a.example"
		},
		"--notify-smtp: failed": func(c *RelayConfig) {
			c.Notify.Mail = &notify.MailConfig{URL: "smtp://mail.example.com:99999", From: "a@example.com"}
		},
		"--listen":                         func(c *RelayConfig) { c.Listen = "127.0.0.1" },
		`--admin-listen "127.0.0.1:99999"`: func(c *RelayConfig) { c.AdminListen = "127.0.0.1:99999" },
		"--metrics-listen":                 func(c *RelayConfig) { c.MetricsListen = NoListener },
		"--nats-listen":                    func(c *RelayConfig) { c.NATSListen = "4222" },
		"--cluster-listen":                 func(c *RelayConfig) { c.ClusterListen = "::1" },
		"--gateway-listen":                 func(c *RelayConfig) { c.Region, c.GatewayListen = "eu", "10.0.0.1" },
		"--gateway:":                       func(c *RelayConfig) { c.Gateways = []string{"10.0.0.1:7222"} },
		`--notify-contact "foo"`:           func(c *RelayConfig) { c.Notify.Contact = "foo" },
		"--notify-contact":                 func(c *RelayConfig) { c.Notify.Contact = "http://relay.example.com" },
		"--notify-smtp": func(c *RelayConfig) {
			c.Notify.Mail = &notify.MailConfig{URL: "mail.example.com", From: "a@example.com"}
		},
		"--tls-cert /none": func(c *RelayConfig) { c.TLS.CertFile, c.TLS.KeyFile = "/none", "/none" },
	} {
		var cfg RelayConfig
		change(&cfg)
		if err := cfg.Check(t.Context()); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("Check = %v; want an error with %s", err, flag)
		}
	}
}

// TestPushServicesGetAContactThatTheyAccept: the contact of RFC 8292 is a mail address or an https URL, so a plain public URL is none.
func TestPushServicesGetAContactThatTheyAccept(t *testing.T) {
	for _, test := range []struct{ contact, public, want string }{
		{"", "", "relay@localhost"}, {"", "http://laptop:8484", "relay@localhost"}, {"", "https://relay.example.com", "https://relay.example.com"}, {"admin@example.com", "https://relay.example.com", "admin@example.com"},
	} {
		cfg := NotifyConfig{Contact: test.contact}
		if got := cfg.contact(test.public); got != test.want || cfg.check() != nil {
			t.Errorf("the contact %q of a relay at %q is %q, %v; want %q", test.contact, test.public, got, cfg.check(), test.want)
		}
	}
}

// MaxFrame is below the default of MaxFirstFrame, so MaxFirstFrame becomes equal to it.
func TestMaxFrameBelowTheFirstFrameDefault(t *testing.T) {
	cfg := Config{MaxFrame: 1000}.withDefaults()
	if cfg.MaxFirstFrame != 1000 {
		t.Errorf("MaxFirstFrame = %d after a MaxFrame of 1000 was set; want 1000", cfg.MaxFirstFrame)
	}
}

// A fakeAgent has a host-agent's enrolment token and nkey, and requests credentials
// from a relay.
type fakeAgent struct {
	t     *testing.T
	relay *Relay
	token string
	key   *auth.AgentKey
}

func newFakeAgent(t *testing.T, r *Relay) *fakeAgent { return newFakeAgentOf(t, r, "laptop") }

func newFakeAgentOf(t *testing.T, r *Relay, host string) *fakeAgent {
	t.Helper()
	token, err := r.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: host, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	return &fakeAgent{t, r, token, key}
}

func (a *fakeAgent) post(path, token string, body []byte) (status int, answer string) {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, a.relay.URL()+path, bytes.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return do(a.t, r)
}

func (a *fakeAgent) proof() agentsapi.Proof {
	a.t.Helper()
	status, answer := a.post("/agent/challenge", a.token, nil)
	var c agentsapi.Challenge
	if err := json.Unmarshal([]byte(answer), &c); err != nil || status != http.StatusOK || c.Tenant != "default" {
		a.t.Fatalf("POST /agent/challenge: HTTP %d %s; want 200, with the tenant default", status, answer)
	}
	signature, err := auth.SignChallenge(a.key, c.Challenge, c.Tenant, c.Host)
	if err != nil {
		a.t.Fatal(err)
	}
	return agentsapi.Proof{Challenge: c.Challenge, NKey: a.key.Public(), Signature: signature}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The relay issues NATS credentials only for an enrolment token with a proof of the
// nkey.
func TestCredentialsNeedProofs(t *testing.T) {
	r := startRelay(t, nil)
	a := newFakeAgent(t, r)
	client, err := r.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessAdmin, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/agent/challenge", "/agent/credentials"} {
		for name, token := range map[string]string{"none": "", "nonsense": "nonsense", "a client's": client} {
			status, answer := a.post(path, token, nil)
			if status != http.StatusUnauthorized || token != "" && strings.Contains(answer, token) {
				t.Errorf("%s with token %s: HTTP %d %s; want 401 without the token", path, name, status, answer)
			}
		}
	}
	other, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	good := a.proof()
	for name, bad := range map[string]struct {
		body   []byte
		status int
	}{
		"empty":             {nil, http.StatusBadRequest},
		"no JSON":           {[]byte("challenge"), http.StatusBadRequest},
		"too long":          {[]byte(`{"challenge":"` + strings.Repeat("x", agentsapi.MaxBody) + `"}`), http.StatusBadRequest},
		"nothing":           {[]byte(`{}`), http.StatusForbidden},
		"another key":       {encode(t, agentsapi.Proof{Challenge: good.Challenge, NKey: other.Public(), Signature: good.Signature}), http.StatusForbidden},
		"no key":            {encode(t, agentsapi.Proof{Challenge: good.Challenge, NKey: "UABC", Signature: good.Signature}), http.StatusForbidden},
		"no signature":      {encode(t, agentsapi.Proof{Challenge: good.Challenge, NKey: good.NKey}), http.StatusForbidden},
		"another challenge": {encode(t, agentsapi.Proof{Challenge: a.proof().Challenge, NKey: good.NKey, Signature: good.Signature}), http.StatusForbidden},
	} {
		status, answer := a.post("/agent/credentials", a.token, bad.body)
		var said struct{ Error string }
		if err := json.Unmarshal([]byte(answer), &said); err != nil || status != bad.status || said.Error == "" {
			t.Errorf("%s: HTTP %d %s; want %d and why", name, status, answer, bad.status)
		}
	}
	if _, known := r.registry.Lookup("default", "laptop"); known {
		t.Error("the registry has a host whose host-agent proved no key; want none")
	}
	status, answer := a.post("/agent/credentials", a.token, encode(t, good))
	var c agentsapi.Credentials
	if err := json.Unmarshal([]byte(answer), &c); err != nil || status != http.StatusOK || c.JWT == "" {
		t.Fatalf("HTTP %d %s; want credentials", status, answer)
	}
	if life := time.Until(c.Expires); life < 10*time.Minute || life > 16*time.Minute {
		t.Errorf("credentials expire in %v; want about 15 minutes", life)
	}
	await(t, func() bool { _, known := r.registry.Lookup("default", "laptop"); return known })
}

// FuzzProof sends arbitrary bodies as proofs. The relay must answer each with 400 or
// 403.
func FuzzProof(f *testing.F) {
	keys, err := auth.LoadKeys(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(24 * time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	revoked, err := registry.LoadRevocations("", nil)
	if err != nil {
		f.Fatal(err)
	}
	unknown := lookupFunc(func(string, string) (registry.Host, bool) { return registry.Host{}, false })
	server := newServer(Config{Keys: keys, Instance: "relay1"}.withDefaults(), canvas.Origin{}, unknown, revoked)
	f.Cleanup(server.Close)
	f.Add([]byte(`{"challenge":"x","nkey":"U","signature":"eA=="}`))
	f.Add(encodeSeed(agentsapi.Proof{Challenge: keys.NewChallenge(), NKey: "UA", Signature: []byte("x")}))
	f.Add([]byte(`{"challenge":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := http.NewRequest(http.MethodPost, "http://relay/agent/credentials", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		w := &hijackable{header: http.Header{}}
		server.Handler().ServeHTTP(w, r)
		if w.status != http.StatusBadRequest && w.status != http.StatusForbidden {
			t.Errorf("HTTP %d for %q; want 400 or 403", w.status, body)
		}
	})
}

func encodeSeed(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// TestNATSOverWebSocket opens streams to the NATS server through the relay. A stream
// ends when the host-agent, the NATS server or the relay ends it, and the log names the
// side.
func TestNATSOverWebSocket(t *testing.T) {
	var log locked.Buffer
	r := startRelay(t, func(cfg *RelayConfig) { cfg.Gateway.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	a := newFakeAgent(t, r)
	if status, _ := get(t, r.URL()+"/nats", nil); status != http.StatusUnauthorized {
		t.Errorf("/nats without a token: HTTP %d; want 401", status)
	}
	if status, _ := get(t, r.URL()+"/nats", bearerOf(a.token)); status != http.StatusUpgradeRequired {
		t.Errorf("/nats without a WebSocket: HTTP %d; want 426", status)
	}
	open := func() net.Conn {
		ws, _, err := websocket.Dial(t.Context(), r.URL()+"/nats", &websocket.DialOptions{HTTPHeader: bearerOf(a.token)})
		if err != nil {
			t.Fatal(err)
		}
		conn := websocket.NetConn(context.Background(), ws, websocket.MessageBinary)
		line := make([]byte, 8<<10)
		n, err := conn.Read(line)
		if err != nil || !bytes.HasPrefix(line[:n], []byte("INFO ")) {
			t.Fatalf("NATS begins with %.40q, %v; want INFO", line[:n], err)
		}
		return conn
	}
	gone := func(n int, side string) {
		t.Helper()
		await(t, func() bool { return strings.Count(log.String(), "event=host-disconnect") == n })
		if !strings.Contains(log.String(), side+" side: ") {
			t.Errorf("the log must contain: %s side, for the end of the stream", side)
		}
	}
	agent := open()
	_ = agent.Close()
	gone(1, "host-agent")

	// The NATS server sends an error to a client that does not speak its protocol, and
	// closes the stream.
	agent = open()
	fmt.Fprint(agent, "GET / HTTP/1.1\r\n\r\n")
	said, _ := wire.ReadAll(agent, nil, 1<<20, noted)
	if !bytes.Contains(said, []byte("-ERR")) {
		t.Errorf("the NATS server answered %q; want an error", said)
	}
	_ = agent.Close()
	gone(2, "NATS")

	// Relay.Close ends the streams that are open.
	agent = open()
	r.Close()
	gone(3, "host-agent")
	_, _ = wire.ReadAll(agent, nil, 1<<20, noted)
	_ = agent.Close()
}

// TestMetricsListenerServesNothingElse: the metrics listener serves /metrics under any
// host name, and answers 404 to any other path.
func TestMetricsListenerServesNothingElse(t *testing.T) {
	r, err := StartRelay(t.Context(), RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: NoListener, MetricsListen: "0.0.0.0:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	_, port, err := net.SplitHostPort(r.metrics.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/metrics": 200, "/admin/connections": 404, "/admin/settings": 404, "/debug/pprof/": 404, "/": 404} {
		request, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+port+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "relay-0.peers:8486"
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s; want %d", path, response.Status, want)
		}
	}
}
