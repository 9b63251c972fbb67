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

// A region is a cluster of NATS servers that gateways join to others. Each has a bucket
// of its own, on its own servers, and decides of the hosts that are in it: those that
// were enrolled there first. Relays watch the buckets of all regions, and write into
// that of the host, wherever they are: so who holds a host is decided in one place,
// and a change crosses to each relay of another region once.
//
// While a region is not heard, what is known of its hosts stays as it is: it proves
// nothing. Those of this region go on, and their leases run out, as ever; of two regions
// that have both enrolled a host while they were apart, the first by name decides.
const (
	// regionSubject is where one relay of each region says its name.
	regionSubject = relayRoot + "region"

	saidRoom   = 64 // names not yet looked at; more are dropped, and come again
	maxRegions = 64

	// regionBeats is how many beats nothing is heard from a region until that is told.
	regionBeats = 3
)

var errNotReached = errors.New("it was not reached yet")

// A view is what is known of the store of one region. Registry.mu guards what changes.
type view struct {
	name  string // of the region; "": there is one only
	store *store // set before anything is followed

	epoch    uint64 // of the watch
	taken    uint64 // the last one that brought all that there was
	seen     uint64 // revision of the last entry that it brought
	storeID  string // of the bucket that was last taken whole
	newStore bool   // another than that is being taken
	isSynced bool   // one was, in this run
	storeErr error  // why the store is away; nil: it is there

	heard time.Time // when anything came from it

	// Of another region:
	news   bool      // something has, since the last beat
	silent time.Time // since when nothing has, for long; zero: it has
}

// whyNot returns why what is in the store cannot be changed now.
func (v *view) whyNot() error {
	switch {
	case v.storeErr != nil:
		return v.storeErr
	case v.taken != v.epoch:
		return errReading
	}
	return nil
}

// storeOf returns the way to the store of a region, of which only this relay's own is made
// here.
func (r *Registry) storeOf(region string) (*store, error) {
	name := bucket
	if region != "" {
		name += "-" + region
	}
	s, err := newStore(r.cfg.Conn, name, "what AHP relays know of hosts")
	if err == nil {
		s.region, s.found = region, region != r.cfg.Region
	}
	return s, err
}

// foreign returns v if it is that of another region, nil for this relay's own.
func (r *Registry) foreign(v *view) *view {
	if v == &r.view {
		return nil
	}
	return v
}

// homeOf returns the view of the region that decides of a host.
func (r *Registry) homeOf(k *knownHost) *view {
	if k.home != nil {
		return k.home
	}
	return &r.view
}

// regionLocked returns the view of another region, nil if it is this one, or one too many.
func (r *Registry) regionLocked(name string) (v *view, news bool) {
	if name == r.cfg.Region || r.cfg.Region == "" || ahp.CheckName("region", name) != nil {
		return nil, false
	}
	if v = r.regions[name]; v != nil || len(r.regions) == maxRegions {
		return v, false
	}
	store, err := r.storeOf(name)
	if err != nil {
		r.cfg.Log.Error("store of another region", "region", name, "error", err)
		return nil, false
	}
	v = &view{name: name, store: store, storeErr: errNotReached, heard: time.Now()}
	r.regions[name] = v
	return v, true
}

// keptRegionLocked returns the region of a host as the file has it.
func (r *Registry) keptRegionLocked(name string) *view {
	if name == "" {
		return nil
	}
	v, _ := r.regionLocked(name)
	return v
}

// followRegions follows all regions that this relay knows of, and hears of others.
func (r *Registry) followRegions() error {
	if r.cfg.Region == "" {
		return nil
	}
	for _, v := range r.regions {
		r.running.Go(func() { r.follow(r.life, v) })
	}
	deaf, err := r.cfg.Conn.Hear(regionSubject, saidRoom, r.hearRegion)
	if err == nil {
		r.stop = append(r.stop, deaf)
	}
	return err
}

// hearRegion takes the word of a relay of another region.
func (r *Registry) hearRegion(name []byte) {
	r.mu.Lock()
	v, news := r.regionLocked(string(name))
	r.mu.Unlock()
	if news && r.life.Err() == nil {
		r.cfg.Log.Info("another region is there", "region", v.name)
		r.running.Go(func() { r.follow(r.life, v) })
	}
}

// sayRegion tells relays of other regions that this one is there.
func (r *Registry) sayRegion() {
	if r.cfg.Region != "" && r.first() {
		_ = r.cfg.Conn.Publish(regionSubject, []byte(r.cfg.Region)) // again soon
	}
}

// hearLocked notes that something has come from a region.
func (r *Registry) hearLocked(v *view) {
	v.news = true
	if !v.silent.IsZero() {
		v.silent = time.Time{}
		r.cfg.Log.Info("another region is heard again", "region", v.name)
		r.regionChangedLocked(v)
	}
}

// missRegions looks for regions from which nothing comes.
func (r *Registry) missRegions(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.regions {
		if v.silent.IsZero() && now.Sub(v.heard) > regionBeats*r.beatEvery {
			v.silent = v.heard
			r.cfg.Log.Warn("another region is not heard: its hosts are listed as they were", "region", v.name, "since", v.heard)
			r.regionChangedLocked(v)
		}
	}
}

// regionChangedLocked has subscribers told of all hosts of a region: whether it is heard has
// changed.
func (r *Registry) regionChangedLocked(v *view) {
	for key, k := range r.hosts {
		if k.home == v {
			r.changedLocked(key)
		}
	}
}

// heardRegionsLocked returns the other regions from which something has come since it was
// last called.
func (r *Registry) heardRegionsLocked() map[*view]bool {
	heard := make(map[*view]bool, len(r.regions))
	for _, v := range r.regions {
		heard[v], v.news = v.news, false
	}
	return heard
}

// farLocked adds to a description in which region the host is at home, and that nothing
// is heard of it. Of one whose host-agent a relay of this region hears, enough is.
func (r *Registry) farLocked(k *knownHost, h *Host) {
	v := r.homeOf(k)
	h.Region = v.name
	if v.silent.IsZero() || k.kept != nil {
		return
	}
	if l := k.lease(); l.runs() {
		if p := r.peers[l.Keeper]; p != nil && p.home == nil && p.thereLocked(r.patience) {
			return
		}
	}
	h.Reason = "region " + v.name + " cannot be reached"
	if h.State == Online {
		h.Silent = earlier(h.Silent, v.silent.UTC().Round(0))
	}
}

// silentRegionsLocked says which regions are not heard, "" if all are.
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
	return fmt.Sprintf("nothing is heard from %s: hosts that are at home there are listed as they were", strings.Join(names, ", "))
}

// decidesLocked reports whether a region is the one that decides of a host of which its
// store has something. Of two that have it the first by name does, and the others forget
// it: they had enrolled it too, while they could not know.
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
	case !home.isSynced: // it is not known whether its store still has the host
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

// A surplus is what the store of this relay's region has of a host that another decides of.
type surplus struct {
	rev  uint64
	last *lease // that was given here; nil: none was
	seen time.Time
}

func (r *Registry) surplusLocked(key string, s surplus) {
	r.surplus[key] = s
	wakeUp(r.write)
}

// removeSurplus has this region's store forget the hosts that others decide of, once those know
// the numbers of the leases that were given here: who has forgotten a lease cannot say that it
// ever was. One relay does it for all.
func (r *Registry) removeSurplus(ctx context.Context) error {
	r.mu.RLock()
	over := maps.Clone(r.surplus)
	r.mu.RUnlock()
	if len(over) == 0 || !r.first() {
		return nil
	}
	var failed error
	for key, s := range over {
		err := r.giveUp(ctx, key, s)
		if err != nil && !errors.Is(err, errConflict) { // of a conflict the watch tells
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

// giveUp has this region's store forget one host, unless it decides of that again.
func (r *Registry) giveUp(ctx context.Context, key string, s surplus) error {
	if elsewhere, err := r.elsewhere(key); !elsewhere || err != nil {
		return err
	}
	if err := r.outnumber(ctx, key, s); err != nil {
		return err
	}
	return r.store.remove(ctx, hostKeys+key, s.rev)
}

// elsewhere reports whether this region does not decide of a host; the error says why the one that
// does cannot be asked now.
func (r *Registry) elsewhere(key string) (bool, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch k := r.hosts[key]; {
	case k == nil: // nobody knows it
		return true, nil
	case k.home == nil:
		return false, nil
	case !k.home.silent.IsZero():
		return true, errNotReached
	default:
		return true, k.home.whyNot()
	}
}

// outnumber has the lease that a host has in the region that decides of it be a later one than
// one that another region gave.
func (r *Registry) outnumber(ctx context.Context, key string, other surplus) error {
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

// unsettled returns why it is not known yet whether another region has a host that this one
// does not know.
func (r *Registry) unsettled() error {
	if r.cfg.Region == "" {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if time.Since(r.started) < regionBeats*r.beatEvery {
		return fmt.Errorf("%w: other regions have yet to be heard", ErrStoreAway)
	}
	for _, v := range r.regions {
		if !v.isSynced && v.silent.IsZero() {
			return fmt.Errorf("%w: what region %s has is being read", ErrStoreAway, v.name)
		}
	}
	return nil
}
