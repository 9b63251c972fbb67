package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A region is a cluster of NATS servers that gateways join to others. Each region has
// a bucket on its own servers, and is the home of the hosts that were enrolled there
// leads. Relays watch all buckets, and write a host's changes into its home bucket. So
// one place decides about a host's lease, and a change crosses to each relay of
// another region once.
//
// While a region is silent, its hosts stay listed as they were: silence proves
// nothing. This region's own hosts continue, and their leases expire as usual. If two
// regions have enrolled the same host while they were separated, the first by name
// becomes its home.
const (
	// regionSubject is where one relay of each region announces its name.
	regionSubject = relayRoot + "region"

	regionBacklog = 64 // names that wait; more are dropped and come again
	maxRegions    = 64

	// regionBeats is the number of silent beats after which a region is reported as
	// silent.
	regionBeats = 3
)

var errNotReached = errors.New("not reached yet")

// A view is the known state of one region's store. Registry.mu guards the fields that
// change.
type view struct {
	name  string // of the region; "": there is only one
	store *store // set before anything is followed

	epoch    uint64 // of the watch
	taken    uint64 // the last one that was read completely
	seen     uint64 // revision of the last entry
	storeID  string // of the bucket that was last read completely
	newStore bool   // a different bucket is being read
	isSynced bool   // a bucket was read completely in this run
	storeErr error  // why the store is away; nil: it is usable

	heard time.Time // when an entry last arrived

	// Of another region:
	news   bool      // an entry has arrived since the last beat
	silent time.Time // start of a long silence; zero: it is heard
}

// whyNot returns why the store cannot be changed now.
func (v *view) writeError() error {
	switch {
	case v.storeErr != nil:
		return v.storeErr
	case v.taken != v.epoch:
		return errReading
	}
	return nil
}

// storeOf returns access to a region's store. Only this region's own store is created
// here.
func (r *Registry) storeOf(region string) (*store, error) {
	name := bucket
	if region != "" {
		name += "-" + region
	}
	s, err := newStore(r.cfg.Conn, name, "AHP relays: hosts")
	if err == nil {
		s.region, s.found = region, region != r.cfg.Region
	}
	return s, err
}

// foreign returns v if it is another region's view, or nil for this relay's region.
func (r *Registry) foreign(v *view) *view {
	if v == &r.view {
		return nil
	}
	return v
}

// homeOf returns the view of a host's home region.
func (r *Registry) homeOf(k *knownHost) *view {
	if k.home != nil {
		return k.home
	}
	return &r.view
}

// regionLocked returns another region's view and whether it is new. It returns nil for
// this region and beyond maxRegions.
func (r *Registry) regionLocked(name string) (v *view, news bool) {
	if name == r.cfg.Region || r.cfg.Region == "" || ahp.CheckName("region", name) != nil {
		return nil, false
	}
	if v = r.regions[name]; v != nil || len(r.regions) == maxRegions {
		return v, false
	}
	store, err := r.storeOf(name)
	if err != nil {
		r.cfg.Log.Error("store of region unusable", "region", name, "error", err)
		return nil, false
	}
	v = &view{name: name, store: store, storeErr: errNotReached, heard: time.Now()}
	r.regions[name] = v
	return v, true
}

// keptRegionLocked returns the view of a region named in the state file.
func (r *Registry) keptRegionLocked(name string) *view {
	if name == "" {
		return nil
	}
	v, _ := r.regionLocked(name)
	return v
}

// followRegions follows all known regions, and listens for others.
func (r *Registry) followRegions() error {
	if r.cfg.Region == "" {
		return nil
	}
	for _, v := range r.regions {
		r.running.Go(func() { r.follow(r.life, v) })
	}
	unsubscribe, err := r.cfg.Conn.Hear(regionSubject, regionBacklog, r.receiveRegion)
	if err == nil {
		r.stop = append(r.stop, unsubscribe)
	}
	return err
}

// receiveRegion handles the announcement of another region.
func (r *Registry) receiveRegion(name []byte) {
	r.mu.Lock()
	v, news := r.regionLocked(string(name))
	r.mu.Unlock()
	if news && r.life.Err() == nil {
		r.cfg.Log.Info("region found", "region", v.name)
		r.running.Go(func() { r.follow(r.life, v) })
	}
}

// announceRegion announces this region to relays of other regions.
func (r *Registry) announceRegion() {
	if r.cfg.Region != "" && r.relays.leads() {
		_ = r.cfg.Conn.Publish(regionSubject, []byte(r.cfg.Region)) // repeated soon
	}
}

// markHeardLocked records that a region was heard.
func (r *Registry) markHeardLocked(v *view) {
	v.news = true
	if !v.silent.IsZero() {
		v.silent = time.Time{}
		r.cfg.Log.Info("region heard again", "region", v.name)
		r.regionChangedLocked(v)
	}
}

// missRegions finds the regions that have fallen silent.
func (r *Registry) missRegions(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.regions {
		if v.silent.IsZero() && now.Sub(v.heard) > regionBeats*r.beatEvery {
			v.silent = v.heard
			r.cfg.Log.Warn("region silent: its hosts stay listed as they were", "region", v.name, "since", v.heard)
			r.regionChangedLocked(v)
		}
	}
}

// regionChangedLocked marks all hosts of a region as changed, because the region fell
// silent or returned.
func (r *Registry) regionChangedLocked(v *view) {
	for key, k := range r.hosts {
		if k.home == v {
			r.changedLocked(key)
		}
	}
}

// heardRegionsLocked returns the other regions that were heard since its last call.
func (r *Registry) heardRegionsLocked() map[*view]bool {
	heard := make(map[*view]bool, len(r.regions))
	for _, v := range r.regions {
		heard[v], v.news = v.news, false
	}
	return heard
}

// describeRegionLocked adds to a description the host's home region and its silence. A
// host whose host-agent is connected to a relay of this region is never shown as
// unreachable.
func (r *Registry) describeRegionLocked(k *knownHost, h *Host) {
	v := r.homeOf(k)
	h.Region = v.name
	if v.silent.IsZero() || k.kept != nil {
		return
	}
	if l := k.lease(); l.runs() {
		if p := r.relays.peers[l.Keeper]; p != nil && p.home == nil && p.presentLocked(r.relays.patience) {
			return
		}
	}
	h.Reason = "region " + v.name + " cannot be reached"
	if h.State == Online {
		h.Silent = earlier(h.Silent, v.silent.UTC().Round(0))
	}
}

// silentRegionsLocked describes the silent regions, or returns "".
func (r *Registry) silentRegionsLocked() string {
	var names []string
	for name, v := range r.regions {
		if !v.silent.IsZero() {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("%s silent: hosts at home there stay listed as they were", strings.Join(names, ", "))
}

// decidesLocked reports whether a region is the home of a host that its store lists.
// If two regions list it, the first by name is its home, and the others remove it:
// they enrolled it while they were separated.
func (r *Registry) decidesLocked(v *view, s *hostState, rev uint64, gone bool) bool {
	k := r.hosts[s.Key]
	if k == nil || r.homeOf(k) == v {
		return true
	}
	home := r.homeOf(k)
	switch {
	case gone:
		if v == &r.view {
			delete(r.surplus, s.Key)
		}
		return false
	case !home.isSynced: // its store may still have the host
	case home.name < v.name:
		if v == &r.view {
			r.surplusLocked(s.Key, surplus{rev, s.Lease, s.LastSeen})
		}
		return false
	case home == &r.view && k.rev != 0:
		r.surplusLocked(s.Key, surplus{k.rev, k.lease(), k.LastSeen})
	}
	r.forgetLocked(k)
	return true
}

// A surplus is an entry of this region's store for a host whose home is another
// region.
type surplus struct {
	rev  uint64
	last *lease // the last lease granted here; nil: none
	seen time.Time
}

func (r *Registry) surplusLocked(key string, s surplus) {
	r.surplus[key] = s
	wakeUp(r.write)
}

// removeSurplus removes from this region's store the hosts of other regions, after
// their home stores have taken over the lease numbers granted here: a removed entry
// would lose its number. One relay does this for all.
func (r *Registry) removeSurplus(ctx context.Context) error {
	r.mu.RLock()
	over := maps.Clone(r.surplus)
	r.mu.RUnlock()
	if len(over) == 0 || !r.relays.leads() {
		return nil
	}
	var failed error
	for key, s := range over {
		err := r.giveUp(ctx, key, s)
		if err != nil && !errors.Is(err, errConflict) { // after a conflict the watch brings the change
			failed = err
			continue
		}
		r.mu.Lock()
		if r.surplus[key] == s {
			delete(r.surplus, key)
		}
		r.mu.Unlock()
	}
	return failed
}

// giveUp removes one host from this region's store, unless this region is its home
// again.
func (r *Registry) giveUp(ctx context.Context, key string, s surplus) error {
	if elsewhere, err := r.elsewhere(key); !elsewhere || err != nil {
		return err
	}
	if err := r.raiseFence(ctx, key, s); err != nil {
		return err
	}
	return r.store.remove(ctx, hostKeys+key, s.rev)
}

// elsewhere reports whether another region is a host's home. The error reports why
// that region's store is unusable now.
func (r *Registry) elsewhere(key string) (bool, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch k := r.hosts[key]; {
	case k == nil: // unknown
		return true, nil
	case k.home == nil:
		return false, nil
	case !k.home.silent.IsZero():
		return true, errNotReached
	default:
		return true, k.home.writeError()
	}
}

// raiseFence lifts the fence in a host's home store above a lease that another region
// granted.
func (r *Registry) raiseFence(ctx context.Context, key string, other surplus) error {
	return r.update(ctx, key, func(k *knownHost, _ bool) *hostState {
		if k.home == nil || other.last == nil || k.lease().number() > other.last.number() {
			return nil
		}
		s, next := k.hostState, *other.last
		if current := k.lease(); current != nil {
			next = *current
			next.Fence = other.last.number() + 1
		} else {
			next.Fence, next.Lost = other.last.number(), true
			s.LastSeen = later(s.LastSeen, other.seen)
		}
		s.Lease = &next
		return &s
	})
}

// regionsPending returns why another region may still have a host that is unknown here.
func (r *Registry) regionsPending() error {
	if r.cfg.Region == "" {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if time.Since(r.started) < regionBeats*r.beatEvery {
		return fmt.Errorf("%w: no other region was heard yet", ErrStoreAway)
	}
	for _, v := range r.regions {
		if !v.isSynced && v.silent.IsZero() {
			return fmt.Errorf("%w: the store of region %s is being read", ErrStoreAway, v.name)
		}
	}
	return nil
}
