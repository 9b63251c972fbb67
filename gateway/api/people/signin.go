package people

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
	"ahprelay/auth/people"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// People can sign in at an identity provider, if the relay has any (package oidc). The
// browser first makes a key, and proves it in POST /auth/signin. Only the holder of that
// key can complete the sign-in. Then the browser is one of the person's devices.
//
//	GET  /auth/providers → {"providers": [{"issuer", "name"}]}
//	POST /auth/signin    {"issuer"} → {"url"}: where the browser goes
//	GET  /signin         where the provider sends the browser back, with a code
//	POST /auth/code      {"issuer", "state", "code", "iss", "name"} → Access

// Errors of a sign-in at an identity provider.
var (
	ErrNoProvider   = errors.New("this relay does not know the identity provider")
	ErrSignInAgain  = errors.New("your sign-in at the identity provider has expired; sign in there again")
	ErrProviderAway = errors.New("the identity provider does not answer; try again later (signed-in devices stay signed in)")
)

// signIns serves sign-in at identity providers.
type signIns struct{ *access }

func (a *signIns) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /auth/providers", a.serveProviders)
	mux.HandleFunc("POST /auth/signin", a.serveSignIn)
	mux.HandleFunc("POST /auth/code", a.serveCode)
}

func (a *signIns) serveProviders(w http.ResponseWriter, _ *http.Request) {
	type shown struct {
		Issuer string `json:"issuer"`
		Name   string `json:"name"`
	}
	list := []shown{}
	for _, p := range a.SignIn {
		list = append(list, shown{p.Issuer(), p.Name()})
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"providers": list})
}

// provider returns the identity provider with the given issuer.
func (a *base) provider(issuer string) (*oidc.SignIn, error) {
	for _, p := range a.SignIn {
		if p.Issuer() == issuer {
			return p, nil
		}
	}
	return nil, ErrNoProvider
}

// signInAddress returns the URL to which the identity provider sends browsers back.
func (a *signIns) signInAddress(r *http.Request) string { return a.Caller.URL(r) + "/signin" }

// signInAsk is the body of POST /auth/signin and /auth/code. Iss is the issuer in the
// provider's response.
type signInAsk struct{ Issuer, State, Code, Iss, Name string }

// readSignIn reads and checks a signInAsk and its proof. If ok is false, it has responded
// with an error.
func (a *signIns) readSignIn(w http.ResponseWriter, r *http.Request) (ask signInAsk, provider *oidc.SignIn, proof auth.Proof, ok bool) {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&ask)
	if err != nil {
		err = errors.New("body is not JSON with issuer, state, code, iss and name")
	} else if proof, err = a.Caller.ProveNewKey(r); err == nil {
		provider, err = a.provider(ask.Issuer)
	}
	if err != nil {
		a.refuseGrant(w, r, err)
		return ask, nil, proof, false
	}
	return ask, provider, proof, true
}

// serveSignIn responds with the URL where the browser signs in. It does not mark the
// proof as used, because the key has no device yet, and the response is useless without
// the key.
func (a *signIns) serveSignIn(w http.ResponseWriter, r *http.Request) {
	if !a.mayAsk(w, r) {
		return
	}
	_, provider, proof, ok := a.readSignIn(w, r)
	if !ok {
		return
	}
	url, err := provider.URL(r.Context(), a.signInAddress(r), a.Caller.Keys.NewSignIn(provider.Issuer(), proof.Thumbprint))
	if err != nil {
		a.refuseGrant(w, r, a.providerError(provider, err))
		return
	}
	authn.WriteJSON(w, http.StatusOK, map[string]string{"url": url})
}

// serveCode adds a device after its user has signed in, and responds with its token.
func (a *signIns) serveCode(w http.ResponseWriter, r *http.Request) {
	ask, provider, proof, ok := a.readSignIn(w, r)
	if !ok {
		return
	}
	begun, err := a.Caller.Keys.CheckSignIn(ask.State, provider.Issuer(), proof.Thumbprint)
	var who oidc.Identity
	if err == nil {
		who, err = provider.Finish(r.Context(), a.signInAddress(r), oidc.Response{Code: ask.Code, Issuer: ask.Iss}, begun)
	}
	if err != nil {
		a.refuseGrant(w, r, a.providerError(provider, err))
		return
	}
	person := people.Person{Subject: who.Subject, Name: who.Name, Issuer: provider.Issuer(), Claims: who.Claims, SignedIn: who.At}
	allowed, _, err := a.Allowed(person)
	var device people.Device
	if err == nil {
		person.May(allowed)
		device, err = a.People.SignIn(person, people.Device{Name: ask.Name, Key: proof.Thumbprint, Place: a.Caller.Address(r)})
	}
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	a.useUp(proof, device)
	a.Caller.Audit.Write(audit.Line{Event: "setup", Tenant: device.Tenant, Subject: device.Subject, Token: device.ID, Address: a.Caller.Address(r), Detail: "signed in at " + provider.Name() + ": " + device.Name})
	a.giveAccess(w, r, device)
}

// providerError returns the error for the client. If the provider is unreachable, details
// appear only in the log.
func (a *signIns) providerError(provider *oidc.SignIn, err error) error {
	if !errors.Is(err, auth.ErrIssuerAway) {
		return err
	}
	a.Log.Warn("identity provider unreachable", "issuer", provider.Issuer(), "error", err)
	return ErrProviderAway
}

// Allowed returns a person's current authority and when it ends; zero means never. For
// people from an identity provider, the configured rules are applied to the stored
// claims, without a request to the provider.
func (a *base) Allowed(p people.Person) (who auth.Client, until time.Time, err error) {
	if p.Issuer == "" {
		return p.Client(), until, nil
	}
	provider, err := a.provider(p.Issuer)
	if err != nil {
		return who, until, err
	}
	if who, until, err = provider.Allows(p.Claims, p.SignedIn); err != nil {
		return who, until, err
	}
	if who.Subject = p.Subject; p.Tenant != "" && p.Tenant != who.Tenant {
		return who, until, fmt.Errorf("%w: the relay's configuration has changed", ErrSignInAgain)
	}
	if !until.IsZero() && !time.Now().Before(until) {
		return who, until, ErrSignInAgain
	}
	return who, until, nil
}

// granter returns a person with the present authority of the person's device, and when that
// authority ends; zero means never. The device's token may be older than the rules that give
// the authority, and a grant would outlive the token. Without a device, the person is
// unchanged.
func (a *base) granter(who people.Person, device string) (people.Person, time.Time, error) {
	if device == "" {
		return who, time.Time{}, nil
	}
	now, _, until, err := a.present(device)
	if err == nil {
		who.May(now)
	}
	return who, until, err
}

// present returns a device's present authority, its record, and when the authority ends;
// zero means never.
func (a *base) present(id string) (now auth.Client, device people.Device, until time.Time, err error) {
	device, person, err := a.People.Device(id)
	if err != nil {
		return now, device, until, err
	}
	now, until, err = a.Allowed(person)
	device.Narrow(&now)
	return now, device, until, err
}

// atMost returns the earlier of two times. Zero as the second means never.
func atMost(expires, until time.Time) time.Time {
	if !until.IsZero() && until.Before(expires) {
		return until
	}
	return expires
}
