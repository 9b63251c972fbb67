package people

import (
	"ahprelay/gateway/audit"
	"context"
	"fmt"
	"time"
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
	tick := time.NewTicker(grantsEvery)
	defer tick.Stop()
	for {
		a.ExpireGrants()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ExpireGrants deletes expired links and invitations, and everything derived from a
// revoked grant. It writes an audit line for each deleted link and each unused
// invitation.
func (a *API) ExpireGrants() {
	shares, err := a.People.EndShares()
	for _, one := range shares {
		a.Caller.Audit.Write(audit.Line{
			Event: "expire", Tenant: one.Tenant, Subject: one.By, Host: one.Host, Token: one.ID,
			Detail: fmt.Sprintf("link to %s, %s, for %s", one.Session, one.Access.Level(), one.Subject),
		})
	}
	invites, e := a.People.EndInvites()
	for _, one := range invites {
		a.Caller.Audit.Write(audit.Line{
			Event: "expire", Tenant: one.Person.Tenant, Subject: one.Person.Subject, Token: one.By,
			Detail: "invitation, " + one.Person.Access.Level() + ", unused",
		})
	}
	if err == nil {
		err = e
	}
	if e := a.endRevoked(); err == nil {
		err = e
	}
	if err != nil { // the next round tries again
		a.Log.Debug("expired grants not deleted", "error", err)
	}
}

// endRevoked deletes everything derived from a revoked grant, and writes an audit line
// for each deleted link and invitation.
func (a *API) endRevoked() error {
	shares, invites, err := a.People.EndRevoked()
	for _, one := range shares {
		a.Caller.Audit.Write(audit.Line{
			Event: "revoke", Tenant: one.Tenant, Subject: one.By, Host: one.Host, Token: one.ID,
			Detail: fmt.Sprintf("link to %s, for %s: the grant that made it is revoked", one.Session, one.Subject),
		})
	}
	for _, one := range invites {
		a.Caller.Audit.Write(audit.Line{
			Event: "revoke", Tenant: one.Person.Tenant, Subject: one.Person.Subject, Token: one.By,
			Detail: "invitation, " + one.Person.Access.Level() + ": the grant that made it is revoked",
		})
	}
	return err
}
