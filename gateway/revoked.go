package gateway

import (
	"errors"
	"path/filepath"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	operatorapi "ahprelay/gateway/api/operator"
)

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
	s.canvases.EndRevoked()
	s.agents.EndRevoked()
}

// endIfRevoked ends the connection if its token is revoked.
func (c *client) endIfRevoked() {
	if c.revoked(c.token.now()) {
		c.end(ahp.CloseTokenEnded, auth.ErrTokenRevoked.Error())
	}
}

// RevokeForNextStart revokes in a data directory that no relay uses now.
func RevokeForNextStart(dataDir string, ask operatorapi.RevokeRequest) (rev auth.Revocation, err error) {
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
	rev = ask.Revocation()
	return rev, revoked.Add(rev)
}
