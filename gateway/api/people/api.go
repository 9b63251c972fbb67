package people

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	agentsapi "ahprelay/gateway/api/agents"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/gateway/authn"
	"ahprelay/internal/fair"
)

// Config configures an [API].
type Config struct {
	Caller *authn.Checker
	Agents *agentsapi.API
	People *people.Directory // nil: no devices, and the API has no routes
	SignIn []*oidc.SignIn    // identity providers
	Log    *slog.Logger

	// Reached is called with each base URL at which a device of the relay's owner has
	// reached this relay. May be nil.
	Reached func(url string)

	CredentialTTL time.Duration // lifetime of approved host-agents' credentials

	Hosts    func(who auth.Client) []hostsapi.Info             // the hosts that a token may see
	Lookup   func(tenant, host string) (registry.Host, bool)   // the registry's entry
	Watching func(tenant string) (byToken map[string][]Viewer) // connections at this relay
}

// An API serves people and their devices, and requests for access.
type API struct {
	*base
	parts []part
}

// A part serves a group of related requests.
type part interface{ routes(mux *http.ServeMux) }

// base has the configuration, and methods that several parts use.
type base struct{ Config }

// New returns an API. It makes the directory refuse devices that are revoked, or whose
// person or origin is.
func New(cfg Config) *API {
	b := &base{cfg}
	in := &access{
		base: b, asks: fair.NewBuckets(askEvery, asksAtOnce),
		asksOfNetwork: fair.NewBuckets(askEvery/asksOfMany, asksOfMany*asksAtOnce),
	}
	if cfg.People != nil {
		cfg.People.Removed, cfg.People.Revoked = b.isRemoved, cfg.Caller.Revoked.RevokedOrigin
	}
	return &API{b, []part{
		in, &devices{b}, &requests{b, fair.NewBuckets(codeEvery, codesAtOnce)}, &invitations{b}, &signIns{in}, &team{b}, &shares{b},
	}}
}

// maxBody is the longest body of a request without a person's token, in bytes.
const maxBody = 4 << 10

// Standing returns the current authority for a token, which may have expired, and whether
// it is still valid. A device's tokens expire after minutes, so the device's record decides
// instead of the token's expiry and signer. An error means that both are unknown at present, because
// the store of people is unreachable.
func (a *base) Standing(who auth.Client) (now auth.Client, good bool, err error) {
	byDevice := who.Device != "" && who.Key != "" && a.People != nil
	if byDevice {
		who.Signer = ""
	}
	switch {
	case a.Caller.IsRevoked(who):
		return who, false, nil
	case !byDevice:
		return who, time.Now().Before(who.Expires), nil
	}
	now, device, _, err := a.present(who.Device)
	if errors.Is(err, people.ErrAway) {
		return who, false, err
	}
	if err != nil || device.Tenant != who.Tenant || device.Subject != who.Subject || device.Key != who.Key {
		return who, false, nil
	}
	now.ID, now.Device, now.Key, now.IssuedAt, now.Origins = who.ID, who.Device, who.Key, who.IssuedAt, who.Origins
	return now, true, nil
}
