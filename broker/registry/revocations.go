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

// Bounds of revocations.
const (
	// MaxRevocations is how many a relay takes; half of them are kept for Add.
	// What other relays took counts too, but is not refused.
	MaxRevocations = 1 << 18

	// toldRoom is how many may wait that other relays tell of. What is lost comes
	// from the store.
	toldRoom = 1024

	// pruneEvery is how often those are forgotten that revoke only what has
	// expired.
	pruneEvery = time.Minute
)

// ErrTooManyRevocations reports that there are MaxRevocations already.
var ErrTooManyRevocations = errors.New("too many tokens, subjects and hosts are revoked already; new keys end all tokens")

// Revocations are what is revoked, as one relay knows it. The set only grows,
// but for what revokes nothing any more; so relays that have not seen each
// other know both's together when they do. It is safe for concurrent use.
//
// Relays tell each other a revocation when it is made, and write it into the store,
// where those find it that did not hear of it; while the store is away it waits for
// that in the relay's file.
type Revocations struct {
	file string // "": nothing is kept
	log  *slog.Logger
	wake chan struct{} // for run: there is something to write; holds one

	saving sync.Mutex // one writes at a time; taken before mu

	mu      sync.RWMutex // guards the fields below
	entries map[auth.RevocationKey]auth.Revocation
	revs    map[string]uint64           // as which the store has them, by its keys
	over    map[string]uint64           // of those: that revoke nothing any more
	behind  map[auth.RevocationKey]bool // of which the store has less
	news    []auth.Revocation           // not looked at by the registry
	unsaved bool
	told    []*revocationSubscriber
	others  func(auth.Revocation) // tells other relays; may be nil
}

type revocationSubscriber struct{ tell func() }

// LoadRevocations returns what a file holds, and keeps it there; nothing if
// there is none yet. The path "" keeps nothing. A file that cannot be read is
// an error: what it revoked must not be good again.
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
		return nil, fmt.Errorf("revocations in %s cannot be read: %w; restore the file from another relay, or remove it, and all that it revoked is good again", path, err)
	}
	for _, rev := range list {
		r.mergeLocked(rev)
	}
	return r, nil
}

// Add revokes: at this relay and those that it hears at once, and written
// down when Add returns. An error says that it could not be, or, if it wraps
// ErrTooManyRevocations, that nothing was done.
func (r *Revocations) Add(rev auth.Revocation) error {
	_, err := r.add(rev, MaxRevocations, func(auth.Revocation) bool { return true })
	return err
}

// Spend revokes one token alone, and reports whether it was good before: of two
// calls at one relay, only the first gets true. An error is as of Add.
func (r *Revocations) Spend(token string, expires time.Time) (first bool, err error) {
	return r.add(auth.Revocation{Token: token, At: time.Now(), Until: expires, Alone: true}, MaxRevocations/2, func(was auth.Revocation) bool { return was.Token == "" })
}

// add takes a revocation if that is wanted, given what there was of the kind,
// and if there are not so many others.
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
	r.tell()
	return true, r.save()
}

// mergeAllLocked takes a revocation, and that of what was derived, and returns those of them that were news.
func (r *Revocations) mergeAllLocked(rev auth.Revocation) (news []auth.Revocation) {
	if r.mergeLocked(rev) {
		news = append(news, rev)
	}
	if derived, ok := rev.OfDerived(); ok && r.mergeLocked(derived) {
		news = append(news, derived)
	}
	return news
}

// announce has other relays told of what is added here.
func (r *Revocations) announce(others func(auth.Revocation)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others = others
}

// hear takes what another relay knows.
func (r *Revocations) hear(list []auth.Revocation) {
	now, news := time.Now(), false
	r.mu.Lock()
	for _, rev := range list {
		if err := rev.Check(); err != nil {
			r.log.Warn("news of another relay", "error", err)
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
	r.tell()
}

// mergeLocked takes a revocation, and reports whether it was news.
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

// takeNews returns what has come since it was last called.
func (r *Revocations) takeNews() []auth.Revocation {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = nil
	return news
}

// stored takes what the store has, in its revision.
func (r *Revocations) stored(rev auth.Revocation, revision uint64) {
	r.hear([]auth.Revocation{rev})
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

// removed takes that the store does not have a key any more.
func (r *Revocations) removed(stored string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.revs, stored)
	delete(r.over, stored)
}

// toRemove returns keys of the store that revoke nothing any more, with their
// revisions.
func (r *Revocations) toRemove() map[string]uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.over)
}

// toStore returns what the store does not have, and the revisions of what it has in
// place of that.
func (r *Revocations) toStore() (list []auth.Revocation, revs []uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for key := range r.behind {
		rev := r.entries[key]
		list, revs = append(list, rev), append(revs, r.revs[revokedKey(rev)])
	}
	return list, revs
}

// watched says that the store is about to be looked through from the start, or that
// this is done.
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

// prune forgets what revokes nothing any more.
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

// Revoked reports whether a token is revoked that is about any of the keys
// and was issued then: see [auth.Client.Keys], [auth.Enrolment.Keys].
func (r *Revocations) Revoked(issued time.Time, keys ...auth.RevocationKey) bool {
	_, revoked := r.since(issued, keys...)
	return revoked
}

// since is Revoked, and says when that was decided.
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

// RevokedOrigin reports whether one of a grant's origins is revoked.
func (r *Revocations) RevokedOrigin(tenant string, origins []auth.Origin) bool {
	_, revoked := r.originSince(tenant, origins)
	return revoked
}

// originSince is RevokedOrigin, and returns when that was decided.
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

// List returns what is revoked, the latest first.
func (r *Revocations) List() []auth.Revocation {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := slices.Collect(maps.Values(r.entries))
	slices.SortFunc(list, func(a, b auth.Revocation) int { return b.At.Compare(a.At) })
	return list
}

// Subscribe has tell called after each change, until cancel. It must not
// block, and calls may overlap.
func (r *Revocations) Subscribe(tell func()) (cancel func()) {
	s := &revocationSubscriber{tell}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(slices.Clone(r.told), s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = slices.DeleteFunc(slices.Clone(r.told), func(o *revocationSubscriber) bool { return o == s })
	}
}

func (r *Revocations) tell() {
	r.mu.RLock()
	told := r.told
	r.mu.RUnlock()
	for _, s := range told {
		s.tell()
	}
}

// run writes down what other relays tell, and forgets what is over, until ctx
// ends.
func (r *Revocations) run(ctx context.Context) {
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	for {
		select {
		case <-ctx.Done():
			if err := r.save(); err != nil {
				r.log.Error("revocations cannot be kept", "error", err)
			}
			return
		case <-r.wake:
		case now := <-prune.C:
			r.prune(now)
		}
		if err := r.save(); err != nil {
			r.log.Error("revocations cannot be kept", "error", err)
		}
	}
}

// save writes down what is not, so that it outlives a crash of the machine.
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
