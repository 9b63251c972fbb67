package people

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// An owner of all hosts in a tenant can manage its people and read the audit log.
//
//	GET    /api/people            → {"people": [ShownPerson]}
//	DELETE /api/people/{subject}  revokes all tokens and devices of a person with everything derived from them, and deletes the person; ?derived=keep as for devices
//	GET    /api/audit             → {"since", "lines": [audit.ShownLine]}: of this relay since its start, latest first

// A ShownPerson is a person in the owner's list.
type ShownPerson struct {
	Subject  string    `json:"subject"`
	Name     string    `json:"name,omitempty"`
	Level    string    `json:"level"`
	Hosts    []string  `json:"hosts"`
	Issuer   string    `json:"issuer,omitempty"` // identity provider
	Trouble  string    `json:"trouble,omitempty"`
	Added    time.Time `json:"added"`
	Devices  int       `json:"devices"`
	LastSeen time.Time `json:"lastSeen,omitzero"`
}

// team serves a tenant's owners.
type team struct{ *base }

func (a *team) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/people", a.person(a.owner(a.servePeople)))
	mux.HandleFunc("DELETE /api/people/{subject}", a.person(a.owner(a.serveRemovePerson)))
	mux.HandleFunc("GET /api/audit", a.person(a.owner(a.serveAudit)))
}

// owner restricts a handler to owners of the whole tenant.
func (a *base) owner(serve personHandler) personHandler {
	return func(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
		if !who.OwnsAll() {
			authn.WriteError(w, http.StatusForbidden, errors.New("only owners of all hosts in the tenant may do this"))
			return
		}
		serve(w, r, who, device)
	}
}

func (a *team) servePeople(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	list, err := a.People.People(who.Tenant)
	devices, e := a.People.Devices(who.Tenant, "")
	if err = errors.Join(err, e); err != nil {
		a.failed(w, err)
		return
	}
	shown := []ShownPerson{}
	for _, p := range list {
		one := ShownPerson{Subject: p.Subject, Name: p.Name, Level: p.Access.Level(), Hosts: p.Hosts, Issuer: p.Issuer, Added: p.Added}
		if may, _, err := a.Allowed(p); err != nil {
			one.Trouble = err.Error()
		} else {
			one.Level, one.Hosts = may.Access.Level(), may.Hosts
		}
		for _, d := range devices {
			if d.Subject != p.Subject {
				continue
			}
			one.Devices++
			if d.Seen.After(one.LastSeen) {
				one.LastSeen = d.Seen
			}
		}
		shown = append(shown, one)
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"people": shown})
}

// serveRemovePerson revokes all grants of a person and everything derived from them, at
// all relays, and deletes the person.
func (a *team) serveRemovePerson(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	subject := r.PathValue("subject")
	if subject == who.Subject {
		authn.WriteError(w, http.StatusBadRequest, errors.New("you cannot remove yourself: remove your devices, or ask a different owner"))
		return
	}
	alone, ok := a.keepsDerived(w, r, who, func(o auth.Origin) bool { return o.Subject == subject })
	if !ok {
		return
	}
	devices, err := a.People.Devices(who.Tenant, subject)
	if err != nil {
		a.failed(w, err)
		return
	}
	a.Caller.Audit.Write(audit.Line{Event: "revoke", Tenant: who.Tenant, Subject: who.Subject, Address: a.Caller.Address(r), Detail: fmt.Sprintf("person %s, with %d devices", subject, len(devices))})
	err = a.Caller.Revoked.Add(auth.Revocation{Tenant: who.Tenant, Subject: subject, At: time.Now().UTC(), Alone: alone, By: who.Tenant})
	for _, d := range devices { // also ends the tokens and links that the devices have made
		err = errors.Join(err, a.endDevice(who.Tenant, d.ID, alone))
	}
	if !errors.Is(err, registry.ErrTooManyRevocations) {
		err = cmp.Or(a.People.Forget(who.Tenant, subject), err)
	}
	if err != nil {
		a.failed(w, err)
		return
	}
	authn.WriteJSON(w, http.StatusOK, struct{}{})
}

func (a *team) serveAudit(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	authn.WriteJSON(w, http.StatusOK, map[string]any{"since": a.Caller.Audit.Since(), "lines": append([]audit.ShownLine{}, a.Caller.Audit.Latest(who.Tenant)...)})
}
