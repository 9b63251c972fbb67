package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"ahprelay/gateway/audit"
	"ahprelay/registry"
)

// What commands on a relay's machine ask of the running relay. All requests
// carry a token of [auth.Keys.IssueOperator] as Authorization: Bearer: who can
// make one can read the relay's keys.
//
//	POST /operator/revocations  RevokeRequest → auth.Revocation
//	GET  /operator/revocations  → {"revocations": [auth.Revocation]}
//	POST /operator/forget       {"tenant", "host"} → {}
//	POST /operator/shares       {"token"} → {}; only for the audit
//
// An error is {"error"}.

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

// maxOperator is how long the body of such a request may be, in bytes.
const maxOperator = 16 << 10

func (s *Server) operatorRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /operator/revocations", s.operator(s.serveRevoke))
	mux.HandleFunc("GET /operator/revocations", s.operator(s.serveRevocations))
	mux.HandleFunc("POST /operator/forget", s.operator(s.serveForget))
	mux.HandleFunc("POST /operator/shares", s.operator(s.serveShare))
}

// operator serves those only who can read the relay's keys.
func (s *Server) operator(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, ok := bearer(r.Header.Get("Authorization"))
		if !ok {
			s.unauthorized(w, r, errNoToken)
			return
		}
		if err := s.cfg.Keys.VerifyOperator(token); err != nil {
			s.unauthorized(w, r, err)
			return
		}
		s.asking.proved(r)
		r.Body = http.MaxBytesReader(w, r.Body, maxOperator)
		serve(w, r)
	}
}

func (s *Server) serveRevoke(w http.ResponseWriter, r *http.Request) {
	var ask RevokeRequest
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		writeError(w, http.StatusBadRequest, errors.New("body is no JSON of a revocation"))
		return
	}
	rev, err := s.revocation(r.Context(), ask)
	if err == nil {
		err = rev.Check()
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	line := audit.Line{
		Event: "revoke", Tenant: rev.Tenant, Host: rev.Host, Subject: rev.Subject, Token: rev.Token, Address: s.address(r),
	}
	s.audit.Write(line) // before what comes of it
	err = s.revoked.Add(rev)
	if err != nil {
		line.Reason = "failed: " + err.Error()
		s.audit.Write(line)
	}
	switch {
	case errors.Is(err, registry.ErrTooManyRevocations):
		writeError(w, http.StatusInsufficientStorage, err)
	case err != nil:
		writeError(w, http.StatusInternalServerError, fmt.Errorf("revoked, but that could not be written down, so it ends with this run of the relay: %w", err))
	default:
		writeJSON(w, http.StatusOK, rev)
	}
}

func (s *Server) serveRevocations(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"revocations": s.revoked.List()})
}

// serveForget has all relays forget a host.
func (s *Server) serveForget(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Tenant, Host string }
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		writeError(w, http.StatusBadRequest, errors.New("body is no JSON of a host"))
		return
	}
	err := s.cfg.Registry.Forget(r.Context(), ask.Tenant, ask.Host)
	line := audit.Line{Event: "forget", Tenant: ask.Tenant, Host: ask.Host, Address: s.address(r)}
	if err != nil {
		line.Reason = err.Error()
	}
	s.audit.Write(line)
	switch {
	case errors.Is(err, registry.ErrUnknownHost):
		writeError(w, http.StatusNotFound, err)
	case errors.Is(err, registry.ErrHostThere):
		writeError(w, http.StatusConflict, err)
	case err != nil:
		writeError(w, http.StatusServiceUnavailable, err)
	default:
		writeJSON(w, http.StatusOK, struct{}{})
	}
}

// serveShare notes that a link was made. What it says is read from the token,
// so that nobody notes what is not.
func (s *Server) serveShare(w http.ResponseWriter, r *http.Request) {
	var body struct{ Token string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		writeError(w, http.StatusBadRequest, errors.New("body is no JSON of a token"))
		return
	}
	who, err := s.verifyClient(r.Context(), body.Token)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	s.audit.Write(audit.Shared(who, s.address(r)))
	writeJSON(w, http.StatusOK, struct{}{})
}

func writeError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, map[string]string{"error": err.Error()})
}
