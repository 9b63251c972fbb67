package people

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"ahprelay/auth/people"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// Open invitations are listed, and withdrawn, by the owner of the tenant, and by the person who made them.
//
//	GET    /api/invites                     → {"invites": [ShownInvite]}
//	DELETE /api/invites/{id}                → {}
//	GET    /operator/invites/{tenant}       → as GET /api/invites: relay invitations
//	DELETE /operator/invites/{tenant}/{id}  → {}: relay withdraw

// A ShownInvite is an open invitation as it is listed. Its ID lets nobody in.
type ShownInvite struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"` // of the person who is invited
	Level   string    `json:"level"`
	Hosts   []string  `json:"hosts"`
	By      string    `json:"by,omitempty"` // subject of the person who made it; "": the operator
	Expires time.Time `json:"expires"`
}

// inviter returns the subject of the person who made an invitation, "" for the operator.
func inviter(i people.OpenInvite) string {
	if len(i.Person.Origins) == 0 {
		return ""
	}
	return i.Person.Origins[0].Subject
}

// invitesOf returns the open invitations that a person may see and withdraw.
func (a *API) invitesOf(who people.Person) ([]people.OpenInvite, error) {
	list, err := a.People.Invites(who.Tenant)
	if !who.OwnsAll() {
		list = slices.DeleteFunc(list, func(i people.OpenInvite) bool { return inviter(i) != who.Subject })
	}
	return list, err
}

func (a *API) serveInvites(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	list, err := a.invitesOf(who)
	a.showInvites(w, list, err)
}

func (a *API) serveOperatorInvites(w http.ResponseWriter, r *http.Request) {
	list, err := a.People.Invites(r.PathValue("tenant"))
	a.showInvites(w, list, err)
}

// showInvites answers with a list of invitations.
func (a *API) showInvites(w http.ResponseWriter, list []people.OpenInvite, err error) {
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

func (a *API) serveWithdraw(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	list, err := a.invitesOf(who)
	if err != nil {
		a.failed(w, err)
		return
	}
	a.withdraw(w, r, list, who.Tenant, who.Subject)
}

func (a *API) serveOperatorWithdraw(w http.ResponseWriter, r *http.Request) {
	tenant := r.PathValue("tenant")
	list, err := a.People.Invites(tenant)
	if err != nil {
		a.failed(w, err)
		return
	}
	a.withdraw(w, r, list, tenant, "relay withdraw")
}

// withdraw ends the invitation of the list that the request names.
func (a *API) withdraw(w http.ResponseWriter, r *http.Request, list []people.OpenInvite, tenant, by string) {
	i := slices.IndexFunc(list, func(i people.OpenInvite) bool { return i.ID == r.PathValue("id") })
	if i < 0 {
		authn.WriteError(w, http.StatusNotFound, people.ErrNone)
		return
	}
	err := a.People.Withdraw(tenant, list[i].ID)
	switch {
	case errors.Is(err, people.ErrNone):
		authn.WriteError(w, http.StatusNotFound, err)
		return
	case err != nil:
		a.failed(w, err)
		return
	}
	a.Caller.Audit.Write(audit.Line{
		Event: "revoke", Tenant: tenant, Subject: by, Address: a.Caller.Address(r),
		Detail: "invitation of " + list[i].Person.Subject + ", " + list[i].Person.Access.Level(),
	})
	authn.WriteJSON(w, http.StatusOK, struct{}{})
}
