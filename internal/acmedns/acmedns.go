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

// Config says which certificates are wanted, and of whom.
type Config struct {
	Names     []string // required; of each a certificate: *.canvas.example.com
	Provider  Provider // required
	Dir       string   // required; where they are kept
	Email     string   // told the authority, for its notices; may be empty
	Directory string   // URL of the authority; default: Let's Encrypt
	Resolver  string   // DNS server that is asked whether a record is there: host:port; default: the machine's, and those of the zone
	Log       *slog.Logger
}

// Certificates are got and renewed until they are closed.
type Certificates struct {
	cache  *certmagic.Cache
	magic  *certmagic.Config
	cancel context.CancelFunc
}

// Start begins to get certificates, and returns at once: what is kept already is there
// then. What goes wrong is logged, and tried again.
func Start(cfg Config) (*Certificates, error) {
	c := &Certificates{}
	quiet := zap.NewNop() // what matters comes as events
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

// event logs what becomes of a certificate.
func (cfg *Config) event(_ context.Context, event string, data map[string]any) error {
	switch event {
	case "cert_obtained":
		cfg.Log.Info("got a certificate", "name", data["identifier"], "renewed", data["renewal"])
	case "cert_failed":
		cfg.Log.Error("no certificate; it is tried again", "name", data["identifier"], "error", data["error"])
	}
	return nil
}

// Get returns the certificate for a handshake.
func (c *Certificates) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.magic.GetCertificate(hello)
}

// Close ends getting and renewing them.
func (c *Certificates) Close() {
	c.cancel()
	c.cache.Stop()
}
