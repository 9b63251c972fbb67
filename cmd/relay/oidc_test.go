package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
)

const providers = `
- issuer: https://login.example.com
  audience: ahp
  algorithms: [ES256]
  types: [at+jwt]
  rules:
    - when:
        - {claim: groups, contains: developers}
        - {claim: email_verified, equals: "true"}
      tenant: acme
      hosts: [laptop, build-*]
      access: write
      channels: ["mock:/*"]
      methods: [resource*]
      reverse: true
      max-connections: 3
      max-ttl: 1h
    - hosts: ["*"]
      access: read
`

var wantProviders = issuers{{
	Issuer: "https://login.example.com", Audience: "ahp", Algorithms: []string{"ES256"}, Types: []string{"at+jwt"},
	Rules: []oidc.Rule{
		{
			When:   []oidc.Condition{{Claim: "groups", Contains: "developers"}, {Claim: "email_verified", Equals: "true"}},
			Tenant: "acme", Hosts: []string{"laptop", "build-*"}, Access: auth.AccessWrite, Channels: []string{"mock:/*"}, Methods: []string{"resource*"},
			Reverse: true, MaxConnections: 3, MaxTTL: time.Hour,
		},
		{Hosts: []string{"*"}, Access: auth.AccessRead},
	},
}}

// serveWith parses the command line of relay serve with these arguments.
func serveWith(t *testing.T, args ...string) (*serveCmd, error) {
	t.Helper()
	var a app
	_, err := a.program().Parse(append([]string{"serve", "--data-dir", t.TempDir()}, args...), io.Discard, io.Discard)
	return &a.Serve, err
}

// TestProvidersComeFromTwoFiles configures OpenID Connect providers in a separate file,
// and in the configuration file.
func TestProvidersComeFromTwoFiles(t *testing.T) {
	own, config := filepath.Join(t.TempDir(), "oidc.yaml"), filepath.Join(t.TempDir(), "relay.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(own, providers)
	write(config, "oidc:\n"+strings.ReplaceAll(providers, "\n", "\n  "))
	for _, args := range [][]string{{"--oidc", own}, {"--config", config}} {
		c, err := serveWith(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantProviders, c.OIDC); diff != "" {
			t.Errorf("%v (-want +got):\n%s", args, diff)
		}
		verifiers, end, err := c.OIDC.verifiers(oidc.Options{})
		if err != nil || len(verifiers) != 1 || verifiers["https://login.example.com"] == nil {
			t.Errorf("%v: the verifiers are %v, %v; want one for login.example.com", args, verifiers, err)
		}
		end()
	}
	write(own, strings.Replace(providers, "audience", "audiences", 1))
	if _, err := serveWith(t, "--oidc", own); err == nil || !strings.Contains(err.Error(), "audiences") {
		t.Errorf("an unknown member in the providers' file: %v; want its name, audiences", err)
	}
	for want, list := range map[string]issuers{
		"duplicate issuer": append(wantProviders[:1:1], wantProviders[0]),
		"no audience":      {{Issuer: "https://login.example.com"}},
	} {
		if _, _, err := list.verifiers(oidc.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("verifiers: %v; want %q", err, want)
		}
	}
}
