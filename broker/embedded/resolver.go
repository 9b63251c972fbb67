package embedded

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// A resolver returns account claims to the NATS server: stored claims, and others on demand. It is
// no MemAccResolver, because the server assumes that a MemAccResolver has all accounts from the
// start. For accounts added later, the server would then ignore the subscriptions that other
// servers report.
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

	// buildPoll is the interval at which a waiting caller checks whether the account is
	// built.
	buildPoll = time.Millisecond
)

var errNoAccount = errors.New("unknown account")

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
// account has already. But the account may have expired: while the server builds an
// account, a route that reports a subscription in the account may mark it as expired.
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
	select {
	case <-r.ready:
		return r.others(account)
	case <-time.After(r.wait):
	case <-r.over:
	}
	return "", errNoAccount
}

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
