package agents

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/authn"
)

// How a host-agent gets NATS credentials. Both requests carry its enrolment
// token as Authorization: Bearer.
//
//	POST /agent/challenge    → {"challenge", "tenant", "host"}
//	POST /agent/credentials  {"challenge", "nkey", "signature"} → {"jwt", "expires", "nats", "renew"}
//
// In place of the enrolment token, it may show a credential that it has got for
// one: see enroll.go.
//
// The signature, in base64, is by the private part of nkey: see
// [auth.SignChallenge]. An error is {"error"}.

// Challenge is the answer to POST /agent/challenge.
type Challenge struct {
	Challenge string `json:"challenge"` // to sign
	Tenant    string `json:"tenant"`    // as the token says
	Host      string `json:"host"`
}

// Proof is the body of POST /agent/credentials.
type Proof struct {
	Challenge string `json:"challenge"` // as it came
	NKey      string `json:"nkey"`      // public NATS user key
	Signature []byte `json:"signature"` // in base64

	KeySignature []byte `json:"keySignature,omitempty"` // of a credential's key, see [auth.HostKey]
}

// Credentials is the answer to POST /agent/credentials.
type Credentials struct {
	JWT     string    `json:"jwt"`     // of the NATS user with that nkey
	Expires time.Time `json:"expires"` // by the relay's clock
	NATS    bool      `json:"nats"`    // the NATS server is behind this relay's /nats

	// Renew: relays have other keys than the credential says that was shown. It is to be
	// renewed now; the new one is signed with keys that it names.
	Renew bool `json:"renew,omitempty"`
}

// MaxBody is how long the body of a request may be, in bytes.
const MaxBody = 4 << 10

func (a *API) serveChallenge(w http.ResponseWriter, r *http.Request) {
	if host, ok := a.Caller.Host(w, r); ok {
		authn.WriteJSON(w, http.StatusOK, Challenge{a.Caller.Keys.NewChallenge(), host.Tenant, host.Host})
	}
}

func (a *API) serveCredentials(w http.ResponseWriter, r *http.Request) {
	host, ok := a.Caller.Host(w, r)
	if !ok {
		return
	}
	var proof Proof
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxBody)).Decode(&proof); err != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "body is no JSON of challenge, nkey and signature"})
		return
	}
	if err := a.Caller.Keys.CheckChallenge(proof.Challenge, host.Tenant, host.Host, proof.NKey, proof.Signature); err != nil {
		authn.WriteJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
		return
	}
	if !a.ProvesKey(w, host, auth.ToConnect, proof.Challenge, proof.NKey, proof.KeySignature) {
		return
	}
	if err := a.MayTakeOver(host); err != nil {
		a.Caller.Unauthorized(w, r, err)
		return
	}
	jwt, expires, err := a.Caller.Keys.AgentUser(host.Tenant, host.Host, proof.NKey, a.AgentTTL)
	if err != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	if err := a.Registry.Admit(r.Context(), host, proof.NKey, expires); err != nil {
		a.Log.Error("credentials cannot be given", "tenant", host.Tenant, "host", host.Host, "error", err)
		why := "NATS does not take this tenant's account now; try again"
		if errors.Is(err, registry.ErrStoreAway) {
			why = "relays cannot take a host that they do not know, because most of their cluster is away; try again"
		}
		authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": why})
		return
	}
	// Its NATS user is that of the new credential by now: the end of the former
	// does not cut it off.
	if err := a.takeOver(host); err != nil && !errors.Is(err, errNotWritten) { // else its next use tells
		a.Caller.Unauthorized(w, r, err)
		return
	}
	a.Caller.Audit.Comings(a.HostLine("enrol", host, r, "NATS credentials until "+expires.Format(time.RFC3339)))
	shown, _ := authn.Bearer(r.Header.Get("Authorization"))
	authn.WriteJSON(w, http.StatusOK, Credentials{jwt, expires, a.NATS != nil, host.Key != nil && a.Caller.Keys.Outdated(shown)})
}
