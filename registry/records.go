package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/people"

	"github.com/nats-io/nats.go/jetstream"
)

// recordsBucket has the records of people. It is one of its own, with the same engine
// as that of hosts.
const recordsBucket = "ahp-people"

// recordsDeaf is how long what this relay has written may be unheard of until the watch
// is begun anew.
const recordsDeaf = 10 * time.Second

// RecordsConfig says how to keep [Records].
type RecordsConfig struct {
	Conn   *broker.Conn // required; a relay's, in the account of relays
	Sealer *auth.Sealer // required
	File   string       // keeps what is known, for while the store is away and for another one; default: nothing is kept
	Log    *slog.Logger // default: none

	// Cluster: the store may have to wait for other relays.
	Cluster bool

	// Tends reports whether this relay is the one that has the store have more copies.
	// Default: it is.
	Tends func() bool
}

// Records are small records that all relays have together, by their keys: of people, their
// devices, and who asks to be let in. They implement [people.Store].
//
// Each relay has all of them in memory, and reads there: so who is in stays in while the
// store is away, at every relay. A change reads the store, names the revision that it
// changes, and is done when the store has it; of two relays that change one record
// the second is told, and tries again. While the store is away nothing can be changed,
// which is [people.ErrAway].
//
// What the store has is sealed under its key: NATS servers may be somebody else's, who must not make
// people of their own.
//
// The file is a copy. A bucket that this relay has not seen before is given what the file
// has and it has not: so a relay that kept its records alone, or was alone, brings
// them along. Of a bucket that it knows, it forgets what is not there any more.
type Records struct {
	cfg   RecordsConfig
	store *store
	file  *stateFile
	ready chan struct{} // closed when all was taken that the store had
	end   context.CancelFunc
	done  sync.WaitGroup

	mu      sync.RWMutex // guards the fields below
	records map[string]record
	storeID string // of the bucket that was last taken whole
	synced  bool   // one was, in this run
	away    error  // why the store is away; nil: it is there
	wrote   uint64 // the last revision that this relay has written
	wroteAt time.Time
	heard   uint64 // the last that the watch has brought
}

// A record is one as it is known.
type record struct {
	value json.RawMessage // nil: it was removed, and the watch has not said so yet
	rev   uint64          // 0: the store is not known to have it
	epoch uint64          // of the watch that brought it
}

// StartRecords reads the file, and takes what the store has. Where the store waits for other
// relays, it returns before that: see Ready.
func StartRecords(ctx context.Context, cfg RecordsConfig) (*Records, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Tends == nil {
		cfg.Tends = func() bool { return true }
	}
	kept, id, err := people.ReadRecords(cfg.File)
	if err != nil {
		return nil, err
	}
	store, err := newStore(cfg.Conn, recordsBucket, "people and devices that AHP relays let in")
	if err != nil {
		return nil, fmt.Errorf("store of people: %w", err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Records{
		cfg: cfg, store: store, file: newStateFile(cfg.File, cfg.Log), ready: make(chan struct{}), end: cancel,
		records: make(map[string]record, len(kept)), storeID: id, away: errors.New("it was not reached yet"),
	}
	for key, value := range kept {
		r.records[key] = record{value: value}
	}
	r.done.Go(func() { r.follow(life) })
	r.done.Go(func() { r.file.run(life, func() any { return r.snapshot() }) })
	if err := r.await(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// await returns when what the store has was taken, or when that takes long and may be
// because of others.
func (r *Records) await(ctx context.Context) error {
	in, err := awaitReady(ctx, r.ready, r.cfg.Conn, r.cfg.Cluster)
	if in || err != nil || r.cfg.Cluster {
		return err
	}
	return r.whyAway()
}

// Ready returns a channel that is closed when all was taken that the store had.
func (r *Records) Ready() <-chan struct{} { return r.ready }

// Close keeps what is known, and returns when nothing of the records runs any more.
func (r *Records) Close() {
	r.end()
	r.done.Wait()
	r.file.save(r.snapshot())
}

// snapshot returns what is kept in the file.
func (r *Records) snapshot() map[string]json.RawMessage {
	r.mu.RLock()
	defer r.mu.RUnlock()
	kept := make(map[string]json.RawMessage, len(r.records))
	for key, known := range r.records {
		if known.value != nil {
			kept[key] = known.value
		}
	}
	people.NameStore(kept, r.storeID)
	return kept
}

func (r *Records) whyAway() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.away
}

// recordKey is what keys of records look like: others are of no record.
var recordKey = regexp.MustCompile(`^[a-z]+(\.[a-zA-Z0-9_-]+)+$`)

// All implements [people.Store].
func (r *Records) All(prefix string) (map[string][]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	found := map[string][]byte{}
	for key, known := range r.records {
		if known.value != nil && strings.HasPrefix(key, prefix) {
			found[key] = slices.Clone(known.value)
		}
	}
	return found, nil
}

// Get implements [people.Store]. What is not known may have been made at another relay
// just now: then the store is asked.
func (r *Records) Get(key string) ([]byte, error) {
	r.mu.RLock()
	known, away := r.records[key], r.away
	r.mu.RUnlock()
	if known.value != nil || known.rev != 0 || away != nil || !r.cfg.Conn.Connected() || !recordKey.MatchString(key) {
		return slices.Clone(known.value), nil
	}
	value, _, err := r.read(context.Background(), key)
	return value, err
}

// read returns what the store has.
func (r *Records) read(ctx context.Context, key string) (value []byte, rev uint64, err error) {
	var sealed []byte
	rev, err = r.store.read(ctx, key, &sealed)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", people.ErrAway, err)
	}
	if rev == 0 {
		return nil, 0, nil
	}
	if value, err = r.cfg.Sealer.Open(key, sealed); err != nil {
		return nil, 0, fmt.Errorf("record %s: %w", key, err)
	}
	r.apply(key, value, rev, 0)
	return value, rev, nil
}

// write puts a value into the store in the place of the one of a revision.
func (r *Records) write(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	return r.store.write(ctx, key, r.cfg.Sealer.Seal(key, value), rev)
}

// heardOf takes what the watch of an epoch brings.
func (r *Records) heardOf(entry jetstream.KeyValueEntry, epoch uint64) {
	var sealed, value []byte
	if entry.Operation() == jetstream.KeyValuePut {
		err := json.Unmarshal(entry.Value(), &sealed)
		if err == nil {
			value, err = r.cfg.Sealer.Open(entry.Key(), sealed)
		}
		if err != nil {
			r.cfg.Log.Error("store of people", "key", entry.Key(), "error", err)
			return
		}
	}
	r.apply(entry.Key(), value, entry.Revision(), epoch)
}

// Update implements [people.Store]. An error wraps [people.ErrAway] if it is not known whether
// the change was made.
func (r *Records) Update(key string, change func(old []byte) ([]byte, error)) error {
	if !recordKey.MatchString(key) {
		changed, err := change(nil)
		if err == nil && changed != nil {
			err = fmt.Errorf("%q is no key of a record", key)
		}
		return err
	}
	err := r.whyAway()
	if err == nil && !r.cfg.Conn.Connected() {
		err = errors.New("no connection to NATS")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", people.ErrAway, err)
	}
	ctx := context.Background() // each step has its time
	for range maxConflicts {
		err := r.updateOnce(ctx, key, change)
		if !errors.Is(err, errConflict) {
			return err
		}
		time.Sleep(rand.N(2 * conflictWait))
	}
	return fmt.Errorf("%w: others change %s all the time", people.ErrAway, key)
}

// updateOnce is one attempt. The error is errConflict if somebody else was first.
func (r *Records) updateOnce(ctx context.Context, key string, change func(old []byte) ([]byte, error)) error {
	old, rev, err := r.read(ctx, key)
	if err != nil {
		return err
	}
	changed, err := change(old)
	switch {
	case err != nil:
		return err
	case changed == nil && rev == 0, changed != nil && string(changed) == string(old):
		return nil
	case rev == 0 && r.full():
		return people.ErrFull
	case changed == nil:
		err = r.store.remove(ctx, key, rev)
		rev++ // or more: what the store had is older
	default:
		rev, err = r.write(ctx, key, changed, rev)
	}
	if errors.Is(err, errConflict) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", people.ErrAway, err)
	}
	r.apply(key, changed, rev, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev > r.wrote {
		r.wrote, r.wroteAt = rev, time.Now()
	}
	return nil
}

func (r *Records) full() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.records) >= people.MaxRecords
}

// apply takes a record as the store has it, nil for none, from the watch of an epoch or, of
// epoch 0, because this relay has just written or read it.
func (r *Records) apply(key string, value []byte, rev, epoch uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.records[key]
	known.epoch = max(known.epoch, epoch)
	if epoch != 0 {
		r.heard = max(r.heard, rev)
	}
	switch {
	case rev < known.rev:
		r.records[key] = known
		return
	case value == nil && epoch != 0:
		delete(r.records, key)
	default: // the watch will say so, too, of what was removed
		known.value, known.rev = slices.Clone(value), rev
		r.records[key] = known
	}
	r.file.changed(true)
}

// follow keeps the records what the store has, until ctx ends.
func (r *Records) follow(ctx context.Context) {
	for epoch := uint64(1); ctx.Err() == nil; epoch++ {
		err := r.followOnce(ctx, epoch)
		if ctx.Err() != nil {
			return
		}
		r.note(err)
		select {
		case <-ctx.Done():
		case <-time.After(openRetry):
		}
	}
}

// note notes whether the store can be used.
func (r *Records) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && r.away == nil {
		r.cfg.Log.Warn("the store of people is away: who is in stays in, nobody can be let in or removed from the list", "error", err)
	}
	r.away = err
}

// followOnce takes what the store has, and each change, until that ends.
func (r *Records) followOnce(ctx context.Context, epoch uint64) error {
	id, err := r.store.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.begin()
	late := time.AfterFunc(openTimeout, cancel)
	watch, err := r.store.bucket().WatchAll(ctx)
	if err != nil {
		return err
	}
	defer watch.Stop()
	if !late.Stop() {
		return errors.New("no answer")
	}
	look := time.NewTicker(time.Second)
	defer look.Stop()
	synced, tended := false, time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-look.C:
			if synced && r.deaf(now) {
				return errors.New("what is written is not heard of")
			}
			if now.Sub(tended) > tendEvery {
				tended = now
				_, _ = r.store.tend(ctx, r.cfg.Tends()) // again in a while
			}
		case entry, open := <-watch.Updates():
			switch {
			case !open:
				return errors.New("the watch has ended")
			case entry != nil:
				r.heardOf(entry, epoch)
			case !synced:
				if err := r.takenAll(ctx, epoch, id); err != nil {
					return err
				}
				synced = true
			}
		}
	}
}

// begin forgets the revisions, which say nothing of another bucket, or of one that has lost
// its last changes.
func (r *Records) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrote, r.heard = 0, 0
	for key, known := range r.records {
		known.rev = 0
		r.records[key] = known
	}
}

// deaf reports whether this relay has written, a while ago, what the watch has not brought.
func (r *Records) deaf(now time.Time) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.heard < r.wrote && now.Sub(r.wroteAt) > recordsDeaf
}

// takenAll is called when all that the store had was taken. What it has not is forgotten, or
// written if the bucket is one that this relay has not seen before.
func (r *Records) takenAll(ctx context.Context, epoch uint64, id string) error {
	r.mu.Lock()
	fresh, missing := id != r.storeID, map[string]json.RawMessage{}
	for key, known := range r.records {
		if known.epoch == epoch || known.rev != 0 { // or written meanwhile
			continue
		}
		if fresh && known.value != nil {
			missing[key] = known.value
		} else {
			delete(r.records, key)
		}
	}
	r.mu.Unlock()
	if err := r.bring(ctx, missing); err != nil {
		return fmt.Errorf("what this relay knew: %w", err) // and the bucket stays one that is not known
	}
	if len(missing) > 0 {
		r.cfg.Log.Info("people and devices that this relay knew are in the store of all relays now", "records", len(missing))
	}
	r.mu.Lock()
	r.storeID = id
	first := !r.synced
	r.synced = true
	r.mu.Unlock()
	r.file.changed(true)
	r.note(nil)
	if first {
		close(r.ready)
	}
	return nil
}

// bring writes records into a store that does not have them.
func (r *Records) bring(ctx context.Context, missing map[string]json.RawMessage) error {
	for _, key := range slices.Sorted(maps.Keys(missing)) {
		if !recordKey.MatchString(key) {
			continue
		}
		rev, err := r.write(ctx, key, missing[key], 0)
		if err != nil && !errors.Is(err, errConflict) { // else somebody has brought it
			return err
		}
		if err == nil {
			r.apply(key, missing[key], rev, 0)
		}
	}
	return nil
}

// Degraded says what this relay lacks, "" if nothing.
func (r *Records) Degraded() string {
	if err := r.whyAway(); err != nil {
		return fmt.Sprintf("the store of people is away (%v): who is in stays in, nobody else is let in", err)
	}
	return ""
}
