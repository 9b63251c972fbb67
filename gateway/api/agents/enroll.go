package agents

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway/authn"
)

// How a host-agent trades an enrolment token, in Authorization: Bearer, for a
// credential that is bound to a key of its own, and renews that. It begins with
// POST /agent/challenge.
//
//	POST /agent/enroll  {"challenge", "key", "keySignature"} → {"credential", "expires"}
//	POST /agent/renew   {"challenge", "keySignature"}        → {"credential", "expires"}
//
// The enrolment token is used up by the first. Relays tell each other; one that
// is cut off from the others learns it when they meet.

// KeyProof is the body of POST /agent/enroll and /agent/renew.
type KeyProof struct {
	Challenge    string `json:"challenge"`     // as it came
	Key          []byte `json:"key,omitempty"` // public Ed25519 key, in base64
	KeySignature []byte `json:"keySignature"`  // in base64, see [auth.HostKey]
}

// Credential is the answer to POST /agent/enroll and /agent/renew.
type Credential struct {
	Credential string    `json:"credential"`
	Expires    time.Time `json:"expires"` // by the relay's clock
}

func (a *API) serveEnroll(w http.ResponseWriter, r *http.Request) {
	host, proof, ok := a.keyProof(w, r)
	if !ok {
		return
	}
	if host.Key != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "this is a credential already; needed is an enrolment token (relay token host)"})
		return
	}
	said := base64.RawURLEncoding.EncodeToString(proof.Key)
	if err := a.Caller.Keys.CheckKey(proof.Key, auth.ToEnroll, proof.Challenge, host.Tenant, host.Host, said, proof.KeySignature); err != nil {
		authn.WriteJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
		return
	}
	first, err := a.Caller.Revoked.Spend(host.ID, host.Expires)
	switch {
	case err != nil:
		a.Log.Error("an enrolment token could not be noted as used up", "tenant", host.Tenant, "host", host.Host, "error", err)
		authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": "the relay cannot note that the token is used up; see its log"})
		return
	case !first:
		a.Caller.Unauthorized(w, r, authn.ErrUsedUp)
		return
	}
	a.Caller.Audit.Write(a.HostLine("enrol", host, r, "credential; the enrolment token is used up"))
	a.giveCredential(w, r, auth.Enrolment{Tenant: host.Tenant, Host: host.Host, Key: proof.Key, Origins: host.Derive()})
}

func (a *API) serveRenew(w http.ResponseWriter, r *http.Request) {
	host, proof, ok := a.keyProof(w, r)
	if !ok {
		return
	}
	if host.Key == nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "this is an enrolment token; needed is a credential (host-agent enroll)"})
		return
	}
	if !a.ProvesKey(w, host, auth.ToRenew, proof.Challenge, "", proof.KeySignature) {
		return
	}
	switch err := a.takeOver(host); {
	case errors.Is(err, errNotWritten): // the one before is to end first
		authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
		return
	case err != nil:
		a.Caller.Unauthorized(w, r, err)
		return
	}
	a.Caller.Audit.Write(a.HostLine("enrol", host, r, "credential renewed"))
	a.giveCredential(w, r, auth.Enrolment{
		Tenant: host.Tenant, Host: host.Host, Key: host.Key, Former: &auth.Former{ID: host.ID, Expires: host.Expires}, Origins: host.Renewed(),
	})
}

// keyProof reads a request, or answers that it is none.
func (a *API) keyProof(w http.ResponseWriter, r *http.Request) (host auth.Enrolment, proof KeyProof, ok bool) {
	if host, ok = a.Caller.Host(w, r); !ok {
		return host, proof, false
	}
	if over := a.Caller.Limits.Traded(host); over != nil {
		a.Caller.TooMany(w, over, a.HostLine("", host, r, ""))
		return host, proof, false
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxBody)).Decode(&proof); err != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "body is no JSON of challenge, key and keySignature"})
		return host, proof, false
	}
	return host, proof, true
}

// ProvesKey reports whether a signature proves the key of a credential, or
// answers that it does not. An enrolment token has none to prove.
func (a *API) ProvesKey(w http.ResponseWriter, host auth.Enrolment, purpose auth.Purpose, challenge, said string, signature []byte) bool {
	if host.Key == nil {
		return true
	}
	err := a.Caller.Keys.CheckKey(host.Key, purpose, challenge, host.Tenant, host.Host, said, signature)
	if err != nil {
		authn.WriteJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
	}
	return err == nil
}

// giveCredential answers who has shown a token with a credential as of now.
func (a *API) giveCredential(w http.ResponseWriter, r *http.Request, e auth.Enrolment) {
	e.Expires = time.Now().Add(a.CredentialTTL)
	shown, _ := authn.Bearer(r.Header.Get("Authorization"))
	credential, err := a.Caller.Keys.RenewCredential(e, shown)
	if err != nil {
		a.Log.Error("no credential could be made", "tenant", e.Tenant, "host", e.Host, "error", err)
		authn.WriteJSON(w, http.StatusInternalServerError, map[string]string{"error": "the relay cannot make a credential; see its log"})
		return
	}
	authn.WriteJSON(w, http.StatusOK, Credential{credential, e.Expires})
}

// errElsewhere reports a credential of which there is another that was renewed
// from the same one, and used before.
var errElsewhere = errors.New("another credential was renewed from the same one, and used: somebody has a copy")

// errNotWritten reports that other relays do not know the host's NATS user yet: they would end
// the host if they heard that the credential before is used up.
var errNotWritten = errors.New("the relays' store is away; try again")

// inUsePrefix begins, in the place of a token's ID, what is noted of a
// credential that was used first of those that were renewed from the same one.
const inUsePrefix = "in-use:"

// MayTakeOver refuses a credential if another was renewed from the same one,
// and used before.
func (a *API) MayTakeOver(host auth.Enrolment) error {
	if host.Former == nil || a.Caller.Revoked.Revoked(host.IssuedAt, auth.RevocationKey{Token: inUsePrefix + host.ID}) ||
		!a.Caller.Revoked.Revoked(host.IssuedAt, auth.RevocationKey{Token: host.Former.ID}) {
		return nil
	}
	return errElsewhere
}

// takeOver notes the first proved use of a credential that was renewed, which
// ends the one before: until now the answer could have been lost.
func (a *API) takeOver(host auth.Enrolment) error {
	if host.Former == nil {
		return nil
	}
	a.renewing.Lock()
	defer a.renewing.Unlock()
	if err := a.MayTakeOver(host); err != nil {
		return err
	}
	if !a.Registry.AllWritten(host.Tenant, host.Host) {
		return errNotWritten
	}
	// Other relays are to hear of the one before they hear of the end of the
	// other.
	_, err := a.Caller.Revoked.Spend(inUsePrefix+host.ID, host.Expires)
	if err == nil {
		_, err = a.Caller.Revoked.Spend(host.Former.ID, host.Former.Expires)
	}
	if err != nil {
		a.Log.Error("it could not be noted that a credential was renewed; the one before stays good", "tenant", host.Tenant, "host", host.Host, "error", err)
	}
	return nil
}
