package gateway

import (
	"fmt"
	"time"

	"ahprelay/gateway/audit"
)

// grantsEvery is how exactly the audit says when a link was over.
const grantsEvery = time.Minute

// endGrants writes down which links and invitations are over, until the server ends: of several
// relays one does.
func (s *Server) endGrants() {
	if s.cfg.People == nil {
		return
	}
	tick := time.NewTicker(grantsEvery)
	defer tick.Stop()
	for {
		s.expireGrants()
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Server) expireGrants() {
	shares, err := s.cfg.People.EndShares()
	for _, one := range shares {
		s.audit.Write(audit.Line{
			Event: "expire", Tenant: one.Tenant, Subject: one.By, Host: one.Host, Token: one.ID,
			Detail: fmt.Sprintf("link to %s, %s, for %s", one.Session, one.Access.Level(), one.Subject),
		})
	}
	invites, e := s.cfg.People.EndInvites()
	for _, one := range invites {
		s.audit.Write(audit.Line{
			Event: "expire", Tenant: one.Person.Tenant, Subject: one.Person.Subject, Token: one.By,
			Detail: "invitation, " + one.Person.Access.Level() + ", that nobody has used",
		})
	}
	if err == nil {
		err = e
	}
	if err != nil { // again in a while
		s.cfg.Log.Debug("links that are over stay in the store", "error", err)
	}
}
