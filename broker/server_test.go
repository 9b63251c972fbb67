package broker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/link"
	"ahprelay/test/natssite"

	"github.com/nats-io/nats.go"
)

func TestStartServerRefuses(t *testing.T) {
	s := natssite.New(t)
	taken := s.Server.Addr().String()
	tests := []struct {
		name string
		cfg  embedded.Config
		want []string
	}{
		{"no keys", embedded.Config{}, []string{"no Keys"}},
		{"port in use", embedded.Config{Keys: s.Keys, Listen: taken}, []string{"--nats-listen", taken, "in use"}},
		{"no such address", embedded.Config{Keys: s.Keys, Listen: "192.0.2.1:4222"}, []string{"192.0.2.1:4222"}},
		{"no port", embedded.Config{Keys: s.Keys, Listen: "localhost"}, []string{`--nats-listen "localhost"`, "host:port"}},
		{"port too high", embedded.Config{Keys: s.Keys, Listen: "localhost:65536"}, []string{"65535"}},
		{"cluster port in use", embedded.Config{Keys: s.Keys, Cluster: natssite.Cluster(taken)}, []string{"--cluster-listen " + taken, "in use"}},
		{"no cluster port", embedded.Config{Keys: s.Keys, Cluster: natssite.Cluster("localhost")}, []string{"--cluster-listen", "host:port"}},
		{"gateway port in use", embedded.Config{Keys: s.Keys, Gateways: embedded.Gateways{Region: "eu", Listen: taken}}, []string{"--gateway-listen " + taken, "in use"}},
		{"route without a port", embedded.Config{Keys: s.Keys, Cluster: natssite.Cluster("127.0.0.1:0", "nats://x")}, []string{"nats://x", "no port"}},
		{"route without a host", embedded.Config{Keys: s.Keys, Cluster: natssite.Cluster("127.0.0.1:0", "http://x:1")}, []string{"http"}},
		{"route without a listener", embedded.Config{Keys: s.Keys, Cluster: natssite.Cluster("", "x:1")}, []string{"x:1", "listener"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server, err := embedded.Start(test.cfg)
			if err == nil {
				server.Close()
				t.Fatal("Start with an invalid configuration succeeded; want an error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("StartServer = %q; want it to contain %q", err, want)
				}
			}
		})
	}
	// After a failed start, the same configuration works with a free port.
	cfg := embedded.Config{Keys: s.Keys, Listen: taken}
	if _, err := embedded.Start(cfg); err == nil {
		t.Fatal("Start on a used port succeeded; want an error")
	}
	cfg.Listen = "127.0.0.1:0"
	again, err := embedded.Start(cfg)
	if err != nil {
		t.Fatalf("Start after a failed start: %v; want no error", err)
	}
	again.Close()
	again.Close()
}

func TestServerWithoutListener(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Keys: keys, Name: "n1", Tenants: natssite.Acme})
	if err != nil {
		t.Fatalf("embedded.Start: %v; want no error", err)
	}
	t.Cleanup(server.Close)
	if server.Addr() != nil || server.Name() != "n1" {
		t.Errorf("Addr = %v, Name = %q; want none and n1", server.Addr(), server.Name())
	}
	s := &natssite.Site{Keys: keys, Server: server}
	relay := s.Relay(t)
	cfg := inProcess(t, s, "acme", "laptop")
	agent := natssite.DialAgent(t, cfg)
	natssite.WantPassage(t, agent, relay, "ahp.v1.acme.laptop.ctl.x")

	server.Close()
	if _, err := server.InProcessConn(); err == nil {
		t.Error("InProcessConn after Close succeeded; want an error")
	}
}

// inProcess returns the configuration of a host-agent that connects to the server within the
// process, as through a relay's own WebSocket endpoint.
func inProcess(t *testing.T, s *natssite.Site, tenant, host string) broker.AgentDialConfig {
	saved := s.Server
	cfg := broker.AgentDialConfig{
		URLs: []string{"nats://relay:4222"}, Tenant: tenant, Host: host, Instance: link.NewInstance(),
		Dial: func(context.Context, string, string) (net.Conn, error) { return saved.InProcessConn() },
	}
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Sign = key.SignNonce
	cfg.Credentials = func(context.Context) (string, error) {
		userJWT, _, err := s.Keys.Authority().AgentUser(tenant, host, key.Public(), 0)
		return userJWT, err
	}
	return cfg
}

// TestAgentStaysOnItsSubjects publishes and subscribes as a host-agent on foreign subjects. The
// server must refuse each, and keep the connection open.
func TestAgentStaysOnItsSubjects(t *testing.T) {
	s := natssite.New(t)
	relay := s.Relay(t)
	everything := natssite.Subscribe(t, relay, ">")
	natssite.WantPassage(t, s.Relay(t), relay, "ahp.v1.acme.laptop.ctl.ready")
	evs, cfg := natssite.Watched(s.AgentConfig(t, "acme", "laptop", 0))
	agent := natssite.DialAgent(t, cfg)

	foreign := []string{
		"ahp.v1.acme.server.ctl.lease", "ahp.v1.acme.laptop2.chan.x", "ahp.v1.acme.laptop", "ahp.v1.other.laptop.chan.x",
		"ahp.v1.acme", "ahp.v2.acme.laptop.x", "_INBOX.x", "_INBOX_acme.x", "anything",
		"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.ACK.x", "$KV.x.acme.laptop", "ahp.relays.v1.news", "ahp.relays.v1.to.r.lease", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING",
	}
	for _, subject := range foreign {
		if err := agent.Publish(subject, []byte("stolen")); err != nil {
			t.Errorf("Publish: %v; want no error", err)
		}
		wantViolation(t, evs.Errs, subject)
	}
	natssite.WantPassage(t, agent, relay, "ahp.v1.acme.laptop.up.ok")
	for len(everything) > 0 {
		if msg := <-everything; string(msg.Data) == "stolen" {
			t.Errorf("a message on the foreign subject %s got through; want none", msg.Subject)
		}
	}

	wide := append(foreign, ">", "*", "ahp.>", "ahp.v1.>", "ahp.v1.*.*.>", "ahp.v1.acme.>", "ahp.v1.acme.*.chan.>",
		"$JS.>", "$KV.>", "$SYS.>", "_INBOX.>", "ahp.v1.*.laptop.>", "ahp.relays.>")
	heard := make(chan *nats.Msg, 1000)
	for _, subject := range wide {
		if _, err := agent.Subscribe(subject, heard); err != nil {
			t.Errorf("Subscribe: %v; want no error", err)
		}
		wantViolation(t, evs.Errs, subject)
	}
	for _, subject := range foreign {
		if !strings.HasPrefix(subject, "$") {
			if err := relay.Publish(subject, []byte("secret")); err != nil {
				t.Errorf("Publish: %v; want no error", err)
			}
		}
	}
	natssite.WantPassage(t, relay, agent, "ahp.v1.acme.laptop.down.ok")
	if len(heard) > 0 {
		t.Errorf("the host-agent received a message on %s; want none", (<-heard).Subject)
	}
	if !agent.Connected() {
		t.Error("the host-agent was cut off; want it kept")
	}
}

func wantViolation(t *testing.T, errs <-chan error, subject string) {
	t.Helper()
	err := natssite.Next(t, "complaint about "+subject, errs)
	if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `"`+subject+`"`) {
		t.Errorf("%s: %v; want a violation", subject, err)
	}
}

// TestReplySubjectsAreNotChecked sends a request with a foreign subject for the reply. NATS
// delivers it unchecked. A relay, which has more permissions, must therefore check such subjects
// itself.
func TestReplySubjectsAreNotChecked(t *testing.T) {
	s := natssite.New(t)
	relay := s.Relay(t)
	in := natssite.Subscribe(t, relay, "ahp.v1.acme.laptop.ctl.x")
	natssite.WantPassage(t, natssite.DialAgent(t, s.AgentConfig(t, "acme", "laptop", 0)), relay, "ahp.v1.acme.laptop.ready")
	evs, cfg := natssite.Watched(s.AgentConfig(t, "acme", "laptop", 0))
	raw, err := natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return cfg.Credentials(t.Context()) }, cfg.Sign))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.PublishRequest("ahp.v1.acme.laptop.ctl.x", "ahp.v1.other.host.link.a.b.down", nil); err != nil {
		t.Fatal(err)
	}
	if msg := natssite.Next(t, "request", in); msg.Reply != "ahp.v1.other.host.link.a.b.down" {
		t.Errorf("the request's reply subject is %q; want the sender's, unchanged", msg.Reply)
	}
	if len(evs.Errs) > 0 {
		t.Errorf("the server reports %v; want no error: if NATS now checks reply subjects, the relay need not", <-evs.Errs)
	}
}

func TestStolenCredentialsAreUseless(t *testing.T) {
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	thief, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := cfg.Credentials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Each thief must get the reason, in whatever order the ends of its connection close.
	var thieves sync.WaitGroup
	for range 100 {
		thieves.Go(func() {
			var err error
			for slow := true; slow; {
				_, err = natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return credentials, nil }, thief.SignNonce))
				// After a second without a login, the server sends a ping, which this client does
				// not expect. After broker.DialTimeout, it closes the connection. Both are repeated
				// here.
				slow = err != nil && (strings.Contains(err.Error(), "got 'PING'") || strings.Contains(err.Error(), "Authentication Timeout"))
			}
			if !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("Connect = %v; want %v", err, nats.ErrAuthorization)
			}
		})
	}
	thieves.Wait()
	if nc, err := natssite.Connect(s.URL()); err == nil {
		nc.Close()
		t.Error("a connection without credentials is accepted; want a refusal")
	}
}

func TestServerLog(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	log := natssite.LogLines{Lines: make(chan string, 1000)}
	server, err := embedded.Start(embedded.Config{
		Keys: keys, Listen: "127.0.0.1:0", Tenants: natssite.Acme, Log: slog.New(log),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	s := &natssite.Site{Keys: keys, Server: server}
	agent := natssite.DialAgent(t, s.AgentConfig(t, "acme", "laptop", 0))
	if err := agent.Publish("ahp.v1.acme.other.x", []byte("SECRET")); err != nil {
		t.Fatal(err)
	}
	garbage, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer garbage.Close()
	if _, err := garbage.Write([]byte("CSECRET garbage\r\n")); err != nil {
		t.Fatal(err)
	}
	var violation, parser bool
	for !violation || !parser {
		line := natssite.Next(t, "log line", log.Lines)
		if strings.Contains(line, "SECRET") {
			t.Errorf("the log contains a message's content: %s", line)
		}
		violation = violation || strings.HasPrefix(line, "WARN") && strings.Contains(line, "Publish Violation")
		parser = parser || strings.HasPrefix(line, "WARN") && strings.Contains(line, "parser ERROR")
	}
	// Thousands of violations must lead to few lines in the log.
	const flood = 5000
	for range flood {
		if err := agent.Publish("ahp.v1.acme.other.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	natssite.Eventually(t, "flood seen", func() bool { return len(log.Lines) > 10 })
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.ctl.x")
	if n := len(log.Lines); n > 400 {
		t.Errorf("the server's log has %d lines for %d violations; want at most 400", n, flood)
	}
}

func TestServerTLS(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cert, pool := certificate(t)
	server, err := embedded.Start(embedded.Config{
		Keys: keys, Listen: "127.0.0.1:0", Tenants: natssite.Acme,
		TLS: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	s := &natssite.Site{Keys: keys, Server: server}
	relay := s.Relay(t) // this connection is within the process and has no TLS
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	cfg.URLs = []string{"tls://" + server.Addr().String()}
	cfg.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	natssite.WantPassage(t, natssite.DialAgent(t, cfg), relay, "ahp.v1.acme.laptop.ctl.x")
	outer := natssite.DialRelay(t, broker.RelayDialConfig{URL: cfg.URLs[0], TLS: cfg.TLS, Keys: keys, Instance: "r2", Tenant: "acme"})
	natssite.WantPassage(t, outer, relay, "ahp.v1.acme.laptop.ctl.y")

	cfg.TLS = nil // the system's roots lack the authority
	evs, cfg := natssite.Watched(cfg)
	untrusting, err := broker.DialAgent(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer untrusting.Close()
	natssite.Eventually(t, "complaint about the certificate", func() bool {
		return strings.Contains(natssite.Next(t, "retry", evs.Retrying).Error(), "certificate")
	})
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"relay.test"},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
