package people

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// serveMe tells somebody who they are.
func (a *API) serveMe(w http.ResponseWriter, _ *http.Request, who people.Person, device string) {
	authn.WriteJSON(w, http.StatusOK, map[string]any{
		"tenant": who.Tenant, "subject": who.Subject, "level": who.Access.Level(), "device": device, "hosts": a.Hosts(who.Client()), "owner": who.OwnsAll(),
	})
}

func (a *API) serveDevices(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
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

// A ShownDevice is a device as it is listed.
type ShownDevice struct {
	people.Device
	Level string `json:"level,omitempty"` // at most; "": all that its person may
}

// failed answers that something is wrong here.
func (a *API) failed(w http.ResponseWriter, err error) {
	if errors.Is(err, people.ErrAway) {
		authn.WriteError(w, http.StatusServiceUnavailable, err)
		return
	}
	a.Log.Error("people and devices", "error", err)
	authn.WriteError(w, http.StatusInternalServerError, errors.New("the relay cannot read or keep what it knows of people; see its log"))
}

// serveRemoveDevice ends a device, here and at all relays. A device that signs itself out is not mistrusted: only it ends.
func (a *API) serveRemoveDevice(w http.ResponseWriter, r *http.Request, who people.Person, own string) {
	device, _, err := a.People.Device(r.PathValue("id"))
	if err != nil || device.Tenant != who.Tenant || device.Subject != who.Subject && !who.OwnsAll() {
		authn.WriteError(w, http.StatusNotFound, people.ErrNone)
		return
	}
	if most := a.mostOf(own); most != "" && device.ID != own && (device.Access == "" || !most.Includes(device.Access)) {
		authn.WriteError(w, http.StatusForbidden, errors.New("that device may do more than this one: remove it elsewhere"))
		return
	}
	alone, ok := a.keepsDerived(w, r, who, func(o auth.Origin) bool { return o.ID == device.ID && device.ID != own })
	if !ok {
		return
	}
	alone = alone || device.ID == own
	a.Caller.Audit.Write(audit.Line{Event: "revoke", Tenant: who.Tenant, Subject: who.Subject, Token: device.ID, Address: a.Caller.Address(r), Detail: "device of " + device.Subject + ": " + device.Name})
	err = a.endDevice(device.ID, alone)
	if err != nil {
		a.failed(w, err)
		return
	}
	if err := a.People.Remove(device.ID); err != nil && !errors.Is(err, people.ErrNone) { // it is out all the same
		a.Log.Warn("a removed device stays in the store", "device", device.ID, "error", err)
	}
	authn.WriteJSON(w, http.StatusOK, struct{}{})
}

// mostOf returns the level that a device was given, "" for none of its own.
func (a *API) mostOf(device string) auth.Access {
	if device == "" {
		return ""
	}
	found, _, err := a.People.Device(device)
	if err != nil {
		return auth.AccessRead // it was removed just now
	}
	return found.Access
}

// keepsDerived reports whether a removal keeps the grants that were derived from what it removes (?derived=keep). It
// refuses a removal that would end the grant of the caller, which was derived from a removed one.
func (a *API) keepsDerived(w http.ResponseWriter, r *http.Request, who people.Person, removed func(auth.Origin) bool) (keep, ok bool) {
	switch text := r.URL.Query().Get("derived"); {
	case text == "keep":
		return true, true
	case text != "":
		authn.WriteError(w, http.StatusBadRequest, errors.New("derived: want keep, or nothing"))
		return false, false
	case slices.ContainsFunc(who.Origins, removed):
		authn.WriteError(w, http.StatusConflict, errEndsCaller)
		return false, false
	}
	return false, true
}

// errEndsCaller reports a removal with which its caller would lose access, too.
var errEndsCaller = errors.New("you came in by what you remove, and would be signed out with it: remove it alone (?derived=keep), or have the operator do it (relay revoke)")

// endToken ends a token that expires at until, and everything that comes of it, here and at all relays.
func (a *API) endToken(id string, until time.Time) error {
	return a.Caller.Revoked.Add(auth.Revocation{Token: id, At: time.Now().UTC(), Until: until})
}

// endDevice ends a device here and at all relays, with its tokens and links. Unless alone, it ends everything else that was
// derived from the device, too: devices and people that it let in, and credentials of host-agents.
func (a *API) endDevice(id string, alone bool) error {
	now := time.Now().UTC()
	return a.Caller.Revoked.Add(auth.Revocation{Token: id, At: now, Until: now.Add(maxTokenTTL + time.Hour), Alone: alone}.Spanning())
}

// guess counts a code that may be wrong, and answers if there were too many.
func (a *API) guess(w http.ResponseWriter, r *http.Request, who people.Person) bool {
	wait := a.codes.Take("subject " + who.Tenant + " " + who.Subject)
	if group := admission.AddressGroup(a.Caller.Address(r)); wait == 0 && group != "" {
		wait = a.codes.Take("address " + group)
	}
	if wait > 0 {
		a.Caller.TooMany(w, &admission.OverLimit{Limit: "wrong codes", Max: codesAtOnce, Retry: wait}, audit.Line{Tenant: who.Tenant, Subject: who.Subject, Address: a.Caller.Address(r)})
	}
	return wait == 0
}

// serveWaiting shows a request to who may decide about it.
func (a *API) serveWaiting(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	request, err := a.People.Find(r.PathValue("which"), &who)
	if err == nil && request.Kind == people.OfHost && !who.Owns() {
		err = people.ErrNone
	}
	switch {
	case errors.Is(err, people.ErrNone):
		if a.guess(w, r, who) {
			authn.WriteError(w, http.StatusNotFound, err)
		}
	case err != nil:
		a.failed(w, err)
	default:
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
}

// levelFor returns the level of a device that is let in: the one that who approves has chosen,
// which must not be more than theirs, or else what the approving device may do itself.
func (a *API) levelFor(who people.Person, device string, chosen auth.Access) (auth.Access, error) {
	if chosen == "" {
		return a.mostOf(device), nil
	}
	if !slices.Contains(auth.Levels(), chosen) {
		return "", fmt.Errorf("there is no level %q", chosen)
	}
	if !who.Access.Includes(chosen) {
		return "", fmt.Errorf("level %s is more than you have", chosen.Level())
	}
	return chosen, nil
}

// serveDecide approves or denies a request.
func (a *API) serveDecide(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	var say struct {
		Approve    bool
		Code, Host string
		Replace    bool
		Level      auth.Access
	}
	if err := json.NewDecoder(r.Body).Decode(&say); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of approve, code, host and level"))
		return
	}
	request, err := a.People.Find(r.PathValue("id"), &who)
	decision := people.Decision{Approve: say.Approve, Code: say.Code, Host: say.Host, Device: device}
	switch {
	case err != nil:
	case request.Kind == people.OfHost && say.Level != "":
		err = errors.New("a host has no level; want level for a device only")
	case request.Kind == people.OfHost:
		err = a.mayEnrol(who, say.Host, say.Approve, say.Replace)
	case device == "" && say.Approve:
		err = errors.New("another device is let in by one that is signed in, and not by a token")
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
	switch {
	case errors.Is(err, people.ErrNone): // as in serveWaiting
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
	case err != nil:
		authn.WriteError(w, http.StatusBadRequest, err)
	default:
		if !say.Approve {
			line.Event = "deny"
		}
		a.Caller.Audit.Write(line)
		authn.WriteJSON(w, http.StatusOK, struct{}{})
	}
}

// errHostThere reports a name that another host-agent has.
var errHostThere = errors.New("there is a host of that name: choose another, or say that this one takes its place")

// mayEnrol says why somebody may not let a host in by a name.
func (a *API) mayEnrol(who people.Person, host string, approve, replace bool) error {
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
		return errors.New("that name is for hosts which you may not reach")
	}
	if _, there := a.Lookup(who.Tenant, host); there && !replace {
		return errHostThere
	}
	return nil
}

// serveInvite makes a link by which somebody else comes in, if who asks owns the tenant. For
// another device of one's own, the link is no secret: it leads to where the device asks, shows a
// code, and is approved.
func (a *API) serveInvite(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	var ask struct {
		Subject string
		Level   auth.Access
		Hosts   []string
	}
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of subject, level and hosts"))
		return
	}
	gives, err := narrowed(who, ask.Level, ask.Hosts, nil)
	person := people.Person{Tenant: who.Tenant, Subject: ask.Subject, Access: ask.Level, Hosts: gives.Hosts, Channels: gives.Channels, Methods: gives.Methods, Origins: gives.Origins}
	switch {
	case ask.Subject == "":
		link := a.Caller.URL(r) + "/device#ask=" + who.Tenant
		authn.WriteJSON(w, http.StatusOK, map[string]any{"link": link, "qr": qrRows(link)})
		return
	case !who.Owns():
		authn.WriteError(w, http.StatusForbidden, errors.New("only who owns the tenant invites others"))
		return
	case err != nil:
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	case a.isThere(person):
		authn.WriteError(w, http.StatusConflict, errors.New("somebody of that name is in, and may do something else; remove their devices first, or choose another name"))
		return
	}
	a.invite(w, r, people.Invite{Person: person, By: device, Expires: time.Now().Add(InviteTTL)}, device)
}

// isThere reports whether somebody has the name, and may do something else.
func (a *API) isThere(person people.Person) bool {
	for _, p := range a.peopleOf(person.Tenant) {
		if p.Subject == person.Subject {
			return !p.SameAuthority(&person)
		}
	}
	return false
}

func (a *API) peopleOf(tenant string) []people.Person {
	list, err := a.People.People(tenant)
	if err != nil {
		a.Log.Error("people and devices", "error", err)
	}
	return list
}

// invite answers with the link of an invitation.
func (a *API) invite(w http.ResponseWriter, r *http.Request, i people.Invite, by string) {
	secret, err := a.People.Invite(i)
	switch {
	case errors.Is(err, people.ErrTooMany), errors.Is(err, people.ErrFull), errors.Is(err, people.ErrAway):
		authn.WriteError(w, http.StatusServiceUnavailable, err)
		return
	case err != nil:
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	}
	a.Caller.Audit.Write(audit.Line{
		Event: "share", Tenant: i.Person.Tenant, Subject: i.Person.Subject, Token: by, Address: a.Caller.Address(r),
		Detail: fmt.Sprintf("invitation, %s, until %s", i.Person.Access.Level(), i.Expires.UTC().Format(time.RFC3339)),
	})
	link := SetupLink(a.Caller.URL(r), secret)
	authn.WriteJSON(w, http.StatusOK, map[string]any{"link": link, "qr": qrRows(link), "expires": i.Expires.UTC()})
}

// SetupLink is the link of an invitation. Its secret is in the fragment, which browsers do not
// send.
func SetupLink(base, secret string) string { return base + "/setup#" + secret }

// serveOperatorInvite lets somebody in who can read the relay's keys.
func (a *API) serveOperatorInvite(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Tenant, Subject string }
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of tenant and subject"))
		return
	}
	a.invite(w, r, people.Invite{Person: OwnerOf(ask.Tenant, ask.Subject), Expires: time.Now().Add(InviteTTL)}, "relay setup-link")
}

// OwnerOf is who owns a tenant.
func OwnerOf(tenant, subject string) people.Person {
	return people.Person{Tenant: tenant, Subject: subject, Access: auth.AccessAdmin, Hosts: []string{auth.AllHosts}, Files: true}
}

// serveMakeToken makes a token for a client that cannot prove a key. It allows no more than
// who asks, and ends with their device.
func (a *API) serveMakeToken(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	var ask struct {
		Level    auth.Access
		Hosts    []string
		Channels []string
		Seconds  int
	}
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of level, hosts, channels and seconds"))
		return
	}
	client, err := narrowed(who, ask.Level, ask.Hosts, ask.Channels)
	ttl := time.Duration(ask.Seconds) * time.Second
	switch {
	case err != nil:
	case ttl == 0:
		ttl = defaultToken
	case ttl < 0 || ttl > maxTokenTTL:
		err = fmt.Errorf("seconds are %d; want 1 to %d", ask.Seconds, int(maxTokenTTL.Seconds()))
	}
	client.Device, client.Expires = device, a.atMost(time.Now().Add(ttl), device)
	var token, id string
	if err == nil {
		token, err = a.Caller.Keys.IssueClient(client)
	}
	if err == nil {
		id, _, err = a.Caller.Keys.TokenID(token)
	}
	if err != nil {
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	}
	a.Caller.Audit.Write(audit.Line{
		Event: "token", Tenant: who.Tenant, Subject: who.Subject, Token: id, Address: a.Caller.Address(r),
		Detail: fmt.Sprintf("by device %s, %s, until %s", device, client.Access.Level(), client.Expires.UTC().Format(time.RFC3339)),
	})
	authn.WriteJSON(w, http.StatusOK, map[string]any{"token": token, "id": id, "expires": client.Expires.UTC().Truncate(time.Second)})
}

// narrowed is what somebody may give of what they may do themselves: no level gives all but
// to own, no hosts all, no channels theirs.
func narrowed(who people.Person, level auth.Access, hosts, channels []string) (auth.Client, error) {
	client := who.Client()
	if level == "" {
		level = auth.AccessWrite
	}
	if !who.Access.Includes(level) && level != auth.AccessWrite {
		return client, fmt.Errorf("level %s is more than you have", level.Level())
	}
	client.Access = who.Access.Less(level)
	for _, host := range hosts {
		if !client.MayReach(who.Tenant, host) || auth.CheckPatterns("host", []string{host}) != nil {
			return client, fmt.Errorf("%q is no host that you may reach", host)
		}
	}
	if len(hosts) > 0 {
		client.Hosts = hosts
	}
	for _, channel := range channels {
		if len(who.Channels) > 0 && !slices.Contains(who.Channels, channel) {
			return client, fmt.Errorf("%q is no channel that you may give to others", channel)
		}
	}
	if len(channels) > 0 {
		client.Channels = channels
	}
	return client, nil
}
