package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/internal/signal"

	"github.com/nats-io/nats.go"
)

// Times of tenants' accounts.
const (
	// openTimeout bounds how long Subscribe waits until an account is open.
	openTimeout = 2 * time.Second

	// claimTimeout bounds how long external NATS servers may take to load an account.
	claimTimeout = 3 * time.Second

	// attachFlush bounds the wait for a NATS server to process subscriptions.
	attachFlush = time.Second
)

// claimSubject is the subject in the system account on which NATS servers receive
// accounts to load.
const claimSubject = "$SYS.REQ.CLAIMS.UPDATE"

// A TenantsConfig describes [Tenants].
type TenantsConfig struct {
	Relay  RelayDialConfig            // as for DialRelay, except Tenant and Events
	Events func(tenant string) Events // callbacks for a tenant's connection; default: none
	Log    *slog.Logger               // default: none
}

// Tenants manages a relay's connections to the NATS accounts of the tenants that it
// serves. Accounts are isolated: a message published in one account cannot be received
// in another.
//
// Tenants is a [link.Bus]. It finds the account for each subject, and Subscribe opens
// the account if necessary. It is safe for concurrent use.
type Tenants struct {
	// Set by StartTenants, then read-only.
	cfg    TenantsConfig
	claims *Conn // to the system account; nil with an embedded server
	life   context.Context
	cancel context.CancelFunc

	running sync.WaitGroup

	mu       sync.RWMutex // guards the fields below
	accounts map[string]*account
	servers  []*server
	demand   Demand
	closed   bool
}

// A Demand decides which accounts to open on demand. Its functions must not block.
type Demand struct {
	// Open opens a tenant's account, or returns why it cannot.
	Open func(tenant string) error

	// Find returns the tenant of an account, and the users that NATS must refuse. The
	// account's name comes from [auth.Authority.TenantAccount].
	Find func(account string) (tenant string, revoked map[string]time.Time, ok bool)
}

// An account is a tenant's NATS account that this relay has open: its connection, its revoked users,
// and the servers that serve it.
type account struct {
	tenant string
	ready  chan struct{} // closed when conn is set and all servers serve it
	conn   atomic.Pointer[Conn]
	wake   chan struct{} // wakes run
	cancel context.CancelFunc

	// Guarded by Tenants.mu.
	uses int       // callers of Use and Subscribe that keep the account open
	used time.Time // when the last use ended, or when Open was last called

	mu      sync.Mutex // guards the fields below
	revoked map[string]time.Time
	told    bool               // NATS has loaded the account with the current revoked users
	settled chan struct{}      // closed when told is true; replaced when told becomes false
	stops   map[*server]func() // stop functions, by server
}

// A server is a function that serves each account's connection (Serve).
type server struct {
	serve func(tenant string, c *Conn) (stop func(), err error)
}

// StartTenants returns Tenants without open accounts. With external NATS servers, it
// first connects to their system account, through which it loads accounts. Close ends
// all connections and goroutines.
func StartTenants(ctx context.Context, cfg TenantsConfig) (*Tenants, error) {
	if err := cfg.Relay.check(); err != nil {
		return nil, fmt.Errorf("tenants: %w", err)
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Events == nil {
		cfg.Events = func(string) Events { return Events{} }
	}
	t := &Tenants{cfg: cfg, accounts: map[string]*account{}}
	t.life, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if cfg.Relay.Server != nil {
		return t, nil
	}
	// NATS servers that were disconnected may have lost their accounts.
	system := cfg.Relay
	system.Events = Events{Reconnected: func(string) { t.KeysChanged() }}
	var err error
	if t.claims, err = startRelay(ctx, system, cfg.Relay.Keys.Authority().SystemUser); err == nil {
		err = t.claims.AwaitConnected(ctx)
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("tenants: %w", err)
	}
	return t, nil
}

// Serve calls serve with the connection of each account that is open now or opened
// later. Cancel prevents further calls, and calls the returned stop functions and waits
// for them.
func (t *Tenants) Serve(serve func(tenant string, c *Conn) (stop func(), err error)) (cancel func()) {
	s := &server{serve}
	t.mu.Lock()
	t.servers = append(t.servers, s)
	open := t.listLocked()
	t.mu.Unlock()
	for _, a := range open {
		if a.conn.Load() == nil || t.attach(a) != nil {
			signal.Send(a.wake)
		}
	}
	return func() {
		t.mu.Lock()
		t.servers = slices.DeleteFunc(t.servers, func(other *server) bool { return other == s })
		open := t.listLocked()
		t.mu.Unlock()
		var wg sync.WaitGroup
		for _, a := range open {
			if stop := a.takeStop(s); stop != nil {
				wg.Go(stop)
			}
		}
		wg.Wait()
	}
}

func (t *Tenants) listLocked() []*account { return slices.Collect(maps.Values(t.accounts)) }

// Open opens a tenant's account, and makes NATS refuse its revoked users (see
// [auth.Authority.TenantAccountJWT]). It returns at once; Await waits until it is
// done.
func (t *Tenants) Open(tenant string, revoked map[string]time.Time) error {
	if err := ahp.CheckName("tenant", tenant); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	t.mu.Lock()
	a := t.accounts[tenant]
	if a == nil && !t.closed {
		ctx, cancel := context.WithCancel(t.life)
		a = &account{
			tenant: tenant, cancel: cancel, revoked: revoked,
			ready: make(chan struct{}), settled: make(chan struct{}), wake: make(chan struct{}, 1), stops: map[*server]func(){},
		}
		t.accounts[tenant] = a
		t.running.Go(func() { t.run(ctx, a) })
	}
	if a != nil {
		a.used = time.Now()
	}
	t.mu.Unlock()
	if a != nil {
		a.want(revoked)
	}
	return nil
}

// Await returns when a tenant's account is open and NATS refuses its revoked users. It
// fails if Open was not called for the account, or if ctx ends.
func (t *Tenants) Await(ctx context.Context, tenant string) error {
	a := t.find(tenant)
	if a == nil {
		return fmt.Errorf("tenant %s: %w", tenant, errNotOpen)
	}
	a.mu.Lock()
	settled := a.settled
	a.mu.Unlock()
	for _, done := range []<-chan struct{}{settled, a.ready} {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("tenant %s: NATS does not confirm its account: %w", tenant, context.Cause(ctx))
		}
	}
	return nil
}

// OnDemand enables opening accounts on demand: for Use and Subscribe, and for logins at an
// embedded server. Call it once.
func (t *Tenants) OnDemand(d Demand) {
	t.mu.Lock()
	t.demand = d
	t.mu.Unlock()
	if t.cfg.Relay.Server != nil {
		t.cfg.Relay.Server.Resolve(t.resolve)
	}
}

// resolve opens the account of a user who logs in, and returns the account's claim.
func (t *Tenants) resolve(public string) (claim string, err error) {
	tenant, revoked, ok := t.demand.Find(public)
	if !ok {
		return "", errNotOpen
	}
	if err := t.Open(tenant, revoked); err != nil {
		return "", err
	}
	return t.cfg.Relay.Keys.Authority().TenantAccountJWT(auth.Embedded, tenant, revoked)
}

// Use opens a tenant's account if necessary, and keeps it open until release is
// called. It returns at once; Await waits until it is open.
func (t *Tenants) Use(tenant string) (release func(), err error) {
	a, err := t.use(tenant)
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { t.release(a) }), nil
}

func (t *Tenants) use(tenant string) (*account, error) {
	for range 2 {
		t.mu.Lock()
		a, open := t.accounts[tenant], t.demand.Open
		if a != nil {
			a.uses++
		}
		t.mu.Unlock()
		if a != nil {
			return a, nil
		}
		if open == nil {
			break
		}
		if err := open(tenant); err != nil {
			return nil, err
		}
	}
	return nil, errNotOpen
}

func (t *Tenants) release(a *account) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.uses--
	a.used = time.Now()
}

// Account returns the name of a tenant's NATS account.
func (t *Tenants) Account(tenant string) (string, error) {
	return t.cfg.Relay.Keys.Authority().TenantAccount(tenant)
}

// External reports whether the NATS servers are external.
func (t *Tenants) External() bool { return t.cfg.Relay.Server == nil }

// DropIdle closes a tenant's account and returns true. It returns false if the account
// is in use, was used after since, or has connections at the embedded server.
func (t *Tenants) DropIdle(tenant string, since time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.accounts[tenant]
	if a == nil {
		return true
	}
	if a.uses > 0 || a.used.After(since) {
		return false
	}
	if server := t.cfg.Relay.Server; server != nil {
		const own = 1
		if server.Connections(tenant) > own {
			return false
		}
		t.forget(tenant)
		if server.Connections(tenant) > own { // a user has connected in between
			t.unsettle(a)
			return false
		}
	}
	delete(t.accounts, tenant)
	a.cancel()
	return true
}

func (t *Tenants) forget(tenant string) {
	if err := t.cfg.Relay.Server.DropTenant(tenant); err != nil {
		t.cfg.Log.Error("tenant account not unloaded", "tenant", tenant, "error", err)
	}
}

// Stray reports whether the embedded server has connections in a tenant's account
// although the account is not open here.
func (t *Tenants) Stray(tenant string) bool {
	return t.cfg.Relay.Server != nil && t.find(tenant) == nil && t.cfg.Relay.Server.Connections(tenant) > 0
}

// Names returns the tenants with open accounts.
func (t *Tenants) Names() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.accounts))
}

// Close closes all accounts and waits for their goroutines.
func (t *Tenants) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.running.Wait()
	if t.claims != nil {
		t.claims.Close()
	}
}

// errNotOpen reports that a tenant's account is not open, and was not opened on demand.
var errNotOpen = errors.New("account is not open")

// Publish implements [link.Bus].
func (t *Tenants) Publish(subject string, data []byte) error {
	a := t.find(link.TenantOf(subject))
	if a == nil {
		return fmt.Errorf("publish on %s: %w", subject, errNotOpen)
	}
	c := a.conn.Load()
	if c == nil {
		return fmt.Errorf("publish on %s: %w", subject, nats.ErrDisconnected)
	}
	return c.Publish(subject, data)
}

// Together implements [link.Bus].
func (t *Tenants) Together(subject string, publish func()) {
	if a := t.find(link.TenantOf(subject)); a != nil {
		if c := a.conn.Load(); c != nil {
			c.Together(subject, publish)
			return
		}
	}
	publish()
}

// Subscribe implements [link.Bus]. It opens the account if necessary, waits briefly
// for it, and keeps it open until cancel.
func (t *Tenants) Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error) {
	a, err := t.use(link.TenantOf(subject))
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	var end func()
	err = nats.ErrDisconnected
	select {
	case <-a.ready:
		if c := a.conn.Load(); c != nil {
			end, err = c.Subscribe(subject, into)
		}
	case <-time.After(openTimeout):
	case <-t.life.Done():
	}
	if err != nil {
		t.release(a)
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return sync.OnceFunc(func() { end(); t.release(a) }), nil
}

func (t *Tenants) find(tenant string) *account {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.accounts[tenant]
}

// KeysChanged loads all accounts again, so that NATS accepts only users signed with the
// current keys.
func (t *Tenants) KeysChanged() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, a := range t.accounts {
		t.unsettle(a)
	}
}

// unsettle marks an account to be loaded again.
func (t *Tenants) unsettle(a *account) {
	a.mu.Lock()
	a.unsettleLocked()
	a.mu.Unlock()
	signal.Send(a.wake)
}

// run keeps one account open and served until ctx ends.
func (t *Tenants) run(ctx context.Context, a *account) {
	defer t.end(a)
	for failures := 0; ; {
		err := t.settle(ctx, a)
		var again <-chan time.Time
		if err != nil && ctx.Err() == nil {
			failures++
			again = time.After(RetryDelay(failures))
			t.cfg.Log.Warn("tenant account not ready", "tenant", a.tenant, "error", err)
		} else {
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-again:
		case <-a.ended():
			t.cfg.Log.Error("NATS connection ended", "tenant", a.tenant)
			a.conn.Load().Close()
			a.stopServing()
			a.conn.Store(nil)
		}
	}
}

// settle loads the account into NATS, connects to it, and serves it, as far as
// necessary.
func (t *Tenants) settle(ctx context.Context, a *account) error {
	if err := t.tell(ctx, a); err != nil {
		return err
	}
	if a.conn.Load() == nil {
		if err := t.connect(ctx, a); err != nil {
			return err
		}
	}
	if err := t.attach(a); err != nil {
		return err
	}
	select {
	case <-a.ready: // a new connection replaces an ended connection
	default:
		close(a.ready)
	}
	return nil
}

// attach starts the servers that do not serve an account yet.
func (t *Tenants) attach(a *account) error {
	c, err := t.attachQuietly(a)
	if err == nil && c != nil && c.Connected() {
		_ = c.nc.FlushTimeout(attachFlush) // so that subscriptions are active on return
	}
	return err
}

// attachQuietly is attach without a flush. It returns the connection if it started a
// server.
func (t *Tenants) attachQuietly(a *account) (*Conn, error) {
	t.mu.RLock() // until stops are set, because Serve's cancel reads them
	defer t.mu.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.conn.Load()
	if c == nil {
		return nil, nil
	}
	var news *Conn
	for _, s := range t.servers {
		if a.stops[s] != nil {
			continue
		}
		stop, err := s.serve(a.tenant, c)
		if err != nil {
			return nil, err
		}
		a.stops[s], news = stop, c
	}
	return news, nil
}

// tell loads the account into NATS unless NATS already has its current state.
func (t *Tenants) tell(ctx context.Context, a *account) error {
	a.mu.Lock()
	told, revoked := a.told, a.revoked
	a.mu.Unlock()
	if told {
		return nil
	}
	var err error
	if t.cfg.Relay.Server != nil {
		err = t.setTenant(a, revoked)
	} else {
		err = t.claim(ctx, a.tenant, revoked)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if maps.Equal(revoked, a.revoked) {
		a.told = true
		close(a.settled)
	} else {
		signal.Send(a.wake)
	}
	return nil
}

// setTenant loads an account into the embedded server. If the account was dropped
// meanwhile, setTenant unloads it again: users could otherwise log in to an account that
// no relay serves.
func (t *Tenants) setTenant(a *account, revoked map[string]time.Time) error {
	err := t.cfg.Relay.Server.SetTenant(a.tenant, revoked)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch other := t.accounts[a.tenant]; other {
	case a:
		return err
	case nil:
		t.forget(a.tenant)
	default: // opened again, perhaps with different revoked users
		t.unsettle(other)
	}
	return errNotOpen
}

// claim loads an account into external NATS servers.
func (t *Tenants) claim(ctx context.Context, tenant string, revoked map[string]time.Time) error {
	accountJWT, err := t.cfg.Relay.Keys.Authority().TenantAccountJWT(auth.External, tenant, revoked)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	reply, err := t.claims.Request(ctx, claimSubject, []byte(accountJWT))
	if errors.Is(err, nats.ErrNoResponders) {
		return errors.New("the NATS servers accept no accounts: their resolver must be of type full, as in the relay's trust configuration")
	}
	if err != nil {
		return fmt.Errorf("load account into NATS: %w", err)
	}
	var answer struct {
		Data  struct{ Code int }
		Error *struct{ Description string }
	}
	switch err := json.Unmarshal(reply, &answer); {
	case err != nil:
		return fmt.Errorf("load account into NATS: %w", err)
	case answer.Error != nil:
		return fmt.Errorf("load account into NATS: %s", answer.Error.Description)
	}
	return nil
}

func (t *Tenants) connect(ctx context.Context, a *account) error {
	cfg := t.cfg.Relay
	cfg.Tenant, cfg.Events = a.tenant, t.cfg.Events(a.tenant)
	c, err := startRelay(ctx, cfg, func() (*auth.User, error) { return cfg.Keys.Authority().RelayUser(a.tenant) })
	if err != nil {
		return err
	}
	a.conn.Store(c)
	return nil
}

func (t *Tenants) end(a *account) {
	a.stopServing()
	if c := a.conn.Load(); c != nil {
		c.Close()
	}
}

func (a *account) want(revoked map[string]time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !maps.Equal(revoked, a.revoked) {
		a.revoked = revoked
		a.unsettleLocked()
		signal.Send(a.wake)
	}
}

func (a *account) unsettleLocked() {
	if a.told {
		a.told, a.settled = false, make(chan struct{})
	}
}

// takeStop removes and returns the function that stops s; nil if there is none.
func (a *account) takeStop(s *server) func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	stop := a.stops[s]
	delete(a.stops, s)
	return stop
}

func (a *account) stopServing() {
	a.mu.Lock()
	stops := slices.Collect(maps.Values(a.stops))
	clear(a.stops)
	a.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// ended returns a channel that is closed when the account's connection has ended
// finally.
func (a *account) ended() <-chan struct{} {
	if c := a.conn.Load(); c != nil {
		return c.Done()
	}
	return nil
}
