package embedded

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// A resolver returns account claims to the NATS server: stored claims, and others on demand. It is
// no MemAccResolver, because the server assumes that a MemAccResolver has all accounts from the
// start. For accounts added later, it would then ignore the subscriptions that other servers
// report.
type resolver struct {
	server.MemAccResolver // for the remaining methods

	wait  time.Duration
	ready chan struct{} // closed when others is set
	over  chan struct{} // closed when the server ends
	once  [2]sync.Once

	known  sync.Map // account claims as JWT, by account
	others func(account string) (claim string, err error)

	server   atomic.Pointer[server.Server] // nil until the server is made
	mu       sync.Mutex                    // guards building
	building map[string]time.Time          // when the first fetch began, by account
}

// Times for a first fetch.
const (
	// buildTimeout is how long the server may take to build an account from its claim.
	buildTimeout = 2 * time.Second

	// buildPoll is the interval at which a waiting login checks whether the account is
	// built.
	buildPoll = time.Millisecond
)

func newResolver(wait time.Duration) *resolver {
	return &resolver{wait: wait, ready: make(chan struct{}), over: make(chan struct{}), building: map[string]time.Time{}}
}

// errNoAccount reports an account whose tenant is unknown.
var errNoAccount = errors.New("unknown account")

// Fetch implements [server.AccountResolver].
func (r *resolver) Fetch(account string) (claim string, err error) {
	claim, err = r.find(account)
	if err == nil && r.awaitOther(account) {
		claim, err = r.find(account) // the claim may have changed during the wait
	}
	if err != nil {
		return "", err
	}
	return claim, r.renew(account, claim)
}

// renew makes an expired account valid. The server itself would ignore a claim which the
// account has already. But such an account may have expired: while the server builds an
// account, a route that reports a subscription in it may mark it as expired.
func (r *resolver) renew(account, claim string) error {
	ns := r.server.Load()
	if ns == nil || !isMade(ns, account) {
		return nil
	}
	made, _ := ns.LookupOrRegisterAccount(account) // does not call Fetch
	if !made.IsExpired() {
		return nil
	}
	claims, err := jwt.DecodeAccountClaims(claim)
	if err != nil {
		return fmt.Errorf("account: %w", err)
	}
	ns.UpdateAccountClaims(made, claims)
	return nil
}

// awaitOther lets only one login at a time fetch an account which the server does not
// have yet. Otherwise a second, concurrent login would get the account while the server
// still builds it. At that time the account has no revocations yet, so a revoked user
// could log in. awaitOther reports whether the caller had to wait.
func (r *resolver) awaitOther(account string) (waited bool) {
	ns := r.server.Load()
	if ns == nil {
		return false // no logins while the server starts
	}
	for ; ; waited = true {
		made := isMade(ns, account)
		r.mu.Lock()
		since, other := r.building[account]
		first := !made && (!other || time.Since(since) > buildTimeout)
		switch {
		case made:
			delete(r.building, account)
		case first:
			r.building[account] = time.Now()
		}
		r.mu.Unlock()
		if made || first {
			return waited
		}
		select {
		case <-time.After(buildPoll):
		case <-r.over:
			return waited
		}
	}
}

// isMade reports whether the server has an account with a claim. Unlike LookupAccount, it
// does not fetch the account.
func isMade(ns *server.Server, account string) bool {
	info, err := ns.Accountz(&server.AccountzOptions{Account: account})
	return err == nil && info.Account.IssuerKey != ""
}

// find returns an account's claim. For an unknown account it calls others.
func (r *resolver) find(account string) (string, error) {
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

// end makes all waiting callers return.
func (r *resolver) end() { r.once[1].Do(func() { close(r.over) }) }

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
// the account without a claim: users of an account that never had one are refused, even
// after an update.
func (s *Server) build(public string) (*server.Account, error) {
	for {
		account, err := s.nats.LookupAccount(public)
		if err != nil {
			return nil, fmt.Errorf("account: %w", err)
		}
		if isMade(s.nats, public) {
			return account, nil
		}
		time.Sleep(buildPoll)
	}
}

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
