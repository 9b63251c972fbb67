package gateway

import (
	"errors"
	"path/filepath"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	operatorapi "ahprelay/gateway/api/operator"
	"ahprelay/gateway/wire"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/signal"
)

// watchRevocations closes the connections of revoked tokens, until the server ends.
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

// revokedNow makes watchRevocations check all connections.
func (s *Server) revokedNow() { signal.Send(s.revoking) }

func (s *Server) endRevoked() {
	for _, c := range s.hosts.all() {
		c.endIfRevoked()
	}
	s.canvases.EndRevoked()
	s.agents.EndRevoked()
}

// endIfRevoked closes the connection if its token is revoked.
func (c *client) endIfRevoked() {
	if c.revoked(c.token.now()) {
		if r := wire.ResumableOf(c.sock.Conn.Conn); r != nil && r.Away() {
			r.Discard() // a revoked client must not resume
		}
		c.end(ahp.CloseTokenEnded, auth.ErrTokenRevoked.Error())
	}
}

// RevokeForNextStart adds a revocation to the data directory of a relay that is not
// running. With an error, the revocation is stored if it is not empty.
func RevokeForNextStart(dataDir string, ask operatorapi.RevokeRequest) (rev auth.Revocation, err error) {
	dir, err := openDataDir(dataDir)
	if err != nil {
		return rev, err
	}
	defer func() { err = errors.Join(err, dir.close()) }()
	if !dir.locked {
		return rev, errors.New("this system has no file locks, so a relay may be running; start the relay, then revoke")
	}
	path := filepath.Join(dataDir, revokedName)
	revoked, err := registry.LoadRevocations(path, nil)
	if err != nil {
		return rev, err
	}
	if ask.Whole != "" {
		return rev, errors.New("only a running relay can read an external issuer's token; start it, or revoke by token ID or subject")
	}
	rev = ask.Revocation()
	if err := revoked.Add(rev); err != nil {
		return auth.Revocation{}, err
	}
	return rev, atomicfile.KeepOwner(dataDir, path)
}
