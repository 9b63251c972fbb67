package operator

import (
	"context"
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

// RevokeRequest is the body of POST /operator/revocations. Exactly one of Whole, Token,
// Subject and Host must be set.
type RevokeRequest struct {
	Whole   string    `json:"whole,omitempty"`   // a client's token from any configured issuer
	Token   string    `json:"token,omitempty"`   // ID
	Subject string    `json:"subject,omitempty"` // in Tenant
	Host    string    `json:"host,omitempty"`    // in Tenant
	Tenant  string    `json:"tenant,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // Token's expiry, if known
}

// Config configures an [API].
type Config struct {
	Caller *authn.Checker

	// Forget makes all relays forget a host.
	Forget func(ctx context.Context, tenant, host string) error
}

// An API serves operators.
type API struct{ Config }

// New returns an API.
func New(cfg Config) *API { return &API{cfg} }

// Routes registers the handlers.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /operator/revocations", a.Caller.Operator(a.serveRevoke))
	mux.HandleFunc("GET /operator/revocations", a.Caller.Operator(a.serveRevocations))
	mux.HandleFunc("POST /operator/forget", a.Caller.Operator(a.serveForget))
	mux.HandleFunc("POST /operator/shares", a.Caller.Operator(a.serveShare))
}

func (a *API) serveRevoke(w http.ResponseWriter, r *http.Request) {
	var ask RevokeRequest
	if !authn.ReadJSON(w, r, &ask, "body: want a revocation in JSON") {
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
	a.Caller.Audit.Write(line) // before the revocation takes effect
	err = a.Caller.Revoked.Add(rev)
	if err != nil {
		line.Reason = "failed: " + err.Error()
		a.Caller.Audit.Write(line)
	}
	switch {
	case errors.Is(err, registry.ErrTooManyRevocations):
		authn.WriteError(w, http.StatusInsufficientStorage, err)
	case err != nil:
		authn.WriteError(w, http.StatusInternalServerError, fmt.Errorf("revoked, but a restart of this relay may end that: %w", err))
	default:
		authn.WriteJSON(w, http.StatusOK, rev)
	}
}

func (a *API) serveRevocations(w http.ResponseWriter, _ *http.Request) {
	list := slices.DeleteFunc(a.Caller.Revoked.List(), auth.Revocation.IsOfDerived)
	authn.WriteJSON(w, http.StatusOK, map[string]any{"revocations": list})
}

func (a *API) serveForget(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Tenant, Host string }
	if !authn.ReadJSON(w, r, &ask, "body: want a host in JSON") {
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

// serveShare records a new link in the audit log. The fields come from the verified
// token, so a caller cannot forge them.
func (a *API) serveShare(w http.ResponseWriter, r *http.Request) {
	var body struct{ Token string }
	if !authn.ReadJSON(w, r, &body, "body: want a token in JSON") {
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

// revocation returns the requested revocation, effective now. With Whole, it never expires,
// because the rules of the token's issuer may change.
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

// Revocation returns the requested revocation, effective now. The request must not have
// Whole.
func (ask RevokeRequest) Revocation() auth.Revocation {
	return auth.Revocation{
		Token: ask.Token, Tenant: ask.Tenant, Subject: ask.Subject, Host: ask.Host, At: time.Now().UTC(), Until: ask.Expires,
	}.Spanning()
}
