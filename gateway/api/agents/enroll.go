package agents

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/authn"
)

// A host-agent exchanges an enrolment token, in Authorization: Bearer, for a credential
// bound to its own key, and later renews the credential. It begins with POST
// /agent/challenge.
//
//	POST /agent/enroll  {"challenge", "key", "keySignature"} → {"credential", "expires"}
//	POST /agent/renew   {"challenge", "keySignature"}        → {"credential", "expires"}
//
// An enrolment token is used up by the first enrolment. Relays notify each other of it; a
// disconnected relay learns it when it reconnects. For answerAgain, the relay gives the same answer
// to the same request, because the first answer may be lost.

// KeyProof is the body of POST /agent/enroll and /agent/renew.
type KeyProof struct {
	Challenge    string `json:"challenge"`     // as received
	Key          []byte `json:"key,omitempty"` // public Ed25519 key, in base64
	KeySignature []byte `json:"keySignature"`  // in base64, see [auth.HostKey]
}

// Credential is the answer to POST /agent/enroll and /agent/renew.
type Credential struct {
	Credential string    `json:"credential"`
	Expires    time.Time `json:"expires"` // by the relay's clock
}

// A relay repeats its answer to an enrolment for answerAgain. It keeps the latest maxEnrolments answers.
const (
	answerAgain   = 2 * time.Minute
	maxEnrolments = 32768
)

// An enrolment is a relay's answer to an enrolment.
type enrolment struct {
	answer Credential
	until  time.Time
}

// answered returns the answer to an enrolment's request, given by its hash, if it was answered.
func (a *API) answered(request [sha256.Size]byte) (Credential, bool) {
	a.enrolling.Lock()
	defer a.enrolling.Unlock()
	for {
		_, oldest, ok := a.enrolments.GetOldest()
		if !ok || time.Now().Before(oldest.until) {
			break
		}
		a.enrolments.RemoveOldest()
	}
	e, ok := a.enrolments.Peek(request)
	return e.answer, ok
}

func (a *API) serveEnroll(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "the body cannot be read"})
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	request := sha256.Sum256(append([]byte(r.Header.Get("Authorization")+"\x00"), body...))
	if again, ok := a.answered(request); ok {
		authn.WriteJSON(w, http.StatusOK, again)
		return
	}
	host, proof, ok := a.keyProof(w, r)
	if !ok {
		return
	}
	if host.Key != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "this is a credential; want an enrolment token (relay token host)"})
		return
	}
	detail := base64.RawURLEncoding.EncodeToString(proof.Key)
	if err := a.Caller.Keys.CheckKey(proof.Key, auth.ToEnroll, proof.Challenge, host.Tenant, host.Host, detail, proof.KeySignature); err != nil {
		authn.WriteJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
		return
	}
	first, err := a.Caller.Revoked.Spend(host.Tenant, host.ID, host.Expires)
	if err != nil {
		a.Log.Error("enrolment token not recorded as used up", "tenant", host.Tenant, "host", host.Host, "error", err)
	}
	switch {
	case first: // after an error, it is used up nevertheless, and the relay tries again to record it
	case err != nil:
		authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": "the relay cannot record that the token is used up; see its log"})
		return
	default:
		a.Caller.Unauthorized(w, r, authn.ErrUsedUp)
		return
	}
	a.Caller.Audit.Write(a.HostLine("enrol", host, r, "credential; the enrolment token is used up"))
	given, ok := a.credential(w, r, auth.Enrolment{Tenant: host.Tenant, Host: host.Host, Key: proof.Key, Origins: host.Derive()})
	if !ok {
		return
	}
	a.enrolling.Lock()
	a.enrolments.Add(request, enrolment{given, time.Now().Add(answerAgain)})
	a.enrolling.Unlock()
	authn.WriteJSON(w, http.StatusOK, given)
}

func (a *API) serveRenew(w http.ResponseWriter, r *http.Request) {
	host, proof, ok := a.keyProof(w, r)
	if !ok {
		return
	}
	if host.Key == nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "this is an enrolment token; want a credential (host-agent enroll)"})
		return
	}
	if !a.ProvesKey(w, host, auth.ToRenew, proof.Challenge, "", proof.KeySignature) {
		return
	}
	switch err := a.takeOver(host); {
	case errors.Is(err, errNotWritten): // no further renewal before the relays know of this credential
		authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
		return
	case err != nil:
		a.Caller.Unauthorized(w, r, err)
		return
	}
	a.Caller.Audit.Write(a.HostLine("enrol", host, r, "credential renewed"))
	given, ok := a.credential(w, r, auth.Enrolment{
		Tenant: host.Tenant, Host: host.Host, Key: host.Key, Replaces: &auth.Replaced{ID: host.ID, Expires: host.Expires}, Origins: host.Renewed(),
	})
	if ok {
		authn.WriteJSON(w, http.StatusOK, given)
	}
}

// keyProof authenticates a request, counts it ([admission.Limiter.Traded]), and reads its
// proof. If ok is false, it has responded with an error.
func (a *API) keyProof(w http.ResponseWriter, r *http.Request) (host auth.Enrolment, proof KeyProof, ok bool) {
	if host, ok = a.Caller.Host(w, r); !ok {
		return host, proof, false
	}
	if over := a.Caller.Limits.Traded(host); over != nil {
		a.Caller.TooMany(w, over, a.HostLine("", host, r, ""))
		return host, proof, false
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxBody)).Decode(&proof); err != nil {
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "body is not JSON with challenge, key and keySignature"})
		return host, proof, false
	}
	return host, proof, true
}

// ProvesKey reports whether a signature was made with a credential's key. If not, it
// responds with an error. An enrolment token has no key, so any signature passes.
func (a *API) ProvesKey(w http.ResponseWriter, host auth.Enrolment, purpose auth.Purpose, challenge, detail string, signature []byte) bool {
	if host.Key == nil {
		return true
	}
	err := a.Caller.Keys.CheckKey(host.Key, purpose, challenge, host.Tenant, host.Host, detail, signature)
	if err != nil {
		authn.WriteJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
	}
	return err == nil
}

// credential issues a credential. If ok is false, it has responded with an error.
func (a *API) credential(w http.ResponseWriter, r *http.Request, e auth.Enrolment) (given Credential, ok bool) {
	e.Expires = time.Now().Add(a.CredentialTTL)
	shown, _ := auth.Bearer(r.Header.Get("Authorization"))
	credential, err := a.Caller.Keys.Tokens().RenewCredential(e, shown)
	if err != nil {
		a.Log.Error("credential not issued", "tenant", e.Tenant, "host", e.Host, "error", err)
		authn.WriteJSON(w, http.StatusInternalServerError, map[string]string{"error": "the relay cannot make a credential; see its log"})
	}
	return Credential{credential, e.Expires}, err == nil
}

// errElsewhere reports that a different credential, renewed from the same predecessor,
// was used first. So the predecessor was copied.
var errElsewhere = errors.New("this credential was copied: its copy was renewed and used first")

// errNotWritten reports that the relays' store is unreachable. Then other relays may not
// know that this credential replaces the previous one. They would disconnect the host when
// they learn that the previous credential has ended.
var errNotWritten = errors.New("the relays' store is unreachable; try again")

// inUsePrefix begins the key of the record that a renewed credential is in use. The
// credential's ID follows.
const inUsePrefix = "in-use:"

// MayTakeOver returns an error for a renewed credential if a different renewal of the
// same predecessor was used first.
func (a *API) MayTakeOver(host auth.Enrolment) error {
	if host.Replaces == nil || a.Caller.Revoked.Revoked(host.IssuedAt, auth.RevocationKey{Token: inUsePrefix + host.ID}) ||
		!a.Caller.Revoked.Revoked(host.IssuedAt, auth.RevocationKey{Token: host.Replaces.ID}) {
		return nil
	}
	return errElsewhere
}

// takeOver records the first use of a renewed credential, and ends the previous one. It may
// return errElsewhere or errNotWritten.
func (a *API) takeOver(host auth.Enrolment) error {
	if host.Replaces == nil {
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
	// Other relays must learn that this credential is in use before they learn that
	// the previous one has ended.
	_, err := a.Caller.Revoked.Spend(host.Tenant, inUsePrefix+host.ID, host.Expires)
	if err == nil || errors.Is(err, registry.ErrNotSaved) { // the relay tries again to save it
		_, err = a.Caller.Revoked.Spend(host.Tenant, host.Replaces.ID, host.Replaces.Expires)
	}
	if err != nil {
		a.Log.Error("credential renewal not recorded", "effect", "the previous credential may stay valid", "tenant", host.Tenant, "host", host.Host, "error", err)
	}
	return nil
}
