package people

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// A tenant's owner can list and withdraw open invitations, and so can the person who made
// them.
//
//	GET    /api/invites                     → {"invites": [ShownInvite]}
//	DELETE /api/invites/{id}                → {}
//	GET    /operator/invites/{tenant}       → as GET /api/invites; for the command "relay invitations"
//	DELETE /operator/invites/{tenant}/{id}  → {}; for the command "relay withdraw"

// invitations serves requests to make, list and withdraw invitations.
type invitations struct{ *base }

func (a *invitations) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /api/invites", a.person(a.serveInvite))
	mux.HandleFunc("GET /api/invites", a.person(a.serveInvites))
	mux.HandleFunc("DELETE /api/invites/{id}", a.person(a.serveWithdraw))
	mux.HandleFunc("POST /operator/invites", a.Caller.Operator(a.serveOperatorInvite))
	mux.HandleFunc("GET /operator/invites/{tenant}", a.Caller.Operator(a.serveOperatorInvites))
	mux.HandleFunc("DELETE /operator/invites/{tenant}/{id}", a.Caller.Operator(a.serveOperatorWithdraw))
}

// A ShownInvite is an open invitation in a list. Its ID does not reveal the secret.
type ShownInvite struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"` // the invited person
	Level   string    `json:"level"`
	Hosts   []string  `json:"hosts"`
	By      string    `json:"by,omitempty"` // the inviting person; "": the operator
	Expires time.Time `json:"expires"`
}

// inviter returns the subject of the person who made an invitation, or "" for the
// operator.
func inviter(i people.OpenInvite) string {
	if len(i.Person.Origins) == 0 {
		return ""
	}
	return i.Person.Origins[0].Subject
}

// invitesOf returns the open invitations that a person may see and withdraw.
func (a *invitations) invitesOf(who people.Person) ([]people.OpenInvite, error) {
	list, err := a.People.Invites(who.Tenant)
	if !who.OwnsAll() {
		list = slices.DeleteFunc(list, func(i people.OpenInvite) bool { return inviter(i) != who.Subject })
	}
	return list, err
}

func (a *invitations) serveInvites(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	list, err := a.invitesOf(who)
	a.showInvites(w, list, err)
}

func (a *invitations) serveOperatorInvites(w http.ResponseWriter, r *http.Request) {
	list, err := a.People.Invites(r.PathValue("tenant"))
	a.showInvites(w, list, err)
}

func (a *invitations) showInvites(w http.ResponseWriter, list []people.OpenInvite, err error) {
	if err != nil {
		a.failed(w, err)
		return
	}
	shown := []ShownInvite{}
	for _, i := range list {
		shown = append(shown, ShownInvite{i.ID, i.Person.Subject, i.Person.Access.Level(), i.Person.Hosts, inviter(i), i.Expires})
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"invites": shown})
}

func (a *invitations) serveWithdraw(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	list, err := a.invitesOf(who)
	a.withdraw(w, r, list, err, who.Tenant, who.Subject)
}

func (a *invitations) serveOperatorWithdraw(w http.ResponseWriter, r *http.Request) {
	tenant := r.PathValue("tenant")
	list, err := a.People.Invites(tenant)
	a.withdraw(w, r, list, err, tenant, "relay withdraw")
}

// withdraw withdraws the invitation that the request names, if it is in the list.
func (a *invitations) withdraw(w http.ResponseWriter, r *http.Request, list []people.OpenInvite, err error, tenant, by string) {
	i := slices.IndexFunc(list, func(i people.OpenInvite) bool { return i.ID == r.PathValue("id") })
	if i < 0 {
		err = cmp.Or(err, people.ErrNone)
	}
	if err == nil {
		err = a.People.Withdraw(tenant, list[i].ID)
	}
	if err != nil {
		a.failed(w, err)
		return
	}
	a.Caller.Audit.Write(audit.Line{
		Event: "revoke", Tenant: tenant, Subject: by, Address: a.Caller.Address(r),
		Detail: "invitation of " + list[i].Person.Subject + ", " + list[i].Person.Access.Level(),
	})
	authn.WriteJSON(w, http.StatusOK, struct{}{})
}

// serveInvite makes an invitation's link for an owner of a host. Without a subject,
// it makes a link for the caller's next device. That link is not secret: it only opens
// the page on which the device requests access and shows a code for approval.
func (a *invitations) serveInvite(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	var ask struct {
		Subject string
		Level   auth.Access
		Hosts   []string
	}
	if !authn.ReadJSON(w, r, &ask, "body is not JSON with subject, level and hosts") {
		return
	}
	who, _, err := a.granter(who, device)
	if err != nil {
		a.mayNotGrant(w, err)
		return
	}
	gives, err := narrowed(who, ask.Level, ask.Hosts, nil)
	person := people.Person{
		Tenant: who.Tenant, Subject: ask.Subject, Access: ask.Level, Hosts: gives.Hosts, Channels: gives.Channels, Methods: gives.Methods,
		Most: gives.MaxConnections, Origins: gives.Origins,
	}
	switch {
	case ask.Subject == "":
		link := a.Caller.URL(r) + "/device#ask=" + who.Tenant
		authn.WriteJSON(w, http.StatusOK, map[string]any{"link": link, "qr": qrRows(link)})
		return
	case !who.Owns():
		authn.WriteError(w, http.StatusForbidden, errors.New("only owners of hosts can invite people"))
		return
	case err != nil:
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	case a.isThere(person):
		authn.WriteError(w, http.StatusConflict, errors.New("a person with that name exists and has different rights; remove that person first, or choose a different name"))
		return
	}
	a.invite(w, r, people.Invite{Person: person, By: device, Expires: time.Now().Add(InviteTTL)}, device)
}

// isThere reports whether the name belongs to a person with different authority.
func (a *invitations) isThere(person people.Person) bool {
	for _, p := range a.peopleOf(person.Tenant) {
		if p.Subject == person.Subject {
			return !p.SameAuthority(&person)
		}
	}
	return false
}

func (a *invitations) peopleOf(tenant string) []people.Person {
	list, err := a.People.People(tenant)
	if err != nil {
		a.Log.Error("store of people unreadable", "error", err)
	}
	return list
}

func (a *invitations) invite(w http.ResponseWriter, r *http.Request, i people.Invite, by string) {
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

// SetupLink returns an invitation's link. The secret is in the fragment, which browsers
// do not send to servers.
func SetupLink(base, secret string) string { return base + "/setup#" + secret }

// serveOperatorInvite makes an invitation for a tenant's owner. The relay's operator, who
// has the relay's keys, requests it.
func (a *invitations) serveOperatorInvite(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Tenant, Subject string }
	if !authn.ReadJSON(w, r, &ask, "body is not JSON with tenant and subject") {
		return
	}
	a.invite(w, r, people.Invite{Person: OwnerOf(ask.Tenant, ask.Subject), Expires: time.Now().Add(InviteTTL)}, "relay setup-link")
}

// OwnerOf returns a person who owns a tenant.
func OwnerOf(tenant, subject string) people.Person {
	return people.Person{Tenant: tenant, Subject: subject, Access: auth.AccessAdmin, Hosts: []string{auth.AllHosts}, Files: true}
}
