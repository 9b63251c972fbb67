package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"ahprelay/auth"
)

// Bounds for revocations.
const (
	// MaxRevocations bounds a relay's revocations; half of them are reserved for Add.
	// Relayed revocations count, but are never refused.
	MaxRevocations = 1 << 18

	// revocationBacklog bounds the relays' waiting messages. A lost revocation arrives
	// through the store.
	revocationBacklog = 1024

	// pruneEvery is the interval at which revocations of expired tokens are removed.
	pruneEvery = time.Minute
)

// ErrTooManyRevocations reports a full set.
var ErrTooManyRevocations = errors.New("too many tokens, subjects and hosts are revoked; new keys end all tokens")

// Revocations are the revocations that one relay knows. The set only grows, except
// that revocations of expired tokens are removed. Separated relays therefore both have
// the union after they meet. It is safe for concurrent use.
//
// A relay sends a new revocation to all relays at once and writes it into the store,
// for relays that missed the message. While the store is away, the revocation waits in
// the relay's file.
type Revocations struct {
	file string // "": none
	log  *slog.Logger
	wake chan struct{} // for run: there is something to write; holds one

	saving sync.Mutex // serializes writes of the file; taken before mu

	mu      sync.RWMutex // guards the fields below
	entries map[auth.RevocationKey]auth.Revocation
	revs    map[string]uint64           // revisions in the store, by store key
	over    map[string]uint64           // of those, revocations that have expired
	behind  map[auth.RevocationKey]bool // newer here than in the store
	news    []auth.Revocation           // not yet enforced by the registry
	unsaved bool
	told    []*revocationSubscriber
	others  func(auth.Revocation) // sends to other relays; may be nil
}

type revocationSubscriber struct{ notify func() }

// LoadRevocations reads a file, which may be missing, and writes later changes to it.
// The path "" keeps nothing. An unreadable file is an error: revoked tokens must not
// become valid again.
func LoadRevocations(path string, log *slog.Logger) (*Revocations, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &Revocations{file: path, log: log, wake: make(chan struct{}, 1),
		entries: map[auth.RevocationKey]auth.Revocation{}, revs: map[string]uint64{}, over: map[string]uint64{}, behind: map[auth.RevocationKey]bool{},
	}
	if path == "" {
		return r, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	var list []auth.Revocation
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	for _, rev := range list {
		err = errors.Join(err, rev.Check())
	}
	if err != nil {
		return nil, fmt.Errorf("read revocations in %s: %w; restore the file from another relay, or remove it, which makes all revoked tokens valid again", path, err)
	}
	for _, rev := range list {
		r.mergeLocked(rev)
	}
	return r, nil
}

// Add adds a revocation. It takes effect at this relay and all connected relays at
// once, and is on disk when Add returns. An error reports a failed write, or, if it
// wraps ErrTooManyRevocations, a full set.
func (r *Revocations) Add(rev auth.Revocation) error {
	_, err := r.add(rev, MaxRevocations, func(auth.Revocation) bool { return true })
	return err
}

// Spend revokes a single token, and reports whether it was valid before: of two calls
// at one relay, only the first returns true. Errors are as for Add.
func (r *Revocations) Spend(token string, expires time.Time) (first bool, err error) {
	return r.add(auth.Revocation{Token: token, At: time.Now(), Until: expires, Alone: true}, MaxRevocations/2, func(was auth.Revocation) bool { return was.Token == "" })
}

// add adds a revocation if the existing one permits, and if there is room.
func (r *Revocations) add(rev auth.Revocation, most int, wanted func(was auth.Revocation) bool) (news bool, err error) {
	if err := rev.Check(); err != nil {
		return false, err
	}
	r.mu.Lock()
	was, known := r.entries[rev.Key()]
	full := !known && len(r.entries) >= most
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
	return true, r.save()
}

// mergeAllLocked adds a revocation, also for derived grants, and returns the changed
// ones.
func (r *Revocations) mergeAllLocked(rev auth.Revocation) (news []auth.Revocation) {
	if r.mergeLocked(rev) {
		news = append(news, rev)
	}
	if derived, ok := rev.OfDerived(); ok && r.mergeLocked(derived) {
		news = append(news, derived)
	}
	return news
}

// announce sets the function for sending new revocations.
func (r *Revocations) announce(others func(auth.Revocation)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others = others
}

// receive adds relayed revocations.
func (r *Revocations) receive(list []auth.Revocation) {
	now, news := time.Now(), false
	r.mu.Lock()
	for _, rev := range list {
		if err := rev.Check(); err != nil {
			r.log.Warn("revocation from another relay invalid", "error", err)
			continue
		}
		if !rev.Expired(now) && r.mergeLocked(rev) {
			news = true
		}
	}
	r.mu.Unlock()
	if !news {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	r.notify()
}

// mergeLocked adds a revocation, and reports whether the set changed.
func (r *Revocations) mergeLocked(rev auth.Revocation) bool {
	rev.At, rev.Until = rev.At.UTC().Round(0), rev.Until.UTC().Round(0) // as after JSON
	key := rev.Key()
	if was, known := r.entries[key]; known {
		rev = was.Merge(rev)
		if rev == was {
			return false
		}
	}
	r.entries[key] = rev
	r.behind[key] = true
	r.news = append(r.news, rev)
	r.unsaved = true
	return true
}

// takeNews returns new revocations since the last call.
func (r *Revocations) takeNews() []auth.Revocation {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = nil
	return news
}

// stored records a revocation's revision in the store.
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

// removed records a key's removal from the store.
func (r *Revocations) removed(stored string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.revs, stored)
	delete(r.over, stored)
}

// toRemove returns the store keys of expired revocations, with their revisions.
func (r *Revocations) toRemove() map[string]uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.over)
}

// toStore returns the revocations missing in the store, and their previous revisions.
func (r *Revocations) toStore() (list []auth.Revocation, revs []uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for key := range r.behind {
		rev := r.entries[key]
		list, revs = append(list, rev), append(revs, r.revs[revokedKey(rev)])
	}
	return list, revs
}

// watched reports the begin or end of a complete read.
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

// prune removes expired revocations.
func (r *Revocations) prune(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, rev := range r.entries {
		if rev.Expired(now) {
			delete(r.entries, key)
			delete(r.behind, key)
			r.unsaved = true
			if stored := revokedKey(rev); r.revs[stored] != 0 {
				r.over[stored] = r.revs[stored]
			}
		}
	}
}

// Revoked reports whether a token with any of the keys, issued at that time, is
// revoked: see [auth.Client.Keys], [auth.Enrolment.Keys].
func (r *Revocations) Revoked(issued time.Time, keys ...auth.RevocationKey) bool {
	_, revoked := r.since(issued, keys...)
	return revoked
}

// since is Revoked with the revocation's time.
func (r *Revocations) since(issued time.Time, keys ...auth.RevocationKey) (at time.Time, revoked bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, key := range keys {
		if rev, ok := r.entries[key]; ok && rev.Covers(issued) {
			at, revoked = later(at, rev.At), true
		}
	}
	return at, revoked
}

// RevokedOrigin reports whether any of a grant's origins is revoked.
func (r *Revocations) RevokedOrigin(tenant string, origins []auth.Origin) bool {
	_, revoked := r.originSince(tenant, origins)
	return revoked
}

// originSince is RevokedOrigin with the revocation's time.
func (r *Revocations) originSince(tenant string, origins []auth.Origin) (at time.Time, revoked bool) {
	if len(origins) == 0 {
		return at, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	auth.EachOrigin(tenant, origins, func(key auth.RevocationKey, issued time.Time) {
		if rev, ok := r.entries[key]; ok && rev.CoversDerived(issued) {
			at, revoked = later(at, rev.At), true
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

// Subscribe calls notify after each change, until cancel. It must not block, and calls
// may overlap.
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

// run saves relayed revocations and prunes expired ones, until ctx ends.
func (r *Revocations) run(ctx context.Context) {
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	for {
		select {
		case <-ctx.Done():
			if err := r.save(); err != nil {
				r.log.Error("revocations not saved", "error", err)
			}
			return
		case <-r.wake:
		case now := <-prune.C:
			r.prune(now)
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
	err := replaceJSON(r.file, r.List())
	if err != nil {
		r.mu.Lock()
		r.unsaved = true // run tries again
		r.mu.Unlock()
	}
	return err
}
