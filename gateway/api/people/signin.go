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

// How people sign in at an identity provider, if the relay has any (package oidc). A browser
// makes its key first and begins with a proof of it; only with that key it comes back. It is a
// device of theirs then, as any other.
//
//	GET  /auth/providers → {"providers": [{"issuer", "name"}]}
//	POST /auth/signin    {"issuer"} → {"url"}: where the browser goes
//	GET  /signin         where it comes back to, with a code
//	POST /auth/code      {"issuer", "state", "code", "iss", "name"} → Access

// Why somebody who has signed in somewhere gets nothing here.
var (
	ErrNoProvider   = errors.New("this relay does not know the identity provider, or not any more")
	ErrSignInAgain  = errors.New("your sign-in at the identity provider was good until now; sign in there again")
	ErrProviderAway = errors.New("the identity provider does not answer; try again later (who is signed in stays in)")
)

func (a *API) signInRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /auth/providers", a.serveProviders)
	mux.HandleFunc("POST /auth/signin", a.serveSignIn)
	mux.HandleFunc("POST /auth/code", a.serveCode)
}

func (a *API) serveProviders(w http.ResponseWriter, _ *http.Request) {
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

// provider returns one of the relay's.
func (a *API) provider(issuer string) (*oidc.SignIn, error) {
	for _, p := range a.SignIn {
		if p.Issuer() == issuer {
			return p, nil
		}
	}
	return nil, ErrNoProvider
}

// signInAddress is where browsers come back to.
func (a *API) signInAddress(r *http.Request) string { return a.Caller.URL(r) + "/signin" }

// signInAsk is the body of both requests. Iss is that of the provider's response.
type signInAsk struct{ Issuer, State, Code, Iss, Name string }

// readSignIn reads who asks for what.
func (a *API) readSignIn(w http.ResponseWriter, r *http.Request) (ask signInAsk, provider *oidc.SignIn, proof auth.Proof, ok bool) {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&ask)
	if err != nil {
		err = errors.New("body is no JSON of issuer, state, code, iss and name")
	} else if proof, err = a.Caller.ProveNewKey(r); err == nil {
		provider, err = a.provider(ask.Issuer)
	}
	if err != nil {
		a.refuseGrant(w, r, err)
		return ask, nil, proof, false
	}
	return ask, provider, proof, true
}

// serveSignIn answers where a browser signs in. It does not use the proof up: the key belongs
// to no device yet, and the answer is good with that key only.
func (a *API) serveSignIn(w http.ResponseWriter, r *http.Request) {
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

// serveCode lets a device in whose user has signed in.
func (a *API) serveCode(w http.ResponseWriter, r *http.Request) {
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

// providerError is what is said of an error of a provider's: whose fault it is when it is away stays
// in the log.
func (a *API) providerError(provider *oidc.SignIn, err error) error {
	if !errors.Is(err, auth.ErrIssuerAway) {
		return err
	}
	a.Log.Warn("identity provider", "issuer", provider.Issuer(), "error", err)
	return ErrProviderAway
}

// Allowed is what a person may do now, and until when, zero for as long as they like. Of who
// has come by an identity provider, the rules say so; the provider is not asked.
func (a *API) Allowed(p people.Person) (who auth.Client, until time.Time, err error) {
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

// atMost is a time by which what a device has given away ends, if its person's sign-in ends before.
func (a *API) atMost(expires time.Time, device string) time.Time {
	if device == "" {
		return expires
	}
	_, person, err := a.People.Device(device)
	if err != nil {
		return expires
	}
	if _, until, err := a.Allowed(person); err == nil && !until.IsZero() && until.Before(expires) {
		return until
	}
	return expires
}
