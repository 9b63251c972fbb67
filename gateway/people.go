package gateway

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/people"
)

// How people and their devices come in, and see to who else does (package people). A
// device proves its key with each request: the header DPoP, see package auth. Errors of
// /auth are {"error", "error_description"} (RFC 6749), with 401 and error
// use_dpop_nonce where the proof wants the nonce of the header DPoP-Nonce.
//
//	POST /auth/setup   {"invite", "name"} → Access; who has the link of an invitation
//	POST /auth/device  form: kind=device|host, name, machine, user, key → DeviceCode (RFC 8628, section 3.1)
//	POST /auth/token   form: grant_type=device, device → Access
//	POST /auth/token   form: grant_type=urn:ietf:params:oauth:grant-type:device_code, device_code → Access, or Credential with the host
//
// What follows wants a token of a device, or any that owns the tenant where nothing else is
// said. Errors are {"error"}.
//
//	GET    /api/me                who this is, what it may, and its hosts' names
//	GET    /api/devices           [people.Device]: one's own, all for who owns the tenant
//	DELETE /api/devices/{id}      ends it, and all tokens that it has got or made
//	GET    /api/requests/{which}  Waiting; by its ID, or its whole code
//	POST   /api/requests/{id}     {"approve", "code", "host", "replace"} → {}
//	POST   /api/invites           {"subject", "level", "hosts"} → {"link", "qr", "expires"}; without subject a link to where another device of one's own asks to be let in
//	POST   /api/tokens            {"level", "hosts", "channels", "seconds"} → {"token", "id", "expires"}: for a stock client
//	POST   /operator/invites      {"tenant", "subject"} → {"link", "expires"}: relay setup-link

// Grants of POST /auth/token.
const (
	grantDevice     = "device"
	grantDeviceCode = "urn:ietf:params:oauth:grant-type:device_code"
)

// Bounds of those who ask.
const (
	codeEvery   = 2 * time.Minute // a wrong code, beside the first
	codesAtOnce = 5
	askEvery    = 20 * time.Second
	asksAtOnce  = 15

	inviteTTL    = 24 * time.Hour
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
	Credential
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
}

func (s *Server) peopleRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /auth/setup", s.serveSetup)
	mux.HandleFunc("POST /auth/device", s.serveAsk)
	mux.HandleFunc("POST /auth/token", s.serveToken)
	mux.HandleFunc("GET /api/me", s.person(s.serveMe))
	mux.HandleFunc("GET /api/devices", s.person(s.serveDevices))
	mux.HandleFunc("DELETE /api/devices/{id}", s.person(s.serveRemoveDevice))
	mux.HandleFunc("GET /api/requests/{which}", s.person(s.serveWaiting))
	mux.HandleFunc("POST /api/requests/{id}", s.person(s.serveDecide))
	mux.HandleFunc("POST /api/invites", s.person(s.serveInvite))
	mux.HandleFunc("POST /api/tokens", s.person(s.serveMakeToken))
	mux.HandleFunc("POST /operator/invites", s.operator(s.serveOperatorInvite))
	s.signInRoutes(mux)
	s.teamRoutes(mux)
	s.shareRoutes(mux)
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
	{errNoProof, "use_dpop_nonce", http.StatusUnauthorized},
	{auth.ErrProofInvalid, "invalid_dpop_proof", http.StatusBadRequest},
	{errProofAgain, "invalid_dpop_proof", http.StatusBadRequest},
	{people.ErrPending, "authorization_pending", http.StatusBadRequest},
	{people.ErrSlowDown, "slow_down", http.StatusBadRequest},
	{people.ErrDenied, "access_denied", http.StatusBadRequest},
	{people.ErrGone, "expired_token", http.StatusBadRequest},
	{people.ErrTooMany, "temporarily_unavailable", http.StatusServiceUnavailable},
	{people.ErrFull, "temporarily_unavailable", http.StatusServiceUnavailable},
	{errSignInAgain, "login_required", http.StatusBadRequest},
	{errTokenNotMade, "server_error", http.StatusInternalServerError},
	{errProviderAway, "temporarily_unavailable", http.StatusServiceUnavailable},
	{people.ErrAway, "temporarily_unavailable", http.StatusServiceUnavailable},
}

// refuseGrant answers a request of /auth that gets nothing.
func (s *Server) refuseGrant(w http.ResponseWriter, r *http.Request, err error) {
	name, status := "invalid_grant", http.StatusBadRequest
	for _, one := range oauthErrors {
		if errors.Is(err, one.err) {
			name, status = one.name, one.status
		}
	}
	quiet := errors.Is(err, people.ErrPending) || errors.Is(err, people.ErrAway) || errors.Is(err, errProviderAway) || errors.Is(err, people.ErrSlowDown) || s.wantsProof(w, err)
	if !quiet {
		if over := s.limits.Failed(s.address(r)); over != nil {
			s.tooMany(w, over, audit.Line{Address: s.address(r)})
			return
		}
		s.refused("unauthorized", name, audit.Line{Address: s.address(r), Reason: err.Error(), Detail: r.Method + " " + r.URL.Path})
	}
	writeJSON(w, status, map[string]string{"error": name, "error_description": err.Error()})
}

func (s *Server) serveSetup(w http.ResponseWriter, r *http.Request) {
	var body struct{ Invite, Name string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxProof)).Decode(&body); err != nil {
		s.refuseGrant(w, r, errors.New("body is no JSON of invite and name"))
		return
	}
	key, err := s.provenKey(r, "")
	if err != nil {
		s.refuseGrant(w, r, err)
		return
	}
	device, err := s.cfg.People.Accept(body.Invite, people.Device{Name: body.Name, Key: key, Place: s.address(r)})
	if err != nil {
		s.refuseGrant(w, r, err)
		return
	}
	s.audit.Write(audit.Line{Event: "setup", Tenant: device.Tenant, Subject: device.Subject, Token: device.ID, Address: s.address(r), Detail: device.Name})
	s.giveAccess(w, r, device.ID, key)
}

// errTokenNotMade reports that something is wrong here, and not with the device.
var errTokenNotMade = errors.New("the relay cannot make a token; see its log")

// giveAccess answers with a token for a device that has proved its key.
func (s *Server) giveAccess(w http.ResponseWriter, r *http.Request, id, key string) {
	device, person, err := s.cfg.People.Device(id)
	switch {
	case errors.Is(err, people.ErrNone):
		err = errors.New("no such device: it was removed; be let in anew")
	case err == nil && device.Key != key:
		err = errOtherKey
	}
	var who auth.Client
	var until time.Time
	if err == nil {
		who, until, err = s.allowed(person)
	}
	if err != nil {
		s.refuseGrant(w, r, err)
		return
	}
	s.asking.proved(r)
	if err := s.cfg.People.Seen(id, s.address(r)); err != nil {
		s.cfg.Log.Warn("it could not be noted when a device was here", "device", id, "error", err)
	}
	who.Device, who.Key, who.Expires = device.ID, device.Key, time.Now().Add(people.AccessTTL)
	if !until.IsZero() && until.Before(who.Expires) {
		who.Expires = until
	}
	token, err := s.cfg.Keys.IssueClient(who)
	if err != nil {
		s.cfg.Log.Error("no token could be made", "device", id, "error", err)
		s.refuseGrant(w, r, errTokenNotMade)
		return
	}
	w.Header().Set("DPoP-Nonce", s.cfg.Keys.NewChallenge())
	writeJSON(w, http.StatusOK, Access{token, "DPoP", int(time.Until(who.Expires).Round(time.Second).Seconds()), device.ID, device.Tenant, device.Subject, who.Access.Level(), who.Hosts})
}

// isRemoved reports whether a device was removed, or its person revoked since it came in: the
// record may be there all the same.
func (s *Server) isRemoved(device people.Device) bool {
	who := auth.Client{ID: device.ID, Tenant: device.Tenant, Subject: device.Subject}
	return s.revoked.Revoked(device.Added, who.Keys()...)
}

// mayAsk counts who asks to be let in, by address, and answers if there were too many.
func (s *Server) mayAsk(w http.ResponseWriter, r *http.Request) bool {
	group := admission.AddressGroup(s.address(r))
	if group == "" {
		return true
	}
	wait := s.asks.Take(group)
	if wait > 0 {
		s.tooMany(w, &admission.OverLimit{Limit: "requests to be let in, from this address", Max: asksAtOnce, Retry: wait}, audit.Line{Address: s.address(r)})
	}
	return wait == 0
}

// serveAsk takes a request to be let in.
func (s *Server) serveAsk(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxProof)
	if !s.mayAsk(w, r) {
		return
	}
	ask := people.Request{
		Kind: people.Kind(r.PostFormValue("kind")), Name: r.PostFormValue("name"), Machine: r.PostFormValue("machine"),
		User: r.PostFormValue("user"), Address: s.address(r),
	}
	var err error
	switch ask.Kind {
	case people.OfDevice:
		ask.Key, err = s.provenKey(r, "")
	case people.OfHost:
		ask.HostKey, ask.Key, err = hostKeyOf(r.PostFormValue("key"))
	default:
		err = errors.New("kind is neither device nor host")
	}
	if err == nil {
		ask, err = s.cfg.People.Ask(ask)
	}
	if err != nil {
		s.refuseGrant(w, r, err)
		return
	}
	page := s.publicURL(r) + "/device"
	writeJSON(w, http.StatusOK, DeviceCode{
		DeviceCode: ask.ID + "." + ask.Secret, UserCode: people.ShowCode(ask.Code), Address: page, Complete: page + "#" + ask.ID,
		Seconds: int(people.RequestTTL.Seconds()), Interval: int(people.PollEvery.Seconds()), Key: ask.Fingerprint(),
	})
}

// serveToken gives a device a token, or what has asked what it was approved.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxProof)
	switch r.PostFormValue("grant_type") {
	case grantDevice:
		key, err := s.provenKey(r, "")
		if err != nil {
			s.refuseGrant(w, r, err)
			return
		}
		s.giveAccess(w, r, r.PostFormValue("device"), key)
	case grantDeviceCode:
		s.servePoll(w, r)
	default:
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": "unsupported_grant_type"})
	}
}

// servePoll tells what has asked what became of it. A host-agent proves its key when it
// uses the credential, a device now.
func (s *Server) servePoll(w http.ResponseWriter, r *http.Request) {
	id, secret, _ := strings.Cut(r.PostFormValue("device_code"), ".")
	hostKey, key, err := hostKeyOf(r.PostFormValue("key"))
	if r.PostFormValue("key") == "" {
		key, err = s.provenKey(r, "")
	}
	if err != nil {
		s.refuseGrant(w, r, err)
		return
	}
	request, device, err := s.cfg.People.Poll(id, secret, key)
	if err != nil {
		s.refuseGrant(w, r, err)
		return
	}
	if request.Kind == people.OfDevice {
		s.giveAccess(w, r, device.ID, key)
		return
	}
	e := auth.Enrolment{Tenant: request.Approved.Tenant, Host: request.Approved.Host, Key: hostKey, Expires: time.Now().Add(s.cfg.CredentialTTL)}
	credential, err := s.cfg.Keys.IssueCredential(e)
	if err != nil {
		s.cfg.Log.Error("no credential could be made", "tenant", e.Tenant, "host", e.Host, "error", err)
		s.refuseGrant(w, r, errors.New("the relay cannot make a credential; see its log"))
		return
	}
	s.audit.Write(s.hostLine("enrol", e, r, "credential; approved by "+request.Approved.Subject))
	writeJSON(w, http.StatusOK, HostCredential{Credential{credential, e.Expires}, e.Tenant, e.Host})
}

// hostKeyOf reads the key of a host-agent, and its thumbprint.
func hostKeyOf(text string) (key ed25519.PublicKey, thumbprint string, err error) {
	if text == "" {
		return nil, "", errors.New("no key")
	}
	return auth.ReadHostPublic(text)
}

// publicURL is the base URL of the relay, without a slash at its end.
func (s *Server) publicURL(r *http.Request) string {
	if s.cfg.PublicURL != "" {
		return strings.TrimSuffix(s.cfg.PublicURL, "/")
	}
	scheme := "http"
	if r.TLS != nil || s.manyOf(peerOf(r)) && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// A personHandler serves somebody who is in, as which device; "" for a token that is
// none's.
type personHandler func(w http.ResponseWriter, r *http.Request, who people.Person, device string)

// person serves those who are in: devices, and tokens that own the tenant and are
// limited in nothing.
func (s *Server) person(serve personHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		client, ok := s.apiClient(w, r)
		if !ok {
			return
		}
		if client.Key == "" && (client.Restricted() || !client.Access.Includes(auth.AccessAdmin) || !slices.Contains(client.Hosts, auth.AllHosts)) {
			writeError(w, http.StatusForbidden, errors.New("this is for devices that are signed in, and for who owns the tenant"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxOperator)
		serve(w, r, people.Person{
			Tenant: client.Tenant, Subject: client.Subject, Access: client.Access, Hosts: client.Hosts,
			Channels: client.Channels, Methods: client.Methods, Files: client.Files, Reverse: client.Reverse, Most: client.MaxConnections,
		}, client.Device)
	}
}

// peerOf is the address that a request has come from, a proxy's too.
func peerOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}
