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

	"ahprelay/auth"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// Bounds for revocations.
const (
	// MaxRevocations bounds the revocations at a relay. A quarter of them is reserved for
	// operators. Of the rest, a tenant may have as many as are free ([auth.Revocation.By]), and use
	// up a token if it has at most half as many as are free. Revocations from other relays count
	// too, but are always accepted.
	MaxRevocations = 1 << 19
	maxOfTenants   = MaxRevocations / 4 * 3

	// revocationBacklog bounds the waiting messages from other relays. A lost
	// revocation arrives later through the store.
	revocationBacklog = 1024

	// pruneEvery is the interval at which revocations of expired tokens are removed.
	pruneEvery = time.Minute

	// settleFor is how long after the start no revocation expires that was decided before the
	// start: a machine's clock may be wrong until a time server has corrected it.
	settleFor = time.Hour
)

// ErrTooManyRevocations reports that MaxRevocations is reached.
var ErrTooManyRevocations = errors.New("too many tokens, subjects and hosts are revoked; new keys end all tokens")

// ErrNotSaved reports a revocation that is in force, but not in the file. The Revocations try again
// to write it.
var ErrNotSaved = errors.New("the revocation is not saved")

// Revocations is the set of revocations that one relay knows. Only revocations of
// expired tokens are ever removed, so after two separated relays have met, both have
// the union. It is safe for concurrent use.
//
// A relay sends a new revocation to all relays at once. It also writes the revocation
// to the store, for relays that have missed the message. While the store is
// unreachable, only files of relays contain the revocation.
type Revocations struct {
	file string // path of the file; "": none
	log  *slog.Logger
	wake chan struct{}    // wakes run, because revocations must be saved
	wall func() time.Time // time.Now, except in tests

	began time.Time // when the set was loaded

	saving sync.Mutex // serializes writes of the file; locked before mu

	mu      sync.RWMutex // guards the fields below
	entries map[auth.RevocationKey]auth.Revocation
	by      map[string]int              // number of entries by Revocation.By
	revs    map[string]uint64           // revision of each stored revocation, by store key
	over    map[string]uint64           // revision of each stored revocation that has expired and is to be removed, by store key
	behind  map[auth.RevocationKey]bool // revocations that the store lacks or has in an older form
	news    []auth.Revocation           // revocations that the registry has not enforced yet
	unsaved bool
	told    []*revocationSubscriber
	others  func(auth.Revocation) // sends a revocation to other relays; may be nil
}

type revocationSubscriber struct{ notify func() }

// LoadRevocations reads a file, and later writes changes to it. The file may be
// missing. With the path "", nothing is saved. An unreadable file is an error, because
// revoked tokens must not become valid again.
func LoadRevocations(path string, log *slog.Logger) (*Revocations, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	r := &Revocations{file: path, log: log, wake: make(chan struct{}, 1), wall: time.Now, began: time.Now(),
		entries: map[auth.RevocationKey]auth.Revocation{}, by: map[string]int{}, revs: map[string]uint64{}, over: map[string]uint64{}, behind: map[auth.RevocationKey]bool{},
	}
	if path == "" {
		return r, nil
	}
	var list []auth.Revocation
	_, err := atomicfile.ReadJSON(path, &list)
	for _, rev := range list {
		err = errors.Join(err, rev.Check())
	}
	if err != nil {
		return nil, fmt.Errorf("read revocations in %s: %w; restore the file from another relay, or remove it, which makes the revoked tokens valid again that the store lacks", path, err)
	}
	for _, rev := range list {
		r.mergeLocked(rev)
	}
	return r, nil
}

// Add adds a revocation. When Add returns, the revocation has taken effect at this
// relay, is in its file, and has been sent to all connected relays. The error is
// ErrTooManyRevocations if the set is full, or if rev.By has as many revocations as are free
// for tenants; else it reports that rev is invalid, or wraps ErrNotSaved.
func (r *Revocations) Add(rev auth.Revocation) error {
	_, err := r.add(rev, 1, func(auth.Revocation) bool { return true })
	return err
}

// Spend revokes a single token of a tenant, and reports whether it was valid before. If two calls at
// one relay name the same token, only the first returns true. The errors are those of Add. With
// true, an error wraps ErrNotSaved.
func (r *Revocations) Spend(tenant, token string, expires time.Time) (first bool, err error) {
	return r.add(auth.Revocation{Token: token, At: time.Now(), Until: expires, Alone: true, By: tenant}, 2, func(was auth.Revocation) bool { return was.Token == "" })
}

// add adds a revocation if wanted accepts the existing one and there is room: rev.By must
// have less than the given part of the free places, 1 for all of them and 2 for half.
func (r *Revocations) add(rev auth.Revocation, part int, wanted func(was auth.Revocation) bool) (news bool, err error) {
	if err := rev.Check(); err != nil {
		return false, err
	}
	r.mu.Lock()
	was, known := r.entries[rev.Key()]
	full := !known && (len(r.entries) >= MaxRevocations || rev.By != "" && r.by[rev.By]*part >= maxOfTenants-len(r.entries))
	var told []auth.Revocation
	if !full && wanted(was) {
		told = r.mergeAllLocked(rev)
	}
	others := r.others
	r.mu.Unlock()
	switch {
	case full:
		return false, ErrTooManyRevocations
	case len(told) == 0:
		return false, nil
	}
	if others != nil {
		for _, one := range told {
			others(one)
		}
	}
	r.notify()
	if err := r.save(); err != nil {
		return true, fmt.Errorf("%w: %w", ErrNotSaved, err)
	}
	return true, nil
}

// mergeAllLocked adds a revocation, and the revocation of grants that derive from it.
// It returns those that have changed the set.
func (r *Revocations) mergeAllLocked(rev auth.Revocation) (news []auth.Revocation) {
	if r.mergeLocked(rev) {
		news = append(news, rev)
	}
	if derived, ok := rev.OfDerived(); ok && r.mergeLocked(derived) {
		news = append(news, derived)
	}
	return news
}

// announce sets the function that sends new revocations to other relays.
func (r *Revocations) announce(others func(auth.Revocation)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others = others
}

// now returns the time by which revocations expire: the earlier of the clock and the time that
// this process has measured since its start, because a clock that is set forward may be set back
// later.
func (r *Revocations) now() time.Time {
	return earlier(r.wall().Round(0), r.began.Add(time.Since(r.began)).Round(0))
}

// isOver reports whether a revocation has expired and may be forgotten.
func (r *Revocations) isOver(rev auth.Revocation, now time.Time) bool {
	return rev.Expired(now) && (time.Since(r.began) >= settleFor || !rev.At.Before(r.began))
}

// receive adds revocations from other relays.
func (r *Revocations) receive(list []auth.Revocation) {
	now, news := r.now(), false
	r.mu.Lock()
	for _, rev := range list {
		if err := rev.Check(); err != nil {
			r.log.Warn("revocation from another relay invalid", "error", err)
			continue
		}
		if !r.isOver(rev, now) && r.mergeLocked(rev) {
			news = true
		}
	}
	r.mu.Unlock()
	if !news {
		return
	}
	signal.Send(r.wake)
	r.notify()
}

// mergeLocked adds a revocation and reports whether the set has changed.
func (r *Revocations) mergeLocked(rev auth.Revocation) bool {
	rev.At, rev.Until, rev.Derived = rev.At.UTC().Round(0), rev.Until.UTC().Round(0), rev.Derived.UTC().Round(0) // as it is after JSON
	key := rev.Key()
	if was, known := r.entries[key]; known {
		rev = was.Merge(rev)
		if rev == was {
			return false
		}
		r.by[was.By]--
	}
	r.entries[key] = rev
	r.by[rev.By]++
	r.behind[key] = true
	r.news = append(r.news, rev)
	r.unsaved = true
	return true
}

// takeNews returns the revocations that are new since its last call.
func (r *Revocations) takeNews() []auth.Revocation {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = nil
	return news
}

// stored records that the store contains a revocation, and its revision.
func (r *Revocations) stored(rev auth.Revocation, revision uint64) {
	r.receive([]auth.Revocation{rev})
	key, stored := rev.Key(), revokedKey(rev)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revs[stored] = revision
	delete(r.over, stored)
	was, known := r.entries[key]
	switch {
	case !known:
		r.over[stored] = revision
	case was == rev:
		delete(r.behind, key)
	default:
		r.behind[key] = true
	}
}

// removed records that a key was removed from the store.
func (r *Revocations) removed(stored string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.revs, stored)
	delete(r.over, stored)
}

// toRemove returns the store keys and revisions of expired revocations.
func (r *Revocations) toRemove() map[string]uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.over)
}

// toStore returns the revocations to write to the store, in the order in which they were
// decided, and the revisions that they replace.
func (r *Revocations) toStore() (list []auth.Revocation, revs []uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for key := range r.behind {
		list = append(list, r.entries[key])
	}
	slices.SortFunc(list, func(a, b auth.Revocation) int { return a.At.Compare(b.At) })
	for _, rev := range list {
		revs = append(revs, r.revs[revokedKey(rev)])
	}
	return list, revs
}

// watched records that a complete read of the store begins, or is done.
func (r *Revocations) watched(done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !done {
		clear(r.revs)
		clear(r.over)
		return
	}
	for key, rev := range r.entries {
		if r.revs[revokedKey(rev)] == 0 {
			r.behind[key] = true
		}
	}
}

func (r *Revocations) prune(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, rev := range r.entries {
		if r.isOver(rev, now) {
			delete(r.entries, key)
			delete(r.behind, key)
			if r.by[rev.By]--; r.by[rev.By] == 0 {
				delete(r.by, rev.By)
			}
			r.unsaved = true
			if stored := revokedKey(rev); r.revs[stored] != 0 {
				r.over[stored] = r.revs[stored]
			}
		}
	}
}

// Revoked reports whether a token issued at a time is revoked under any of its keys,
// see [auth.Client.Keys] and [auth.Enrolment.Keys].
func (r *Revocations) Revoked(issued time.Time, keys ...auth.RevocationKey) bool {
	_, revoked := r.since(issued, keys...)
	return revoked
}

// since is Revoked, and also returns the time of the revocation.
func (r *Revocations) since(issued time.Time, keys ...auth.RevocationKey) (at time.Time, revoked bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, key := range keys {
		if rev, ok := r.entries[key]; ok && rev.Covers(issued) {
			at, revoked = clock.Later(at, rev.At), true
		}
	}
	return at, revoked
}

// RevokedOrigin reports whether any origin of a grant is revoked.
func (r *Revocations) RevokedOrigin(tenant string, origins []auth.Origin) bool {
	_, revoked := r.originSince(tenant, origins)
	return revoked
}

// originSince is RevokedOrigin, and also returns the time of the revocation.
func (r *Revocations) originSince(tenant string, origins []auth.Origin) (at time.Time, revoked bool) {
	if len(origins) == 0 {
		return at, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	auth.EachOrigin(tenant, origins, func(key auth.RevocationKey, issued time.Time) {
		if rev, ok := r.entries[key]; ok && rev.CoversDerived(issued) {
			at, revoked = clock.Later(at, rev.At), true
		}
	})
	return at, revoked
}

// List returns all revocations, latest first.
func (r *Revocations) List() []auth.Revocation {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := slices.Collect(maps.Values(r.entries))
	slices.SortFunc(list, func(a, b auth.Revocation) int { return b.At.Compare(a.At) })
	return list
}

// Subscribe calls notify after each change until cancel. Notify must not block, and
// may be called concurrently.
func (r *Revocations) Subscribe(notify func()) (cancel func()) {
	s := &revocationSubscriber{notify}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(slices.Clone(r.told), s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = slices.DeleteFunc(slices.Clone(r.told), func(o *revocationSubscriber) bool { return o == s })
	}
}

func (r *Revocations) notify() {
	r.mu.RLock()
	told := r.told
	r.mu.RUnlock()
	for _, s := range told {
		s.notify()
	}
}

// run saves changes and removes expired revocations until ctx ends.
func (r *Revocations) run(ctx context.Context) {
	prune := time.Tick(pruneEvery)
	for {
		select {
		case <-ctx.Done():
			if err := r.save(); err != nil {
				r.log.Error("revocations not saved", "error", err)
			}
			return
		case <-r.wake:
		case <-prune:
			r.prune(r.now())
		}
		if err := r.save(); err != nil {
			r.log.Error("revocations not saved", "error", err)
		}
	}
}

// save writes unsaved changes to the file and syncs it.
func (r *Revocations) save() error {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.mu.Lock()
	unsaved := r.unsaved
	r.unsaved = false
	r.mu.Unlock()
	if r.file == "" || !unsaved {
		return nil
	}
	err := atomicfile.ReplaceJSON(r.file, r.List(), "\t")
	if err != nil {
		r.mu.Lock()
		r.unsaved = true // run saves them later
		r.mu.Unlock()
	}
	return err
}
