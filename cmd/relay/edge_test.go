package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/gateway"
	"ahprelay/gateway/admission"
)

// TestListenerIsReadFromFlagsAndFile sets proxies and limits by flags and by a
// configuration file. The listener's configuration must have both.
func TestListenerIsReadFromFlagsAndFile(t *testing.T) {
	config := filepath.Join(t.TempDir(), "relay.yml")
	text := "trust-proxy: [10.0.0.0/8, 192.0.2.1]\nlimit-subject: {connections: 5, frames: 0, opens: 3}\nlimit-failures: 0\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var a app
	audit := filepath.Join(t.TempDir(), "audit")
	_, err := a.program().Parse([]string{
		"serve", "--data-dir", "x", "--config", config, "--limit-address", "bytes=7,pending=8", "--limit-token", "opens=0", "--listen-plain",
		"--acme-domain", "relay.example.com", "--acme-email", "ada@example.com", "--audit-file", audit,
	}, os.Stdout, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var cfg gateway.RelayConfig
	done, err := a.Serve.apply(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(audit); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the audit file: %v, %v; want the mode 0600", info, err)
	}
	cfg.Gateway.AuditFile = nil
	want := gateway.RelayConfig{
		TLS:         gateway.TLSConfig{ACMEDomains: []string{"relay.example.com"}, ACMEEmail: "ada@example.com"},
		ListenPlain: true,
		Gateway: gateway.Config{
			TrustProxy: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32")},
			Limits: admission.Limits{
				Address: admission.Limit{Bytes: 7, Pending: 8}, Subject: admission.Limit{Connections: 5, Frames: -1, Opens: 3}, Token: admission.Limit{Opens: -1}, Failures: -1,
			},
		},
	}
	if diff := cmp.Diff(want.TLS, cfg.TLS) + cmp.Diff(want.Gateway.Limits, cfg.Gateway.Limits); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if !cfg.ListenPlain || len(cfg.Gateway.TrustProxy) != 2 || cfg.Gateway.TrustProxy[0] != want.Gateway.TrustProxy[0] || cfg.Gateway.TrustProxy[1] != want.Gateway.TrustProxy[1] {
		t.Errorf("the configuration has plain %v, proxies %v; want true, and the file's two proxies", cfg.ListenPlain, cfg.Gateway.TrustProxy)
	}
}
