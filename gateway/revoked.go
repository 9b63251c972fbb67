package gateway

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/registry"
)

// verifyClient checks a client token, and that it is not revoked.
func (s *Server) verifyClient(ctx context.Context, token string) (auth.Client, error) {
	who, err := auth.Issuers{Own: s.cfg.Keys, Others: s.cfg.Issuers}.Verify(ctx, token)
	if err == nil && s.isRevoked(who) {
		err = auth.ErrTokenRevoked
	}
	return who, err
}

// verifyHost checks an enrolment token or credential, and that it is not
// revoked.
func (s *Server) verifyHost(token string) (auth.Enrolment, error) {
	host, err := s.cfg.Keys.VerifyAgent(token)
	if err == nil && s.isEnrolmentRevoked(host) {
		err = auth.ErrTokenRevoked
	}
	return host, err
}

func (s *Server) isRevoked(who auth.Client) bool {
	return s.revoked.Revoked(who.IssuedAt, who.Keys()...)
}

func (s *Server) isEnrolmentRevoked(host auth.Enrolment) bool {
	return s.revoked.Revoked(host.IssuedAt, host.Keys()...)
}

// watchRevocations ends the connections of tokens that are revoked, until the
// server ends.
func (s *Server) watchRevocations() {
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.revoking:
			s.endRevoked()
		}
	}
}

// revokedNow has watchRevocations look.
func (s *Server) revokedNow() {
	select {
	case s.revoking <- struct{}{}:
	default:
	}
}

func (s *Server) endRevoked() {
	for _, c := range s.hosts.all() {
		c.endIfRevoked()
	}
	s.canvases.endRevoked()
	for sock, host := range s.agents.all() {
		if s.isEnrolmentRevoked(host) {
			s.spawn(func() { sock.close(ahp.CloseTokenEnded, auth.ErrTokenRevoked.Error()) })
		}
	}
}

// endIfRevoked ends the connection if its token is revoked.
func (c *client) endIfRevoked() {
	if c.revoked(c.whoNow()) {
		c.end(ahp.CloseTokenEnded, auth.ErrTokenRevoked.Error())
	}
}

// revocation returns what is asked for, as of now. Of another issuer's token
// it is not known until when the relay would take it: the rules may change.
func (s *Server) revocation(ctx context.Context, ask RevokeRequest) (auth.Revocation, error) {
	if ask.Whole != "" {
		who, err := auth.Issuers{Own: s.cfg.Keys, Others: s.cfg.Issuers}.Verify(ctx, ask.Whole)
		if err != nil {
			return auth.Revocation{}, err
		}
		ask = RevokeRequest{Token: who.ID}
	}
	return newRevocation(ask), nil
}

// newRevocation returns one as of now.
func newRevocation(ask RevokeRequest) auth.Revocation {
	return auth.Revocation{
		Token: ask.Token, Tenant: ask.Tenant, Subject: ask.Subject, Host: ask.Host, At: time.Now().UTC(), Until: ask.Expires,
	}
}

// RevokeForNextStart revokes in a data directory that no relay uses now.
func RevokeForNextStart(dataDir string, ask RevokeRequest) (rev auth.Revocation, err error) {
	dir, err := openDataDir(dataDir)
	if err != nil {
		return rev, err
	}
	defer func() { err = errors.Join(err, dir.close()) }()
	if !dir.locked {
		return rev, errors.New("on this system it cannot be known whether a relay runs; start it, and revoke then")
	}
	revoked, err := registry.LoadRevocations(filepath.Join(dataDir, revokedName), nil)
	if err != nil {
		return rev, err
	}
	if ask.Whole != "" {
		return rev, errors.New("only a running relay knows another issuer's token; start it, or name the token by its ID or its subject")
	}
	rev = newRevocation(ask)
	return rev, revoked.Add(rev)
}
