package people

import (
	"ahprelay/gateway/audit"
	"context"
	"fmt"
	"time"
)

// grantsEvery is how exactly the audit says when a link was over.
const grantsEvery = time.Minute

// EndGrants writes down which links and invitations are over, until ctx ends: of several
// relays one does.
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

// ExpireGrants writes down which are over by now.
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
			Detail: "invitation, " + one.Person.Access.Level() + ", that nobody has used",
		})
	}
	if err == nil {
		err = e
	}
	if e := a.endRevoked(); err == nil {
		err = e
	}
	if err != nil { // again in a while
		a.Log.Debug("links that are over stay in the store", "error", err)
	}
}

// endRevoked removes from the store everything that was derived from a revoked grant, and writes down each link and
// invitation among it.
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
