package contentproxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// An Allowed is a pattern for web servers, beyond http on the loopback interface, whose content the
// host's owner allows canvases to show: https://localhost:*, http://192.168.1.7:3000,
// http://*.localhost:*. Names are resolved by DNS, except localhost and names below it. A pattern
// can also be a folder: file:///home/ada/project/dist.
type Allowed struct{ scheme, host, port string } // for a folder, host is its path, and port is the path with links resolved

// ParseAllowed parses a pattern. Its errors quote the text.
func ParseAllowed(text string) (Allowed, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	if scheme == filesScheme {
		return parseFolder(text)
	}
	any, port := strings.CutSuffix(rest, ":*")
	if port {
		rest = any
	}
	u, err := url.Parse("http://" + strings.Replace(rest, "*.", "any.", 1))
	a := Allowed{scheme, strings.ToLower(strings.TrimSuffix(rest, ":"+urlPort(u))), urlPort(u)}
	switch {
	case port:
		a.port = "*"
	case a.port == "":
		a.port = defaultPorts[scheme]
	}
	if err != nil || defaultPorts[scheme] == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" ||
		port && u.Port() != "" || strings.Contains(strings.TrimPrefix(a.host, "*."), "*") {
		return Allowed{}, fmt.Errorf("%q is not a valid origin for canvases; want one such as https://localhost:*, http://192.168.1.7:3000, http://*.localhost:* or file:///home/ada/project/dist", text)
	}
	return a, nil
}

func urlPort(u *url.URL) string {
	if u == nil {
		return ""
	}
	return u.Port()
}

var defaultPorts = map[string]string{"http": "80", "https": "443"}

func (a Allowed) takes(o origin) bool {
	host := strings.ToLower(o.host)
	if under, any := strings.CutPrefix(a.host, "*"); any {
		if !strings.HasSuffix(host, under) || len(host) == len(under) {
			return false
		}
	} else if host != a.host {
		return false
	}
	return a.scheme == o.scheme && (a.port == "*" || a.port == o.port)
}

// ParsePin parses the SHA-256 of a certificate: 64 hexadecimal digits, with colons as printed by
// openssl x509 -fingerprint -sha256, or without.
func ParsePin(text string) (pin [sha256.Size]byte, err error) {
	b, err := hex.DecodeString(strings.ToLower(strings.ReplaceAll(text, ":", "")))
	if err != nil || len(b) != len(pin) {
		return pin, fmt.Errorf("%q is not a certificate's SHA-256: want 64 hexadecimal digits", text)
	}
	return [sha256.Size]byte(b), nil
}

// tls returns the TLS configuration for connections to origins; nil means Go's default checks.
func (cfg *Config) tls() *tls.Config {
	switch {
	case cfg.Insecure:
		return &tls.Config{InsecureSkipVerify: true}
	case len(cfg.Pins) == 0:
		return nil
	}
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection checks instead
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !slices.Contains(cfg.Pins, sha256.Sum256(state.PeerCertificates[0].Raw)) {
				return errors.New("the certificate has none of the configured fingerprints")
			}
			return nil
		},
	}
}

// dial connects to a URL's host. It resolves names by DNS only if the host's owner has allowed
// them.
func (cfg *Config) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	o := origin{host: host, port: port}
	if strings.Contains(host, ":") {
		o.host = "[" + host + "]"
	}
	var d net.Dialer
	var failed error
	for _, at := range o.dialAddresses() {
		conn, err := d.DialContext(ctx, network, at)
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}
