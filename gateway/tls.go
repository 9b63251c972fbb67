package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"ahprelay/gateway/canvas"
	"ahprelay/gateway/wire"
	"ahprelay/internal/acmedns"
)

// A TLSConfig selects the source for the public listener's certificates: files, or an
// ACME certificate authority (RFC 8555). Its zero value means no TLS.
//
// Changed files are loaded again. With ACME, the relay proves that it controls a name by
// TLS-ALPN-01 (RFC 8737), for which the authority connects to port 443, or by DNS records
// (package acmedns). The wildcard certificate for a canvas domain always needs DNS
// records, even if the relay's own certificate comes from files.
type TLSConfig struct {
	CertFile string // PEM, with the chain
	KeyFile  string // PEM

	ACMEDomains   []string // the relay's names; requesting certificates accepts the authority's terms
	ACMEEmail     string   // contact for the authority's notices; may be empty
	ACMEDirectory string   // URL; default: Let's Encrypt

	ACMEDNS         *acmedns.Provider // sets DNS records; nil: TLS-ALPN-01
	ACMEDNSResolver string            // host:port of the DNS server that checks the records; default: the machine's
}

func (c *TLSConfig) on() bool {
	return c.CertFile != "" || c.KeyFile != "" || len(c.ACMEDomains) > 0 || c.ACMEDNS != nil
}

// check returns an error for flags that contradict each other, and for files that cannot be
// used. Each branch of the switch is a contradiction.
func (c *TLSConfig) check(canvasDomain string) error {
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("--tls-cert and --tls-key: want both or none")
	case c.CertFile != "" && len(c.ACMEDomains) > 0:
		return errors.New("--tls-cert and --acme-domain: the certificate comes from files or from ACME; choose one")
	case len(c.ACMEDomains) > 0 && c.ACMEDNS == nil && canvasDomain != "":
		return errors.New("--canvas-domain needs a wildcard certificate: add --acme-dns to --acme-domain, or use --tls-cert or a proxy in front")
	case c.ACMEDNS != nil && len(c.ACMEDomains) == 0 && (canvasDomain == "" || strings.HasPrefix(canvasDomain, "http:")):
		return errors.New("--acme-dns needs names: give --canvas-domain or --acme-domain")
	case c.ACMEDNS != nil && len(c.ACMEDomains) == 0 && c.CertFile == "":
		return errors.New("--acme-dns gets only the certificate for --canvas-domain; for the relay's own name add --acme-domain or --tls-cert")
	}
	for _, domain := range c.ACMEDomains {
		if _, err := netip.ParseAddr(domain); err == nil || strings.ContainsAny(domain, "*/:") || !strings.Contains(domain, ".") {
			return fmt.Errorf("--acme-domain %q: want a name such as relay.example.com", domain)
		}
	}
	if u, err := url.Parse(c.ACMEDirectory); c.ACMEDirectory != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		return fmt.Errorf("--acme-directory %q: want a URL such as https://acme.example.com/directory", c.ACMEDirectory)
	}
	if c.CertFile == "" {
		return nil
	}
	return (&certFiles{cert: c.CertFile, key: c.KeyFile}).load()
}

// certificates returns the certificate for a TLS handshake.
type certificates func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// certificates loads the configured files, so that errors appear at the start. It keeps
// certificates from ACME in the data directory. The caller must call end.
func (c *TLSConfig) certificates(dataDir string, canvases canvas.Origin, log *slog.Logger) (get certificates, end func(), err error) {
	end = func() {}
	switch {
	case c.CertFile != "":
		files := &certFiles{cert: c.CertFile, key: c.KeyFile, log: log}
		if err := files.load(); err != nil {
			return nil, nil, err
		}
		get = files.get
	case c.ACMEDNS == nil:
		return c.byALPN(dataDir, log), end, nil
	}
	if c.ACMEDNS == nil {
		return get, end, nil
	}
	names := slices.Clone(c.ACMEDomains)
	if canvases.Scheme == "https" {
		names = append(names, "*."+canvases.Domain)
	}
	byDNS, err := acmedns.Start(acmedns.Config{
		Names: names, Provider: *c.ACMEDNS, Dir: filepath.Join(dataDir, "acme-dns"), Email: c.ACMEEmail, Directory: c.ACMEDirectory, Resolver: c.ACMEDNSResolver, Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	own := get
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if _, below := canvases.NameIn(hello.ServerName); !below && own != nil {
			return own(hello)
		} else if hello.ServerName == "" {
			hello = withName(hello, names[0])
		}
		return byDNS.Get(hello)
	}, byDNS.Close, nil
}

// withName returns a copy of a client's hello with a server name. Clients that connect to
// an IP address send none.
func withName(hello *tls.ClientHelloInfo, name string) *tls.ClientHelloInfo {
	named := *hello
	named.ServerName = name
	return &named
}

// byALPN gets certificates for the relay's own names by TLS-ALPN-01.
func (c *TLSConfig) byALPN(dataDir string, log *slog.Logger) certificates {
	manager := &autocert.Manager{
		Prompt: autocert.AcceptTOS, Email: c.ACMEEmail,
		Cache:      autocert.DirCache(filepath.Join(dataDir, "acme")),
		HostPolicy: autocert.HostWhitelist(c.ACMEDomains...),
		Client:     &acme.Client{DirectoryURL: cmp.Or(c.ACMEDirectory, acme.LetsEncryptURL), UserAgent: "ahp-relay"},
	}
	name := c.ACMEDomains[0]
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == "" {
			hello = withName(hello, name)
		}
		cert, err := manager.GetCertificate(hello)
		if err != nil {
			log.Warn("certificate unavailable", "name", hello.ServerName, "error", err)
		}
		return cert, err
	}
}

// tlsConfig returns a TLS configuration with these certificates. It offers only HTTP/1.1,
// because WebSockets need it, and with ca also the protocol of TLS-ALPN-01.
func (get certificates) tlsConfig(ca bool) *tls.Config {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: get,
		DynamicRecordSizingDisabled: true, // large writes need few records; a small message is a single record anyway
	}
	if ca {
		cfg.NextProtos = append(cfg.NextProtos, acme.ALPNProto)
	}
	return cfg
}

// withHTTP2 also offers HTTP/2 for names below the canvas domain. Pages load hundreds of
// modules, and browsers open only six HTTP/1.1 connections to a server. For WebSockets,
// browsers open separate HTTP/1.1 connections.
func withHTTP2(cfg *tls.Config, canvases canvas.Origin) *tls.Config {
	both := cfg.Clone()
	both.NextProtos = append([]string{"h2"}, cfg.NextProtos...)
	cfg = cfg.Clone()
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if _, below := canvases.NameIn(hello.ServerName); below {
			return both, nil
		}
		return nil, nil // the configuration is unchanged
	}
	return cfg
}

// certLook is the shortest interval between checks for changed files.
const certLook = time.Second

// certFiles holds a certificate and its key, which are loaded again when their files
// change.
type certFiles struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex // guards the fields below
	looked time.Time
	seen   [2]fileMark
	failed bool // the files could not be used when they were last read
	loaded *tls.Certificate
}

// A fileMark identifies a version of a file.
type fileMark struct {
	at   time.Time
	size int64
}

func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.looked) >= certLook {
		f.looked = now
		if seen := f.marks(); seen != f.seen || f.failed {
			err := f.loadLocked()
			switch {
			case err == nil:
				f.log.Info("certificate reloaded", "file", f.cert, "expires", f.loaded.Leaf.NotAfter)
			case seen != f.seen:
				f.log.Error("changed certificate unusable", "effect", "the previous certificate stays in use", "error", err)
			}
			f.seen, f.failed = seen, err != nil // a file may become readable without a new mark
		}
	}
	return f.loaded, nil
}

func (f *certFiles) marks() (marks [2]fileMark) {
	for i, path := range []string{f.cert, f.key} {
		if info, err := os.Stat(path); err == nil {
			marks[i] = fileMark{info.ModTime(), info.Size()}
		}
	}
	return marks
}

// load reads the files, and returns an error if they cannot be used.
func (f *certFiles) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked, f.seen = time.Now(), f.marks()
	return f.loadLocked()
}

func (f *certFiles) loadLocked() error {
	loaded, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("--tls-cert %s, --tls-key %s: %w", f.cert, f.key, err)
	}
	if time.Now().After(loaded.Leaf.NotAfter) {
		return fmt.Errorf("--tls-cert %s: %w", f.cert, x509.CertificateInvalidError{Cert: loaded.Leaf, Reason: x509.Expired})
	}
	f.loaded = &loaded
	return nil
}

// A tlsListener is a TLS listener whose connections can be paced when they become
// WebSockets: see [wire.BelowTLS].
type tlsListener struct {
	net.Listener
	config *tls.Config
}

// Accept implements [net.Listener]. The TLS handshake happens in the connection's first
// Read.
func (l tlsListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(wire.BelowTLS(conn), l.config), nil
}

// checkListeners returns an error for a malformed address, or for a listener that would send
// tokens over a network in plain text, unless ListenPlain is set.
func (c *RelayConfig) checkListeners(ctx context.Context) error {
	for _, l := range []struct {
		flag, address string
		safe          bool // encrypts, or carries no tokens
	}{
		{"--listen", cmp.Or(c.Listen, DefaultListen), c.TLS.on()},
		{"--admin-listen", cmp.Or(c.AdminListen, DefaultAdminListen), false},
		{"--metrics-listen", c.MetricsListen, true},
		{"--nats-listen", c.NATSListen, c.TLS.on()},
		{"--cluster-listen", c.ClusterListen, true},
		{"--gateway-listen", c.GatewayListen, true},
	} {
		if l.address == "" || l.flag == "--admin-listen" && l.address == NoListener {
			continue
		}
		_, port, err := net.SplitHostPort(l.address)
		if err == nil {
			_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
		}
		if err != nil {
			return fmt.Errorf("%s %q: want host:port, such as %s", l.flag, l.address, DefaultListen)
		}
		if l.safe || c.ListenPlain {
			continue
		}
		if local, err := isLocal(ctx, l.address); err != nil || local {
			continue // Listen will report the error
		}
		return fmt.Errorf("%s %s: plain text would expose tokens to the network; give --tls-cert and --tls-key, or --acme-domain (neither is for --admin-listen), or, behind a proxy or in a private network, --listen-plain", l.flag, l.address)
	}
	return nil
}

// isLocal reports whether an address accepts connections only from this machine.
func isLocal(ctx context.Context, address string) (bool, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return false, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.Unmap().IsLoopback() }), nil
}
