package authn

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/internal/retryafter"
)

// Refuse counts and records a refusal. why and exactly must be short fixed texts: see
// [audit.Log.Refuse].
func (c *Checker) Refuse(why, exactly string, line audit.Line) {
	c.Count(why)
	c.Audit.Refuse(why+" "+exactly, line)
}

// ErrUsedUp reports an enrolment token that was already exchanged for a credential.
var ErrUsedUp = errors.New("the enrolment token is used up")

// tokenTrouble are the token errors whose text is safe to show.
var tokenTrouble = []error{auth.ErrNoToken, auth.ErrTokenExpired, auth.ErrTokenRevoked, ErrUsedUp}

// TroubleOf returns the text for a token error that is safe to show, and "" for all
// others.
func TroubleOf(err error) string {
	i := slices.IndexFunc(tokenTrouble, func(kind error) bool { return errors.Is(err, kind) })
	if i < 0 {
		return "" // the text may contain parts of a token
	}
	return tokenTrouble[i].Error()
}

// Unauthorized responds to a request without a valid token (RFC 6750, section 3).
func (c *Checker) Unauthorized(w http.ResponseWriter, r *http.Request, err error) {
	line := audit.Line{Address: c.Address(r), Reason: err.Error(), Detail: r.Method + " " + r.URL.Path}
	if errors.Is(err, auth.ErrIssuerAway) { // the client is not at fault
		c.Refuse("issuer away", "", line)
		w.Header().Set("Retry-After", "10")
		http.Error(w, auth.ErrIssuerAway.Error(), http.StatusServiceUnavailable)
		return
	}
	if over := (*admission.OverLimit)(nil); errors.As(err, &over) {
		c.TooMany(w, over, audit.Line{Address: line.Address})
		return
	}
	if errors.Is(err, ErrProofsFull) {
		w.Header().Set("Retry-After", "10")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if c.WantsProof(w, err) { // this is how a device learns the nonce
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if c.TooManyFailures(w, r) {
		return
	}
	c.Refuse("unauthorized", TroubleOf(err), line)
	metadata := c.URL(r) + ResourcePath + strings.TrimSuffix(r.URL.EscapedPath(), "/")
	challenge := fmt.Sprintf(`Bearer realm="ahp-relay", resource_metadata="%s"`, metadata)
	if !errors.Is(err, auth.ErrNoToken) {
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	http.Error(w, err.Error(), http.StatusUnauthorized)
}

// TooManyFailures counts an unauthenticated request. If there were too many from its
// address, it responds with an error and returns true.
func (c *Checker) TooManyFailures(w http.ResponseWriter, r *http.Request) bool {
	over := c.Limits.Failed(c.Address(r), "")
	if over != nil {
		c.TooMany(w, over, audit.Line{Address: c.Address(r)})
	}
	return over != nil
}

// TooMany responds to a request that exceeds a limit (RFC 6585, section 4).
func (c *Checker) TooMany(w http.ResponseWriter, over *admission.OverLimit, line audit.Line) {
	line.Reason = over.Name()
	c.Refuse("limit", over.Limit, line)
	retryafter.Set(w.Header(), over.Retry)
	http.Error(w, over.Error(), http.StatusTooManyRequests)
}

// WriteJSON responds with a value as JSON, which must not be cached.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// WriteError responds with {"error"}.
func WriteError(w http.ResponseWriter, status int, err error) {
	WriteJSON(w, status, map[string]string{"error": err.Error()})
}

// ReadJSON decodes a request's body into the variable into. If that fails, it responds with the
// error want and returns false.
func ReadJSON(w http.ResponseWriter, r *http.Request, into any, want string) bool {
	err := json.NewDecoder(r.Body).Decode(into)
	if err != nil {
		WriteError(w, http.StatusBadRequest, errors.New(want))
	}
	return err == nil
}

// RefuseDraining responds to a request that arrives while the relay stops.
func RefuseDraining(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, ahp.CloseShuttingDown.Reason(), http.StatusServiceUnavailable)
}
