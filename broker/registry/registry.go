package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"

	"github.com/nats-io/nats.go"
)

// Times of leases.
const (
	// DefaultLeaseTTL is how long a lease outlives its last renewal: the resume
	// window.
	DefaultLeaseTTL = 15 * time.Second

	// sweepShare is the share of the lease time that leases are looked at in:
	// 1 s at the most.
	sweepShare = 5
)

// joinTimeout is how long Start waits for the store of a cluster, which may have
// to wait for other relays.
const joinTimeout = 3 * time.Second

// soloTimeout is the same where the store needs nobody else.
const soloTimeout = 15 * time.Second

// Config says how to run a [Registry].
type Config struct {
	Conn     *broker.Conn    // required; a relay's, in the account of relays
	Tenants  *broker.Tenants // required; the registry opens and closes their accounts
	Instance string          // of this relay; default: random
	Version  string          // of this relay, for messages about wire versions
	LeaseTTL time.Duration   // the same at all relays; default DefaultLeaseTTL
	File     string          // keeps what is known, for while the store is away and for another one; default: nothing is kept
	Log      *slog.Logger    // default: none

	// Revocations are told to other relays, and hear of theirs.
	// Default: some that are not kept.
	Revocations *Revocations

	// URL is the base URL at which clients reach this relay and no other. Default: none
	// is known.
	URL string

	// Keys returns which sets of keys this relay has. Default: that is not said.
	Keys func() []string

	// Cluster: this relay's NATS server is one of several that have the store
	// together, and may have to wait for the others.
	Cluster bool

	// Region is the cluster of NATS servers that this relay is at, where it is one of
	// several that gateways join: it has a store of its own. Default: there is one.
	Region string

	// Revive has the store begin anew that this relay's own server has, after it could
	// not be written for a while; in a cluster only if that server's part of it has
	// stopped, as is asked again and again. Default: nothing can.
	Revive func() error

	// Neighbours tells of the other servers of a cluster, so that a relay that has
	// crashed can be told from one that is silent. Default: they cannot.
	Neighbours Neighbours

	// ForgetAfter is how long a host may not be seen until it is forgotten. Default:
	// for ever.
	ForgetAfter time.Duration

	// Former are instances that ended without Close, and cannot be running any
	// more: their successor has their data directory.
	Former []string
}

// A Host is what a relay knows of a host.
type Host struct {
	Tenant, Name  string
	State         State
	Since         time.Time // when it came into State
	Silent        time.Time // online: since when the AHP host has not answered, though it is there; zero: it does
	Reason        string    // for people: why it is not online
	LastSeen      time.Time // when its host-agent was last heard; zero: never
	Enrolled      time.Time // when it first got credentials
	Region        string    // that decides who serves it; empty: there is one only
	AgentInstance string    // of the host-agent that serves it; empty: none does
	URL           string    // base URL of the relay where the host-agent is connected, if that has said it
	Fence         uint64    // number of the last lease: higher for each instance that has served the host; 0: none ever did
	Released      string    // the instance that served it last, if that is known to have ended; it gave the host up
	AgentVersion  string    // of the host-agent, or of the last one
	HostVersion   string    // of the AHP host, if known
	Clients       int       // connected to the AHP host, through all relays
}

// A Registry is a relay's view of all hosts, and its hand in it: it answers the
// lease requests of the host-agents that are connected where it is. It has all that
// the store has in memory, so that reading costs nothing and goes on while the store
// is away. It is safe for concurrent use.
type Registry struct {
	// Set by Start, then read-only.
	cfg       Config
	started   time.Time
	beatEvery time.Duration // of sessions
	patience  int           // beats that are missed in the time of a lease
	leases    *leaseServer
	told      chan *nats.Msg // revocations of other relays
	wake      chan struct{}  // for run: there are changes to tell; holds one
	write     chan struct{}  // for flush: there is something to write; holds one
	opened    chan struct{}  // for beats: the store was found; holds one
	ready     chan struct{}  // closed when all was taken that the store had
	revoke    chan struct{}  // for seeToRevoked: something was revoked; holds one
	file      *stateFile
	life      context.Context // until Close
	cancel    context.CancelFunc
	running   sync.WaitGroup
	stop      []func()  // of the lease server; owned by Start and Close
	keep      sync.Once // for Close

	missing map[string]int // how often the copies of servers were found to be away in a row; owned by beats

	clock  relayClock        // owned by run
	closed []string          // tenants whose account was closed the last time; like clock
	routed map[string]string // addresses of servers that are or were connected, by name; like clock
	probed chan string       // instances that have proved to be gone

	accounts    accountIndex
	mu          sync.RWMutex // guards the fields below
	hosts       map[string]*knownHost
	tenants     map[string]*tenant
	forgotten   []string                               // tenants that have no host any more
	tokens      map[auth.RevocationKey]map[string]bool // hosts by what a revocation of their users may be about
	kept        keptLeases                             // that this relay keeps
	lines       map[string]map[*Line]bool              // of host-agents, by the key of the host
	dirty       map[string]bool                        // hosts of which something is to be written
	changed     map[string]bool                        // hosts of which subscribers may have to be told
	subscribers []*subscriber
	peers       map[string]*peer     // relays, by instance
	gone        map[string]time.Time // relay instances that have crashed; since when this is known
	beaten      time.Time            // when this relay's session was last heard of from the store
	wrote       time.Time            // when it was last written
	view                             // of this region, or of all hosts if there is one only
	regions     map[string]*view     // of others, by name
	surplus     map[string]surplus   // by the key of the host
	status      storeStatus
	dropped     uint64 // requests that were not read because their host sends too many
	refused     uint64 // requests that were refused or put off because there were too many
	writes      uint64 // into the store
}

// A relayClock is what a relay does in time.
type relayClock struct {
	turned, tidied time.Time
	others         string    // relays that were there when it was tidied, where NATS servers are somebody else's
	listening      time.Time // since when nothing that was said can have been missed, as far as known
}

type subscriber struct{ tell func(Host) }

// Start reads what was kept, takes what the store has and starts to answer
// host-agents. It returns when the view is as complete as it can be: where the store
// waits for other relays, it goes on with what it has kept. Close ends it.
func Start(ctx context.Context, cfg Config) (*Registry, error) {
	switch {
	case cfg.Conn == nil:
		return nil, errors.New("registry: no Conn given")
	case cfg.Tenants == nil:
		return nil, errors.New("registry: no Tenants given")
	}
	cfg.LeaseTTL = cmp.Or(cfg.LeaseTTL, DefaultLeaseTTL)
	cfg.Instance = cmp.Or(cfg.Instance, link.NewInstance())
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Keys == nil {
		cfg.Keys = func() []string { return nil }
	}
	if cfg.Region != "" {
		if err := ahp.CheckName("region", cfg.Region); err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
	}
	if cfg.Revocations == nil {
		cfg.Revocations, _ = LoadRevocations("", nil) // nothing is read
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Registry{
		cfg: cfg, started: time.Now(), life: life, cancel: cancel, beatEvery: min(beatEvery, cfg.LeaseTTL/sweepShare),
		told: make(chan *nats.Msg, toldRoom), wake: make(chan struct{}, 1), write: make(chan struct{}, 1), revoke: make(chan struct{}, 1),
		opened: make(chan struct{}, 1), ready: make(chan struct{}), file: newStateFile(cfg.File, cfg.Log),
		hosts: map[string]*knownHost{}, tenants: map[string]*tenant{}, tokens: map[auth.RevocationKey]map[string]bool{},
		dirty: map[string]bool{}, changed: map[string]bool{}, lines: map[string]map[*Line]bool{},
		routed: map[string]string{}, probed: make(chan string),
		peers: map[string]*peer{}, gone: map[string]time.Time{},
		view: view{name: cfg.Region, storeErr: errNotReached}, regions: map[string]*view{}, surplus: map[string]surplus{},
	}
	r.patience = patience(cfg.LeaseTTL, r.beatEvery)
	r.accounts = accountIndex{of: cfg.Tenants.Account, tenants: map[string]string{}, known: map[string]bool{}}
	r.leases = newLeaseServer(r)
	if err := r.begin(ctx, life); err != nil {
		r.Close()
		return nil, fmt.Errorf("registry: %w", err)
	}
	return r, nil
}

func (r *Registry) begin(ctx, life context.Context) error {
	if err := r.load(); err != nil {
		return err
	}
	r.clock.tidied = time.Now()
	r.cfg.Tenants.OnDemand(r.demand())
	var err error
	if r.store, err = r.storeOf(r.cfg.Region); err != nil {
		return err
	}
	deaf := r.cfg.Revocations.Subscribe(func() { wakeUp(r.revoke); wakeUp(r.write) })
	unsubscribe, err := r.cfg.Conn.Subscribe(revokedSubject, r.told)
	if err != nil {
		deaf()
		return err
	}
	r.stop = append(r.stop, unsubscribe, deaf)
	r.cfg.Revocations.announce(r.tellRevoked)
	r.running.Go(func() { r.follow(life, &r.view) })
	r.running.Go(func() { r.beats(life) })
	r.running.Go(func() { r.store.copies(r.first, r.servers()).Keep(life) })
	if err := r.followRegions(); err != nil {
		return err
	}
	if err := r.awaitStore(ctx); err != nil {
		return err
	}
	r.tellChanges() // to nobody: what is known from the start is no change
	r.running.Go(func() { r.run(life) })
	r.running.Go(func() { r.flush(life) })
	r.running.Go(func() { r.seeToRevoked(life) })
	r.running.Go(func() { r.file.run(life, func() any { return r.snapshot() }) })
	r.running.Go(func() { r.cfg.Revocations.run(life) })
	stop, err := r.leases.serveRelays(r.cfg.Conn)
	if err != nil {
		return err
	}
	r.stop = append(r.stop, stop, r.cfg.Tenants.Serve(r.leases.serveTenant))
	return nil
}

// awaitStore returns when what the store has was taken, or when that takes long and
// may be because of others.
func (r *Registry) awaitStore(ctx context.Context) error {
	limit := soloTimeout
	if r.cfg.Cluster {
		limit = joinTimeout
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.cfg.Conn.Done():
		return errors.New("the connection to NATS is closed")
	case <-timeout.C:
	}
	err := r.storeAway()
	if !r.cfg.Cluster {
		return err
	}
	r.cfg.Log.Warn("the store of the registry is not there yet: starting with what this relay knew", "error", err)
	return nil
}

// load takes what the run before this has kept.
func (r *Registry) load() error {
	kept, err := r.file.load()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.storeID = kept.Store
	for _, s := range kept.Hosts {
		k := &knownHost{hostState: hostState{Key: s.Key}, home: r.keptRegionLocked(kept.Regions[s.Key])}
		r.addLocked(k)
		s.Users = s.Users.current(time.Now())
		r.putLocked(k, s, 0)
	}
	return nil
}

// Close answers the requests that have come in, tells other relays that this
// one ends, keeps what is known and returns when nothing of the registry runs
// any more.
func (r *Registry) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	if len(r.stop) > 0 {
		for _, stop := range slices.Backward(r.stop) {
			stop()
		}
		r.stop = nil
		if r.cfg.Conn.Connected() && r.store.bucket() != nil && r.storeAway() == nil {
			r.flushAll(ctx)
			r.writeSession(ctx, true)
		}
	}
	r.cancel()
	r.running.Wait()
	r.keep.Do(func() { r.file.save(r.snapshot()) })
}

// Instance returns the name of this run of the relay.
func (r *Registry) Instance() string { return r.cfg.Instance }

// Revocations returns what is revoked.
func (r *Registry) Revocations() *Revocations { return r.cfg.Revocations }

// Lookup returns what is known of a host, and false if it was never enrolled.
func (r *Registry) Lookup(tenant, host string) (Host, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k, ok := r.hosts[hostKey(tenant, host)]
	if !ok {
		return Host{}, false
	}
	return r.describeLocked(k), true
}

// Hosts returns the hosts of a tenant, by name.
func (r *Registry) Hosts(tenant string) []Host {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.tenants[tenant]
	if t == nil {
		return nil
	}
	hosts := make([]Host, 0, len(t.hosts))
	for _, k := range t.hosts {
		hosts = append(hosts, r.describeLocked(k))
	}
	slices.SortFunc(hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	return hosts
}

func (r *Registry) describeLocked(k *knownHost) Host {
	var seen time.Time
	alive := r.aliveLocked(k)
	switch l := k.lease(); {
	case k.kept != nil:
		seen = r.lineHeardLocked(k)
	case l.runs():
		seen = r.heardLocked(l.Keeper)
	}
	h := k.describe(r.cfg.Version, alive, seen.UTC().Round(0))
	if alive {
		h.URL = r.urlLocked(k)
	}
	r.farLocked(k, &h)
	return h
}

// urlLocked returns where clients reach the relay that keeps a host's lease.
func (r *Registry) urlLocked(k *knownHost) string {
	if k.kept != nil {
		return r.cfg.URL
	}
	if p := r.peers[k.lease().Keeper]; p != nil && p.thereLocked(r.patience) {
		return p.URL
	}
	return ""
}

// aliveLocked reports whether a host's lease is held, by one who renews it as far as
// this relay can know: it keeps the lease itself, or the relay that does is not
// lost.
func (r *Registry) aliveLocked(k *knownHost) bool {
	l := k.lease()
	return l.runs() && (k.kept != nil || !r.lostLocked(k, l.Keeper))
}

// Subscribe has tell called with each host of which more than LastSeen has
// changed, until cancel. The calls come one after another from one goroutine,
// which waits for them: they must not block, and may use the registry. Of
// changes that follow each other closely, the last is told. What is known
// already is not told: call Lookup after Subscribe. A call that is under way
// while cancel is called is not awaited.
func (r *Registry) Subscribe(tell func(Host)) (cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &subscriber{tell}
	r.subscribers = append(slices.Clone(r.subscribers), s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.subscribers = slices.DeleteFunc(slices.Clone(r.subscribers), func(o *subscriber) bool { return o == s })
	}
}

// Enrol makes a host known: call it when a host-agent gets credentials. It
// does nothing for a host that is known already. The error wraps ErrStoreAway while
// the store is away.
func (r *Registry) Enrol(tenant, host string) error {
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	key, now := hostKey(tenant, host), time.Now()
	r.mu.Lock()
	r.tenantLocked(tenant).shown = now
	_, known := r.hosts[key]
	r.mu.Unlock()
	r.openTenant(tenant)
	if known {
		return nil
	}
	if err := r.unsettled(); err != nil {
		return fmt.Errorf("enrol %s/%s: %w", tenant, host, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := r.update(ctx, key, func(k *knownHost, _ bool) *hostState {
		if k.rev != 0 {
			return nil
		}
		return &hostState{Key: key, Enrolled: now.UTC()}
	})
	if err != nil {
		return fmt.Errorf("enrol %s/%s: %w", tenant, host, err)
	}
	return nil
}

// storeAway returns why the store is away, nil if it is there.
func (r *Registry) storeAway() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.storeErr
}

// Degraded says what this relay lacks, "" if nothing.
func (r *Registry) Degraded() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch {
	case r.storeErr != nil:
		return fmt.Sprintf("the store of the registry is away (%v): hosts that are there go on, new ones, enrolments and changes wait", r.storeErr)
	case len(r.status.away) > 0:
		return fmt.Sprintf("the store of the registry has %d of %d copies: %v", r.status.current, r.status.copies, r.status.away)
	}
	return cmp.Or(r.otherKeysLocked(), r.silentRegionsLocked())
}

// otherKeysLocked says which relay has other sets of keys than this one, "" if none has:
// of what one signs the other knows nothing.
func (r *Registry) otherKeysLocked() string {
	own := r.cfg.Keys()
	for instance, p := range r.peers {
		if instance != r.cfg.Instance && p.thereLocked(formerAfter) && len(p.Keys) > 0 && len(own) > 0 && !slices.Equal(p.Keys, own) {
			return fmt.Sprintf("relay %s has the keys %v, and this one %v: copy the directory keys from the one where they were changed", instance, p.Keys, own)
		}
	}
	return ""
}

// run sees to what is due and tells subscribers, until ctx ends.
func (r *Registry) run(ctx context.Context) {
	turn := time.NewTicker(min(time.Second, r.cfg.LeaseTTL/sweepShare))
	defer turn.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-r.told:
			r.hearRevoked(msg)
		case instance := <-r.probed:
			r.proved(instance)
		case <-r.wake:
		case <-turn.C:
			r.turn(time.Now())
		}
		r.tellChanges()
		r.dropForgotten()
	}
}

// turn does what is due.
func (r *Registry) turn(now time.Time) {
	c := &r.clock
	// After a pause of this process, or of its connection, silence says nothing.
	paused := !c.turned.IsZero() && now.Sub(c.turned) > max(2*time.Second, r.cfg.LeaseTTL/4)
	c.turned = now
	if paused || r.storeAway() != nil || !r.cfg.Conn.Connected() {
		c.listening = now
	}
	if now.Sub(c.listening) > r.cfg.LeaseTTL/2 {
		r.sweep(now)
	}
	r.missNeighbours(now)
	r.missRegions(now)
	others := c.others
	if r.cfg.Tenants.External() {
		others = r.relaysThere()
	}
	if now.Sub(c.tidied) >= tidyEvery || others != c.others {
		c.tidied, c.others = now, others
		r.tidyTenants(now)
	}
}

// changedLocked notes that hosts have changed.
func (r *Registry) changedLocked(keys ...string) {
	for _, key := range keys {
		r.changed[key] = true
	}
	wakeUp(r.wake)
}

// tellChanges tells subscribers what has changed.
func (r *Registry) tellChanges() {
	r.mu.Lock()
	var news []Host
	for key := range r.changed {
		k := r.hosts[key]
		if k == nil {
			continue
		}
		now := r.describeLocked(k)
		same := now
		same.LastSeen, same.Enrolled = time.Time{}, time.Time{}
		if same != k.last {
			k.last = same
			news = append(news, now)
		}
	}
	clear(r.changed)
	told := r.subscribers
	r.mu.Unlock()
	for _, h := range news {
		for _, s := range told {
			s.tell(h)
		}
	}
}

// snapshot returns what is known, for the next run.
func (r *Registry) snapshot() keptState {
	r.mu.RLock()
	defer r.mu.RUnlock()
	kept := keptState{Version: keptVersion, Store: r.storeID, Hosts: make([]hostState, 0, len(r.hosts))}
	for _, key := range slices.Sorted(maps.Keys(r.hosts)) {
		k := r.hosts[key]
		s := k.hostState
		if k.kept != nil {
			s.LastSeen = later(s.LastSeen, r.lineHeardLocked(k).UTC().Round(0))
		}
		kept.Hosts = append(kept.Hosts, s)
		if k.home != nil {
			kept.homeOf(k.Key, k.home.name)
		}
	}
	return kept
}

// wakeUp has a goroutine look for work, once.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
