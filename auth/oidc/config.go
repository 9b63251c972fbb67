package oidc

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A Config describes a provider and the authority of its tokens. The tags are the
// names in the configuration file.
type Config struct {
	Issuer     string   `yaml:"issuer"`     // required; URL, as in tokens
	Audience   string   `yaml:"audience"`   // required; aud must contain it
	Algorithms []string `yaml:"algorithms"` // signature algorithms; default RS256 and ES256
	Types      []string `yaml:"types"`      // values of typ; default JWT and at+jwt
	Rules      []Rule   `yaml:"rules"`      // required; the first match counts

	// Settings for sign-in with a browser.
	ClientID         string   `yaml:"client-id"`          // the relay's client ID at the provider, with the redirect address …/signin; default: no sign-in
	ClientSecretFile string   `yaml:"client-secret-file"` // default: the client is public
	Scopes           []string `yaml:"scopes"`             // in addition to openid; default profile and email
	Name             string   `yaml:"name"`               // display name; default: the issuer
}

// A Rule defines the authority of tokens that meet all its conditions. A rule without
// conditions matches all of the provider's tokens.
type Rule struct {
	When []Condition `yaml:"when"`

	Tenant   string      `yaml:"tenant"` // default "default"
	Hosts    []string    `yaml:"hosts"`  // required; patterns
	Access   auth.Access `yaml:"access"` // required
	Channels []string    `yaml:"channels"`
	Methods  []string    `yaml:"methods"`
	Files    bool        `yaml:"files"`
	Reverse  bool        `yaml:"reverse"`

	MaxConnections int           `yaml:"max-connections"` // at the same time; default: the relay's limit
	MaxTTL         time.Duration `yaml:"max-ttl"`         // maximum lifetime from iat; default: until exp
}

// A Condition tests a claim. It has either Equals or Contains.
type Condition struct {
	// Claim is a claim's name. With dots, it names a nested claim: realm_access.roles.
	Claim string `yaml:"claim"`

	// Equals is the claim's value: a string, or true, false or a number as in JSON.
	Equals string `yaml:"equals"`

	// Contains is one of the claim's strings. The claim is a list, or a string whose
	// parts are separated by spaces, as in scope.
	Contains string `yaml:"contains"`
}

// algorithms are the supported algorithms, all with public keys. With a shared secret,
// everyone who can verify a token could also make one.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

const defaultTenant = "default"

func (c Config) withDefaults() Config {
	if len(c.Algorithms) == 0 {
		c.Algorithms = []string{"RS256", "ES256"}
	}
	if len(c.Types) == 0 {
		c.Types = []string{"JWT", "at+jwt"}
	}
	if c.Scopes == nil {
		c.Scopes = []string{"profile", "email"}
	}
	c.Rules = slices.Clone(c.Rules)
	for i := range c.Rules {
		if c.Rules[i].Tenant == "" {
			c.Rules[i].Tenant = defaultTenant
		}
	}
	return c
}

func (c *Config) check() error {
	if err := checkIssuer(c.Issuer); err != nil {
		return err
	}
	if c.Audience == "" {
		return errors.New("no audience: tokens made for other services would be accepted")
	}
	if c.ClientID == "" && c.ClientSecretFile != "" {
		return errors.New("client-secret-file without client-id")
	}
	for _, alg := range c.Algorithms {
		if !slices.Contains(algorithms, alg) {
			return fmt.Errorf("algorithm %q; want some of %s", alg, strings.Join(algorithms, ", "))
		}
	}
	if len(c.Rules) == 0 {
		return errors.New("no rules: no token would be accepted")
	}
	for i := range c.Rules {
		if err := c.Rules[i].check(); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return nil
}

// checkIssuer returns an error unless the issuer's URL has the scheme https, or http with a
// loopback IP address.
func checkIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Contains(issuer, "@") {
		return fmt.Errorf("issuer %q; want a URL such as https://login.example.com", issuer)
	}
	if !isSafe(u) {
		return fmt.Errorf("issuer %q; want https, or http with a loopback IP address: otherwise, anyone on the network could forge tokens", issuer)
	}
	return nil
}

// isSafe reports whether a URL has the scheme https, or http with a loopback IP address.
func isSafe(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && ip != nil && ip.IsLoopback()
}

func (r *Rule) check() error {
	for _, c := range r.When {
		if c.Claim == "" || (c.Equals == "") == (c.Contains == "") {
			return errors.New("each condition needs a claim, and either equals or contains")
		}
	}
	if err := ahp.CheckName("tenant", r.Tenant); err != nil {
		return err
	}
	if r.MaxTTL < 0 {
		return fmt.Errorf("max-ttl is %v; want more than 0, or no max-ttl", r.MaxTTL)
	}
	allowed := r.client()
	return allowed.CheckAuthority()
}

func (r *Rule) client() auth.Client {
	return auth.Client{
		Tenant: r.Tenant, Hosts: r.Hosts, Access: r.Access, Channels: r.Channels, Methods: r.Methods,
		Files: r.Files, Reverse: r.Reverse, MaxConnections: r.MaxConnections,
	}
}

func (r *Rule) fits(claims map[string]any) bool {
	return !slices.ContainsFunc(r.When, func(c Condition) bool { return !c.holds(claims) })
}

func (c *Condition) holds(claims map[string]any) bool {
	value, ok := find(claims, c.Claim)
	if !ok {
		return false
	}
	if c.Equals != "" {
		return scalar(value) == c.Equals
	}
	switch value := value.(type) {
	case string:
		return slices.Contains(strings.Fields(value), c.Contains)
	case []any:
		return slices.Contains(value, any(c.Contains))
	}
	return false
}

// find returns a claim, or with dots a nested one.
func find(claims map[string]any, name string) (any, bool) {
	if value, ok := claims[name]; ok {
		return value, true
	}
	outer, inner, ok := strings.Cut(name, ".")
	if !ok {
		return nil, false
	}
	object, _ := claims[outer].(map[string]any)
	return find(object, inner)
}

// scalar returns a claim's value in the form of a condition, or "" for an object, a list
// or null.
func scalar(value any) string {
	switch value := value.(type) {
	case string:
		return value
	case bool, fmt.Stringer: // json.Number
		return fmt.Sprint(value)
	}
	return ""
}
