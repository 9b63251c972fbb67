package acmedns

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// Config selects the certificates and their authority.
type Config struct {
	Names     []string // required; each gets a certificate: *.canvas.example.com
	Provider  Provider // required
	Dir       string   // required; where certificates are stored
	Email     string   // contact for the authority's notices; may be empty
	Directory string   // URL of the authority; default: Let's Encrypt
	Resolver  string   // DNS server with which records are checked: host:port; default: the machine's, and the zone's
	Log       *slog.Logger
}

// Certificates obtains and renews certificates until Close.
type Certificates struct {
	cache  *certmagic.Cache
	magic  *certmagic.Config
	cancel context.CancelFunc
}

// Start begins to obtain certificates and returns at once. Stored certificates are
// available immediately. It logs failures, and tries again.
func Start(cfg Config) (*Certificates, error) {
	c := &Certificates{}
	quiet := zap.NewNop() // event logs the important events
	c.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return c.magic, nil },
		Logger:           quiet,
	})
	c.magic = certmagic.New(c.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: cfg.Dir}, Logger: quiet, OnEvent: cfg.event, OCSP: certmagic.OCSPConfig{DisableStapling: true},
	})
	solver := &certmagic.DNS01Solver{DNSManager: certmagic.DNSManager{DNSProvider: cfg.Provider.records, Logger: quiet}}
	if cfg.Resolver != "" {
		solver.Resolvers = []string{cfg.Resolver}
	}
	c.magic.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(c.magic, certmagic.ACMEIssuer{
		CA: cmp.Or(cfg.Directory, certmagic.LetsEncryptProductionCA), TestCA: cfg.Directory, Email: cfg.Email, Agreed: true,
		DNS01Solver: solver, DisableHTTPChallenge: true, DisableTLSALPNChallenge: true, Logger: quiet,
	})}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	if err := c.magic.ManageAsync(ctx, cfg.Names); err != nil {
		c.Close()
		return nil, fmt.Errorf("certificates for %v: %w", cfg.Names, err)
	}
	return c, nil
}

func (cfg *Config) event(_ context.Context, event string, data map[string]any) error {
	switch event {
	case "cert_obtained":
		cfg.Log.Info("certificate obtained", "name", data["identifier"], "renewed", data["renewal"])
	case "cert_failed":
		cfg.Log.Error("certificate not obtained", "effect", "trying again", "name", data["identifier"], "error", data["error"])
	}
	return nil
}

// Get returns the certificate for a handshake.
func (c *Certificates) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.magic.GetCertificate(hello)
}

// Close ends obtaining and renewing.
func (c *Certificates) Close() {
	c.cancel()
	c.cache.Stop()
}
