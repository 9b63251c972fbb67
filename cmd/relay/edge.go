package main

import (
	"fmt"
	"net/netip"
	"strings"

	"ahprelay/gateway"
	"ahprelay/gateway/audit"
	"ahprelay/internal/acmedns"
)

// edgeFlags configure the relay's public listener.
type edgeFlags struct {
	TLSCert       string   `help:"Certificate chain for the public listener, a PEM file; a change is noticed while the relay runs." type:"path" placeholder:"FILE" name:"tls-cert"`
	TLSKey        string   `help:"Private key for --tls-cert, a PEM file." type:"path" placeholder:"FILE" name:"tls-key"`
	ACMEDomain    []string `help:"The relay's DNS name, for certificates by ACME; port 443 of that name must lead to --listen. Repeatable." placeholder:"DOMAIN" name:"acme-domain"`
	ACMEEmail     string   `help:"E-mail address for the certificate authority's notices." placeholder:"ADDRESS" name:"acme-email" with:"acme-domain,acme-dns"`
	ACMEDirectory string   `help:"ACME directory of a certificate authority other than Let's Encrypt." placeholder:"URL" name:"acme-directory" with:"acme-domain,acme-dns"`
	ACMEDNS       string   `help:"Prove names to the certificate authority by DNS records instead of port 443: a program sets them (exec:/path/to/program, called like lego's exec provider), or a signed update (rfc2136:ns.example.com). Also gets the wildcard certificate for --canvas-domain." placeholder:"PROVIDER" name:"acme-dns"`
	ACMEDNSKey    string   `help:"Key file for rfc2136, as written by BIND's tsig-keygen." type:"path" placeholder:"FILE" name:"acme-dns-key" with:"acme-dns"`
	ACMEResolver  string   `help:"DNS server that is queried for the record, if this machine's servers see a different zone than the certificate authority." placeholder:"HOST:PORT" name:"acme-dns-resolver" with:"acme-dns"`
	ListenPlain   bool     `help:"Allow listeners without TLS beyond loopback addresses: behind a proxy, or in a private network."`
	TrustProxy    []string `help:"Proxies in front of the relay, whose X-Forwarded-For and X-Forwarded-Proto are trusted: 10.0.0.0/8 or 10.0.0.1." placeholder:"CIDR"`
	AuditFile     string   `help:"Append JSON lines about connections, refusals, shares, revocations and other events to this file. Its directory must exist." type:"path" placeholder:"FILE"`
	limitFlags
}

// apply copies the flags into a configuration. The caller calls close after the
// relay's end.
func (f *edgeFlags) apply(cfg *gateway.RelayConfig) (close func() error, err error) {
	cfg.TLS = gateway.TLSConfig{
		CertFile: f.TLSCert, KeyFile: f.TLSKey,
		ACMEDomains: f.ACMEDomain, ACMEEmail: f.ACMEEmail, ACMEDirectory: f.ACMEDirectory,
	}
	if f.ACMEDNS != "" {
		provider, err := acmedns.ParseProvider(f.ACMEDNS, f.ACMEDNSKey)
		if err != nil {
			return nil, fmt.Errorf("--acme-dns: %w", err)
		}
		cfg.TLS.ACMEDNS, cfg.TLS.ACMEDNSResolver = &provider, f.ACMEResolver
	}
	cfg.ListenPlain = f.ListenPlain
	if cfg.Gateway.TrustProxy, err = prefixes("--trust-proxy", f.TrustProxy); err != nil {
		return nil, err
	}
	if cfg.Gateway.Limits, err = f.limits(); err != nil {
		return nil, err
	}
	cfg.HostLimits = f.LimitHosts
	if f.AuditFile == "" {
		return func() error { return nil }, nil
	}
	file, err := audit.OpenFile(f.AuditFile)
	if err != nil {
		return nil, err
	}
	cfg.Gateway.AuditFile = file
	return file.Close, nil
}

// prefixes parses networks and single addresses.
func prefixes(flag string, texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if !strings.Contains(text, "/") {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(text); err == nil {
				p = netip.PrefixFrom(addr, addr.BitLen())
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s %q: want an address such as 10.0.0.1, or a network such as 10.0.0.0/8", flag, text)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}
