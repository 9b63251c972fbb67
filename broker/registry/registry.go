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
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/wake"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"

	"github.com/nats-io/nats.go"
)

// Lease times.
const (
	// DefaultLeaseTTL is how long a lease lasts after its last renewal.
	DefaultLeaseTTL = link.DefaultResume

	// Leases are checked for expiry at intervals of the lease time divided by sweepShare, at most 1
	// s. Beats have this interval, too, but at most beatEvery.
	sweepShare = 5
)

// joinTimeout bounds how long Start waits for a cluster's store, which may depend on
// relays that are not running yet.
const joinTimeout = 3 * time.Second

// soloTimeout bounds how long Start waits for the store of a single relay.
const soloTimeout = 30 * time.Second

// A Config describes a [Registry].
type Config struct {
	Conn     *broker.Conn    // required; connected to the account that relays share
	Tenants  *broker.Tenants // required; the registry opens and closes their accounts
	Instance string          // this relay's instance name; default: random
	Version  string          // this relay's version, for messages about incompatible versions
	LeaseTTL time.Duration   // lease time, the same at all relays; default DefaultLeaseTTL
	File     string          // saves the view, for the next start and for new stores; default: none
	Log      *slog.Logger    // default: none

	// Revocations are exchanged with all relays. Default: a set without a file.
	Revocations *Revocations

	// URL is the base URL at which clients reach this relay and no other. Default:
	// unknown.
	URL string

	// Keys returns the names of this relay's key sets, so that relays with different
	// keys are noticed. Default: not published.
	Keys func() []string

	// Cluster reports whether the store depends on NATS servers of other relays.
	Cluster bool

	// Region is the name of this relay's cluster of NATS servers, if gateways connect
	// several clusters. Each region has its own store. Default: a single region.
	Region string

	// Revive restarts the store of this relay's own server, after writes have failed
	// for some time. In a cluster it is called repeatedly, and must do nothing unless
	// this server's part of the store has stopped. Default: none.
	Revive func() error

	// Room returns why the directory of this relay's own store cannot be written, or
	// nil. Default: none.
	Room func() error

	// Neighbours are the other servers of the cluster. With them, crashed relays can
	// be distinguished from silent ones. Default: none.
	Neighbours Neighbours

	// HostLimits bound each tenant's connected host-agents in the whole cluster. The keys
	// are tenants and [EveryTenant]; 0 is no limit. Default: none.
	HostLimits map[string]int

	// ForgetAfter is how long a host must be absent before it is forgotten. Default:
	// never.
	ForgetAfter time.Duration

	// Previous are earlier relay instances that have ended without Close. They cannot
	// be running, because this process holds the lock of their data directory.
	Previous []string
}

// A Host describes a host and its state.
type Host struct {
	Tenant, Name  string
	State         State
	Since         time.Time  // since when it has been in State
	Silent        time.Time  // while online: since when the AHP host has not answered; zero: it answers
	Reason        string     // shown to users: why it cannot be reached
	LastSeen      time.Time  // when its host-agent was last heard; zero: never
	Enrolled      time.Time  // when it was enrolled
	Region        string     // home region; empty: there is only one region
	AgentInstance string     // instance of its host-agent; empty: none
	URL           string     // base URL of the relay to which the host-agent is connected, if known
	Fence         uint64     // number of the latest lease; rises with each instance; 0: there was none
	Released      string     // the last instance, if it has ended and released the host
	AgentVersion  string     // version of the current or last host-agent
	HostVersion   string     // version of the AHP host, if known
	Clients       int        // number of clients at the AHP host, through all relays
	KeptAwake     [2]int     // while online: as in Presence
	Sealed        bool       // according to its current or last host-agent
	Wake          wake.Terms // according to its current or last host-agent
}

// A Registry is a relay's view of all hosts, and answers lease requests of
// host-agents. It has the store's contents in memory, so reads are cheap and work
// while the store is unreachable. It is safe for concurrent use.
type Registry struct {
	// Set by Start, then read-only.
	cfg       Config
	started   time.Time
	beatEvery time.Duration // interval at which the session is written
	leases    *leaseServer
	wake      chan struct{} // wakes run
	ready     chan struct{} // closed after the first complete read of the store
	file      *stateFile
	life      context.Context // ends at Close
	cancel    context.CancelFunc
	running   sync.WaitGroup
	stop      []func()  // called by Close, last first; owned by Start and Close
	keep      sync.Once // makes Close save the file once

	// Arrivals are the host-agents that this relay has refused and expects again.
	Arrivals Arrivals

	clock relayClock // owned by run

	revoker     *revoker
	accounts    *tenantAccounts
	upkeep      *upkeep
	prober      *prober
	regions     *regions
	keeping     *leaseKeeper
	writer      *writer
	relays      *relaySessions
	mu          sync.RWMutex // guards the fields below
	hosts       map[string]*knownHost
	changed     map[string]bool // hosts that may have changed for subscribers
	subscribers []*subscriber
	view        view   // this region's view
	dropped     uint64 // requests dropped unread because of their host's rate
	refused     uint64 // requests answered with "busy"
}

// A relayClock records when periodic work was last done.
type relayClock struct {
	turned, tidied time.Time
	others         string    // the relays that were present at the last tidy, with external NATS servers
	listening      time.Time // since when this relay cannot have missed a message, as far as it knows
}

type subscriber struct{ notify func(Host) }

// Start loads the state file, reads the store and starts to answer host-agents. If the
// store waits for other relays, Start continues with the state file. Close ends the
// registry.
func Start(ctx context.Context, cfg Config) (*Registry, error) {
	switch {
	case cfg.Conn == nil:
		return nil, errors.New("registry: no Conn given")
	case cfg.Tenants == nil:
		return nil, errors.New("registry: no Tenants given")
	}
	cfg.LeaseTTL = cmp.Or(cfg.LeaseTTL, DefaultLeaseTTL)
	cfg.Instance = cmp.Or(cfg.Instance, link.NewInstance())
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Keys == nil {
		cfg.Keys = func() []string { return nil }
	}
	if cfg.Region != "" {
		if err := ahp.CheckName("region", cfg.Region); err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
	}
	if cfg.Revocations == nil {
		cfg.Revocations, _ = LoadRevocations("", nil) // fails only for a file
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Registry{
		cfg: cfg, started: time.Now(), life: life, cancel: cancel, beatEvery: min(beatEvery, cfg.LeaseTTL/sweepShare),
		wake:  make(chan struct{}, 1),
		ready: make(chan struct{}), file: newStateFile(cfg.File, cfg.Log),
		hosts:   map[string]*knownHost{},
		changed: map[string]bool{},
		view:    view{name: cfg.Region, storeErr: errNotReached},
	}
	r.wire()
	r.leases = &leaseServer{registry: r, log: r.cfg.Log, writes: make(chan struct{}, leaseWrites)}
	if err := r.begin(ctx, life); err != nil {
		r.Close()
		return nil, fmt.Errorf("registry: %w", err)
	}
	return r, nil
}

func (r *Registry) wire() {
	r.view.r = r
	r.upkeep = &upkeep{r: r, opened: make(chan struct{}, 1)}
	r.prober = &prober{r: r, routed: map[string]*neighbour{}, probed: make(chan probe)}
	r.regions = &regions{r: r, others: map[string]*view{}, surplus: map[string]surplus{}}
	r.keeping = &leaseKeeper{r: r, kept: map[*knownHost]bool{}, lines: map[string]map[*Line]bool{}, recheck: map[string]string{}, rivals: map[string]bool{}}
	r.writer = &writer{r: r, wake: make(chan struct{}, 1), dirty: map[string]bool{}}
	r.relays = newRelaySessions(r)
	r.accounts = newTenantAccounts(r)
	r.revoker = &revoker{r: r, in: make(chan *nats.Msg, revocationBacklog), wake: make(chan struct{}, 1)}
}

func (r *Registry) begin(ctx, life context.Context) error {
	if err := r.load(); err != nil {
		return err
	}
	r.clock.tidied = time.Now()
	r.cfg.Tenants.OnDemand(r.accounts.demand())
	var err error
	if r.view.store, err = r.regions.storeOf(r.cfg.Region); err != nil {
		return err
	}
	cancel := r.cfg.Revocations.Subscribe(func() { signal.Send(r.revoker.wake); signal.Send(r.writer.wake) })
	unsubscribe, err := r.cfg.Conn.Subscribe(revokedSubject, r.revoker.in)
	if err != nil {
		cancel()
		return err
	}
	r.stop = append(r.stop, unsubscribe, cancel)
	r.cfg.Revocations.announce(r.revoker.publish)
	r.running.Go(func() { r.view.follow(life) })
	r.running.Go(func() { r.upkeep.run(life) })
	r.running.Go(func() { r.view.store.copies(r.relays.leads, r.prober.servers()).Keep(life) })
	if err := r.regions.follow(); err != nil {
		return err
	}
	if err := r.awaitStore(ctx); err != nil {
		return err
	}
	r.notifySubscribers() // there are no subscribers yet: the initial state is no change
	r.running.Go(func() { r.run(life) })
	r.running.Go(func() { r.writer.run(life) })
	r.running.Go(func() { r.revoker.run(life) })
	r.running.Go(func() { r.file.run(life, func() any { return r.snapshot() }) })
	r.running.Go(func() { r.cfg.Revocations.run(life) })
	stop, err := r.leases.serveRelays(r.cfg.Conn)
	if err != nil {
		return err
	}
	r.stop = append(r.stop, stop, r.cfg.Tenants.Serve(r.leases.serveTenant))
	return nil
}

// awaitStore returns when the store has been read. In a cluster it continues without
// it after joinTimeout.
func (r *Registry) awaitStore(ctx context.Context) error {
	limit := soloTimeout
	if r.cfg.Cluster {
		limit = joinTimeout
	}
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.cfg.Conn.Done():
		return errors.New("the connection to NATS is closed")
	case <-time.After(limit):
	}
	err := r.storeAway()
	if !r.cfg.Cluster {
		return err
	}
	r.cfg.Log.Warn("registry store unreachable", "effect", "the relay starts from the state file", "error", err)
	return nil
}

// load reads the state file of the previous run.
func (r *Registry) load() error {
	kept, err := r.file.load()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.storeID = kept.Store
	for _, s := range kept.Hosts {
		k := &knownHost{hostState: hostState{Key: s.Key}, home: r.regions.savedLocked(kept.Regions[s.Key])}
		r.addLocked(k)
		s.Users = s.Users.current(time.Now())
		r.putLocked(k, s, 0)
	}
	return nil
}

// Close answers the pending requests, marks this relay's session as ended if the store is
// reachable, waits for all goroutines of the registry, and saves the view.
func (r *Registry) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	if len(r.stop) > 0 {
		for _, stop := range slices.Backward(r.stop) {
			stop()
		}
		r.stop = nil
		if r.cfg.Conn.Connected() && r.view.store.bucket() != nil && r.storeAway() == nil {
			_ = r.writer.flushOnce(ctx, true)
			r.upkeep.writeSession(ctx, true)
		}
	}
	r.cancel()
	r.running.Wait()
	r.keep.Do(func() { r.file.save(r.snapshot()) })
}

// Instance returns this relay's instance name.
func (r *Registry) Instance() string { return r.cfg.Instance }

// Revocations returns the revocations.
func (r *Registry) Revocations() *Revocations { return r.cfg.Revocations }

// Lookup returns a host, or false if the host is unknown.
func (r *Registry) Lookup(tenant, host string) (Host, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k, ok := r.hosts[hostKey(tenant, host)]
	if !ok {
		return Host{}, false
	}
	return r.describeLocked(k), true
}

// Hosts returns a tenant's hosts, sorted by name.
func (r *Registry) Hosts(tenant string) []Host {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.accounts.tenants[tenant]
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
	alive := r.relays.onlineLocked(k)
	switch l := k.lease(); {
	case k.kept:
		seen = r.keeping.lastHeardLocked(k)
	case l.runs():
		seen = r.relays.heardLocked(l.Keeper)
	}
	h := k.describe(r.cfg.Version, alive, seen.UTC().Round(0))
	if alive {
		h.URL = r.urlLocked(k)
	}
	r.regions.describeLocked(k, &h)
	return h
}

// urlLocked returns the base URL of the relay that keeps a host's lease.
func (r *Registry) urlLocked(k *knownHost) string {
	if k.kept {
		return r.cfg.URL
	}
	if p := r.relays.peers[k.lease().Keeper]; p != nil && p.presentLocked(r.relays.patience) {
		return p.URL
	}
	return ""
}

// aliveLocked reports whether a host's lease is current: this relay keeps it, or its
// keeper is not lost.
func (r *Registry) aliveLocked(k *knownHost) bool {
	l := k.lease()
	return l.runs() && (k.kept || !r.relays.lostLocked(k, l.Keeper))
}

// Subscribe calls notify with each host that has changed, until cancel. A change of
// LastSeen alone is not reported, and changes in quick succession are reported in one
// call. One goroutine makes all calls in turn; notify must not block, and may use the
// registry. The current state is not reported: call Lookup after Subscribe. Cancel
// does not wait for a running call.
func (r *Registry) Subscribe(notify func(Host)) (cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &subscriber{notify}
	r.subscribers = append(slices.Clone(r.subscribers), s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.subscribers = slices.DeleteFunc(slices.Clone(r.subscribers), func(o *subscriber) bool { return o == s })
	}
}

// Enrol opens a tenant's account, and creates a host if it is unknown, when its
// host-agent gets credentials. The error wraps ErrStoreAway if the host is unknown and
// the store is unreachable.
func (r *Registry) Enrol(tenant, host string) error {
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	key, now := hostKey(tenant, host), time.Now()
	r.mu.Lock()
	r.accounts.tenantLocked(tenant).shown = now
	_, known := r.hosts[key]
	r.mu.Unlock()
	r.accounts.open(tenant)
	if known {
		return nil
	}
	if err := r.regions.pending(); err != nil {
		return fmt.Errorf("enrol %s/%s: %w", tenant, host, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := r.writer.update(ctx, key, func(k *knownHost, _ bool) *hostState {
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

// storeAway returns why the store is unusable, or nil.
func (r *Registry) storeAway() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.view.storeErr
}

// decidesAlone reports whether the store belongs to this relay's own server alone, so
// that no other relay can change it.
func (r *Registry) decidesAlone() bool { return r.cfg.Revive != nil && !r.cfg.Cluster }

// Degraded returns a text about a fault of the store, of this relay's keys or of other
// regions, or "".
func (r *Registry) Degraded() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch {
	case r.upkeep.full != nil:
		return fmt.Sprintf("the data directory cannot be written (%v): hosts and clients continue; new hosts and changes of people wait", r.upkeep.full)
	case r.view.storeErr != nil:
		return fmt.Sprintf("the registry store is unreachable (%v): connected hosts continue; new hosts, enrolments and changes wait", r.view.storeErr)
	case len(r.upkeep.status.away) > 0:
		return fmt.Sprintf("the registry store has %d of %d copies; offline: %v", r.upkeep.status.current, r.upkeep.status.copies, r.upkeep.status.away)
	}
	return cmp.Or(r.relays.otherKeysLocked(), r.regions.describeSilentLocked())
}

// run does periodic work and notifies subscribers until ctx ends.
func (r *Registry) run(ctx context.Context) {
	turn := time.Tick(min(time.Second, r.cfg.LeaseTTL/sweepShare))
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-r.revoker.in:
			r.revoker.receive(msg)
		case p := <-r.prober.probed:
			r.prober.take(p)
		case <-r.wake:
		case <-turn:
			r.turn(time.Now())
		}
		r.notifySubscribers()
		r.keeping.sendRechecks()
		r.accounts.dropForgotten()
	}
}

// turn does the periodic work that is due.
func (r *Registry) turn(now time.Time) {
	c := &r.clock
	// If this process or its connection was paused, silence of others proves nothing.
	paused := !c.turned.IsZero() && now.Sub(c.turned) > max(2*time.Second, r.cfg.LeaseTTL/4)
	c.turned = now
	if paused || r.storeAway() != nil || !r.cfg.Conn.Connected() {
		c.listening = now
	}
	if now.Sub(c.listening) > r.cfg.LeaseTTL/2 {
		r.keeping.sweep(now)
	}
	r.prober.probeLost(now)
	r.regions.findSilent(now)
	others := c.others
	if r.cfg.Tenants.External() {
		others = r.relays.present()
	}
	if now.Sub(c.tidied) >= tidyEvery || others != c.others {
		c.tidied, c.others = now, others
		r.accounts.tidy(now)
	}
}

func (r *Registry) changedLocked(keys ...string) {
	for _, key := range keys {
		r.changed[key] = true
	}
	signal.Send(r.wake)
}

func (r *Registry) notifySubscribers() {
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
	subscribers := r.subscribers
	r.mu.Unlock()
	for _, h := range news {
		for _, s := range subscribers {
			s.notify(h)
		}
	}
}

func (r *Registry) snapshot() keptState {
	r.mu.RLock()
	defer r.mu.RUnlock()
	kept := keptState{Version: keptVersion, Store: r.view.storeID, Hosts: make([]hostState, 0, len(r.hosts))}
	for _, key := range slices.Sorted(maps.Keys(r.hosts)) {
		k := r.hosts[key]
		s := k.hostState
		if k.kept {
			s.LastSeen = clock.Later(s.LastSeen, r.keeping.lastHeardLocked(k).UTC().Round(0))
		}
		kept.Hosts = append(kept.Hosts, s)
		if k.home != nil {
			kept.homeOf(k.Key, k.home.name)
		}
	}
	return kept
}
