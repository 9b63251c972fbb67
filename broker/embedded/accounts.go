package embedded

import (
	"errors"
	"fmt"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// Resolve sets the function for claims of unknown accounts. It is called with the
// account's name (see [auth.Authority.TenantAccount]) when one of the account's users
// logs in, and must not block. Only the first call of Resolve has an effect.
func (s *Server) Resolve(others func(account string) (claim string, err error)) {
	s.accounts.once[0].Do(func() {
		s.accounts.others = others
		close(s.accounts.ready)
	})
}

// set loads an account's claim into the server, and returns the account's name.
func (s *Server) set(text string, err error) (name string, _ error) {
	claims, err := s.accounts.put(text, err)
	if err != nil {
		return "", err
	}
	account, known := s.account(claims.Subject) // a lookup would fail for an account dropped just now
	if !known {
		if account, err = s.build(claims.Subject); err != nil {
			return "", err
		}
		s.made.Store(claims.Subject, account)
	}
	s.nats.UpdateAccountClaims(account, claims)
	return claims.Subject, nil
}

// build returns an account, and creates it if necessary. It waits while a route creates
// the account without a claim: users of an account that never had a claim are refused,
// even after an update. The route's mark expires the account, and NATS requests a claim
// only once a second.
func (s *Server) build(public string) (*server.Account, error) {
	for began := time.Now(); ; {
		account, err := s.nats.LookupAccount(public)
		expired := errors.Is(err, server.ErrAccountExpired) && time.Since(began) < expiredWait
		if err != nil && !expired {
			return nil, fmt.Errorf("account: %w", err)
		}
		if !expired && isMade(s.nats, public) {
			return account, nil
		}
		select {
		case <-time.After(buildPoll):
		case <-s.accounts.over:
			return nil, fmt.Errorf("account: %w", server.ErrServerNotRunning)
		}
	}
}

// expiredWait is how long build waits for a new claim of an expired account.
const expiredWait = 3 * time.Second

func (s *Server) account(public string) (*server.Account, bool) {
	account, known := s.made.Load(public)
	if !known {
		return nil, false
	}
	return account.(*server.Account), true
}

// KeysChanged makes the server accept only users signed with the current keys, in the
// accounts without host-agents. For tenants' accounts, SetTenant must be called again.
func (s *Server) KeysChanged() error {
	var all []error
	for _, sign := range relaysOwn(s.keys) {
		if _, err := s.set(sign(auth.Embedded)); err != nil {
			all = append(all, fmt.Errorf("NATS server: %w", err))
		}
	}
	return errors.Join(all...)
}

// restartStreams closes the streams and reads them from disk again.
func (s *Server) restartStreams() error {
	account, err := s.nats.LookupAccount(s.keys.Authority().RelaysAccount())
	if err != nil {
		return err
	}
	_ = account.DisableJetStream()                                     // an error says that it is disabled
	_, err = s.set(s.keys.Authority().RelaysAccountJWT(auth.Embedded)) // enables it again
	return err
}

// SetTenant loads a tenant's account, and disconnects its revoked users. See
// [auth.Authority.TenantAccountJWT].
func (s *Server) SetTenant(tenant string, revoked map[string]time.Time) error {
	account, err := s.set(s.keys.Authority().TenantAccountJWT(auth.Embedded, tenant, revoked))
	if err != nil {
		return fmt.Errorf("tenant %s: %w", tenant, err)
	}
	s.tenants.Store(account, tenant)
	return nil
}

// DropTenant unloads a tenant's account. Existing connections stay; the next login
// requests the account again (Resolve).
func (s *Server) DropTenant(tenant string) error {
	public, err := s.keys.Authority().TenantAccount(tenant)
	if err != nil {
		return err
	}
	text, known := s.accounts.known.LoadAndDelete(public)
	account, made := s.account(public)
	if !made {
		return nil
	}
	if !known { // dropped before it was built
		if text, err = s.keys.Authority().TenantAccountJWT(auth.Embedded, tenant, nil); err != nil {
			return err
		}
	}
	claims, err := jwt.DecodeAccountClaims(text.(string))
	if err != nil {
		return fmt.Errorf("account: %w", err)
	}
	claims.Expires = 1 // expired, so the server requests the claim at the next login
	s.nats.UpdateAccountClaims(account, claims)
	return nil
}

// Listens reports whether a subject in a tenant's account has a subscriber.
func (s *Server) Listens(tenant, subject string) bool {
	public, err := s.keys.Authority().TenantAccount(tenant)
	if err != nil {
		return false
	}
	account, known := s.account(public)
	return known && account.SubscriptionInterest(subject)
}

// Connections returns the number of connections in a tenant's account at this server.
func (s *Server) Connections(tenant string) int {
	public, err := s.keys.Authority().TenantAccount(tenant)
	if err != nil {
		return 0
	}
	if account, known := s.account(public); known {
		return account.NumLocalConnections()
	}
	return 0
}
