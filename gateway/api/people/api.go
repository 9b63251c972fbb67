package people

import (
	"log/slog"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	agentsapi "ahprelay/gateway/api/agents"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/gateway/authn"
)

// Config is what an [API] is given.
type Config struct {
	Caller *authn.Checker
	Agents *agentsapi.API
	People *people.Directory // nil: nobody has devices, and the API has no routes
	SignIn []*oidc.SignIn    // identity providers
	Log    *slog.Logger

	CredentialTTL time.Duration // of host-agents that somebody lets in

	Hosts    func(who auth.Client) []hostsapi.Info             // that a token may see
	Lookup   func(tenant, host string) (registry.Host, bool)   // what the registry knows of one
	Watching func(tenant string) (byToken map[string][]Viewer) // who is connected here
}

// An API answers people, their devices, and who wants to become one of them.
type API struct {
	Config
	codes *admission.Buckets // wrong codes, of people and addresses
	asks  *admission.Buckets // requests to be let in, of addresses

	asksOfNetwork *admission.Buckets // the same, of their wider networks
}

// New returns an API. Devices that are removed, or whose person is, are out from then on.
func New(cfg Config) *API {
	a := &API{
		Config: cfg, codes: admission.NewBuckets(codeEvery, codesAtOnce), asks: admission.NewBuckets(askEvery, asksAtOnce),
		asksOfNetwork: admission.NewBuckets(askEvery/asksOfMany, asksOfMany*asksAtOnce),
	}
	if cfg.People != nil {
		cfg.People.Removed, cfg.People.Revoked = a.isRemoved, cfg.Caller.Revoked.RevokedOrigin
	}
	return a
}

// maxBody is how long the body of a request is, in bytes, of somebody who is not in yet.
const maxBody = 4 << 10

// Standing returns what a token that was good once may hear and do now. Tokens of
// devices last for minutes: there it is the device that counts.
func (a *API) Standing(who auth.Client) (auth.Client, bool) {
	switch {
	case a.Caller.IsRevoked(who):
		return who, false
	case who.Device == "" || who.Key == "" || a.People == nil:
		return who, time.Now().Before(who.Expires)
	}
	device, person, err := a.People.Device(who.Device)
	if err != nil || person.Tenant != who.Tenant || person.Subject != who.Subject {
		return who, false
	}
	now, _, err := a.Allowed(person)
	if err != nil {
		return who, false
	}
	device.Narrow(&now)
	now.ID, now.Device, now.Key, now.IssuedAt, now.Origins = who.ID, who.Device, who.Key, who.IssuedAt, who.Origins
	return now, true
}
