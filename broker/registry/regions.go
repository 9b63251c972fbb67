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
// first. Relays watch all buckets, and write a host's changes into its home bucket. So
// one place decides about a host's lease, and a change crosses to each relay of
// another region once.
//
// While a region is silent, its hosts stay listed as they were: silence proves
// nothing. This region's own hosts continue, and their leases expire as usual. If two
// regions have enrolled the same host while they were separated, the first by name
// becomes its home.
const (
	// regionSubject is where a relay from each region announces its name.
	regionSubject = relayRoot + "region"

	regionBacklog = 64 // waiting names; more are dropped and repeated
	maxRegions    = 64

	// regionBeats is the number of silent beats after which a region is reported as
	// silent.
	regionBeats = 3
)

var errNotReached = errors.New("not reached yet")

// A view is the known content in one region's store. Registry.mu guards the changing
// fields.
type view struct {
	r     *Registry
	name  string // the region's; "": there is only one
	store *store // set before anything is followed

	epoch    uint64 // of the watch
	taken    uint64 // the last complete one
	seen     uint64 // the last entry's revision
	storeID  string // of the last completely read bucket
	newStore bool   // a different bucket is being read
	isSynced bool   // a bucket was read completely in this run
	storeErr error  // why the store is away; nil: it is usable

	heard time.Time // when an entry last arrived

	// Of another region:
	news   bool      // an entry has arrived since the last beat
	silent time.Time // start of a long silence; zero: it is heard
}

// own reports whether v is the view of this relay's region.
func (v *view) own() bool { return v == &v.r.view }

// writeError returns why the store cannot be changed now.
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
	others  map[string]*view   // by name
	surplus map[string]surplus // by host key
}

// storeOf returns access to a region's store. Only this region's own store is created
// here.
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

// homeOf returns the view of a host's home region.
func (rg *regions) homeOf(k *knownHost) *view {
	if k.home != nil {
		return k.home
	}
	return &rg.r.view
}

// getLocked returns another region's view and whether it is new. It returns nil for
// this region and beyond maxRegions.
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

// savedLocked returns a view for a region named in the state file.
func (rg *regions) savedLocked(name string) *view {
	if name == "" {
		return nil
	}
	v, _ := rg.getLocked(name)
	return v
}

// follow follows all known regions, and listens for others.
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

// receive handles the announcement of another region.
func (rg *regions) receive(name []byte) {
	rg.r.mu.Lock()
	v, news := rg.getLocked(string(name))
	rg.r.mu.Unlock()
	if news && rg.r.life.Err() == nil {
		rg.r.cfg.Log.Info("region found", "region", v.name)
		rg.r.running.Go(func() { v.follow(rg.r.life) })
	}
}

// announce announces this region elsewhere.
func (rg *regions) announce() {
	if rg.r.cfg.Region != "" && rg.r.relays.leads() {
		_ = rg.r.cfg.Conn.Publish(regionSubject, []byte(rg.r.cfg.Region)) // repeated soon
	}
}

// markHeardLocked records a region's sign of life.
func (rg *regions) markHeardLocked(v *view) {
	v.news = true
	if !v.silent.IsZero() {
		v.silent = time.Time{}
		rg.r.cfg.Log.Info("region heard again", "region", v.name)
		rg.changedLocked(v)
	}
}

// findSilent finds newly silent regions.
func (rg *regions) findSilent(now time.Time) {
	rg.r.mu.Lock()
	defer rg.r.mu.Unlock()
	for _, v := range rg.others {
		if v.silent.IsZero() && now.Sub(v.heard) > regionBeats*rg.r.beatEvery {
			v.silent = v.heard
			rg.r.cfg.Log.Warn("region silent: its hosts stay listed as they were", "region", v.name, "since", v.heard)
			rg.changedLocked(v)
		}
	}
}

// changedLocked marks a region's hosts as changed, because the region fell silent or
// returned.
func (rg *regions) changedLocked(v *view) {
	for key, k := range rg.r.hosts {
		if k.home == v {
			rg.r.changedLocked(key)
		}
	}
}

// heardLocked returns the regions heard since its last call.
func (rg *regions) heardLocked() map[*view]bool {
	heard := make(map[*view]bool, len(rg.others))
	for _, v := range rg.others {
		heard[v], v.news = v.news, false
	}
	return heard
}

// describeLocked adds to a description the host's home region and its silence. A
// host whose host-agent is connected to a relay of this region is never shown as
// unreachable.
func (rg *regions) describeLocked(k *knownHost, h *Host) {
	v := rg.homeOf(k)
	h.Region = v.name
	if v.silent.IsZero() || k.kept != nil {
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

// describeSilentLocked describes the silent regions, or returns "".
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

// decidesLocked reports whether a region is the home of a host in its store. If two
// regions list it, the first by name is its home, and the others remove it: they
// enrolled it while they were separated.
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
	case !home.isSynced: // its store may still have the host
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

// A surplus is an entry in this region's store for another region's host.
type surplus struct {
	rev  uint64
	last *lease // the last lease granted here; nil: none
	seen time.Time
}

func (rg *regions) addSurplusLocked(key string, s surplus) {
	rg.surplus[key] = s
	wakeUp(rg.r.writer.wake)
}

// removeSurplus removes from this region's store other regions' hosts, after their
// home stores have taken over the lease numbers granted here: a removed entry would
// lose its number. One relay does this for all.
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
		if err != nil && !errors.Is(err, errConflict) { // after a conflict the watch brings the change
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

// giveUp removes one host from this region's store, unless this region is its home
// again.
func (rg *regions) giveUp(ctx context.Context, key string, s surplus) error {
	if elsewhere, err := rg.elsewhere(key); !elsewhere || err != nil {
		return err
	}
	if err := rg.raiseFence(ctx, key, s); err != nil {
		return err
	}
	return rg.r.view.store.remove(ctx, hostKeys+key, s.rev)
}

// elsewhere reports whether another region is a host's home. The error explains why
// its store is unusable now.
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

// raiseFence lifts the fence in a host's home store above another region's lease.
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
			s.LastSeen = later(s.LastSeen, other.seen)
		}
		s.Lease = &next
		return &s
	})
}

// pending returns why other regions may still have unknown hosts.
func (rg *regions) pending() error {
	if rg.r.cfg.Region == "" {
		return nil
	}
	rg.r.mu.RLock()
	defer rg.r.mu.RUnlock()
	if time.Since(rg.r.started) < regionBeats*rg.r.beatEvery {
		return fmt.Errorf("%w: no other region was heard yet", ErrStoreAway)
	}
	for _, v := range rg.others {
		if !v.isSynced && v.silent.IsZero() {
			return fmt.Errorf("%w: the store of region %s is being read", ErrStoreAway, v.name)
		}
	}
	return nil
}
