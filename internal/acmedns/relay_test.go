package acmedns_test

import (
	"crypto/tls"
	"net"
	"net/url"
	"testing"
	"time"

	"ahprelay/gateway"
	"ahprelay/internal/acmedns"
	"ahprelay/test/acme"
	"ahprelay/test/testca"
)

// TestCanvasDomain starts a relay that gets a wildcard certificate for its canvas domain. The relay
// must use it, with HTTP/2, for names below that domain, and the certificate from its files for all
// other names.
func TestCanvasDomain(t *testing.T) {
	t.Parallel()
	server := acme.StartDNS(t)
	directory := acme.Start(t, server.Addr)
	provider, err := acmedns.ParseProvider("rfc2136:"+server.Addr, server.KeyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := testca.WriteFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	relay, err := gateway.StartRelay(t.Context(), gateway.RelayConfig{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener,
		TLS:     gateway.TLSConfig{CertFile: cert, KeyFile: key, ACMEDNS: &provider, ACMEDirectory: directory, ACMEDNSResolver: server.Addr},
		Gateway: gateway.Config{CanvasDomain: "canvas.example.test"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	u, err := url.Parse(relay.URL())
	if err != nil {
		t.Fatal(err)
	}
	shown := func(name string) (tls.ConnectionState, error) {
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", u.Host, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
		if err != nil {
			return tls.ConnectionState{}, err
		}
		defer conn.Close()
		return conn.ConnectionState(), nil
	}
	state, err := shown("cabc.canvas.example.test")
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		state, err = shown("cabc.canvas.example.test")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := state.PeerCertificates[0].VerifyHostname("cabc.canvas.example.test"); err != nil || state.NegotiatedProtocol != "h2" {
		t.Errorf("the certificate for a canvas: %v, protocol %q; want its name, and h2", err, state.NegotiatedProtocol)
	}
	for _, name := range []string{"relay.example.test", ""} {
		if state, err := shown(name); err != nil || state.PeerCertificates[0].Subject.CommonName != "test" || state.NegotiatedProtocol != "http/1.1" {
			t.Errorf("the relay as %q shows %v, %v, protocol %q; want its own certificate, and http/1.1", name, state.PeerCertificates, err, state.NegotiatedProtocol)
		}
	}
	if _, err := shown("canvas.example.test.evil.test"); err != nil { // a name elsewhere
		t.Error(err)
	}
}
