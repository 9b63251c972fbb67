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
	"ahprelay/internal/fair"
)

// Values of grant_type in POST /auth/token.
const (
	GrantDevice     = "device"
	GrantDeviceCode = "urn:ietf:params:oauth:grant-type:device_code"
)

// Limits for codes, requests for access, invitations and tokens.
const (
	codeEvery   = 2 * time.Minute // after codesAtOnce wrong codes, one more is allowed per codeEvery
	codesAtOnce = 5
	askEvery    = 20 * time.Second
	asksAtOnce  = 15
	asksOfMany  = 4 // a network may make this many times the requests of an address

	// InviteTTL is the lifetime of an invitation.
	InviteTTL    = 24 * time.Hour
	maxTokenTTL  = 30 * 24 * time.Hour
	defaultToken = 8 * time.Hour
)

// Access is the response to a device: a token bound to the device's key.
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

// DeviceCode is the response to POST /auth/device (RFC 8628, section 3.2). Complete does
// not contain the user code, so a person who only receives the link cannot approve the
// device by mistake.
type DeviceCode struct {
	DeviceCode string `json:"device_code"`
	UserCode   string `json:"user_code"`
	Address    string `json:"verification_uri"`
	Complete   string `json:"verification_uri_complete"`
	Seconds    int    `json:"expires_in"`
	Interval   int    `json:"interval"`
	Key        string `json:"fingerprint"`

	// QR is a QR code, as rows, for a device to display. It encodes Complete together
	// with the code. A person who scans it can approve the device.
	QR []string `json:"qr,omitempty"`
}

// HostCredential is the response to an approved host-agent.
type HostCredential struct {
	agentsapi.Credential
	Tenant string `json:"tenant"`
	Host   string `json:"host"`
}

// Waiting is a request for access, as shown to the person who decides.
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
	Levels      []string    `json:"levels,omitempty"` // levels that a device may get, lowest first
}

// Routes registers the API's handlers.
func (a *API) Routes(mux *http.ServeMux) {
	for _, p := range a.parts {
		p.routes(mux)
	}
	pages := pagesHandler()
	mux.Handle("GET /setup", pages)
	mux.Handle("GET /device", pages)
	mux.Handle("GET /signin", pages)
	mux.Handle("GET /s", pages)
	mux.Handle("GET /pages/", pages)
}

// access serves requests with which people and devices get access: invitations, requests
// for approval, and new tokens.
type access struct {
	*base
	asks          *fair.Buckets // requests for access, by address
	asksOfNetwork *fair.Buckets // requests for access, by network
}

func (a *access) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /auth/setup", a.serveSetup)
	mux.HandleFunc("POST /auth/device", a.serveAsk)
	mux.HandleFunc("POST /auth/token", a.serveToken)
}

// oauthErrors maps errors to their names in responses of /auth (RFC 6749, RFC 8628 and
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

func (a *base) refuseGrant(w http.ResponseWriter, r *http.Request, err error) {
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

func (a *access) serveSetup(w http.ResponseWriter, r *http.Request) {
	var body struct{ Invite, Name string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		a.refuseGrant(w, r, errors.New("body is not JSON with invite and name"))
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

// useUp marks a new device's proof as used. It ignores errors: the device keeps its access,
// because its invitation or code is used up already.
func (a *access) useUp(proof auth.Proof, device people.Device) {
	_ = a.Caller.Proofs.Use(authn.UsedProof{Proof: proof, Person: authn.PersonOf(device.Tenant, device.Subject)}, time.Now())
}

var errRemoved = errors.New("this device was removed; sign in again")

var errTokenNotMade = errors.New("the relay cannot make a token; see its log")

// giveAccess responds with a token for a device that has proved its key.
func (a *access) giveAccess(w http.ResponseWriter, r *http.Request, device people.Device) {
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
		a.Log.Warn("device's last visit not recorded", "device", id, "error", err)
	}
	if a.Reached != nil && person.OwnsAll() && person.Tenant == auth.DefaultTenant {
		a.Reached(a.Caller.URL(r))
	}
	who.Device, who.DeviceName, who.Key = device.ID, device.Name, device.Key
	who.Origins, who.Expires = device.Derive(), atMost(time.Now().Add(people.AccessTTL), until)
	token, err := a.Caller.Keys.Tokens().IssueClient(who)
	if err != nil {
		a.Log.Error("token not issued", "device", id, "error", err)
		a.refuseGrant(w, r, errTokenNotMade)
		return
	}
	w.Header().Set("DPoP-Nonce", a.Caller.Keys.NewChallenge())
	authn.WriteJSON(w, http.StatusOK, Access{token, "DPoP", int(time.Until(who.Expires).Round(time.Second).Seconds()), device.ID, device.Tenant, device.Subject, who.Access.Level(), who.Hosts})
}

// isRemoved reports whether the device, its person, or the grant from which it is derived
// has been revoked. The device's record may still exist.
func (a *base) isRemoved(device people.Device) bool {
	return a.Caller.IsRevoked(auth.Client{ID: device.ID, Tenant: device.Tenant, Subject: device.Subject, IssuedAt: device.Added, Origins: device.Origins})
}

// mayAsk counts a request for access by address and network. If there were too many, it
// responds with an error and returns false.
func (a *access) mayAsk(w http.ResponseWriter, r *http.Request) bool {
	address := a.Caller.Address(r)
	over := &admission.OverLimit{Limit: "requests for access from this address", Max: asksAtOnce}
	if group := admission.AddressGroup(address); group != "" {
		over.Retry = a.asks.Take(group)
	}
	if network := admission.NetworkGroup(address); network != "" && over.Retry == 0 {
		over.Limit, over.Max = "requests for access from this network", asksOfMany*asksAtOnce
		over.Retry = a.asksOfNetwork.Take(network)
	}
	if over.Retry > 0 {
		a.Caller.TooMany(w, over, audit.Line{Address: address})
	}
	return over.Retry == 0
}

func (a *access) serveAsk(w http.ResponseWriter, r *http.Request) {
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
	var rows []string
	if ask.Kind == people.OfDevice {
		rows = qrRows(page + "#" + ask.ID + "=" + people.ShowCode(ask.Code))
	}
	authn.WriteJSON(w, http.StatusOK, DeviceCode{
		DeviceCode: ask.ID + "." + ask.Secret, UserCode: people.ShowCode(ask.Code), Address: page, Complete: page + "#" + ask.ID,
		Seconds: int(people.RequestTTL.Seconds()), Interval: int(people.PollEvery.Seconds()), Key: ask.Fingerprint(), QR: rows,
	})
}

// serveToken responds with a token for a device, or with the decision about a request for
// access.
func (a *access) serveToken(w http.ResponseWriter, r *http.Request) {
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

// servePoll responds with the decision about a request for access. A device proves its
// key in this request; a host-agent does so when it uses the credential.
func (a *access) servePoll(w http.ResponseWriter, r *http.Request) {
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
	by := request.Approved
	e := auth.Enrolment{
		ID: by.Credential, IssuedAt: by.Issued, Expires: by.Issued.Add(a.CredentialTTL),
		Tenant: by.Tenant, Host: by.Host, Key: hostKey, Origins: by.Origins,
	}
	credential, err := a.Caller.Keys.Tokens().IssueCredential(e)
	if err != nil {
		a.Log.Error("credential not issued", "tenant", e.Tenant, "host", e.Host, "error", err)
		a.refuseGrant(w, r, errors.New("the relay cannot make a credential; see its log"))
		return
	}
	a.Caller.Audit.Write(a.Agents.HostLine("enrol", e, r, "credential; approved by "+by.Subject))
	authn.WriteJSON(w, http.StatusOK, HostCredential{agentsapi.Credential{Credential: credential, Expires: e.Expires}, e.Tenant, e.Host})
}

// hostKeyOf parses a host-agent's public key, and returns it with its thumbprint.
func hostKeyOf(text string) (key ed25519.PublicKey, thumbprint string, err error) {
	if text == "" {
		return nil, "", errors.New("no key")
	}
	return auth.ReadHostPublic(text)
}

// A personHandler serves a signed-in person. device is the ID of the device, or "" for a
// token without a device.
type personHandler func(w http.ResponseWriter, r *http.Request, who people.Person, device string)

// person restricts a handler to devices' tokens, and to unrestricted tokens that own the
// whole tenant.
func (a *base) person(serve personHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		client, ok := a.Caller.Client(w, r)
		if !ok {
			return
		}
		if client.Key == "" && (client.Restricted() || !client.Access.Includes(auth.AccessAdmin) || !slices.Contains(client.Hosts, auth.AllHosts)) {
			authn.WriteError(w, http.StatusForbidden, errors.New("only signed-in devices and owners of the tenant may do this"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, authn.MaxOperator)
		serve(w, r, people.Person{
			Tenant: client.Tenant, Subject: client.Subject, Access: client.Access, Hosts: client.Hosts,
			Channels: client.Channels, Methods: client.Methods, Files: client.Files, Reverse: client.Reverse, Most: client.MaxConnections, Origins: client.Derive(),
		}, client.Device)
	}
}
