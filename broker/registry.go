package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Buckets of the registry. Both have one key per host, "<tenant>.<host>".
const (
	leaseBucket = "AHP_LEASES" // who serves the host now; goes away if not renewed
	hostBucket  = "AHP_HOSTS"  // what is known of the host; stays
)

// Times of leases.
const (
	// DefaultLeaseTTL is how long a lease outlives its last renewal: the resume
	// window.
	DefaultLeaseTTL = 15 * time.Second

	// markerTTL is how long the notice of an expired lease can be read.
	markerTTL = time.Minute

	// doubtShare is the share of the lease time after which a lease that should
	// have ended and of which nothing was heard is looked up: 3 s of 15 s. It
	// is also how often that is looked at.
	doubtShare = 5
)

// RegistryConfig says how to run a [Registry].
type RegistryConfig struct {
	Conn     *Conn         // required; a relay's
	Version  string        // of this relay, for messages about wire versions
	LeaseTTL time.Duration // the same at all relays; default DefaultLeaseTTL
	Replicas int           // copies that a cluster keeps of the registry; default 1
	Log      *slog.Logger  // default: none
}

// A Host is what a relay knows of a host.
type Host struct {
	Tenant, Name  string
	State         State
	Since         time.Time // when it came into State
	Reason        string    // for people: why it is not online
	LastSeen      time.Time // when its host-agent was last heard; zero: never
	Enrolled      time.Time // when it first got credentials
	AgentInstance string    // of the host-agent that serves it; empty: none does
	Released      string    // the instance that served it last, if that is known to have ended; it gave the host up
	AgentVersion  string    // of the host-agent, or of the last one
	HostVersion   string    // of the AHP host, if known
	Clients       int       // connected to the AHP host, through all relays
}

// A Registry is a relay's view of all hosts. It follows the buckets, so that
// reading it costs nothing, and answers the lease requests of host-agents. It
// is safe for concurrent use.
type Registry struct {
	// Set by StartRegistry, then read-only.
	desk    *leaseDesk
	version string
	ttl     time.Duration
	log     *slog.Logger
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.RWMutex // guards the fields below
	hosts map[string]*knownHost
	told  []*subscriber
}

type subscriber struct{ tell func(Host) }

// A knownHost is one host, as far as heard.
type knownHost struct {
	lease    *lease    // nil or released if nobody serves it
	revision uint64    // of lease, or of the notice of its end
	seen     time.Time // when lease was written, by the clock of the NATS server
	heard    time.Time // when lease came in, by this relay's clock

	stored *record // of the bucket
	early  *record // the same, waiting for the lease that it was taken from
	ended  *record // what lease said last, until that is stored

	last Host // what subscribers were told, without times that only progress
}

// visible reports whether enough was heard to describe the host.
func (k *knownHost) visible() bool { return k.stored != nil || k.ended != nil || k.lease != nil }

// latest returns the newest record, nil if there is none.
func (k *knownHost) latest() *record {
	if k.ended != nil && (k.stored == nil || k.stored.Revision < k.ended.Revision) {
		return k.ended
	}
	return k.stored
}

// settle takes a record whose lease has come, or does not have to be awaited.
func (k *knownHost) settle(anyway bool) {
	if k.early != nil && (anyway || k.early.Revision <= k.revision) {
		k.stored, k.early = k.early, nil
	}
}

// StartRegistry makes the buckets if there are none, reads them and starts to
// answer host-agents. It returns when the view is complete. Close ends it.
func StartRegistry(ctx context.Context, cfg RegistryConfig) (*Registry, error) {
	if cfg.Conn == nil {
		return nil, errors.New("registry: no Conn given")
	}
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = DefaultLeaseTTL
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	leases, hosts, err := openBuckets(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, cancel)
	r := &Registry{
		version: cfg.Version, ttl: cfg.LeaseTTL, log: cfg.Log, cancel: cancel, hosts: map[string]*knownHost{},
	}
	r.desk = &leaseDesk{
		conn: cfg.Conn, leases: leases, hosts: hosts, known: r.storedRecord, log: cfg.Log,
		requests: make(chan *nats.Msg, deskRoom), errands: make(chan func(context.Context), deskRoom),
		quiet: make(chan struct{}),
	}
	w, err := r.watch(life)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("registry: %w", err)
	}
	r.running.Go(func() { r.follow(life, w) })
	if err = r.desk.start(life); err == nil && !starting() {
		err = context.Cause(ctx)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("registry: %w", err)
	}
	return r, nil
}

func openBuckets(ctx context.Context, cfg RegistryConfig) (leases, hosts jetstream.KeyValue, err error) {
	js, err := jetstream.New(cfg.Conn.nc)
	if err != nil {
		return nil, nil, err
	}
	leases, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: leaseBucket, Description: "which host-agent serves a host, now",
		TTL: cfg.LeaseTTL, LimitMarkerTTL: markerTTL, Replicas: cfg.Replicas,
	})
	if err != nil {
		return nil, nil, bucketError(leaseBucket, err)
	}
	hosts, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: hostBucket, Description: "enrolled hosts", Replicas: cfg.Replicas,
	})
	if err != nil {
		return nil, nil, bucketError(hostBucket, err)
	}
	return leases, hosts, nil
}

func bucketError(bucket string, err error) error {
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("the NATS server has no JetStream, which the registry needs: %w", err)
	}
	return fmt.Errorf("bucket %s: %w", bucket, err)
}

// Close answers the requests that have come in, ends the registry and returns
// when nothing of it runs any more.
func (r *Registry) Close() {
	r.cancel()
	r.running.Wait()
	r.desk.running.Wait()
}

// hostKey is the key of a host in both buckets.
func hostKey(tenant, host string) string { return tenant + "." + host }

// Lookup returns what is known of a host, and false if it was never enrolled.
func (r *Registry) Lookup(tenant, host string) (Host, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	key := hostKey(tenant, host)
	k, ok := r.hosts[key]
	if !ok || !k.visible() {
		return Host{}, false
	}
	return r.describe(key, k), true
}

// Hosts returns the hosts of a tenant, by name.
func (r *Registry) Hosts(tenant string) []Host {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var hosts []Host
	for key, k := range r.hosts {
		if k.visible() && strings.HasPrefix(key, tenant+".") {
			hosts = append(hosts, r.describe(key, k))
		}
	}
	slices.SortFunc(hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	return hosts
}

// Subscribe has tell called with each host of which more than LastSeen has
// changed, until cancel. The calls come one after another from the goroutine
// that follows the buckets, which waits for them: they must not block, and may
// use the registry. What is known already is not told: call Lookup after
// Subscribe. A call that is under way while cancel is called is not awaited.
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
func (r *Registry) Enrol(ctx context.Context, tenant, host string) error {
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	if err := r.desk.enrol(ctx, hostKey(tenant, host)); err != nil {
		return fmt.Errorf("enrol %s/%s: %w", tenant, host, err)
	}
	return nil
}

// storedRecord returns what was last heard of a host's record.
func (r *Registry) storedRecord(key string) (record, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k, ok := r.hosts[key]
	switch {
	case ok && k.early != nil:
		return *k.early, true
	case ok && k.stored != nil:
		return *k.stored, true
	}
	return record{}, false
}

// describe says what a host's lease and record come to.
func (r *Registry) describe(key string, k *knownHost) Host {
	tenant, name, _ := strings.Cut(key, ".")
	h := Host{Tenant: tenant, Name: name, State: Offline, Reason: reasonLost}
	if k.stored != nil {
		h.Enrolled = k.stored.Enrolled
	}
	if !k.lease.held() {
		if k.lease != nil {
			h.Released = k.lease.Instance
		}
		if rec := k.latest(); rec != nil {
			h.describeOffline(rec)
		}
		return h
	}
	p := k.lease.Presence
	h.State, h.Since, h.Reason, h.LastSeen = p.State, k.lease.Since, p.Reason, k.seen
	h.AgentInstance, h.AgentVersion, h.HostVersion = k.lease.Instance, p.AgentVersion, p.HostVersion
	h.Clients = p.Clients
	if _, err := CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", r.version); err != nil {
		h.State, h.Since, h.Reason = Incompatible, k.lease.Acquired, err.Error()
	}
	return h
}

// describeOffline fills in what is known of a host that nobody serves.
func (h *Host) describeOffline(rec *record) {
	h.LastSeen, h.Since = rec.LastSeen, rec.LastSeen
	h.AgentVersion, h.HostVersion = rec.Presence.AgentVersion, rec.Presence.HostVersion
	if rec.Presence.State == Offline {
		h.Since, h.Reason = rec.Since, rec.Presence.Reason
	}
}

// change applies f to a host, and tells subscribers if that changed anything.
// Only follow's goroutine calls it.
func (r *Registry) change(key string, f func(k *knownHost)) {
	now, told := r.apply(key, f)
	for _, s := range told {
		s.tell(now)
	}
}

// apply applies f to a host. It returns what the host is then, and who is to
// be told.
func (r *Registry) apply(key string, f func(k *knownHost)) (Host, []*subscriber) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.hosts[key]
	if k == nil {
		k = &knownHost{}
	}
	f(k)
	if k.visible() || k.early != nil {
		r.hosts[key] = k
	} else {
		delete(r.hosts, key)
	}
	if !k.visible() && k.last == (Host{}) {
		return Host{}, nil
	}
	now := r.describe(key, k)
	news := now
	news.LastSeen, news.Enrolled = time.Time{}, time.Time{}
	if news == k.last {
		return now, nil
	}
	k.last = news
	return now, r.told
}

// heardLease takes a change of the bucket of leases.
func (r *Registry) heardLease(e jetstream.KeyValueEntry) {
	if e.Operation() != jetstream.KeyValuePut {
		r.lost(e.Key(), e.Revision())
		return
	}
	l := new(lease)
	if err := json.Unmarshal(e.Value(), l); err != nil {
		r.log.Error("lease cannot be read", "host", e.Key(), "error", err)
		return
	}
	r.change(e.Key(), func(k *knownHost) {
		k.lease, k.revision, k.seen, k.heard = l, e.Revision(), e.Created().UTC(), time.Now()
		if l.Released {
			ended := recordOf(l, e.Revision(), k.seen)
			k.ended = &ended
		}
		k.settle(false)
	})
}

// lost takes the end of a lease that was not renewed. All relays write that
// down, and the first one counts.
func (r *Registry) lost(key string, revision uint64) {
	var news *record
	r.change(key, func(k *knownHost) {
		if k.lease.held() {
			ended := recordOf(k.lease, revision, k.seen)
			if ended.Presence.State != Offline {
				ended.Presence.State, ended.Since = Offline, k.seen
			}
			ended.Presence.Reason = reasonLost
			k.ended, news = &ended, &ended
		}
		k.lease, k.revision = nil, revision
		k.settle(false)
	})
	if news == nil {
		return
	}
	errand := func(ctx context.Context) {
		if err := r.desk.note(ctx, key, *news); err != nil {
			r.log.Warn("host record", "host", key, "error", err)
		}
	}
	select {
	case r.desk.errands <- errand:
	default: // without a record, the host counts as lost since it was last seen
	}
}

// heardRecord takes a change of the bucket of hosts.
func (r *Registry) heardRecord(e jetstream.KeyValueEntry) {
	r.takeRecord(e, false)
}

// takeRecord takes a record. The two buckets are not in step: unless the lease
// that the record was taken from is known, or is not awaited, it waits, lest a
// host that is coming online looks as if it had lost its host-agent.
func (r *Registry) takeRecord(e jetstream.KeyValueEntry, anyway bool) {
	if e.Operation() != jetstream.KeyValuePut {
		r.forget(e.Key())
		return
	}
	rec := new(record)
	if err := json.Unmarshal(e.Value(), rec); err != nil {
		r.log.Error("host record cannot be read", "host", e.Key(), "error", err)
		return
	}
	r.change(e.Key(), func(k *knownHost) {
		k.early = rec
		k.settle(anyway)
	})
}

// forget takes the removal of a record.
func (r *Registry) forget(key string) {
	r.change(key, func(k *knownHost) { k.stored, k.early, k.ended = nil, nil, nil })
}
