package agents

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/authn"
)

// A host-agent gets NATS credentials with two requests. Both carry its enrolment token or
// credential (see enroll.go) as Authorization: Bearer.
//
//	POST /agent/challenge    → {"challenge", "tenant", "host"}
//	POST /agent/credentials  {"challenge", "nkey", "signature"} → {"jwt", "expires", "nats", "renew"}
//
// The signature, in base64, is made with the private key for nkey: see [auth.SignChallenge]. An
// error is {"error"}.

// Challenge is the answer to POST /agent/challenge.
type Challenge struct {
	Challenge string `json:"challenge"` // the host-agent signs it
	Tenant    string `json:"tenant"`    // from the token
	Host      string `json:"host"`
}

// Proof is the body of POST /agent/credentials.
type Proof struct {
	Challenge string `json:"challenge"` // as received
	NKey      string `json:"nkey"`      // public NATS user key
	Signature []byte `json:"signature"` // in base64

	KeySignature []byte `json:"keySignature,omitempty"` // signature by the credential's key, see [auth.HostKey]
}

// Credentials is the answer to POST /agent/credentials.
type Credentials struct {
	JWT     string    `json:"jwt"`     // for the NATS user with that nkey
	Expires time.Time `json:"expires"` // by the relay's clock
	NATS    bool      `json:"nats"`    // the host-agent connects to NATS through this relay's /nats

	// Renew asks the host-agent to renew its credential now. It is set when the relays'
	// keys have changed since the credential was issued.
	Renew bool `json:"renew,omitempty"`
}

// MaxBody is the longest request body in bytes.
const MaxBody = 4 << 10

func (a *API) serveChallenge(w http.ResponseWriter, r *http.Request) {
	if after := a.full(r); after > 0 {
		a.busy(w, r, after)
		return
	}
	host, ok := a.Caller.Host(w, r)
	if !ok {
		return
	}
	if a.logsIn(r) {
		if done, after := a.arrivals.Enter(r.Context(), host.Tenant, host.Host); done == nil {
			a.busy(w, r, after)
			return
		}
	}
	authn.WriteJSON(w, http.StatusOK, Challenge{a.Caller.Keys.NewChallenge(), host.Tenant, host.Host})
}

// fullRetry is the Retry-After for a host-agent beyond its tenant's limit. The host-agent
// increases the delay after each refusal.
const fullRetry = 10 * time.Second

func (a *API) serveCredentials(w http.ResponseWriter, r *http.Request) {
	host, ok := a.Caller.Host(w, r)
	if !ok {
		return
	}
	done, after := a.arrivals.Enter(r.Context(), host.Tenant, host.Host)
	if done == nil {
		a.busy(w, r, after)
		return
	}
	completed, goesOn := true, false // if the host-agent is at fault, the arrival counts as completed
	defer func() {
		if !goesOn {
			done(completed)
		}
	}()
	var proof Proof
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxBody)).Decode(&proof); err != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "body is not JSON with challenge, nkey and signature"})
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
	jwt, expires, err := a.Caller.Keys.Authority().AgentUser(host.Tenant, host.Host, proof.NKey, a.AgentTTL)
	if err != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	err = a.Registry.Admit(r.Context(), host, proof.NKey, expires)
	if full, ok := errors.AsType[*registry.FullError](err); ok {
		a.Caller.TooMany(w, &admission.OverLimit{Limit: "connected host-agents of this tenant (--limit-hosts)", Max: full.Max, Retry: fullRetry}, a.HostLine("", host, r, ""))
		return
	}
	if err != nil {
		completed = false
		a.Log.Error("host-agent credentials refused", "tenant", host.Tenant, "host", host.Host, "error", err)
		why := "NATS does not accept this tenant's account now; try again"
		if errors.Is(err, registry.ErrStoreAway) {
			why = "a new host cannot be admitted while the relays' store cannot be used; try again"
		}
		authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": why})
		return
	}
	// The host's NATS user is now recorded with the new credential. So the host-agent
	// stays connected when takeOver revokes the previous credential.
	if err := a.takeOver(host); err != nil && !errors.Is(err, errNotWritten) { // the next use of the credential repeats takeOver
		a.Caller.Unauthorized(w, r, err)
		return
	}
	a.Caller.Audit.Comings(a.HostLine("enrol", host, r, "NATS credentials until "+expires.Format(time.RFC3339)))
	goesOn = a.logsIn(r) // the login ends the arrival
	shown, _ := auth.Bearer(r.Header.Get("Authorization"))
	authn.WriteJSON(w, http.StatusOK, Credentials{jwt, expires, a.NATS != nil, host.Key != nil && a.Caller.Keys.Tokens().Outdated(shown)})
}
