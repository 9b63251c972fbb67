package people

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"ahprelay/auth/people"
	"ahprelay/gateway/audit"
	"ahprelay/internal/clock"
)

// grantsEvery is how often expired grants are deleted. Audit lines about them can be late
// by as much.
const grantsEvery = time.Minute

// EndGrants calls ExpireGrants every grantsEvery until ctx ends. Of several relays, the
// one that deletes a grant records it.
func (a *API) EndGrants(ctx context.Context) {
	if a.People == nil {
		return
	}
	a.ExpireGrants()
	for clock.Sleep(ctx, grantsEvery) {
		a.ExpireGrants()
	}
}

// ExpireGrants deletes expired links and invitations, and everything derived from a
// revoked grant. It writes an audit line for each deleted link and each unused
// invitation.
func (a *API) ExpireGrants() {
	shares, sharesErr := a.People.EndShares()
	for _, one := range shares {
		a.shareEnded("expire", one, fmt.Sprintf("link to %s, %s, for %s", one.Session, one.Access.Level(), one.Subject))
	}
	invites, invitesErr := a.People.EndInvites()
	for _, one := range invites {
		a.inviteEnded("expire", one, ", unused")
	}
	shares, invites, revokedErr := a.People.EndRevoked()
	for _, one := range shares {
		a.shareEnded("revoke", one, fmt.Sprintf("link to %s, for %s: the grant that made it is revoked", one.Session, one.Subject))
	}
	for _, one := range invites {
		a.inviteEnded("revoke", one, ": the grant that made it is revoked")
	}
	if err := cmp.Or(sharesErr, invitesErr, revokedErr); err != nil { // the next round tries again
		a.Log.Debug("expired grants not deleted", "error", err)
	}
}

func (a *API) shareEnded(event string, one people.Share, detail string) {
	a.Caller.Audit.Write(audit.Line{Event: event, Tenant: one.Tenant, Subject: one.By, Host: one.Host, Token: one.ID, Detail: detail})
}

func (a *API) inviteEnded(event string, one people.Invite, why string) {
	a.Caller.Audit.Write(audit.Line{
		Event: event, Tenant: one.Person.Tenant, Subject: one.Person.Subject, Token: one.By,
		Detail: "invitation, " + one.Person.Access.Level() + why,
	})
}
