package people

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/internal/fair"
)

// devices serves a person's own devices and tokens.
type devices struct{ *base }

func (a *devices) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/me", a.person(a.serveMe))
	mux.HandleFunc("GET /api/devices", a.person(a.serveDevices))
	mux.HandleFunc("DELETE /api/devices/{id}", a.person(a.serveRemoveDevice))
	mux.HandleFunc("POST /api/tokens", a.person(a.serveMakeToken))
}

func (a *devices) serveMe(w http.ResponseWriter, _ *http.Request, who people.Person, device string) {
	authn.WriteJSON(w, http.StatusOK, map[string]any{
		"tenant": who.Tenant, "subject": who.Subject, "level": who.Access.Level(), "device": device, "hosts": a.Hosts(who.Client()), "owner": who.OwnsAll(),
	})
}

func (a *devices) serveDevices(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	subject := who.Subject
	if who.OwnsAll() {
		subject = ""
	}
	list, err := a.People.Devices(who.Tenant, subject)
	if err != nil {
		a.failed(w, err)
		return
	}
	shown := []ShownDevice{}
	for _, one := range list {
		shown = append(shown, ShownDevice{one, one.Access.Level()})
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"devices": shown})
}

// A ShownDevice is a device in a list.
type ShownDevice struct {
	people.Device
	Level string `json:"level,omitempty"` // the device's maximum level; "": the same as its person's
}

// failed responds with an error of the store of people.
func (a *base) failed(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, people.ErrNone):
		authn.WriteError(w, http.StatusNotFound, err)
	case errors.Is(err, people.ErrAway), errors.Is(err, people.ErrTooMany), errors.Is(err, people.ErrFull), errors.Is(err, registry.ErrTooManyRevocations):
		authn.WriteError(w, http.StatusServiceUnavailable, err)
	case errors.Is(err, registry.ErrNotSaved):
		a.Log.Error("revocation not saved", "error", err)
		authn.WriteError(w, http.StatusInternalServerError, errNotSaved)
	default:
		a.Log.Error("store of people unusable", "error", err)
		authn.WriteError(w, http.StatusInternalServerError, errors.New("the relay cannot use its store of people; see its log"))
	}
}

// errNotSaved reports a revocation that is in force, but not saved.
var errNotSaved = errors.New("this has taken effect, but a restart of the relay may undo it, because the relay cannot write to its disk; see its log")

// mayNotGrant responds to a person whose present authority is unknown or has ended.
func (a *base) mayNotGrant(w http.ResponseWriter, err error) {
	if errors.Is(err, people.ErrAway) {
		a.failed(w, err)
		return
	}
	authn.WriteError(w, http.StatusBadRequest, err)
}

// serveRemoveDevice removes a device at all relays. If a device removes itself, the grants
// derived from it stay, because its removal is no sign that they are misused.
func (a *devices) serveRemoveDevice(w http.ResponseWriter, r *http.Request, who people.Person, own string) {
	device, _, err := a.People.Device(r.PathValue("id"))
	if err == nil && (device.Tenant != who.Tenant || device.Subject != who.Subject && !who.OwnsAll()) {
		err = people.ErrNone
	}
	if err != nil {
		a.failed(w, err)
		return
	}
	most, err := a.mostOf(own)
	if err != nil {
		a.failed(w, err)
		return
	}
	if device.ID != own && isAbove(device.Access, most) {
		authn.WriteError(w, http.StatusForbidden, errors.New("that device has a higher level than this one: use a device with the same level"))
		return
	}
	alone, ok := a.keepsDerived(w, r, who, func(o auth.Origin) bool { return o.ID == device.ID && device.ID != own })
	if !ok {
		return
	}
	alone = alone || device.ID == own
	a.Caller.Audit.Write(audit.Line{Event: "revoke", Tenant: who.Tenant, Subject: who.Subject, Token: device.ID, Address: a.Caller.Address(r), Detail: "device of " + device.Subject + ": " + device.Name})
	err = a.endDevice(who.Tenant, device.ID, alone)
	if !errors.Is(err, registry.ErrTooManyRevocations) { // the device has no access any more
		a.deleteDevice(device.ID)
	}
	if err != nil {
		a.failed(w, err)
		return
	}
	authn.WriteJSON(w, http.StatusOK, struct{}{})
}

// deleteDevice deletes the record of a device without access.
func (a *devices) deleteDevice(id string) {
	if err := a.People.Remove(id); err != nil && !errors.Is(err, people.ErrNone) {
		a.Log.Warn("removed device not deleted", "device", id, "error", err)
	}
}

// isAbove reports whether a device's level is above a maximum, which may be "" for none.
func isAbove(level, most auth.Access) bool {
	return most != "" && (level == "" || !most.Includes(level))
}

// mostOf returns a device's maximum level, or "" if it has no limit of its own.
func (a *base) mostOf(device string) (auth.Access, error) {
	if device == "" {
		return "", nil
	}
	found, _, err := a.People.Device(device)
	if errors.Is(err, people.ErrNone) {
		return auth.AccessRead, nil // the device has just been removed
	}
	return found.Access, err
}

// keepsDerived reports whether a removal keeps the derived grants (?derived=keep). If the
// removal would end the caller's own access, it responds with an error and ok is false.
func (a *base) keepsDerived(w http.ResponseWriter, r *http.Request, who people.Person, removed func(auth.Origin) bool) (keep, ok bool) {
	switch text := r.URL.Query().Get("derived"); {
	case text == "keep":
		return true, true
	case text != "":
		authn.WriteError(w, http.StatusBadRequest, errors.New("derived: want keep, or omit it"))
		return false, false
	case slices.ContainsFunc(who.Origins, removed):
		authn.WriteError(w, http.StatusConflict, errEndsCaller)
		return false, false
	}
	return false, true
}

var errEndsCaller = errors.New("this would sign you out too, because your access is derived from it: keep derived access (?derived=keep), or ask the operator (relay revoke)")

// endDevice revokes a device with its tokens and links, at all relays. Unless alone is
// set, it also revokes everything else derived from the device: devices and people that
// it approved or invited, and host-agents' credentials.
func (a *base) endDevice(tenant, id string, alone bool) error {
	now := time.Now().UTC()
	return a.Caller.Revoked.Add(auth.Revocation{Token: id, At: now, Until: now.Add(maxTokenTTL + time.Hour), Alone: alone, By: tenant}.Spanning())
}

// requests serves decisions about requests for access.
type requests struct {
	*base
	codes *fair.Buckets // wrong codes by person and by address
}

func (a *requests) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/requests/{which}", a.person(a.serveWaiting))
	mux.HandleFunc("POST /api/requests/{id}", a.person(a.serveDecide))
}

// guess counts a code that may be wrong. If there were too many, it responds with an
// error and returns false.
func (a *requests) guess(w http.ResponseWriter, r *http.Request, who people.Person) bool {
	wait := a.codes.Take("subject " + who.Tenant + " " + who.Subject)
	if group := admission.AddressGroup(a.Caller.Address(r)); wait == 0 && group != "" {
		wait = a.codes.Take("address " + group)
	}
	if wait > 0 {
		a.Caller.TooMany(w, &admission.OverLimit{Limit: "wrong codes", Max: codesAtOnce, Retry: wait}, audit.Line{Tenant: who.Tenant, Subject: who.Subject, Address: a.Caller.Address(r)})
	}
	return wait == 0
}

// find returns a request that a person may decide about, by its ID or code, or responds with an
// error and returns false. A request that this relay does not know counts as a guess. A different
// relay may just have stored it, so find then looks again, in all that the relays have.
func (a *requests) find(w http.ResponseWriter, r *http.Request, who people.Person, idOrCode string) (request people.Request, ok bool) {
	request, err := a.People.Find(idOrCode, &who)
	if errors.Is(err, people.ErrNone) {
		if !a.guess(w, r, who) {
			return request, false
		}
		if err = a.People.CatchUp(); err == nil {
			request, err = a.People.Find(idOrCode, &who)
		}
	}
	if err != nil {
		a.failed(w, err)
	}
	return request, err == nil
}

// serveWaiting shows a request for access to a person who may decide about it.
func (a *requests) serveWaiting(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	request, ok := a.find(w, r, who, r.PathValue("which"))
	if !ok {
		return
	}
	if request.Kind == people.OfHost && !who.Owns() {
		if a.guess(w, r, who) {
			authn.WriteError(w, http.StatusNotFound, people.ErrNone)
		}
		return
	}
	shown := Waiting{
		request.ID, request.Kind, request.Name, request.Machine, request.User, request.Fingerprint(), request.Address, request.Made, request.Expires, nil,
	}
	for _, level := range auth.Levels() {
		if request.Kind == people.OfDevice && who.Access.Includes(level) {
			shown.Levels = append(shown.Levels, level.Level())
		}
	}
	authn.WriteJSON(w, http.StatusOK, shown)
}

// levelFor returns the maximum level for an approved device: the chosen level, which must
// not exceed the approving person's, or without a choice the approving device's maximum.
func (a *requests) levelFor(who people.Person, device string, chosen auth.Access) (auth.Access, error) {
	if chosen == "" {
		return a.mostOf(device)
	}
	if !slices.Contains(auth.Levels(), chosen) {
		return "", fmt.Errorf("unknown level %q", chosen)
	}
	if !who.Access.Includes(chosen) {
		return "", fmt.Errorf("level %s is above your own", chosen.Level())
	}
	return chosen, nil
}

func (a *requests) serveDecide(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	var say struct {
		Approve    bool
		Code, Host string
		Replace    bool
		Level      auth.Access
	}
	if !authn.ReadJSON(w, r, &say, "body is not JSON with approve, code, host and level") {
		return
	}
	who, _, err := a.granter(who, device)
	if err != nil {
		a.mayNotGrant(w, err)
		return
	}
	request, ok := a.find(w, r, who, r.PathValue("id"))
	if !ok {
		return
	}
	decision := people.Decision{Approve: say.Approve, Code: say.Code, Host: say.Host, Device: device}
	switch {
	case request.Kind == people.OfHost && say.Level != "":
		err = errors.New("a host has no level; omit level")
	case request.Kind == people.OfHost:
		err = a.mayEnrol(who, say.Host, say.Approve, say.Replace)
	case device == "" && say.Approve:
		err = errors.New("only a signed-in device can approve a device; a token alone is not enough")
	default:
		decision.Access, err = a.levelFor(who, device, say.Level)
	}
	if err == nil {
		request, err = a.People.Decide(request.ID, &who, decision)
	}
	line := audit.Line{Event: "device", Tenant: who.Tenant, Subject: who.Subject, Host: say.Host, Token: device, Address: a.Caller.Address(r)}
	line.Detail = fmt.Sprintf("%s %s, from %s", request.Kind, request.Fingerprint(), request.Address)
	if decision.Access != "" {
		line.Detail += ", level " + decision.Access.Level()
	}
	if err == nil {
		if !say.Approve {
			line.Event = "deny"
		}
		a.Caller.Audit.Write(line)
		authn.WriteJSON(w, http.StatusOK, struct{}{})
		return
	}
	a.undecided(w, r, who, line, err)
}

// undecided responds to a failed decision. A wrong ID or code counts as a guess.
func (a *requests) undecided(w http.ResponseWriter, r *http.Request, who people.Person, line audit.Line, err error) {
	switch {
	case errors.Is(err, people.ErrNone): // the request has ended meanwhile
		if a.guess(w, r, who) {
			authn.WriteError(w, http.StatusNotFound, err)
		}
	case errors.Is(err, people.ErrWrong), errors.Is(err, people.ErrTries):
		line.Event, line.Reason = "deny", err.Error()
		a.Caller.Audit.Often("", audit.RefusedAtOnce, line)
		if errors.Is(err, people.ErrTries) || a.guess(w, r, who) {
			authn.WriteError(w, http.StatusForbidden, err)
		}
	case errors.Is(err, errHostThere):
		authn.WriteError(w, http.StatusConflict, err)
	case errors.Is(err, people.ErrAway):
		a.failed(w, err)
	default:
		authn.WriteError(w, http.StatusBadRequest, err)
	}
}

var errHostThere = errors.New("a host with that name exists: choose a different name, or replace it")

// mayEnrol returns an error if a person may not approve a host with this name.
func (a *requests) mayEnrol(who people.Person, host string, approve, replace bool) error {
	if !who.Owns() {
		return people.ErrNone
	}
	if !approve {
		return nil
	}
	if err := ahp.CheckName("host", host); err != nil {
		return err
	}
	client := who.Client()
	if !client.MayReach(who.Tenant, host) {
		return errors.New("you may not reach hosts with that name")
	}
	if _, there := a.Lookup(who.Tenant, host); there && !replace {
		return errHostThere
	}
	return nil
}

// maxProgram is the longest name of a program, in bytes.
const maxProgram = 100

// serveMakeToken makes a token for a client that cannot prove a key. The token has at
// most the caller's authority, and is revoked together with the caller's device.
func (a *devices) serveMakeToken(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	var ask struct {
		Level    auth.Access
		Hosts    []string
		Channels []string
		Seconds  int
		Program  string // that will use the token, for the audit
	}
	if !authn.ReadJSON(w, r, &ask, "body is not JSON with level, hosts, channels and seconds") {
		return
	}
	who, until, err := a.granter(who, device)
	if err != nil {
		a.mayNotGrant(w, err)
		return
	}
	client, err := narrowed(who, ask.Level, ask.Hosts, ask.Channels)
	ttl := time.Duration(ask.Seconds) * time.Second
	switch {
	case err != nil:
	case len(ask.Program) > maxProgram:
		err = fmt.Errorf("the program's name has %d bytes; want at most %d", len(ask.Program), maxProgram)
	case ttl == 0:
		ttl = defaultToken
	case ttl < 0 || ttl > maxTokenTTL:
		err = fmt.Errorf("seconds are %d; want 1 to %d", ask.Seconds, int(maxTokenTTL.Seconds()))
	}
	client.Device, client.Expires = device, atMost(time.Now().Add(ttl), until)
	var token, id string
	if err == nil {
		token, err = a.Caller.Keys.Tokens().IssueClient(client)
	}
	if err == nil {
		id, _, err = a.Caller.Keys.Tokens().TokenID(token)
	}
	if err != nil {
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	}
	program := ""
	if ask.Program != "" {
		program = fmt.Sprintf(", for %q", ask.Program)
	}
	a.Caller.Audit.Write(audit.Line{
		Event: "token", Tenant: who.Tenant, Subject: who.Subject, Token: id, Address: a.Caller.Address(r),
		Detail: fmt.Sprintf("by device %s, %s, until %s", device, client.Access.Level(), client.Expires.UTC().Format(time.RFC3339)) + program,
	})
	authn.WriteJSON(w, http.StatusOK, map[string]any{"token": token, "id": id, "expires": client.Expires.UTC().Truncate(time.Second)})
}

// narrowed returns the part of a person's authority that a new token gets. By default that
// is at most the level operate, and all the person's hosts and channels. Below the level
// operate, a person without a list of channels reaches all channels, but no files, so a
// list may not name any.
func narrowed(who people.Person, level auth.Access, hosts, channels []string) (auth.Client, error) {
	client := who.Client()
	level = cmp.Or(level, auth.AccessWrite)
	if !who.Access.Includes(level) && level != auth.AccessWrite {
		return client, fmt.Errorf("level %s is above your own", level.Level())
	}
	client.Access = who.Access.Less(level)
	for _, host := range hosts {
		if !client.MayReach(who.Tenant, host) || auth.CheckPatterns("host", []string{host}) != nil {
			return client, fmt.Errorf("%q is not a host that you may reach", host)
		}
	}
	if len(hosts) > 0 {
		client.Hosts = hosts
	}
	for _, channel := range channels {
		if len(who.Channels) > 0 && !slices.Contains(who.Channels, channel) {
			return client, fmt.Errorf("%q is not a channel that you may share", channel)
		}
		if len(who.Channels) == 0 && !who.Access.Includes(auth.AccessWrite) && gate.NamesContent(channel) {
			return client, fmt.Errorf("%q names files or content that you may not read", channel)
		}
	}
	if len(channels) > 0 {
		client.Channels = channels
	}
	return client, nil
}
