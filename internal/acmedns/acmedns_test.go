package acmedns

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libdns/libdns"
	"github.com/miekg/dns"

	"ahprelay/test/acme"
)

// TestWildcardCertificateIsKept gets a wildcard certificate with each provider, and starts again
// with the same directory. The second start must use the stored certificate. No DNS records may be
// left.
func TestWildcardCertificateIsKept(t *testing.T) {
	for _, kind := range []string{"rfc2136", "exec"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := acme.StartDNS(t)
			text, file := "rfc2136:"+server.Addr, server.KeyFile(t)
			if kind == "exec" {
				text, file = "exec:"+server.Hook(t), ""
			}
			provider, err := ParseProvider(text, file)
			if err != nil {
				t.Fatal(err)
			}
			cfg := Config{
				Names: []string{"*.canvas.example.test"}, Provider: provider, Dir: t.TempDir(), Directory: acme.Start(t, server.Addr), Resolver: server.Addr,
				Log: slog.New(slog.DiscardHandler),
			}
			got := await(t, cfg)
			if err := got.VerifyHostname("cabc.canvas.example.test"); err != nil || !slices.Equal(got.DNSNames, cfg.Names) {
				t.Errorf("the certificate's names are %v, %v; want those of the configuration", got.DNSNames, err)
			}
			if left := server.Records(); len(left) != 0 {
				t.Errorf("the DNS server still has the records %v; want none", left)
			}
			if again := await(t, cfg); !again.Equal(got) { // the certificate was stored
				t.Error("the certificate after a restart differs; want the stored one")
			}
			if (server.Updates() > 0) != (kind == "rfc2136") {
				t.Errorf("the DNS server received %d updates by RFC 2136; want at least one exactly for the provider rfc2136", server.Updates())
			}
		})
	}
}

// await starts Certificates with cfg, and returns the certificate for a name below the canvas
// domain as soon as there is one.
func await(t *testing.T, cfg Config) *x509.Certificate {
	t.Helper()
	c, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		cert, err := shown(c, "cabc.canvas.example.test")
		if err == nil {
			return cert
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// shown performs a TLS handshake for a name, and returns the certificate that c presents.
func shown(c *Certificates, name string) (*x509.Certificate, error) {
	near, far := net.Pipe()
	defer near.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Server(far, &tls.Config{GetCertificate: c.Get}).Handshake()
		_ = far.Close()
	}()
	client := tls.Client(near, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	err := client.Handshake()
	_ = near.Close()
	<-done
	if err != nil {
		return nil, err
	}
	return client.ConnectionState().PeerCertificates[0], nil
}

// TestUpdatesWithAnotherKey sends an update that is signed with a different key. The DNS server
// must refuse it, and AppendRecords return an error.
func TestUpdatesWithAnotherKey(t *testing.T) {
	server := acme.StartDNS(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Replace(acme.Key, "c2Vj", "YW5v", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	provider, err := ParseProvider("rfc2136:"+server.Addr, key)
	if err != nil {
		t.Fatal(err)
	}
	records := []libdns.Record{libdns.TXT{Name: "_acme-challenge.canvas", Text: "value"}}
	if _, err := provider.records.AppendRecords(t.Context(), acme.Zone, records); err == nil || len(server.Records()) != 0 {
		t.Errorf("an update with a different key: %v, records %v; want an error, and none", err, server.Records())
	}
}

// TestInvalidProvidersAreRefused parses invalid texts for a provider, which must be refused, and a
// valid one.
func TestInvalidProvidersAreRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := write("good", acme.Key)
	for _, test := range [][2]string{
		{"", ""}, {"exec:", ""}, {"exec:hook", ""}, {"exec:/hook", good}, {"rfc2136:", good}, {"rfc2136:ns.example.com", ""}, {"rfc2136:ns.example.com", dir + "/none"},
		{"rfc2136:ns", write("empty", "")}, {"rfc2136:ns", write("md5", strings.Replace(acme.Key, "sha256", "md5", 1))}, {"rfc2136:ns", write("bare", `key "x" { algorithm hmac-sha256; };`)}, {"cloudflare:x", ""},
	} {
		if p, err := ParseProvider(test[0], test[1]); err == nil {
			t.Errorf("ParseProvider(%q, %q) = %+v; want an error", test[0], test[1], p)
		}
	}
	p, err := ParseProvider("rfc2136:ns.example.com", good)
	if u, ok := p.records.(*updates); err != nil || !ok || u.server != "ns.example.com:53" || u.key != "relay-key." || u.algorithm != dns.HmacSHA256 {
		t.Errorf("ParseProvider returns %+v, %v; want the server's default port, and the key", p.records, err)
	}
}
