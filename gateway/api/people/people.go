package people

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/gateway/admission"
	agentsapi "ahprelay/gateway/api/agents"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// Grants of POST /auth/token.
const (
	GrantDevice     = "device"
	GrantDeviceCode = "urn:ietf:params:oauth:grant-type:device_code"
)

// Bounds of those who ask.
const (
	codeEvery   = 2 * time.Minute // a wrong code, beside the first
	codesAtOnce = 5
	askEvery    = 20 * time.Second
	asksAtOnce  = 15
	asksOfMany  = 4 // sites of a network may ask as much together

	// InviteTTL is how long an invitation is good.
	InviteTTL    = 24 * time.Hour
	maxTokenTTL  = 30 * 24 * time.Hour
	defaultToken = 8 * time.Hour
)

// Access is the answer to a device: a token that is good with its key only.
type Access struct {
	Token   string   `json:"access_token"`
	Type    string   `json:"token_type"` // DPoP
	Seconds int      `json:"expires_in"`
	Device  string   `json:"device"`
	Tenant  string   `json:"tenant"`
	Subject string   `json:"subject"`
	Level   string   `json:"level"`
	Hosts   []string `json:"hosts"`
}

// DeviceCode is the answer to POST /auth/device (RFC 8628, section 3.2). The complete
// address has no code: whoever gets it sent approves nothing with it alone.
type DeviceCode struct {
	DeviceCode string `json:"device_code"`
	UserCode   string `json:"user_code"`
	Address    string `json:"verification_uri"`
	Complete   string `json:"verification_uri_complete"`
	Seconds    int    `json:"expires_in"`
	Interval   int    `json:"interval"`
	Key        string `json:"fingerprint"`
}

// HostCredential is the answer to a host-agent that was approved.
type HostCredential struct {
	agentsapi.Credential
	Tenant string `json:"tenant"`
	Host   string `json:"host"`
}

// Waiting is a request as it is shown to who decides.
type Waiting struct {
	ID          string      `json:"id"`
	Kind        people.Kind `json:"kind"`
	Name        string      `json:"name"`
	Machine     string      `json:"machine,omitempty"`
	User        string      `json:"user,omitempty"`
	Fingerprint string      `json:"fingerprint"`
	Address     string      `json:"address"`
	Made        time.Time   `json:"made"`
	Expires     time.Time   `json:"expires"`
	Levels      []string    `json:"levels,omitempty"` // that a device may be given, the lowest first
}

// Routes adds what people and their devices ask for.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /auth/setup", a.serveSetup)
	mux.HandleFunc("POST /auth/device", a.serveAsk)
	mux.HandleFunc("POST /auth/token", a.serveToken)
	mux.HandleFunc("GET /api/me", a.person(a.serveMe))
	mux.HandleFunc("GET /api/devices", a.person(a.serveDevices))
	mux.HandleFunc("DELETE /api/devices/{id}", a.person(a.serveRemoveDevice))
	mux.HandleFunc("GET /api/requests/{which}", a.person(a.serveWaiting))
	mux.HandleFunc("POST /api/requests/{id}", a.person(a.serveDecide))
	mux.HandleFunc("POST /api/invites", a.person(a.serveInvite))
	mux.HandleFunc("GET /api/invites", a.person(a.serveInvites))
	mux.HandleFunc("DELETE /api/invites/{id}", a.person(a.serveWithdraw))
	mux.HandleFunc("POST /api/tokens", a.person(a.serveMakeToken))
	mux.HandleFunc("POST /operator/invites", a.Caller.Operator(a.serveOperatorInvite))
	mux.HandleFunc("GET /operator/invites/{tenant}", a.Caller.Operator(a.serveOperatorInvites))
	mux.HandleFunc("DELETE /operator/invites/{tenant}/{id}", a.Caller.Operator(a.serveOperatorWithdraw))
	a.signInRoutes(mux)
	a.teamRoutes(mux)
	a.shareRoutes(mux)
	pages := pagesHandler()
	mux.Handle("GET /setup", pages)
	mux.Handle("GET /device", pages)
	mux.Handle("GET /signin", pages)
	mux.Handle("GET /s", pages)
	mux.Handle("GET /pages/", pages)
}

// oauthErrors are what errors are called in answers of /auth (RFC 6749, RFC 8628 and
// RFC 9449).
var oauthErrors = []struct {
	err    error
	name   string
	status int
}{
	{auth.ErrProofStale, "use_dpop_nonce", http.StatusUnauthorized},
	{authn.ErrNoProof, "use_dpop_nonce", http.StatusUnauthorized},
	{auth.ErrProofInvalid, "invalid_dpop_proof", http.StatusBadRequest},
	{authn.ErrProofAgain, "invalid_dpop_proof", http.StatusBadRequest},
	{people.ErrPending, "authorization_pending", http.StatusBadRequest},
	{people.ErrSlowDown, "slow_down", http.StatusBadRequest},
	{people.ErrDenied, "access_denied", http.StatusBadRequest},
	{people.ErrGone, "expired_token", http.StatusBadRequest},
	{authn.ErrProofsFull, "temporarily_unavailable", http.StatusServiceUnavailable},
	{people.ErrTooMany, "temporarily_unavailable", http.StatusServiceUnavailable},
	{people.ErrFull, "temporarily_unavailable", http.StatusServiceUnavailable},
	{ErrSignInAgain, "login_required", http.StatusBadRequest},
	{errTokenNotMade, "server_error", http.StatusInternalServerError},
	{ErrProviderAway, "temporarily_unavailable", http.StatusServiceUnavailable},
	{people.ErrAway, "temporarily_unavailable", http.StatusServiceUnavailable},
}

// refuseGrant answers a request of /auth that gets nothing.
func (a *API) refuseGrant(w http.ResponseWriter, r *http.Request, err error) {
	if over := (*admission.OverLimit)(nil); errors.As(err, &over) {
		a.Caller.TooMany(w, over, audit.Line{Address: a.Caller.Address(r)})
		return
	}
	name, status := "invalid_grant", http.StatusBadRequest
	for _, one := range oauthErrors {
		if errors.Is(err, one.err) {
			name, status = one.name, one.status
		}
	}
	quiet := errors.Is(err, people.ErrPending) || errors.Is(err, people.ErrAway) || errors.Is(err, ErrProviderAway) || errors.Is(err, people.ErrSlowDown) || a.Caller.WantsProof(w, err)
	if !quiet {
		if a.Caller.TooManyFailures(w, r) {
			return
		}
		a.Caller.Refuse("unauthorized", name, audit.Line{Address: a.Caller.Address(r), Reason: err.Error(), Detail: r.Method + " " + r.URL.Path})
	}
	authn.WriteJSON(w, status, map[string]string{"error": name, "error_description": err.Error()})
}

func (a *API) serveSetup(w http.ResponseWriter, r *http.Request) {
	var body struct{ Invite, Name string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		a.refuseGrant(w, r, errors.New("body is no JSON of invite and name"))
		return
	}
	proof, err := a.Caller.ProveNewKey(r)
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	device, err := a.People.Accept(body.Invite, people.Device{Name: body.Name, Key: proof.Thumbprint, Place: a.Caller.Address(r)})
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	a.useUp(proof, device)
	a.Caller.Audit.Write(audit.Line{Event: "setup", Tenant: device.Tenant, Subject: device.Subject, Token: device.ID, Address: a.Caller.Address(r), Detail: device.Name})
	a.giveAccess(w, r, device)
}

// useUp uses up the proof of a device that has come in just now. The invitation or the code
// that let it in is used up in any case: so it is in, even if there is no room for its proof.
func (a *API) useUp(proof auth.Proof, device people.Device) {
	_ = a.Caller.Proofs.Use(authn.UsedProof{Proof: proof, Person: authn.PersonOf(device.Tenant, device.Subject)}, time.Now())
}

// errRemoved reports a device that is not known any more.
var errRemoved = errors.New("no such device: it was removed; be let in anew")

// errTokenNotMade reports that something is wrong here, and not with the device.
var errTokenNotMade = errors.New("the relay cannot make a token; see its log")

// giveAccess answers with a token for a device that has proved its key.
func (a *API) giveAccess(w http.ResponseWriter, r *http.Request, device people.Device) {
	id := device.ID
	device, person, err := a.People.Device(id)
	if errors.Is(err, people.ErrNone) {
		err = errRemoved
	}
	var who auth.Client
	var until time.Time
	if err == nil {
		who, until, err = a.Allowed(person)
		device.Narrow(&who)
	}
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	a.Caller.Proved(r)
	if err := a.People.Seen(id, a.Caller.Address(r)); err != nil {
		a.Log.Warn("it could not be noted when a device was here", "device", id, "error", err)
	}
	who.Device, who.Key, who.Expires = device.ID, device.Key, time.Now().Add(people.AccessTTL)
	who.Origins = device.Derive()
	if !until.IsZero() && until.Before(who.Expires) {
		who.Expires = until
	}
	token, err := a.Caller.Keys.IssueClient(who)
	if err != nil {
		a.Log.Error("no token could be made", "device", id, "error", err)
		a.refuseGrant(w, r, errTokenNotMade)
		return
	}
	w.Header().Set("DPoP-Nonce", a.Caller.Keys.NewChallenge())
	authn.WriteJSON(w, http.StatusOK, Access{token, "DPoP", int(time.Until(who.Expires).Round(time.Second).Seconds()), device.ID, device.Tenant, device.Subject, who.Access.Level(), who.Hosts})
}

// isRemoved reports whether a device was removed, or its person revoked since it came in, or a grant by which it came
// in: the record may be there all the same.
func (a *API) isRemoved(device people.Device) bool {
	return a.Caller.IsRevoked(auth.Client{ID: device.ID, Tenant: device.Tenant, Subject: device.Subject, IssuedAt: device.Added, Origins: device.Origins})
}

// mayAsk counts a request to be let in, by the address and by its wider network, and answers
// if there were too many.
func (a *API) mayAsk(w http.ResponseWriter, r *http.Request) bool {
	address := a.Caller.Address(r)
	over := &admission.OverLimit{Limit: "requests to be let in, from this address", Max: asksAtOnce}
	if group := admission.AddressGroup(address); group != "" {
		over.Retry = a.asks.Take(group)
	}
	if network := admission.NetworkGroup(address); network != "" && over.Retry == 0 {
		over.Limit, over.Max = "requests to be let in, from this network", asksOfMany*asksAtOnce
		over.Retry = a.asksOfNetwork.Take(network)
	}
	if over.Retry > 0 {
		a.Caller.TooMany(w, over, audit.Line{Address: address})
	}
	return over.Retry == 0
}

// serveAsk takes a request to be let in.
func (a *API) serveAsk(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if !a.mayAsk(w, r) {
		return
	}
	ask := people.Request{
		Kind: people.Kind(r.PostFormValue("kind")), Name: r.PostFormValue("name"), Machine: r.PostFormValue("machine"),
		User: r.PostFormValue("user"), Address: a.Caller.Address(r), Tenant: r.PostFormValue("tenant"),
	}
	var proof auth.Proof
	var err error
	switch ask.Kind {
	case people.OfDevice:
		proof, err = a.Caller.ProveNewKey(r)
		ask.Key = proof.Thumbprint
	case people.OfHost:
		ask.HostKey, ask.Key, err = hostKeyOf(r.PostFormValue("key"))
	default:
		err = errors.New("kind is neither device nor host")
	}
	if err == nil {
		ask, err = a.People.Ask(ask)
	}
	if err == nil && ask.Kind == people.OfDevice {
		err = a.Caller.Proofs.Use(authn.UsedProof{Proof: proof}, time.Now())
	}
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	page := a.Caller.URL(r) + "/device"
	authn.WriteJSON(w, http.StatusOK, DeviceCode{
		DeviceCode: ask.ID + "." + ask.Secret, UserCode: people.ShowCode(ask.Code), Address: page, Complete: page + "#" + ask.ID,
		Seconds: int(people.RequestTTL.Seconds()), Interval: int(people.PollEvery.Seconds()), Key: ask.Fingerprint(),
	})
}

// serveToken gives a device a token, or what has asked what it was approved.
func (a *API) serveToken(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	switch r.PostFormValue("grant_type") {
	case GrantDevice:
		device, _, err := a.People.Device(r.PostFormValue("device"))
		if errors.Is(err, people.ErrNone) {
			err = errRemoved
		}
		if err == nil {
			err = a.Caller.ProveKey(r, "", device.Key, authn.PersonOf(device.Tenant, device.Subject))
		}
		if err != nil {
			a.refuseGrant(w, r, err)
			return
		}
		a.giveAccess(w, r, device)
	case GrantDeviceCode:
		a.servePoll(w, r)
	default:
		authn.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "unsupported_grant_type"})
	}
}

// servePoll tells what has asked what became of it. A host-agent proves its key when it
// uses the credential, a device now.
func (a *API) servePoll(w http.ResponseWriter, r *http.Request) {
	id, secret, _ := strings.Cut(r.PostFormValue("device_code"), ".")
	hostKey, key, err := hostKeyOf(r.PostFormValue("key"))
	if r.PostFormValue("key") == "" {
		if key, err = a.People.Asked(id, secret); err == nil {
			err = a.Caller.ProveKey(r, "", key, "")
		}
	}
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	request, device, err := a.People.Poll(id, secret, key)
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	if request.Kind == people.OfDevice {
		a.giveAccess(w, r, device)
		return
	}
	e := auth.Enrolment{Tenant: request.Approved.Tenant, Host: request.Approved.Host, Key: hostKey, Expires: time.Now().Add(a.CredentialTTL), Origins: request.Approved.Origins}
	credential, err := a.Caller.Keys.IssueCredential(e)
	if err != nil {
		a.Log.Error("no credential could be made", "tenant", e.Tenant, "host", e.Host, "error", err)
		a.refuseGrant(w, r, errors.New("the relay cannot make a credential; see its log"))
		return
	}
	a.Caller.Audit.Write(a.Agents.HostLine("enrol", e, r, "credential; approved by "+request.Approved.Subject))
	authn.WriteJSON(w, http.StatusOK, HostCredential{agentsapi.Credential{Credential: credential, Expires: e.Expires}, e.Tenant, e.Host})
}

// hostKeyOf reads the key of a host-agent, and its thumbprint.
func hostKeyOf(text string) (key ed25519.PublicKey, thumbprint string, err error) {
	if text == "" {
		return nil, "", errors.New("no key")
	}
	return auth.ReadHostPublic(text)
}

// A personHandler serves somebody who is in, as which device; "" for a token that is
// none's.
type personHandler func(w http.ResponseWriter, r *http.Request, who people.Person, device string)

// person serves those who are in: devices, and tokens that own the tenant and are
// limited in nothing.
func (a *API) person(serve personHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		client, ok := a.Caller.Client(w, r)
		if !ok {
			return
		}
		if client.Key == "" && (client.Restricted() || !client.Access.Includes(auth.AccessAdmin) || !slices.Contains(client.Hosts, auth.AllHosts)) {
			authn.WriteError(w, http.StatusForbidden, errors.New("this is for devices that are signed in, and for who owns the tenant"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, authn.MaxOperator)
		serve(w, r, people.Person{
			Tenant: client.Tenant, Subject: client.Subject, Access: client.Access, Hosts: client.Hosts,
			Channels: client.Channels, Methods: client.Methods, Files: client.Files, Reverse: client.Reverse, Most: client.MaxConnections, Origins: client.Derive(),
		}, client.Device)
	}
}
