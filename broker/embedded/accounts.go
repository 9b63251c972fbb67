package embedded

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// A resolver tells the server what accounts are: those that were set, and others when
// somebody asks for them. It is a type of its own because the server takes a
// MemAccResolver to know all that there will ever be: what it hears from other servers
// of the interest of accounts that come later it forgets, and is not told again.
type resolver struct {
	server.MemAccResolver // for what a resolver has to have

	wait  time.Duration
	ready chan struct{} // closed when others may be asked for
	over  chan struct{} // closed when the server ends
	once  [2]sync.Once

	known  sync.Map // claims by account
	others func(account string) (claim string, err error)
}

func newResolver(wait time.Duration) *resolver {
	return &resolver{wait: wait, ready: make(chan struct{}), over: make(chan struct{})}
}

// errNoAccount reports an account of no tenant that is known.
var errNoAccount = errors.New("no such account")

// Fetch implements [server.AccountResolver].
func (r *resolver) Fetch(account string) (string, error) {
	if text, ok := r.known.Load(account); ok {
		return text.(string), nil
	}
	select {
	case <-r.ready:
		return r.others(account)
	default:
	}
	timeout := time.NewTimer(r.wait)
	defer timeout.Stop()
	select {
	case <-r.ready:
		return r.others(account)
	case <-timeout.C:
	case <-r.over:
	}
	return "", errNoAccount
}

// Store implements [server.AccountResolver].
func (r *resolver) Store(account, text string) error {
	r.known.Store(account, text)
	return nil
}

// end has nobody wait any more.
func (r *resolver) end() { r.once[1].Do(func() { close(r.over) }) }

// put has an account known as a claim says.
func (r *resolver) put(text string, err error) (*jwt.AccountClaims, error) {
	if err != nil {
		return nil, err
	}
	claims, err := jwt.DecodeAccountClaims(text)
	if err == nil {
		err = r.Store(claims.Subject, text)
	}
	if err != nil {
		return nil, fmt.Errorf("account: %w", err)
	}
	return claims, nil
}

// Resolve has the server ask for accounts that were not set, or not since DropTenant,
// when a user of one comes, by the name that [auth.Keys.TenantAccount] gives it. What is
// asked must not wait for anybody. Only the first call counts.
func (s *Server) Resolve(others func(account string) (claim string, err error)) {
	s.accounts.once[0].Do(func() {
		s.accounts.others = others
		close(s.accounts.ready)
	})
}

// set has the server go by the claim of an account, whose name it returns.
func (s *Server) set(text string, err error) (name string, _ error) {
	claims, err := s.accounts.put(text, err)
	if err != nil {
		return "", err
	}
	account, known := s.account(claims.Subject) // one that was dropped a moment ago cannot be looked up
	if !known {
		if account, err = s.nats.LookupAccount(claims.Subject); err != nil { // makes it if it is new
			return "", fmt.Errorf("account: %w", err)
		}
		s.made.Store(claims.Subject, account)
	}
	s.nats.UpdateAccountClaims(account, claims)
	return claims.Subject, nil
}

// account returns an account that was set once.
func (s *Server) account(public string) (*server.Account, bool) {
	account, known := s.made.Load(public)
	if !known {
		return nil, false
	}
	return account.(*server.Account), true
}

// KeysChanged has the server accept users whom the keys of now have signed, and end the
// connections of others, in the accounts that no host-agent can be in. Those of tenants
// are set again one by one.
func (s *Server) KeysChanged() error {
	var all []error
	for _, sign := range relaysOwn(s.keys) {
		if _, err := s.set(sign(auth.Embedded)); err != nil {
			all = append(all, fmt.Errorf("NATS server: %w", err))
		}
	}
	return errors.Join(all...)
}

// SetTenant has the server accept users of a tenant's account, except those
// that are revoked, whose connections end. See [auth.Keys.TenantAccountJWT].
func (s *Server) SetTenant(tenant string, revoked map[string]time.Time) error {
	account, err := s.set(s.keys.TenantAccountJWT(auth.Embedded, tenant, revoked))
	if err != nil {
		return fmt.Errorf("tenant %s: %w", tenant, err)
	}
	s.tenants.Store(account, tenant)
	return nil
}

// DropTenant has the server forget what it was told of a tenant's account. Connections
// that are there stay; the next user that comes has it asked for again (Resolve).
func (s *Server) DropTenant(tenant string) error {
	public, err := s.keys.TenantAccount(tenant)
	if err != nil {
		return err
	}
	text, known := s.accounts.known.LoadAndDelete(public)
	account, made := s.account(public)
	if !made {
		return nil
	}
	if !known { // it was dropped while it was being set, when it was known and not made yet
		if text, err = s.keys.TenantAccountJWT(auth.Embedded, tenant, nil); err != nil {
			return err
		}
	}
	claims, err := jwt.DecodeAccountClaims(text.(string))
	if err != nil {
		return fmt.Errorf("account: %w", err)
	}
	claims.Expires = 1 // long ago: the server asks before it takes another user
	s.nats.UpdateAccountClaims(account, claims)
	return nil
}

// Connections returns how many there are in a tenant's account at this server.
func (s *Server) Connections(tenant string) int {
	public, err := s.keys.TenantAccount(tenant)
	if err != nil {
		return 0
	}
	if account, known := s.account(public); known {
		return account.NumLocalConnections()
	}
	return 0
}
