package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/link"

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

// RegistryConfig says how to run a [Registry].
type Config struct {
	Conn     *broker.Conn    // required; a relay's, in the account of relays
	Tenants  *broker.Tenants // required; the registry opens and closes their accounts
	Instance string          // of this relay; default: random
	Version  string          // of this relay, for messages about wire versions
	LeaseTTL time.Duration   // the same at all relays; default DefaultLeaseTTL
	File     string          // keeps what is known, for the next run; default: nothing is kept
	Log      *slog.Logger    // default: none

	// Revocations are told to other relays, and hear of theirs.
	// Default: some that are not kept.
	Revocations *Revocations

	// Cluster: this relay's NATS server is embedded and one of a cluster, so
	// that a relay of which nothing is heard is gone with its server.
	Cluster bool

	// Linked: another relay's NATS server is connected already, so that at
	// least one relay will soon say what it knows.
	Linked bool

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
	AgentInstance string    // of the host-agent that serves it; empty: none does
	Released      string    // the instance that served it last, if that is known to have ended; it gave the host up
	AgentVersion  string    // of the host-agent, or of the last one
	HostVersion   string    // of the AHP host, if known
	Clients       int       // connected to the AHP host, through all relays
}

// A Registry is a relay's view of all hosts. It answers the lease requests of
// host-agents, and relays tell each other what came of them: each has the whole
// view in memory, so that reading it costs nothing, and none needs another. It
// is safe for concurrent use.
type Registry struct {
	// Set by StartRegistry, then read-only.
	cfg     Config
	started time.Time
	desk    *leaseDesk
	in      chan *nats.Msg // from other relays
	wake    chan struct{}  // for run: there are changes to tell; holds one
	revoke  chan struct{}  // for run: something was revoked; holds one
	file    *stateFile
	cancel  context.CancelFunc
	running sync.WaitGroup
	stop    []func()  // of the desk; owned by Start and Close
	keep    sync.Once // for Close

	// Owned by run.
	clock relayClock

	mu      sync.RWMutex // guards the fields below
	hosts   map[string]*knownHost
	changed map[string]bool // hosts of which subscribers may have to be told
	told    []*subscriber
	peers   map[string]*peer
	gone    map[string]time.Time // relay instances that have crashed; since when this is known
	joined  bool                 // a peer was heard at some time
	shown   map[string]time.Time // by tenant: when a host-agent last showed a token here
}

type subscriber struct{ tell func(Host) }

// StartRegistry reads what was kept, asks other relays for what they know and
// starts to answer host-agents. It returns when the view is as complete as it
// can be: a relay that is alone does not wait. Close ends it.
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
	if cfg.Revocations == nil {
		cfg.Revocations, _ = LoadRevocations("", nil) // nothing is read
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Registry{
		cfg: cfg, started: time.Now(), cancel: cancel,
		in: make(chan *nats.Msg, newsRoom), wake: make(chan struct{}, 1), revoke: make(chan struct{}, 1), file: newStateFile(cfg.File, cfg.Log),
		hosts: map[string]*knownHost{}, changed: map[string]bool{},
		peers: map[string]*peer{}, gone: map[string]time.Time{}, shown: map[string]time.Time{},
	}
	r.desk = &leaseDesk{registry: r, log: cfg.Log}
	cfg.Revocations.announce(r.tellRevoked)
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
	r.seeToTenants(time.Now())
	r.clock.tidied = time.Now() // others have yet to say whom they gave credentials
	unsubscribe, err := r.join(ctx)
	if err != nil {
		return err
	}
	r.tellChanges() // to nobody: what is known from the start is no change
	deaf := r.cfg.Revocations.Subscribe(func() { wakeUp(r.revoke) })
	r.running.Go(func() {
		defer unsubscribe()
		defer deaf()
		r.run(life)
	})
	r.running.Go(func() { r.file.run(life, r.states) })
	r.running.Go(func() { r.cfg.Revocations.run(life) })
	stop, err := r.desk.serveRelays(r.cfg.Conn)
	if err != nil {
		return err
	}
	r.stop = append(r.stop, stop, r.cfg.Tenants.Serve(r.desk.serveTenant))
	return nil
}

// load takes what the run before this has kept.
func (r *Registry) load() error {
	states, err := r.file.load()
	if err != nil {
		return err
	}
	now := time.Now()
	for _, s := range states {
		s.Age = max(now.Sub(s.LastSeen), 0).Milliseconds()
		r.hosts[s.Key] = s.known(now, r.cfg.LeaseTTL)
		r.changed[s.Key] = true
	}
	return nil
}

// Close answers the requests that have come in, tells other relays that this
// one ends, keeps what is known and returns when nothing of the registry runs
// any more.
func (r *Registry) Close() {
	r.cancel()
	r.running.Wait()
	for _, stop := range r.stop {
		stop()
	}
	r.stop = nil
	r.keep.Do(func() { r.file.save(r.states()) })
}

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
	return k.describe(r.cfg.Version), true
}

// Hosts returns the hosts of a tenant, by name.
func (r *Registry) Hosts(tenant string) []Host {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var hosts []Host
	for key, k := range r.hosts {
		if strings.HasPrefix(key, tenant+".") {
			hosts = append(hosts, k.describe(r.cfg.Version))
		}
	}
	slices.SortFunc(hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	return hosts
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
	r.told = append(slices.Clone(r.told), s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = slices.DeleteFunc(slices.Clone(r.told), func(o *subscriber) bool { return o == s })
	}
}

// Enrol makes a host known: call it when a host-agent gets credentials. It
// does nothing for a host that is known already.
func (r *Registry) Enrol(tenant, host string) error {
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	key, now := hostKey(tenant, host), time.Now()
	r.mu.Lock()
	r.shown[tenant] = now
	if _, ok := r.hosts[key]; ok {
		r.mu.Unlock()
		r.seeToTenants(now, tenant)
		return nil
	}
	k := &knownHost{hostState: hostState{Key: key, Enrolled: now.UTC()}}
	r.hosts[key] = k
	r.changedLocked(key, true)
	news := k.wire(now)
	r.mu.Unlock()
	r.seeToTenants(now, tenant)
	r.tellRelays(news)
	return nil
}

// hold carries out a request of a host-agent.
func (r *Registry) hold(key string, req leaseRequest) leaseAnswer {
	now := time.Now()
	r.mu.Lock()
	k := r.hosts[key]
	if k == nil {
		k = &knownHost{hostState: hostState{Key: key}}
	}
	next, answer := decide(k.current(), k.downSince(), k.Revision, req, now.UTC())
	if next == nil {
		r.mu.Unlock()
		return answer
	}
	was := *k
	k.Enrolled = earlier(k.Enrolled, now.UTC())
	k.Lease, k.LastSeen, k.renewed, k.alive = next, now.UTC(), now, next.held()
	k.Revision++
	r.hosts[key] = k
	r.changedLocked(key, !k.renews(&was))
	news := k.wire(now)
	r.mu.Unlock()
	if next.held() && !was.alive { // another relay may have been asked
		r.seeToTenants(now, was.tenant())
	}
	r.tellRelays(news)
	return answer
}

// hear takes what another relay knows of hosts.
func (r *Registry) hear(states []hostState) {
	now := time.Now()
	if tenants := r.takeStates(states, now); len(tenants) > 0 {
		r.seeToTenants(now, tenants...)
	}
}

// takeStates takes what another relay knows, and returns the tenants whose
// accounts are to be looked at.
func (r *Registry) takeStates(states []hostState, now time.Time) (tenants []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range states {
		if s.empty() {
			continue
		}
		if err := s.check(); err != nil {
			r.cfg.Log.Warn("news of another relay", "host", s.Key, "error", err)
			continue
		}
		heard := s.known(now, r.cfg.LeaseTTL)
		k := r.hosts[s.Key]
		if k == nil {
			r.hosts[s.Key] = heard
			r.changedLocked(s.Key, true)
			tenants = append(tenants, heard.tenant())
			continue
		}
		was := *k
		if changed, news := k.merge(heard); changed {
			r.changedLocked(s.Key, news)
		}
		if was.alive != k.alive || !slices.Equal(was.Users, k.Users) {
			tenants = append(tenants, k.tenant())
		}
	}
	return tenants
}

// sweep ends the leases that were not renewed.
func (r *Registry) sweep(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, k := range r.hosts {
		if k.alive && now.Sub(k.renewed) > r.cfg.LeaseTTL {
			k.alive = false
			r.changedLocked(key, true)
		}
	}
}

// changedLocked notes that a host has changed, and whether that is worth
// keeping soon.
func (r *Registry) changedLocked(key string, soon bool) {
	r.file.changed(soon)
	r.changed[key] = true
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// tellChanges tells subscribers what has changed. Only run calls it.
func (r *Registry) tellChanges() {
	r.mu.Lock()
	var news []Host
	for key := range r.changed {
		k := r.hosts[key]
		now := k.describe(r.cfg.Version)
		same := now
		same.LastSeen, same.Enrolled = time.Time{}, time.Time{}
		if same != k.last {
			k.last = same
			news = append(news, now)
		}
	}
	clear(r.changed)
	told := r.told
	r.mu.Unlock()
	for _, h := range news {
		for _, s := range told {
			s.tell(h)
		}
	}
}

// state returns what is known of one host, an empty state if nothing is.
func (r *Registry) state(key string) hostState {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.hosts[key]; k != nil {
		return k.wire(time.Now())
	}
	return hostState{Key: key}
}

// states returns what is known, for other relays or the next run.
func (r *Registry) states() []hostState {
	now := time.Now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	states := make([]hostState, 0, len(r.hosts))
	for _, key := range slices.Sorted(maps.Keys(r.hosts)) {
		states = append(states, r.hosts[key].wire(now))
	}
	return states
}

// wakeUp has a goroutine look for work, once.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
