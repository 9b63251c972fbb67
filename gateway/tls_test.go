package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/auth"
	"ahprelay/internal/acmedns"
	"ahprelay/test/locked"
	"ahprelay/test/natssite"
)

// selfSigned returns a self-signed certificate and its key in PEM.
func selfSigned(t *testing.T, name string, until time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	der8, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der8})
}

// certFilesOf writes a self-signed certificate and its key to a directory, and returns
// a configuration with these files.
func certFilesOf(t *testing.T, dir, name string) TLSConfig {
	t.Helper()
	cfg := TLSConfig{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	cert, key := selfSigned(t, name, time.Now().Add(time.Hour))
	write(t, cfg.CertFile, cert)
	write(t, cfg.KeyFile, key)
	return cfg
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// shown connects to a relay by TLS, and returns the name in the relay's certificate.
func shown(t *testing.T, r *Relay, serverName string) (string, error) {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: serverName, NextProtos: []string{"h2", "http/1.1"}}}
	conn, err := d.DialContext(t.Context(), "tcp", r.public.Addr().String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState()
	if state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("TLS has negotiated the protocol %q; want HTTP/1.1, for WebSockets", state.NegotiatedProtocol)
	}
	return state.PeerCertificates[0].Subject.CommonName, nil
}

// The files of a running relay's certificate change. The relay loads a changed
// certificate, and keeps the last one when a file is damaged.
func TestChangedCertificateIsLoaded(t *testing.T) {
	dir := t.TempDir()
	cfg := certFilesOf(t, dir, "one.example.com")
	var log locked.Buffer
	r := startRelay(t, func(c *RelayConfig) {
		c.TLS = cfg
		c.Gateway.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	natssite.Enrol(t, r.registry, "default", "laptop")
	token, err := r.Keys().Tokens().IssueClient(auth.Client{Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, r.URL()+"/ahp/laptop", &websocket.DialOptions{HTTPClient: web, HTTPHeader: bearerOf(token)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	if err := ws.Write(ctx, websocket.MessageText, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if _, answer, err := ws.Read(ctx); err != nil || string(answer) != answerTo(1) {
		t.Errorf("on the connection with the old certificate, the answer is %s, %v; want the answer to request 1", answer, err)
	}

	awaitShown := func(want string) {
		t.Helper()
		await(t, func() bool { name, err := shown(t, r, "x.example.com"); return err == nil && name == want })
	}
	awaitShown("one.example.com")
	write(t, cfg.CertFile, []byte("not a certificate at all"))
	await(t, func() bool {
		_, _ = shown(t, r, "x.example.com")
		return strings.Contains(log.String(), "certificate unusable")
	})
	awaitShown("one.example.com")
	certFilesOf(t, dir, "two.example.com")
	awaitShown("two.example.com")
}

// A changed certificate's key cannot be used at first, and later it can, with the same time and
// size: so is a key that a program renews, and makes readable for the relay afterwards. The
// relay must load the certificate, and log the trouble once.
func TestCertificateIsLoadedOnceItsKeyIsReadable(t *testing.T) {
	cfg := certFilesOf(t, t.TempDir(), "one.example.com")
	var log locked.Buffer
	files := &certFiles{cert: cfg.CertFile, key: cfg.KeyFile, log: slog.New(slog.NewTextHandler(&log, nil))}
	if err := files.load(); err != nil {
		t.Fatal(err)
	}
	cert, key := selfSigned(t, "two.example.com", time.Now().Add(time.Hour))
	renewed := time.Now().Add(time.Minute)
	for _, step := range []struct {
		key  []byte
		want string
	}{{bytes.Repeat([]byte("x"), len(key)), "one.example.com"}, {key, "two.example.com"}} {
		write(t, cfg.CertFile, cert)
		write(t, cfg.KeyFile, step.key)
		for _, path := range []string{cfg.CertFile, cfg.KeyFile} {
			if err := os.Chtimes(path, renewed, renewed); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			files.looked = time.Time{} // a second has passed
			shown, err := files.get(nil)
			if err != nil || shown.Leaf.Subject.CommonName != step.want {
				t.Errorf("the relay shows %s, %v; want %s", shown.Leaf.Subject.CommonName, err, step.want)
			}
		}
	}
	if n := strings.Count(log.String(), "certificate unusable"); n != 1 {
		t.Errorf("the log reports the trouble %d times; want once:\n%s", n, log.String())
	}
}

// StartRelay refuses a wrong TLS configuration, and names the flag.
func TestTLSErrorsNameTheFlag(t *testing.T) {
	dir := t.TempDir()
	good := certFilesOf(t, dir, "relay.example.com")
	expired := filepath.Join(dir, "expired.pem")
	cert, key := selfSigned(t, "relay.example.com", time.Now().Add(-time.Hour))
	write(t, expired, append(cert, key...))
	other := filepath.Join(dir, "other.pem")
	_, key = selfSigned(t, "relay.example.com", time.Now().Add(time.Hour))
	write(t, other, key)
	for name, test := range map[string]struct {
		change func(*RelayConfig)
		want   string
	}{
		"no key":           {func(c *RelayConfig) { c.TLS.CertFile = good.CertFile }, "--tls-key: want both"},
		"no certificate":   {func(c *RelayConfig) { c.TLS.KeyFile = good.KeyFile }, "--tls-key: want both"},
		"not there":        {func(c *RelayConfig) { c.TLS = TLSConfig{CertFile: dir + "/no", KeyFile: good.KeyFile} }, dir + "/no"},
		"another key":      {func(c *RelayConfig) { c.TLS = TLSConfig{CertFile: good.CertFile, KeyFile: other} }, "does not match"},
		"expired":          {func(c *RelayConfig) { c.TLS = TLSConfig{CertFile: expired, KeyFile: expired} }, "expired"},
		"files and ACME":   {func(c *RelayConfig) { c.TLS = good; c.TLS.ACMEDomains = []string{"a.example.com"} }, "choose one"},
		"wildcard by ACME": {func(c *RelayConfig) { c.TLS.ACMEDomains = []string{"*.example.com"} }, "--acme-domain"},
		"address by ACME":  {func(c *RelayConfig) { c.TLS.ACMEDomains = []string{"192.0.2.1"} }, "--acme-domain"},
		"canvases by ACME": {func(c *RelayConfig) {
			c.TLS.ACMEDomains, c.Gateway.CanvasDomain = []string{"relay.example.com"}, "canvas.example.com"
		}, "wildcard"},
		"DNS for nothing": {func(c *RelayConfig) { c.TLS = good; c.TLS.ACMEDNS = new(acmedns.Provider) }, "--canvas-domain"},
		"DNS for plain canvases": {func(c *RelayConfig) {
			c.TLS, c.Gateway.CanvasDomain = good, "http://canvas.example.com"
			c.TLS.ACMEDNS = new(acmedns.Provider)
		}, "--canvas-domain"},
		"DNS for canvases alone": {func(c *RelayConfig) {
			c.TLS.ACMEDNS, c.Gateway.CanvasDomain = new(acmedns.Provider), "canvas.example.com"
		}, "--tls-cert"},
		"plain":                {func(c *RelayConfig) { c.Listen = "0.0.0.0:0" }, "--listen 0.0.0.0:0"},
		"plain on all":         {func(c *RelayConfig) { c.Listen = ":0" }, "--listen :0"},
		"plain on all of IPv6": {func(c *RelayConfig) { c.Listen = "[::]:0" }, "--listen-plain"},
		"plain admin":          {func(c *RelayConfig) { c.TLS, c.AdminListen = good, "0.0.0.0:0" }, "--admin-listen 0.0.0.0:0"},
		"plain NATS":           {func(c *RelayConfig) { c.NATSListen = "0.0.0.0:0" }, "--nats-listen 0.0.0.0:0"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: NoListener}
			test.change(&cfg)
			r, err := StartRelay(t.Context(), cfg)
			if err == nil {
				r.Close()
				t.Fatal("StartRelay returns no error; want one")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the start fails with %q; want %q in it", err, test.want)
			}
		})
	}
	for name, change := range map[string]func(*RelayConfig){
		"plain where asked for":   func(c *RelayConfig) { c.Listen, c.ListenPlain = "0.0.0.0:0", true },
		"TLS everywhere":          func(c *RelayConfig) { c.Listen, c.NATSListen, c.TLS = "0.0.0.0:0", "0.0.0.0:0", good },
		"by the name of loopback": func(c *RelayConfig) { c.Listen = "localhost:0" },
	} {
		cfg := RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: NoListener}
		change(&cfg)
		r, err := StartRelay(t.Context(), cfg)
		if err != nil {
			t.Errorf("StartRelay with %s: %v; want no error", name, err)
			continue
		}
		r.Close()
	}
}

// The NATS listener requires TLS when the relay has a certificate.
func TestNATSListenerWithTLS(t *testing.T) {
	cfg := certFilesOf(t, t.TempDir(), "relay.example.com")
	r := startRelay(t, func(c *RelayConfig) { c.TLS, c.NATSListen = cfg, "0.0.0.0:0" })
	_, port, err := net.SplitHostPort(r.NATSAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	info := make([]byte, 8<<10)
	if n, err := conn.Read(info); err != nil || !bytes.Contains(info[:n], []byte(`"tls_required":true`)) {
		t.Errorf("the NATS server's first line is %q, %v; want it to require TLS", info[:n], err)
	}
}

// With ACME, the relay uses a cached certificate without a request to the authority. It
// asks the authority only for configured names.
func TestACMEUsesTheCache(t *testing.T) {
	var asked atomic.Int32
	authority := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "closed", http.StatusForbidden)
	}))
	defer authority.Close()
	dir := t.TempDir()
	cert, key := selfSigned(t, "relay.example.com", time.Now().Add(60*24*time.Hour))
	if err := os.Mkdir(filepath.Join(dir, "acme"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "acme", "relay.example.com"), append(key, cert...))
	var log locked.Buffer
	r := startRelay(t, func(c *RelayConfig) {
		c.DataDir = dir
		c.TLS = TLSConfig{ACMEDomains: []string{"relay.example.com", "new.example.com"}, ACMEDirectory: authority.URL}
		c.Gateway.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	for _, name := range []string{"relay.example.com", ""} {
		if got, err := shown(t, r, name); err != nil || got != "relay.example.com" {
			t.Errorf("for the server name %q, the relay shows %q, %v; want relay.example.com", name, got, err)
		}
	}
	if _, err := shown(t, r, "other.example.com"); err == nil || asked.Load() != 0 {
		t.Errorf("for a name outside --acme-domain: %v, and the authority got %d requests; want an error, and none", err, asked.Load())
	}
	if _, err := shown(t, r, "new.example.com"); err == nil || asked.Load() == 0 {
		t.Errorf("for a name without a certificate: %v, and the authority got %d requests; want an error, and at least one", err, asked.Load())
	}
	if !strings.Contains(log.String(), "certificate unavailable") || !strings.Contains(log.String(), "new.example.com") {
		t.Errorf("the log does not name the missing certificate; want certificate unavailable, and new.example.com:\n%s", log.String())
	}
}
