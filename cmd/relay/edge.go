package main

import (
	"fmt"
	"net/netip"
	"strings"

	"ahprelay/gateway"
	"ahprelay/gateway/audit"
	"ahprelay/internal/acmedns"
)

// edgeFlags say how the relay meets the network.
type edgeFlags struct {
	TLSCert       string   `help:"Certificate chain of the public listener, a PEM file; read again when it changes." type:"path" placeholder:"FILE" name:"tls-cert"`
	TLSKey        string   `help:"Its private key, a PEM file." type:"path" placeholder:"FILE" name:"tls-key"`
	ACMEDomain    []string `help:"Name of the relay, for which it gets certificates by ACME; port 443 of that name must lead to --listen. May be repeated." placeholder:"DOMAIN" name:"acme-domain"`
	ACMEEmail     string   `help:"Address for notices of the certificate authority." placeholder:"ADDRESS" name:"acme-email"`
	ACMEDirectory string   `help:"Another authority than Let's Encrypt." placeholder:"URL" name:"acme-directory"`
	ACMEDNS       string   `help:"How the authority is shown the names, in place of port 443: by a record in DNS that a program sets (exec:/path/to/program, run as lego's exec provider runs it) or an update signed with a key (rfc2136:ns.example.com). Gets the wildcard certificate of --canvas-domain, too." placeholder:"PROVIDER" name:"acme-dns"`
	ACMEDNSKey    string   `help:"Key for rfc2136, a file as BIND's tsig-keygen writes it." type:"path" placeholder:"FILE" name:"acme-dns-key"`
	ACMEResolver  string   `help:"DNS server that is asked whether the record is there, if the machine's own do not see the zone as the authority does." placeholder:"HOST:PORT" name:"acme-dns-resolver"`
	ListenPlain   bool     `help:"Allow listeners without TLS on other than loopback addresses: with a proxy in front, or in a private network."`
	TrustProxy    []string `help:"Addresses of proxies in front, whose X-Forwarded-For says where clients are: 10.0.0.0/8 or 10.0.0.1." placeholder:"CIDR"`
	AuditFile     string   `help:"File that gets a line of JSON for each connection, refusal, share and revocation." type:"path" placeholder:"FILE"`
	limitFlags
}

// apply puts what the flags say into a configuration. Call close when the
// relay has ended.
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

// prefixes reads networks and single addresses.
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
