package remembering

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/remember"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// A Mode selects the content that relays keep.
type Mode string

const (
	Off    Mode = "off"    // relays keep nothing; existing records are removed
	Titles Mode = "titles" // relays keep the list of sessions
	Turns  Mode = "turns"  // relays also keep the end of each conversation
)

// Times and bounds of a Keeper.
const (
	settleTime   = 2 * time.Second
	writeEvery   = 10 * time.Second
	workingEvery = 30 * time.Second
	checkEvery   = time.Minute
	checkAtOnce  = remember.MaxHolders / 8 // holders in a request: each has up to auth.MaxOrigins origins
	askTime      = 5 * time.Second
	readPause    = 50 * time.Millisecond // between two sessions, because a host may load each from its disk
	firstRetry   = 2 * time.Second
	mostRetry    = time.Minute
	warnAfter    = 4 // failures in a row before the first warning

	mostSessions = 300
	maxSummary   = 8 << 10 // longest member of a summary that is kept, in bytes
	workingBit   = 8
)

// A Config configures a [Keeper].
type Config struct {
	Mode                   Mode
	Tenant, Host, Instance string
	StateDir               string                                          // directory of the keys' file; "": in memory only
	Fence                  atomicfile.Fence                                // of the keys' file
	Dial                   func(ctx context.Context) (watch.Socket, error) // required; connects to the host
	Omits                  func(session string) bool                       // reports whether a session must not be stored; may be nil
	Renewed                func()                                          // called after a change of the key; must not block; may be nil
	Ended                  func(*Holder) bool                              // for sealed hosts: reports whether a holder is no longer admitted; nil: a relay decides
	Log                    *slog.Logger                                    // required; the log
}

// An Ask sends a request to a relay and returns the answer.
type Ask func(ctx context.Context, data []byte) ([]byte, error)

// Do sends a request of a host-agent's instance. It returns the relay's answer, or its error.
func (ask Ask) Do(ctx context.Context, instance string, r *remember.Request) (answer remember.Answer, err error) {
	r.Instance = instance
	data, err := json.Marshal(r)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	body, err := ask(ctx, data)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	return answer, err
}

type session struct {
	uri     string
	summary map[string]json.RawMessage
	digest  string // hash of the session's summary
	kept    string // digest of the summary at the last write; "": none
	content [sha256.Size]byte
	first   time.Time // time of the first change since the last write; zero: no change
	due     time.Time // time of the next write; zero: none
	wrote   time.Time
	unread  int // failed reads in a row
}

// A Keeper writes the last state of a host's sessions. Its methods are safe for
// concurrent use.
type Keeper struct {
	cfg   Config
	keys  *keyring
	wake  chan struct{}      // wakes the loop of Run; capacity 1
	flush chan chan struct{} // requests to write everything now
	ended atomic.Bool        // a holder's token was revoked or expired since the last check
	relay Ask                // set by Run

	mu        sync.Mutex // guards the fields below
	sessions  map[string]*session
	listed    bool              // the summaries of all sessions have arrived
	loaded    bool              // the relays' list of records has arrived
	kept      map[string]string // digests by ID, from the relays' list
	stored    map[string]bool   // IDs of the records that relays have or may have
	versions  map[string]uint64 // of the relays' records, by ID
	drops     map[string]bool   // IDs of records that must be removed from relays
	list      bool              // the list of sessions has changed since it was written
	listWrote time.Time         // when the list was last written
	listHash  [sha256.Size]byte
}

// New returns a Keeper that Run starts.
func New(cfg Config) (*Keeper, error) {
	keys, err := cfg.openKeyring()
	if err != nil {
		return nil, err
	}
	return &Keeper{
		cfg: cfg, keys: keys, wake: make(chan struct{}, 1), flush: make(chan chan struct{}),
		sessions: map[string]*session{}, kept: map[string]string{}, stored: map[string]bool{}, versions: map[string]uint64{}, drops: map[string]bool{},
	}, nil
}

func (cfg *Config) openKeyring() (*keyring, error) {
	r, err := openKeyring(cfg.StateDir, cfg.Tenant, cfg.Host, cfg.Ended != nil)
	if err == nil {
		r.fence = cfg.Fence
	}
	return r, err
}

// Reread reads the file with the keys again, because a previous host-agent may have changed it until
// this one got the host, and writes it. Call it before all other methods.
func (k *Keeper) Reread() error {
	if k.cfg.StateDir == "" {
		return nil
	}
	keys, err := k.cfg.openKeyring()
	if err == nil {
		k.keys, err = keys, keys.saveLocked()
	}
	return err
}

// Forget removes all records that an earlier run has stored, and the file with the keys. It
// retries until it succeeds or ctx ends. Without that file, it does nothing.
func Forget(ctx context.Context, cfg Config, relay Ask) {
	path := filepath.Join(cfg.StateDir, FileName(cfg.Tenant, cfg.Host))
	if _, err := os.Stat(path); cfg.StateDir == "" || err != nil {
		return
	}
	k := &Keeper{cfg: cfg, relay: relay}
	for wait := firstRetry; ; wait = min(2*wait, mostRetry) {
		_, err := k.ask(ctx, &remember.Request{Op: remember.Drop})
		if err == nil {
			if err = os.Remove(path); err == nil {
				return
			}
		}
		cfg.Log.Warn("remembered sessions not removed from the relays yet", "error", err)
		if !clock.Sleep(ctx, wait) {
			return
		}
	}
}

// idOf returns the ID of a session's record with the present key.
func (k *Keeper) idOf(session string) string {
	vault := k.keys.current()
	return vault.IDOf(session)
}

func (k *Keeper) uris() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.sessions))
}

// Summary receives a session's summary, or the members of it that have changed. Nil raw
// means that the session has ended. If older is true, members that are already known keep
// their values.
func (k *Keeper) Summary(uri string, raw []byte, older bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sessions[uri]
	if raw == nil || k.cfg.Omits != nil && k.cfg.Omits(uri) {
		if s != nil {
			delete(k.sessions, uri)
			k.drops[k.idOf(uri)] = true
			k.list = true
			k.signal()
		}
		return
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return
	}
	if s == nil {
		s = &session{uri: uri, summary: map[string]json.RawMessage{}}
		s.summary["resource"], _ = json.Marshal(uri)
		s.kept = k.kept[k.idOf(uri)]
		k.sessions[uri] = s
		delete(k.drops, k.idOf(uri))
	}
	for name, value := range members {
		if _, known := s.summary[name]; (!known || !older) && len(value) <= maxSummary && name != "activity" {
			s.summary[name] = slices.Clone(value)
		}
	}
	digest := digestOf(s.summary)
	if digest == s.digest {
		return
	}
	s.digest = digest
	k.changedLocked(s, time.Now())
	k.signal()
}

// digestOf returns a digest of the summary members whose changes cause a write. Other
// members are left out: they differ between the host's lists and its notifications.
func digestOf(summary map[string]json.RawMessage) string {
	var b []byte
	for _, name := range []string{"status", "title", "modifiedAt"} {
		b = append(append(b, summary[name]...), 0)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}

// changedLocked schedules a write of the list, and of the session unless its record is current.
func (k *Keeper) changedLocked(s *session, now time.Time) {
	k.list = true
	if s.digest == s.kept || k.cfg.Mode != Turns {
		s.first, s.due = time.Time{}, time.Time{}
		return
	}
	if s.first.IsZero() {
		s.first = now
	}
	s.due = clock.Later(clock.Earlier(now.Add(settleTime), s.first.Add(writeEvery)), s.wrote.Add(writeEvery))
}

// Listed reports to the Keeper that the summaries of all sessions have arrived.
func (k *Keeper) Listed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = true
	k.tidyLocked()
	k.signal()
}

// tidyLocked schedules the removal of records whose sessions no longer exist.
func (k *Keeper) tidyLocked() {
	if !k.listed || !k.loaded {
		return
	}
	has := map[string]bool{remember.ListID: true}
	if k.cfg.Mode == Turns {
		for uri := range k.sessions {
			has[k.idOf(uri)] = true
		}
	}
	for id := range k.stored {
		if !has[id] {
			k.drops[id] = true
		}
	}
}

func (k *Keeper) signal() { signal.Send(k.wake) }

// HolderEnded reports that the token of a client with the keys was revoked or has expired.
// The Keeper then checks all holders at once.
func (k *Keeper) HolderEnded() {
	k.ended.Store(true)
	k.signal()
}

// Flush writes all changes at once. It returns when they are written, when a write has
// failed, or when ctx ends.
func (k *Keeper) Flush(ctx context.Context) {
	done := make(chan struct{})
	select {
	case k.flush <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Run writes records until ctx ends.
func (k *Keeper) Run(ctx context.Context, relay Ask) {
	k.relay = relay
	failures := 0
	checked := time.Time{}
	for ctx.Err() == nil {
		err := k.step(ctx, &checked, false)
		wait := k.nextAt(checked)
		if err != nil {
			wait = time.Now().Add(min(firstRetry<<min(failures, 10), mostRetry))
			if failures++; failures == warnAfter {
				k.cfg.Log.Warn("sessions not remembered", "effect", "trying again", "error", err)
			}
		} else {
			failures = 0
		}
		wake := k.wake
		if err != nil {
			wake = nil // later changes wait for the next attempt
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-time.After(time.Until(wait)):
		case done := <-k.flush:
			if err := k.step(ctx, &checked, true); err != nil {
				k.cfg.Log.Warn("last state of sessions not written", "error", err)
			}
			close(done)
		}
	}
}

func (k *Keeper) nextAt(checked time.Time) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := checked.Add(checkEvery)
	if !k.listed {
		return at
	}
	for _, s := range k.writableLocked() {
		if !s.due.IsZero() {
			at = clock.Earlier(at, s.due)
		}
	}
	if k.list {
		at = clock.Earlier(at, k.listWrote.Add(writeEvery))
	}
	return at
}

// writableLocked returns the sessions that get a record: the latest mostSessions.
func (k *Keeper) writableLocked() []*session {
	all := slices.Collect(maps.Values(k.sessions))
	if len(all) > mostSessions {
		slices.SortFunc(all, func(a, b *session) int {
			return cmp.Or(cmp.Compare(string(b.summary["modifiedAt"]), string(a.summary["modifiedAt"])), cmp.Compare(a.uri, b.uri))
		})
		all = all[:mostSessions]
	}
	return all
}

// step loads the list of records if necessary, checks for revoked holders, and writes the
// records that are due. If now is true, it writes all changes. checked is the time of the
// last check; step updates it.
func (k *Keeper) step(ctx context.Context, checked *time.Time, now bool) error {
	if !k.loaded { // written by this goroutine only
		if err := k.load(ctx); err != nil {
			return err
		}
	}
	if ended := k.ended.Swap(false); ended || time.Since(*checked) >= checkEvery {
		*checked = time.Time{} // after an error, the next step checks again
		if err := k.check(ctx); err != nil {
			return err
		}
		*checked = time.Now()
	}
	if err := k.dropAll(ctx); err != nil {
		return err
	}
	if err := k.writeSessions(ctx, now); err != nil {
		return err
	}
	return k.writeList(ctx, now)
}

func (k *Keeper) ask(ctx context.Context, r *remember.Request) (remember.Answer, error) {
	return k.relay.Do(ctx, k.cfg.Instance, r)
}

type listContent struct {
	Sessions []map[string]json.RawMessage `json:"sessions"`
	Kept     map[string]string            `json:"kept"`
	Versions map[string]uint64            `json:"versions,omitempty"` // for sealed hosts: devices refuse a record with an older version than here
}

// load requests the relays' list of records. It first removes all records if the keyring
// demands that.
func (k *Keeper) load(ctx context.Context) error {
	if k.keys.wipes() {
		if _, err := k.ask(ctx, &remember.Request{Op: remember.Drop}); err != nil {
			return err
		}
		if err := k.keys.wiped(); err != nil {
			return err
		}
	}
	index, err := k.ask(ctx, &remember.Request{Op: remember.Index})
	if err != nil {
		return err
	}
	got, err := k.ask(ctx, &remember.Request{Op: remember.Get, ID: remember.ListID})
	if err != nil {
		return err
	}
	var list listContent
	vault := k.keys.current()
	if got.Record != nil {
		if data, err := vault.Open(&vault.Signer.PublicKey, got.Record); err == nil {
			_ = json.Unmarshal(data, &list) // written by an earlier Keeper; if it is unreadable, all records are written again
			k.keys.passes(got.Record.Version)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loaded = true
	for _, id := range index.IDs {
		k.stored[id] = true
		if version := list.Versions[id]; version > 0 {
			k.versions[id] = version
		}
		if digest := list.Kept[id]; digest != "" {
			k.kept[id] = digest
		}
	}
	now := time.Now()
	for _, s := range k.sessions {
		s.kept = k.kept[k.idOf(s.uri)]
		k.changedLocked(s, now)
	}
	k.tidyLocked()
	return nil
}

// check replaces the key and seals all records again if a holder is revoked.
func (k *Keeper) check(ctx context.Context) error {
	revoked, err := k.revoked(ctx)
	if err != nil || revoked == 0 {
		return err
	}
	previous, err := k.keys.renew()
	if err != nil {
		return err
	}
	k.cfg.Log.Info("keys for remembered sessions renewed", "revoked", revoked)
	if k.cfg.Renewed != nil {
		k.cfg.Renewed()
	}
	return k.sealAgain(ctx, previous)
}

// revoked returns how many holders may no longer read the records.
func (k *Keeper) revoked(ctx context.Context) (n int, err error) {
	holders := k.keys.all()
	if k.cfg.Ended != nil {
		for i := range holders {
			if k.cfg.Ended(&holders[i]) {
				n++
			}
		}
		return n, nil
	}
	for some := range slices.Chunk(holders, checkAtOnce) {
		r := &remember.Request{Op: remember.Check}
		for i := range some {
			r.Holders = append(r.Holders, some[i].Holder)
		}
		answer, err := k.ask(ctx, r)
		if err != nil {
			return 0, err
		}
		n += len(answer.Removed)
	}
	return n, nil
}

// sealAgain seals all records with the new key. If a record cannot be fetched, its session
// is read from the host again.
func (k *Keeper) sealAgain(ctx context.Context, previous remember.Vault) error {
	k.mu.Lock()
	ids := slices.Collect(maps.Keys(k.stored))
	byID := map[string]*session{}
	for _, s := range k.sessions {
		byID[previous.IDOf(s.uri)] = s
	}
	k.list, k.listWrote, k.listHash = true, time.Time{}, [sha256.Size]byte{}
	k.mu.Unlock()
	for _, id := range ids {
		if id == remember.ListID {
			continue
		}
		s, next := byID[id], id
		if s != nil {
			next = k.idOf(s.uri)
		}
		err := errNoState
		if s != nil || !previous.Blind { // a blind ID depends on the key and needs the session's URI
			err = k.sealRecordAgain(ctx, id, next, previous)
		}
		k.mu.Lock()
		if err != nil && s != nil {
			s.kept, s.content = "", [sha256.Size]byte{}
			k.changedLocked(s, time.Now())
		}
		if next != id || err != nil && s == nil {
			k.drops[id] = true
		}
		k.mu.Unlock()
	}
	return ctx.Err()
}

// sealRecordAgain stores a record with the new key, under its new ID. It signs nothing but the latest
// version of that record, because a relay may return another record of this host.
func (k *Keeper) sealRecordAgain(ctx context.Context, id, next string, previous remember.Vault) error {
	got, err := k.ask(ctx, &remember.Request{Op: remember.Get, ID: id})
	if err != nil {
		return err
	}
	k.mu.Lock()
	latest := k.versions[id]
	k.mu.Unlock()
	if got.Record == nil || got.Record.ID != id || got.Record.Version < latest {
		return errNoState
	}
	content, err := previous.Open(&previous.Signer.PublicKey, got.Record)
	if err != nil {
		return err
	}
	return k.put(ctx, next, content, time.UnixMilli(got.Record.Time))
}

func (k *Keeper) put(ctx context.Context, id string, content []byte, at time.Time) error {
	record, err := k.keys.seal(id, content, at)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.stored[id] = true // also after an error, because only the answer may be lost
	k.mu.Unlock()
	if _, err := k.ask(ctx, &remember.Request{Op: remember.Put, Record: record}); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.versions[id] = record.Version
	return nil
}

func (k *Keeper) dropAll(ctx context.Context) error {
	k.mu.Lock()
	ids := slices.Collect(maps.Keys(k.drops))
	k.mu.Unlock()
	for _, id := range ids {
		k.mu.Lock()
		there := k.stored[id]
		k.mu.Unlock()
		if there {
			if _, err := k.ask(ctx, &remember.Request{Op: remember.Drop, ID: id}); err != nil {
				return err
			}
		}
		k.mu.Lock()
		delete(k.kept, id)
		delete(k.stored, id)
		delete(k.versions, id)
		if !k.drops[id] { // its session has returned meanwhile
			k.writeAgainLocked(id)
		}
		delete(k.drops, id)
		k.mu.Unlock()
	}
	return nil
}

// writeAgainLocked schedules a write of the session that has this ID, whose record was dropped.
func (k *Keeper) writeAgainLocked(id string) {
	for _, s := range k.sessions {
		if k.idOf(s.uri) == id {
			s.kept = ""
			k.changedLocked(s, time.Now())
		}
	}
}

// dueLocked returns the sessions whose writes are due, or all changed sessions.
func (k *Keeper) dueLocked(all bool) []*session {
	now := time.Now()
	var list []*session
	for _, s := range k.writableLocked() {
		if !s.due.IsZero() && (all || !s.due.After(now)) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *session) int {
		return cmp.Compare(string(b.summary["modifiedAt"]), string(a.summary["modifiedAt"]))
	})
	return list
}

// writeSessions writes the sessions that are due, the latest first.
func (k *Keeper) writeSessions(ctx context.Context, all bool) error {
	if k.cfg.Mode != Turns {
		return nil
	}
	k.mu.Lock()
	if !k.listed {
		k.mu.Unlock()
		return nil
	}
	due := k.dueLocked(all)
	k.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	r, err := openReader(ctx, k.cfg.Dial)
	if err != nil {
		return err
	}
	defer func() { r.close() }()
	for i, s := range due {
		if i > 0 && !all {
			if !clock.Sleep(ctx, readPause) {
				return ctx.Err()
			}
		}
		err := k.writeSession(ctx, r, s)
		if _, ok := errors.AsType[*readError](err); ok && ctx.Err() == nil {
			k.postpone(s, err)
			next, err := openReader(ctx, k.cfg.Dial)
			if err != nil {
				return err
			}
			r.close()
			r = next
			continue
		}
		if err != nil {
			return fmt.Errorf("session %s: %w", s.uri, err)
		}
	}
	return nil
}

// A readError reports that a session could not be read, and that the connection may be unusable.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

// postpone schedules another attempt for a session that could not be read. It delays no other
// session.
func (k *Keeper) postpone(s *session, why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.wrote = time.Now()
	s.first, s.due = time.Time{}, s.wrote.Add(workingEvery)
	if s.unread++; s.unread == warnAfter {
		k.cfg.Log.Warn("session not remembered", "effect", "trying again", "session", s.uri, "error", why)
	}
}

func (k *Keeper) writeSession(ctx context.Context, r *reader, s *session) error {
	k.mu.Lock()
	summary, digest := maps.Clone(s.summary), s.digest
	k.mu.Unlock()
	content, err := r.read(ctx, s.uri, summary)
	switch {
	case errors.Is(err, errNoState): // the session stays in the list without a conversation
		content = nil
	case err != nil:
		return &readError{err}
	}
	hash := sha256.Sum256(content)
	if content != nil && hash != s.content { // written by this goroutine only
		if err := k.put(ctx, k.idOf(s.uri), content, time.Now()); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.content, s.kept, s.wrote, s.unread = hash, digest, time.Now(), 0
	s.first, s.due = time.Time{}, time.Time{}
	k.list = true
	if s.digest != digest {
		k.changedLocked(s, s.wrote)
	} else if status(summary)&workingBit != 0 {
		s.due = s.wrote.Add(workingEvery)
	}
	return nil
}

func status(summary map[string]json.RawMessage) (bits int64) {
	return ahp.IntegerOf(summary["status"]) // an unknown form means no bits
}

func (k *Keeper) writeList(ctx context.Context, now bool) error {
	k.mu.Lock()
	if !k.listed || !k.list || !now && time.Since(k.listWrote) < writeEvery {
		k.mu.Unlock()
		return nil
	}
	k.list = false
	content := k.listLocked()
	was := k.listHash
	k.mu.Unlock()
	hash := sha256.Sum256(content)
	var err error
	if hash != was {
		err = k.put(ctx, remember.ListID, content, time.Now())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.list = true
		return err
	}
	k.listHash, k.listWrote = hash, time.Now()
	return nil
}

// listLocked returns the content of the list: the latest sessions, as many as fit.
func (k *Keeper) listLocked() []byte {
	vault := k.keys.current()
	all := k.writableLocked()
	slices.SortFunc(all, func(a, b *session) int {
		return cmp.Or(cmp.Compare(string(b.summary["modifiedAt"]), string(a.summary["modifiedAt"])), cmp.Compare(a.uri, b.uri))
	})
	for {
		list := listContent{Sessions: []map[string]json.RawMessage{}, Kept: map[string]string{}, Versions: map[string]uint64{}}
		for _, s := range all {
			list.Sessions = append(list.Sessions, s.summary)
			if s.kept != "" {
				id := vault.IDOf(s.uri)
				list.Kept[id] = s.kept
				if vault.Blind && k.versions[id] > 0 {
					list.Versions[id] = k.versions[id]
				}
			}
		}
		data, _ := json.Marshal(list) // its members were parsed
		if len(data) <= remember.MaxContent {
			return data
		}
		all = all[:len(all)*3/4]
	}
}
