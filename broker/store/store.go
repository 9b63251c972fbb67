package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// Bounds and times of a Store.
const (
	maxBytes = 1 << 30 // bound for the bytes of all records

	// MaxRecords bounds records and the markers of removed ones. Above it, the oldest are removed, unless
	// Config.Most or Config.Room refuses earlier.
	MaxRecords = 512 << 10

	// MaxData bounds a record in bytes.
	MaxData = 512 << 10

	writeTimeout  = 2 * time.Second // bound for a read, or for a write of several changes
	writeAtOnce   = 256
	updateTries   = 16
	updatePause   = 50 * time.Millisecond // longest pause between two attempts
	removedFor    = 30 * 24 * time.Hour   // how long the marker of a removed record stays
	removedBrief  = 15 * time.Minute      // the same below Config.Brief, and with Config.Sizes: such a Store keeps no record that a complete read lacks
	silentFor     = removedBrief / 2      // after so long without an answer, the stream is read as a whole: markers may have expired
	openTimeout   = 2 * time.Second
	openRetry     = 500 * time.Millisecond
	tendEvery     = 20 * time.Second
	pullFor       = 4 * time.Second // how long a request for messages lasts; then it is repeated
	pullHeartbeat = time.Second
	catchUpEvery  = 5 * time.Millisecond // polling interval of CatchUp
	consumerIdle  = time.Minute          // idle time after which the server removes a consumer
)

// Reasons why a change has failed.
var (
	ErrConflict = errors.New("changed meanwhile")
	ErrAway     = errors.New("the record store is unreachable")
	ErrFull     = errors.New("too many records")
)

// recordKey matches a valid key.
var recordKey = regexp.MustCompile(`^[a-z]+(\.[a-zA-Z0-9_-]+)+$`)

// A Config describes a [Store].
type Config struct {
	Conn   *broker.Conn // required; connected to the account that relays share
	Sealer *auth.Sealer // required
	Name   string       // required; description for logs
	Stream string       // name of the stream; default: ahp-records

	// Subjects is the prefix for the records' subjects. Default: ahp.relays.v1.records.
	Subjects string

	File string       // for records without expiry; default: none
	Log  *slog.Logger // default: none

	// Bucket is the name of a JetStream key-value bucket which has the records as JSON
	// values, instead of Stream.
	Bucket string

	// Most bounds the records which Update may create, so that none is removed to make
	// room. Default: the oldest are removed.
	Most int

	// Room bounds the records and markers of all tenants whose keys begin with Shared and the tenant's
	// name. A tenant may have as many as are free, so that no tenant costs others their records.
	// Further records are refused with ErrFull. Default: the oldest of all tenants are removed.
	Room   int
	Shared string // ends with a dot

	// Brief has the prefixes of keys whose removed records do no harm if they return. The markers of
	// their removals expire after minutes. Without that, people who create and remove such records
	// could fill the relays' memory with markers. Default: none.
	Brief []string

	// Known makes the relay delete records which are missing in a stream it has seen
	// before. Default: such records were lost, and are written again.
	Known bool

	// Sizes keeps the data of records out of memory: a Record has only its size, and
	// Load reads its data. Beyond MaxBytes, the oldest records are removed. Such a Store
	// has no file, and ignores Most and Known.
	Sizes    bool
	MaxBytes int64 // bound for the bytes of all records; default: 1 GiB

	// Maintains reports whether this relay is to add copies of the stream. Default:
	// always.
	Maintains func() bool

	// Servers returns the number of other servers in the cluster. Default: unknown; then
	// copies may be added some 20 s late.
	Servers func() int
}

// A Record is a record, or a removed record.
type Record struct {
	Key   string
	Rev   uint64
	Data  []byte    // nil: removed; must not be changed
	Until time.Time // when it expires; zero: never

	// With Config.Sizes, Data is nil.
	Size int       // size of the stored message in bytes; 0: removed
	At   time.Time // when the record was stored
}

func (r *Record) gone() bool { return r.Data == nil && r.Size == 0 }

// A Change is a change to a record.
type Change struct {
	Key  string
	Rev  uint64        // revision to replace; 0: the record must not exist
	Data []byte        // nil: remove the record
	For  time.Duration // time until expiry; 0: never
}

// A Result is the result of a change.
type Result struct {
	Rev uint64 // the new revision, if Err is nil
	Err error  // wraps ErrConflict, ErrAway or ErrFull, or reports too much Data; with ErrAway, the change may have been made
}

// A Store is one relay's copy of all records. It is safe for concurrent use.
type Store struct {
	// Set by Start, then read-only.
	cfg     Config
	js      jetstream.JetStream
	cancel  context.CancelFunc
	running sync.WaitGroup
	ready   chan struct{} // closed after the first complete read of the stream
	save    chan struct{} // wakes keep

	mu        sync.Mutex // guards the fields below; also held while followers are called
	records   map[string]*known
	tenants   map[string]int // number of records and markers below Config.Shared; "": of all tenants
	followers []*follower
	stream    jetstream.Stream // nil: not opened yet
	epoch     uint64           // number of the current watch
	seen      uint64           // sequence of the last message that the current watch has delivered
	err       error            // why the stream is unusable; nil: it is usable
	streamID  string           // id of the last completely read stream
	synced    bool             // a stream was read completely since the start
}

// known is a Record, and the number of the watch which has last delivered it.
type known struct {
	Record
	epoch uint64
}

type follower struct {
	prefix string
	notify func(Record)
}

// Start reads the file and starts to follow the stream. Until the stream has been read
// (Ready), the file's records count as current. Close ends the Store.
func Start(ctx context.Context, cfg Config) (*Store, error) {
	cfg.Stream, cfg.Subjects, cfg.MaxBytes = cmp.Or(cfg.Stream, "ahp-records"), cmp.Or(cfg.Subjects, streamSubjects), cmp.Or(cfg.MaxBytes, maxBytes)
	if cfg.Bucket != "" {
		cfg.Stream = bucketStream + cfg.Bucket
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Maintains == nil {
		cfg.Maintains = func() bool { return true }
	}
	js, err := cfg.Conn.JetStream(jetstream.WithPublishAsyncTimeout(writeTimeout), jetstream.WithPublishAsyncMaxPending(8*writeAtOnce))
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{
		cfg: cfg, js: js, cancel: cancel, ready: make(chan struct{}), save: make(chan struct{}, 1),
		records: map[string]*known{}, tenants: map[string]int{}, err: errors.New("not reached yet"),
	}
	if err := s.load(); err != nil {
		cancel()
		return nil, err
	}
	s.running.Go(func() { s.follow(life) })
	s.running.Go(func() { s.keep(life) })
	return s, nil
}

// Ready returns a channel which is closed after the first complete read of the stream.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// Close ends the Store's goroutines and waits for them.
func (s *Store) Close() {
	s.cancel()
	s.running.Wait()
}

// Follow calls notify with each record whose key begins with prefix, and then with each
// change, one after the other, until cancel. Expiry is no change. Notify must neither block
// nor use the Store.
func (s *Store) Follow(prefix string, notify func(Record)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range s.records {
		if strings.HasPrefix(key, prefix) {
			notify(k.Record)
		}
	}
	f := &follower{prefix, notify}
	s.followers = append(s.followers, f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.followers = slices.DeleteFunc(s.followers, func(o *follower) bool { return o == f })
	}
}

// Get returns a record from memory. Its revision is 0 if there is none, or if it is only in
// the file.
func (s *Store) Get(key string) Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.records[key]; k != nil {
		return k.Record
	}
	return Record{Key: key}
}

// Read returns a record's data, or nil. If the record is not in memory, it asks the
// stream, because a different relay may just have created the record. While the stream is
// unreachable, the error then wraps ErrAway.
func (s *Store) Read(key string) ([]byte, error) {
	r := s.Get(key)
	if r.Data == nil && r.Rev == 0 && recordKey.MatchString(key) {
		if err := s.Away(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAway, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		if err := s.refresh(ctx, key); err != nil {
			return nil, err
		}
		r = s.Get(key)
	}
	return slices.Clone(r.Data), nil
}

// CatchUp returns when memory has every change that was made before the call, at any relay. It
// asks the leader of the stream's copies. The error wraps ErrAway.
func (s *Store) CatchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	newest, err := uint64(0), s.Away()
	if err == nil {
		newest, err = s.newest(ctx)
	}
	for err == nil {
		s.mu.Lock()
		seen := s.seen
		s.mu.Unlock()
		if seen >= newest {
			return nil
		}
		if !clock.Sleep(ctx, catchUpEvery) {
			err = context.Cause(ctx)
		}
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// Load reads a record with its data from the stream. Data is nil if there is no such
// record.
func (s *Store) Load(ctx context.Context, key string) (Record, error) {
	if !recordKey.MatchString(key) {
		return Record{Key: key}, nil
	}
	r, err := s.fetch(ctx, key)
	if err == nil && r.Rev != 0 {
		s.learn(r)
	}
	return r, err
}

// All returns the data of all records with a prefix, by key.
func (s *Store) All(prefix string) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string][]byte{}
	for key, k := range s.records {
		if k.Data != nil && strings.HasPrefix(key, prefix) {
			found[key] = slices.Clone(k.Data)
		}
	}
	return found, nil
}

// Update replaces a record's data with the result of change; a nil result removes the
// record. Change may be called several times, and must not keep its argument. If change
// returns an error, so does Update, and nothing changes. While the stream is
// unreachable, Update fails. The error wraps ErrAway if it is unknown whether the change
// was made.
func (s *Store) Update(key string, change func(old []byte) ([]byte, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*writeTimeout)
	defer cancel()
	for range updateTries {
		r, unknown, err := s.current(ctx, key)
		if err != nil {
			return err
		}
		data, err := change(slices.Clone(r.Data))
		switch {
		case unknown != nil && data == nil:
			return unknown
		case err != nil:
			return err
		case data == nil && r.Data == nil, data != nil && r.Data != nil && string(data) == string(r.Data) && r.Rev != 0:
			return nil
		case !recordKey.MatchString(key):
			return fmt.Errorf("invalid record key %q", key)
		case r.Data == nil && s.full():
			return ErrFull
		}
		err = s.Write(ctx, Change{Key: key, Rev: r.Rev, Data: data})[0].Err
		if !errors.Is(err, ErrConflict) {
			return err
		}
		time.Sleep(rand.N(updatePause)) // so that concurrent writers spread
	}
	return fmt.Errorf("%w: too many concurrent changes to %s", ErrAway, key)
}

// current returns the newest version of a record. If the stream is unreachable and the record
// is not in memory, unknown gives the reason why the stream may still have the record.
func (s *Store) current(ctx context.Context, key string) (r Record, unknown, err error) {
	away := s.Away()
	if away == nil && recordKey.MatchString(key) {
		if err := s.refresh(ctx, key); err != nil {
			return r, nil, err
		}
	}
	r = s.Get(key)
	if away != nil && r.Data == nil && r.Rev == 0 {
		unknown = fmt.Errorf("%w: %w", ErrAway, away)
	}
	return r, unknown, nil
}

func (s *Store) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Most == 0 || len(s.records) < s.cfg.Most {
		return false
	}
	there := 0
	for _, k := range s.records {
		if k.Data != nil {
			there++
		}
	}
	return there >= s.cfg.Most
}

// Write makes several changes, each on its own, and returns a result for each. After a conflict,
// the watch delivers the current record to followers.
func (s *Store) Write(ctx context.Context, changes ...Change) []Result {
	results := make([]Result, len(changes))
	for done := 0; done < len(changes); done += writeAtOnce {
		some := changes[done:min(done+writeAtOnce, len(changes))]
		s.write(ctx, some, results[done:done+len(some)])
	}
	return results
}

func (s *Store) write(ctx context.Context, changes []Change, results []Result) {
	s.mu.Lock()
	stream := s.stream
	s.mu.Unlock()
	if stream == nil {
		for i := range results {
			results[i].Err = ErrAway
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, len(changes))
	for i := range changes {
		if changes[i].Rev == 0 && !hasRoom(s, changes[i].Key) {
			results[i].Err = ErrFull
			continue
		}
		futures[i], results[i].Err = s.publish(&changes[i])
	}
	for i, f := range futures {
		if f == nil {
			continue
		}
		select {
		case ack := <-f.Ok():
			results[i].Rev = ack.Sequence
			s.apply(s.recordOf(&changes[i], ack.Sequence), 0)
		case err := <-f.Err():
			results[i].Err = storeError(err)
		case <-ctx.Done():
			results[i].Err = fmt.Errorf("%w: %w", ErrAway, ctx.Err())
		}
	}
}

// tenantOf returns the tenant of a key below Config.Shared.
func (cfg *Config) tenantOf(key string) (tenant string, ok bool) {
	rest, ok := strings.CutPrefix(key, cfg.Shared)
	tenant, _, _ = strings.Cut(rest, ".")
	return tenant, ok && cfg.Room > 0
}

// hasRoom reports whether a tenant may have a further record.
func hasRoom(s *Store, key string) bool {
	tenant, ok := s.cfg.tenantOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return !ok || s.records[key] != nil || s.tenants[tenant] < s.cfg.Room-s.tenants[""]
}

// rememberLocked adds a record or marker to memory.
func rememberLocked(s *Store, key string, k *known) {
	s.records[key] = k
	if tenant, ok := s.cfg.tenantOf(key); ok {
		s.tenants[tenant]++
		s.tenants[""]++
	}
}

// forgetLocked deletes a record or marker from memory.
func forgetLocked(s *Store, key string) {
	delete(s.records, key)
	if tenant, ok := s.cfg.tenantOf(key); ok {
		s.tenants[""]--
		if s.tenants[tenant]--; s.tenants[tenant] == 0 {
			delete(s.tenants, tenant)
		}
	}
}

// recordOf returns the record as it is after a change.
func (s *Store) recordOf(c *Change, rev uint64) Record {
	r := Record{Key: c.Key, Rev: rev, Data: c.Data}
	if s.cfg.Sizes {
		r.Data, r.At = nil, time.Now()
		if c.Data != nil {
			r.Size = len(c.Data) + s.cfg.Sealer.Overhead()
		}
	}
	if after := s.cfg.lasts(c); after > 0 {
		r.Until = time.Now().Add(after)
	}
	return r
}

// lasts returns the time until the stored record, or the marker of a removal, expires; 0: never.
func (cfg *Config) lasts(c *Change) time.Duration {
	switch {
	case c.Data != nil:
		return c.For
	case cfg.Sizes, slices.ContainsFunc(cfg.Brief, func(prefix string) bool { return strings.HasPrefix(c.Key, prefix) }):
		return removedBrief
	}
	return removedFor
}

// apply applies a record. epoch is the number of the watch that has delivered the record,
// or 0 if this relay has read or written the record itself.
func (s *Store) apply(r Record, epoch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	epoch = cmp.Or(epoch, s.epoch)
	k := s.records[r.Key]
	switch {
	case k == nil:
		k = &known{}
		rememberLocked(s, r.Key, k)
	case epoch > k.epoch: // revisions from an earlier watch cannot be compared
		k.epoch = epoch
		if r.Rev == k.Rev && string(r.Data) == string(k.Data) && r.Size == k.Size {
			return
		}
	case r.Rev <= k.Rev:
		return
	}
	k.Record, k.epoch = r, max(epoch, k.epoch)
	s.notifyLocked(r)
}

func (s *Store) notifyLocked(r Record) {
	for _, f := range s.followers {
		if strings.HasPrefix(r.Key, f.prefix) {
			f.notify(r)
		}
	}
	if r.Until.IsZero() || r.gone() {
		signal.Send(s.save)
	}
}

// Away returns why the stream is unusable, or nil.
func (s *Store) Away() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
