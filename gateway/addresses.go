package gateway

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"ahprelay/internal/atomicfile"
)

// Addresses are the addresses of a running relay. Commands on the relay's machine read
// them from a file in the data directory. The relay deletes the file when it stops, but not
// when it crashes.
type Addresses struct {
	URL    string `json:"url"`              // of the public listener, for this machine
	Admin  string `json:"admin,omitempty"`  // of the admin listener
	Public string `json:"public,omitempty"` // base URL for links; "": unknown, see [Relay.PublicURL]

	// Certificate is the SHA-256 of a self-signed certificate that the relay makes at
	// each start, and presents for the server name localName. Commands verify it instead
	// of the public certificate, which may have a different name or not exist yet.
	Certificate []byte `json:"certificate,omitempty"`
}

// localName is the server name in the TLS handshakes of commands on the relay's
// machine.
const localName = "commands.relay.invalid"

// ReadAddresses returns the addresses in a data directory. They are empty if their file
// does not exist.
func ReadAddresses(dataDir string) (at Addresses, err error) {
	if _, err = atomicfile.ReadJSON(filepath.Join(dataDir, addressesName), &at); err != nil {
		return at, fmt.Errorf("data directory: %s: %w", addressesName, err)
	}
	return at, nil
}

// Client returns an HTTP client for these addresses. It verifies Certificate, if that is
// set.
func (a Addresses) Client() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.DisableKeepAlives = nil, true
	if len(a.Certificate) > 0 {
		transport.TLSClientConfig = &tls.Config{
			MinVersion: tls.VersionTLS13, ServerName: localName,
			InsecureSkipVerify: true, // VerifyConnection verifies
			VerifyConnection: func(state tls.ConnectionState) error {
				if sum := sha256.Sum256(state.PeerCertificates[0].Raw); !bytes.Equal(sum[:], a.Certificate) {
					return errors.New("a different server has this address")
				}
				return nil
			},
		}
	}
	return &http.Client{Transport: transport}
}

// withLocal adds a new certificate for localName to others, and returns its SHA-256.
func withLocal(others certificates) (certificates, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: localName}, DNSNames: []string{localName},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(100, 0, 0), // commands check the hash only
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	own, sum := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, sha256.Sum256(der)
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == localName {
			return own, nil
		}
		return others(hello)
	}, sum[:], nil
}

// publish writes the addresses into the data directory. If that fails, commands need
// --relay.
func (r *Relay) publish() {
	text, err := json.Marshal(Addresses{URL: r.URL(), Admin: r.AdminURL(), Public: r.PublicURL(), Certificate: r.local})
	if err == nil {
		err = atomicfile.Replace(filepath.Join(r.dir.path, addressesName), text, 0o600)
	}
	if err != nil {
		r.log.Warn("addresses not written", "effect", "commands on this machine need --relay", "error", err)
		return
	}
	r.dir.published = true
}

// URL returns the base URL at which this machine reaches the public listener.
func (r *Relay) URL() string {
	return r.scheme() + "://" + reached(r.public.Addr())
}

func (r *Relay) scheme() string {
	if r.certs != nil {
		return "https"
	}
	return "http"
}

// reached returns the host and port at which this machine reaches a listener.
func reached(listener net.Addr) string {
	at, err := netip.ParseAddrPort(listener.String())
	if err != nil || !at.Addr().IsUnspecified() {
		return listener.String()
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()).String()
}

// ErrNoPublicURL reports that [Relay.PublicURL] is unknown.
var ErrNoPublicURL = errors.New("the address at which browsers reach this relay is unknown")

// PublicURL returns the base URL for links. If none is configured, it is built from the
// listener's address, or from a name in the certificate file. It is "" if the listener
// accepts connections at all addresses and no certificate file gives a name, because then the
// relay cannot know the address that browsers use.
func (r *Relay) PublicURL() string {
	if url := r.server.Load().cfg.PublicURL; url != "" {
		return url
	}
	at, err := netip.ParseAddrPort(r.public.Addr().String())
	if err != nil {
		return r.URL()
	}
	host := at.Addr().Unmap().String()
	if at.Addr().IsUnspecified() {
		host = ""
	}
	if r.named != nil {
		if cert, err := r.named(&tls.ClientHelloInfo{}); err == nil {
			host = nameIn(cert.Leaf, host)
		}
	}
	if host == "" {
		return ""
	}
	if r.certs != nil && at.Port() == 443 {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return "https://" + host
	}
	return r.scheme() + "://" + net.JoinHostPort(host, fmt.Sprint(at.Port()))
}

// nameIn returns the given address if the certificate is valid for it, and otherwise the
// certificate's first name without a wildcard, or its first IP address. If the certificate
// has neither, nameIn returns the given address.
func nameIn(cert *x509.Certificate, address string) string {
	if address != "" && cert.VerifyHostname(address) == nil {
		return address
	}
	for _, name := range cert.DNSNames {
		if !strings.Contains(name, "*") {
			return name
		}
	}
	for _, ip := range cert.IPAddresses {
		return ip.String()
	}
	return address
}
