package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// RevokeRequest is the body of POST /operator/revocations: one of Whole,
// Token, Subject and Host.
type RevokeRequest struct {
	Whole   string    `json:"whole,omitempty"`   // a client's token, of any issuer that the relay knows
	Token   string    `json:"token,omitempty"`   // ID
	Subject string    `json:"subject,omitempty"` // of Tenant
	Host    string    `json:"host,omitempty"`    // of Tenant
	Tenant  string    `json:"tenant,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // when Token does, if known
}

// Config is what an [API] is given.
type Config struct {
	Caller *authn.Checker

	// Forget has all relays forget a host.
	Forget func(ctx context.Context, tenant, host string) error
}

// An API answers operators.
type API struct{ Config }

// New returns an API.
func New(cfg Config) *API { return &API{cfg} }

// Routes adds what operators ask for.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /operator/revocations", a.Caller.Operator(a.serveRevoke))
	mux.HandleFunc("GET /operator/revocations", a.Caller.Operator(a.serveRevocations))
	mux.HandleFunc("POST /operator/forget", a.Caller.Operator(a.serveForget))
	mux.HandleFunc("POST /operator/shares", a.Caller.Operator(a.serveShare))
}

func (a *API) serveRevoke(w http.ResponseWriter, r *http.Request) {
	var ask RevokeRequest
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of a revocation"))
		return
	}
	rev, err := a.revocation(r.Context(), ask)
	if err == nil {
		err = rev.Check()
	}
	if err != nil {
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	}
	line := audit.Line{
		Event: "revoke", Tenant: rev.Tenant, Host: rev.Host, Subject: rev.Subject, Token: rev.Token, Address: a.Caller.Address(r),
	}
	a.Caller.Audit.Write(line) // before what comes of it
	err = a.Caller.Revoked.Add(rev)
	if err != nil {
		line.Reason = "failed: " + err.Error()
		a.Caller.Audit.Write(line)
	}
	switch {
	case errors.Is(err, registry.ErrTooManyRevocations):
		authn.WriteError(w, http.StatusInsufficientStorage, err)
	case err != nil:
		authn.WriteError(w, http.StatusInternalServerError, fmt.Errorf("revoked, but that could not be written down, so it ends with this run of the relay: %w", err))
	default:
		authn.WriteJSON(w, http.StatusOK, rev)
	}
}

func (a *API) serveRevocations(w http.ResponseWriter, _ *http.Request) {
	list := slices.DeleteFunc(a.Caller.Revoked.List(), auth.Revocation.IsOfDerived)
	authn.WriteJSON(w, http.StatusOK, map[string]any{"revocations": list})
}

// serveForget has all relays forget a host.
func (a *API) serveForget(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Tenant, Host string }
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of a host"))
		return
	}
	err := a.Forget(r.Context(), ask.Tenant, ask.Host)
	line := audit.Line{Event: "forget", Tenant: ask.Tenant, Host: ask.Host, Address: a.Caller.Address(r)}
	if err != nil {
		line.Reason = err.Error()
	}
	a.Caller.Audit.Write(line)
	switch {
	case errors.Is(err, registry.ErrUnknownHost):
		authn.WriteError(w, http.StatusNotFound, err)
	case errors.Is(err, registry.ErrHostServed):
		authn.WriteError(w, http.StatusConflict, err)
	case err != nil:
		authn.WriteError(w, http.StatusServiceUnavailable, err)
	default:
		authn.WriteJSON(w, http.StatusOK, struct{}{})
	}
}

// serveShare notes that a link was made. What it says is read from the token,
// so that nobody notes what is not.
func (a *API) serveShare(w http.ResponseWriter, r *http.Request) {
	var body struct{ Token string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of a token"))
		return
	}
	who, err := a.Caller.VerifyClient(r.Context(), body.Token)
	if err != nil {
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	}
	a.Caller.Audit.Write(audit.Shared(who, a.Caller.Address(r)))
	authn.WriteJSON(w, http.StatusOK, struct{}{})
}

// revocation returns what is asked for, as of now. Of another issuer's token
// it is not known until when the relay would take it: the rules may change.
func (a *API) revocation(ctx context.Context, ask RevokeRequest) (auth.Revocation, error) {
	if ask.Whole != "" {
		who, err := a.Caller.VerifyIssued(ctx, ask.Whole)
		if err != nil {
			return auth.Revocation{}, err
		}
		ask = RevokeRequest{Token: who.ID}
	}
	return ask.Revocation(), nil
}

// Revocation returns what is asked for, as of now, of a request without Whole.
func (ask RevokeRequest) Revocation() auth.Revocation {
	return auth.Revocation{
		Token: ask.Token, Tenant: ask.Tenant, Subject: ask.Subject, Host: ask.Host, At: time.Now().UTC(), Until: ask.Expires,
	}.Spanning()
}
