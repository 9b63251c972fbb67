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
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// A region is a cluster of NATS servers; gateways connect the clusters. Each region
// has a bucket on its own servers. The region in which a host was first enrolled is
// the host's home. Relays watch all buckets, and write a host's changes to its home
// bucket. So one store decides about a host's lease, and a change is sent to each
// relay of the other regions only once.
//
// While a region is silent, its hosts stay listed as they were, because silence proves
// nothing. Other regions' hosts are not affected, and their leases expire as usual. If
// two separated regions have enrolled the same host, the region with the first name
// becomes its home.
const (
	// regionSubject is where a relay of each region announces the region's name.
	regionSubject = relayRoot + "region"

	regionBacklog = 64 // waiting announcements; further ones are dropped, and repeated later
	maxRegions    = 64

	// regionBeats is the number of beat intervals after which a region counts as silent if
	// nothing has arrived from it.
	regionBeats = 3
)

var errNotReached = errors.New("not reached yet")

// A view is a relay's copy of a region's store. Registry.mu guards the changing
// fields.
type view struct {
	r     *Registry
	name  string // the region's name; "": there is only one region
	store *store // the region's store; set before follow

	epoch    uint64 // number of the current watch
	taken    uint64 // number of the last watch that has read the bucket completely
	seen     uint64 // revision of the last delivered entry
	storeID  string // id of the last completely read bucket
	newStore bool   // the current watch reads a different bucket than the previous
	isSynced bool   // a bucket was read completely since the start
	storeErr error  // why the store is unusable; nil: it is usable

	heard time.Time // when an entry last arrived

	// For views of other regions:
	news   bool      // an entry has arrived since the last write of this relay's session
	silent time.Time // since when the region has been silent; zero: it is not
}

// own reports whether v is the view of this relay's region.
func (v *view) own() bool { return v == &v.r.view }

// writeError returns why the store cannot be written now, or nil.
func (v *view) writeError() error {
	switch {
	case v.storeErr != nil:
		return v.storeErr
	case v.taken != v.epoch:
		return errReading
	}
	return nil
}

// regions are the other regions. Registry.mu guards the maps.
type regions struct {
	r       *Registry
	others  map[string]*view   // by region name
	surplus map[string]surplus // entries of hosts at home elsewhere, to remove; by host key
}

// storeOf returns access to a region's store. A relay creates only the store of its own
// region.
func (rg *regions) storeOf(region string) (*store, error) {
	name := bucket
	if region != "" {
		name += "-" + region
	}
	s, err := newStore(rg.r.cfg.Conn, name, "AHP relays: hosts")
	if err == nil {
		s.region, s.found = region, region != rg.r.cfg.Region
	}
	return s, err
}

// foreign returns v if it is another region's view, or nil for this relay's region.
func (rg *regions) foreign(v *view) *view {
	if v.own() {
		return nil
	}
	return v
}

func (rg *regions) homeOf(k *knownHost) *view {
	if k.home != nil {
		return k.home
	}
	return &rg.r.view
}

// getLocked returns a different region's view, and whether it is new. It returns nil
// for this region, and for new regions beyond maxRegions.
func (rg *regions) getLocked(name string) (v *view, news bool) {
	if name == rg.r.cfg.Region || rg.r.cfg.Region == "" || ahp.CheckName("region", name) != nil {
		return nil, false
	}
	if v = rg.others[name]; v != nil || len(rg.others) == maxRegions {
		return v, false
	}
	store, err := rg.storeOf(name)
	if err != nil {
		rg.r.cfg.Log.Error("store of region unusable", "region", name, "error", err)
		return nil, false
	}
	v = &view{r: rg.r, name: name, store: store, storeErr: errNotReached, heard: time.Now()}
	rg.others[name] = v
	return v, true
}

func (rg *regions) savedLocked(name string) *view {
	if name == "" {
		return nil
	}
	v, _ := rg.getLocked(name)
	return v
}

// follow follows the stores of all known regions, and listens for announcements of
// further regions.
func (rg *regions) follow() error {
	if rg.r.cfg.Region == "" {
		return nil
	}
	for _, v := range rg.others {
		rg.r.running.Go(func() { v.follow(rg.r.life) })
	}
	unsubscribe, err := rg.r.cfg.Conn.Hear(regionSubject, regionBacklog, rg.receive)
	if err == nil {
		rg.r.stop = append(rg.r.stop, unsubscribe)
	}
	return err
}

func (rg *regions) receive(name []byte) {
	rg.r.mu.Lock()
	v, news := rg.getLocked(string(name))
	rg.r.mu.Unlock()
	if news && rg.r.life.Err() == nil {
		rg.r.cfg.Log.Info("region found", "region", v.name)
		rg.r.running.Go(func() { v.follow(rg.r.life) })
	}
}

// announce sends this region's announcement to relays of other regions.
func (rg *regions) announce() {
	if rg.r.cfg.Region != "" && rg.r.relays.leads() {
		_ = rg.r.cfg.Conn.Publish(regionSubject, []byte(rg.r.cfg.Region)) // repeated at the next beat
	}
}

// markHeardLocked records that something has arrived from a region.
func (rg *regions) markHeardLocked(v *view) {
	v.news = true
	if !v.silent.IsZero() {
		v.silent = time.Time{}
		rg.r.cfg.Log.Info("region reachable", "region", v.name)
		rg.changedLocked(v)
	}
}

// findSilent marks a region as silent if nothing has arrived from it for regionBeats
// beats.
func (rg *regions) findSilent(now time.Time) {
	rg.r.mu.Lock()
	defer rg.r.mu.Unlock()
	for _, v := range rg.others {
		if v.silent.IsZero() && now.Sub(v.heard) > regionBeats*rg.r.beatEvery {
			v.silent = v.heard
			rg.r.cfg.Log.Warn("region silent", "effect", "its hosts stay listed as they were", "region", v.name, "since", v.heard)
			rg.changedLocked(v)
		}
	}
}

// changedLocked marks a region's hosts as changed, because the region has become
// silent or has returned.
func (rg *regions) changedLocked(v *view) {
	for key, k := range rg.r.hosts {
		if k.home == v {
			rg.r.changedLocked(key)
		}
	}
}

// heardLocked returns the regions from which something has arrived since the last
// call.
func (rg *regions) heardLocked() map[*view]bool {
	heard := make(map[*view]bool, len(rg.others))
	for _, v := range rg.others {
		heard[v], v.news = v.news, false
	}
	return heard
}

// describeLocked adds the home region to a host's description, and reports the host as
// unreachable if that region is silent. A host whose host-agent is connected to a
// relay of this region never counts as unreachable.
func (rg *regions) describeLocked(k *knownHost, h *Host) {
	v := rg.homeOf(k)
	h.Region = v.name
	if v.silent.IsZero() || k.kept {
		return
	}
	if l := k.lease(); l.runs() {
		if p := rg.r.relays.peers[l.Keeper]; p != nil && p.home == nil && p.presentLocked(rg.r.relays.patience) {
			return
		}
	}
	h.Reason = "region " + v.name + " cannot be reached"
	if h.State == Online {
		h.Silent = earlier(h.Silent, v.silent.UTC().Round(0))
	}
}

// describeSilentLocked returns a text that lists the silent regions, or "".
func (rg *regions) describeSilentLocked() string {
	var names []string
	for name, v := range rg.others {
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

// decidesLocked reports whether the region of a view is the home of a host in its
// store. If two regions have the host, because they enrolled it while they were
// separated, the first region by name is its home, and the other removes the host from
// its store.
func (rg *regions) decidesLocked(v *view, s *hostState, rev uint64, gone bool) bool {
	k := rg.r.hosts[s.Key]
	if k == nil || rg.homeOf(k) == v {
		return true
	}
	home := rg.homeOf(k)
	switch {
	case gone:
		if v == &rg.r.view {
			delete(rg.surplus, s.Key)
		}
		return false
	case !home.isSynced: // its store was not read yet, and may still contain the host
	case home.name < v.name:
		if v == &rg.r.view {
			rg.addSurplusLocked(s.Key, surplus{rev, s.Lease, s.LastSeen})
		}
		return false
	case home == &rg.r.view && k.rev != 0:
		rg.addSurplusLocked(s.Key, surplus{k.rev, k.lease(), k.LastSeen})
	}
	rg.r.forgetLocked(k)
	return true
}

// A surplus is a host in this region's store whose home is a different region.
type surplus struct {
	rev  uint64
	last *lease // the last lease granted here; nil: none
	seen time.Time
}

func (rg *regions) addSurplusLocked(key string, s surplus) {
	rg.surplus[key] = s
	signal.Send(rg.r.writer.wake)
}

// removeSurplus removes surplus hosts from this region's store. First it raises the
// lease numbers in their home stores above the numbers granted here, which would
// otherwise be lost. One relay does this for all.
func (rg *regions) removeSurplus(ctx context.Context) error {
	rg.r.mu.RLock()
	over := maps.Clone(rg.surplus)
	rg.r.mu.RUnlock()
	if len(over) == 0 || !rg.r.relays.leads() {
		return nil
	}
	var failed error
	for key, s := range over {
		err := rg.giveUp(ctx, key, s)
		if err != nil && !errors.Is(err, errConflict) { // after a conflict, the watch delivers the change
			failed = err
			continue
		}
		rg.r.mu.Lock()
		if rg.surplus[key] == s {
			delete(rg.surplus, key)
		}
		rg.r.mu.Unlock()
	}
	return failed
}

// giveUp removes one surplus host from this region's store, unless this region has
// become its home.
func (rg *regions) giveUp(ctx context.Context, key string, s surplus) error {
	if elsewhere, err := rg.elsewhere(key); !elsewhere || err != nil {
		return err
	}
	if err := rg.raiseFence(ctx, key, s); err != nil {
		return err
	}
	return rg.r.view.store.remove(ctx, hostKeys+key, s.rev)
}

// elsewhere reports whether a different region is a host's home. The error explains
// why that region's store is unusable.
func (rg *regions) elsewhere(key string) (bool, error) {
	rg.r.mu.RLock()
	defer rg.r.mu.RUnlock()
	switch k := rg.r.hosts[key]; {
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

// raiseFence raises a host's lease number in its home store above the number that
// another region has granted. Without a lease there, it stores the other region's lease as
// lost, so the next lease has a higher number.
func (rg *regions) raiseFence(ctx context.Context, key string, other surplus) error {
	return rg.r.writer.update(ctx, key, func(k *knownHost, _ bool) *hostState {
		if k.home == nil || other.last == nil || k.lease().number() > other.last.number() {
			return nil
		}
		s, next := k.hostState, *other.last
		if current := k.lease(); current != nil {
			next = *current
			next.Fence = other.last.number() + 1
		} else {
			next.Fence, next.Lost = other.last.number(), true
			s.LastSeen = clock.Later(s.LastSeen, other.seen)
		}
		s.Lease = &next
		return &s
	})
}

// pending returns why stores of other regions may contain hosts that this relay does
// not know, or nil.
func (rg *regions) pending() error {
	if rg.r.cfg.Region == "" {
		return nil
	}
	rg.r.mu.RLock()
	defer rg.r.mu.RUnlock()
	if time.Since(rg.r.started) < regionBeats*rg.r.beatEvery {
		return fmt.Errorf("%w: the other regions may not be known yet", ErrStoreAway)
	}
	for _, v := range rg.others {
		if !v.isSynced && v.silent.IsZero() {
			return fmt.Errorf("%w: the store of region %s is being read", ErrStoreAway, v.name)
		}
	}
	return nil
}
