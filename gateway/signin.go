package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
	"ahprelay/gateway/audit"
	"ahprelay/people"
)

// How people sign in at an identity provider, if the relay has any (package oidc). A browser
// makes its key first and begins with a proof of it; only with that key it comes back. It is a
// device of theirs then, as any other.
//
//	GET  /auth/providers → {"providers": [{"issuer", "name"}]}
//	POST /auth/signin    {"issuer"} → {"url"}: where the browser goes
//	GET  /signin         where it comes back to, with a code
//	POST /auth/code      {"issuer", "state", "code", "name"} → Access

// Why somebody who has signed in somewhere gets nothing here.
var (
	errNoProvider   = errors.New("this relay does not know the identity provider, or not any more")
	errSignInAgain  = errors.New("your sign-in at the identity provider was good until now; sign in there again")
	errProviderAway = errors.New("the identity provider does not answer; try again later (who is signed in stays in)")
)

func (s *Server) signInRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /auth/providers", s.serveProviders)
	mux.HandleFunc("POST /auth/signin", s.serveSignIn)
	mux.HandleFunc("POST /auth/code", s.serveCode)
}

func (s *Server) serveProviders(w http.ResponseWriter, _ *http.Request) {
	type shown struct {
		Issuer string `json:"issuer"`
		Name   string `json:"name"`
	}
	list := []shown{}
	for _, p := range s.cfg.SignIn {
		list = append(list, shown{p.Issuer(), p.Name()})
	}
	writeJSON(w, http.StatusOK, map[string]any{"providers": list})
}

// provider returns one of the relay's.
func (s *Server) provider(issuer string) (*oidc.SignIn, error) {
	for _, p := range s.cfg.SignIn {
		if p.Issuer() == issuer {
			return p, nil
		}
	}
	return nil, errNoProvider
}

// signInAddress is where browsers come back to.
func (s *Server) signInAddress(r *http.Request) string { return s.publicURL(r) + "/signin" }

// signInAsk is the body of both requests.
type signInAsk struct{ Issuer, State, Code, Name string }

// readSignIn reads who asks for what.
func (s *Server) readSignIn(w http.ResponseWriter, r *http.Request) (ask signInAsk, provider *oidc.SignIn, key string, ok bool) {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxProof)).Decode(&ask)
	if err != nil {
		err = errors.New("body is no JSON of issuer, state, code and name")
	} else if key, err = s.provenKey(r, ""); err == nil {
		provider, err = s.provider(ask.Issuer)
	}
	if err != nil {
		s.refuseGrant(w, r, err)
		return ask, nil, "", false
	}
	return ask, provider, key, true
}

// serveSignIn says where a browser signs in.
func (s *Server) serveSignIn(w http.ResponseWriter, r *http.Request) {
	_, provider, key, ok := s.readSignIn(w, r)
	if !ok || !s.mayAsk(w, r) {
		return
	}
	url, err := provider.URL(r.Context(), s.signInAddress(r), s.cfg.Keys.NewSignIn(provider.Issuer(), key))
	if err != nil {
		s.refuseGrant(w, r, s.providerError(provider, err))
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"url": url})
}

// serveCode lets a device in whose user has signed in.
func (s *Server) serveCode(w http.ResponseWriter, r *http.Request) {
	ask, provider, key, ok := s.readSignIn(w, r)
	if !ok {
		return
	}
	begun, err := s.cfg.Keys.CheckSignIn(ask.State, provider.Issuer(), key)
	var who oidc.Identity
	if err == nil {
		who, err = provider.Finish(r.Context(), s.signInAddress(r), ask.Code, begun)
	}
	if err != nil {
		s.refuseGrant(w, r, s.providerError(provider, err))
		return
	}
	person := people.Person{Subject: who.Subject, Name: who.Name, Issuer: provider.Issuer(), Claims: who.Claims, SignedIn: who.At}
	allowed, _, err := s.allowed(person)
	var device people.Device
	if err == nil {
		person.May(allowed)
		device, err = s.cfg.People.SignIn(person, people.Device{Name: ask.Name, Key: key, Place: s.address(r)})
	}
	if err != nil {
		s.refuseGrant(w, r, err)
		return
	}
	s.audit.Write(audit.Line{Event: "setup", Tenant: device.Tenant, Subject: device.Subject, Token: device.ID, Address: s.address(r), Detail: "signed in at " + provider.Name() + ": " + device.Name})
	s.giveAccess(w, r, device.ID, key)
}

// providerError is what is said of an error of a provider's: whose fault it is when it is away stays
// in the log.
func (s *Server) providerError(provider *oidc.SignIn, err error) error {
	if !errors.Is(err, auth.ErrIssuerAway) {
		return err
	}
	s.cfg.Log.Warn("identity provider", "issuer", provider.Issuer(), "error", err)
	return errProviderAway
}

// allowed is what a person may do now, and until when, zero for as long as they like. Of who
// has come by an identity provider, the rules say so; the provider is not asked.
func (s *Server) allowed(p people.Person) (who auth.Client, until time.Time, err error) {
	if p.Issuer == "" {
		return p.Client(), until, nil
	}
	provider, err := s.provider(p.Issuer)
	if err != nil {
		return who, until, err
	}
	if who, until, err = provider.Allows(p.Claims, p.SignedIn); err != nil {
		return who, until, err
	}
	if who.Subject = p.Subject; p.Tenant != "" && p.Tenant != who.Tenant {
		return who, until, fmt.Errorf("%w: the relay's configuration has changed", errSignInAgain)
	}
	if !until.IsZero() && !time.Now().Before(until) {
		return who, until, errSignInAgain
	}
	return who, until, nil
}

// atMost is a time by which what a device has given away ends, if its person's sign-in ends before.
func (s *Server) atMost(expires time.Time, device string) time.Time {
	if device == "" {
		return expires
	}
	_, person, err := s.cfg.People.Device(device)
	if err != nil {
		return expires
	}
	if _, until, err := s.allowed(person); err == nil && !until.IsZero() && until.Before(expires) {
		return until
	}
	return expires
}
