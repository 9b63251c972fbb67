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
)

// Bounds and times of a Store.
const (
	maxRecords = 512 << 10 // then the oldest go, unless Config.Most refuses more before
	maxBytes   = 1 << 30   // of all of them

	// MaxData is how long a record may be, in bytes.
	MaxData = 512 << 10

	writeTimeout  = 2 * time.Second // for changes that are written together
	writeAtOnce   = 256
	updateTries   = 16
	updatePause   = 50 * time.Millisecond // at most, between them
	removedFor    = 30 * 24 * time.Hour   // for so long it is known that a record was removed
	openTimeout   = 2 * time.Second
	openRetry     = 500 * time.Millisecond
	tendEvery     = 20 * time.Second
	pullFor       = 4 * time.Second // after that, and without a heartbeat, the stream is asked anew
	pullHeartbeat = time.Second
	consumerIdle  = time.Minute // then the server forgets who asks no more
)

// Errors of changes.
var (
	ErrConflict = errors.New("changed meanwhile")
	ErrAway     = errors.New("the relays' store cannot be written now")
	ErrFull     = errors.New("there is no room for more records")
)

// recordKey is what keys look like: others are of no record.
var recordKey = regexp.MustCompile(`^[a-z]+(\.[a-zA-Z0-9_-]+)+$`)

// Config says how to run a [Store].
type Config struct {
	Conn   *broker.Conn // required; a relay's, in the account of relays
	Sealer *auth.Sealer // required
	Name   string       // of what is in it, for people; required
	Stream string       // its name; default: ahp-records
	File   string       // keeps records that have no end; default: none
	Log    *slog.Logger // default: none

	// Bucket: the records are the values of a JetStream key-value bucket with that name,
	// as JSON, in the place of Stream.
	Bucket string

	// Most is how many records there may be: then Update refuses to make another, and
	// none ever goes to make room. Default: the oldest go when there are too many.
	Most int

	// Known: what a stream does not have any more that this relay has seen before was
	// removed there. Default: it has lost it, and gets it again.
	Known bool

	// Tends reports whether this relay is the one that has the stream have more copies.
	// Default: any does.
	Tends func() bool

	// Servers returns how many other servers of a cluster there are now. Default: that is
	// not known, and more copies may be made some 20 s after they could be.
	Servers func() int
}

// A Record is one as it is, or was.
type Record struct {
	Key   string
	Rev   uint64
	Data  []byte    // nil: it was removed; not to be changed
	Until time.Time // then it ends; zero: never
}

// A Change is to be made.
type Change struct {
	Key  string
	Rev  uint64        // that is changed; 0: there is no such record
	Data []byte        // nil: it is removed
	For  time.Duration // it ends after so long; 0: never
}

// A Result is what became of a change.
type Result struct {
	Rev uint64 // that there is now, if Err is nil
	Err error  // wraps ErrConflict or ErrAway; after ErrAway it may have been made all the same
}

// A Store is one relay's view of all records. It is safe for concurrent use.
type Store struct {
	// Set by Start, then read-only.
	cfg     Config
	js      jetstream.JetStream
	cancel  context.CancelFunc
	running sync.WaitGroup
	ready   chan struct{} // closed when all was taken that the stream had
	save    chan struct{} // for keep; holds one

	mu        sync.Mutex // guards the fields below; held while followers are told
	records   map[string]*known
	followers []*follower
	stream    jetstream.Stream // nil: not found yet
	epoch     uint64           // of the following
	err       error            // why the stream is away; nil: it is there
	streamID  string           // of the stream that was last taken whole
	synced    bool             // one was, in this run
}

// known is a Record, as heard in an epoch.
type known struct {
	Record
	epoch uint64
}

type follower struct {
	prefix string
	tell   func(Record)
}

// Start reads the file and begins to follow the stream. What the file had counts until the
// rest comes: see Ready. Close ends it.
func Start(ctx context.Context, cfg Config) (*Store, error) {
	cfg.Stream = cmp.Or(cfg.Stream, "ahp-records")
	if cfg.Bucket != "" {
		cfg.Stream = bucketStream + cfg.Bucket
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Tends == nil {
		cfg.Tends = func() bool { return true }
	}
	js, err := cfg.Conn.JetStream(jetstream.WithPublishAsyncTimeout(writeTimeout), jetstream.WithPublishAsyncMaxPending(8*writeAtOnce))
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{
		cfg: cfg, js: js, cancel: cancel, ready: make(chan struct{}), save: make(chan struct{}, 1),
		records: map[string]*known{}, err: errors.New("it was not reached yet"),
	}
	if err := s.load(); err != nil {
		cancel()
		return nil, err
	}
	s.running.Go(func() { s.follow(life) })
	s.running.Go(func() { s.keep(life) })
	return s, nil
}

// Ready returns a channel that is closed when all was taken that the stream has.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// Close returns when nothing of the Store runs any more.
func (s *Store) Close() {
	s.cancel()
	s.running.Wait()
}

// Follow tells of each record whose key begins with prefix, and then of each change, one
// after another, until cancel. Tell must neither block nor use the Store.
func (s *Store) Follow(prefix string, tell func(Record)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range s.records {
		if strings.HasPrefix(key, prefix) {
			tell(k.Record)
		}
	}
	f := &follower{prefix, tell}
	s.followers = append(s.followers, f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.followers = slices.DeleteFunc(s.followers, func(o *follower) bool { return o == f })
	}
}

// Get returns a record; its revision is 0 if there never was one.
func (s *Store) Get(key string) Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.records[key]; k != nil {
		return k.Record
	}
	return Record{Key: key}
}

// Read returns what a record has now, nil for nothing. What is not known may have been made at
// another relay just now: then the stream is asked.
func (s *Store) Read(key string) ([]byte, error) {
	r := s.Get(key)
	if r.Data == nil && r.Rev == 0 && s.Away() == nil && recordKey.MatchString(key) {
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		if err := s.look(ctx, key); err != nil {
			return nil, err
		}
		r = s.Get(key)
	}
	return slices.Clone(r.Data), nil
}

// All returns what records have whose keys begin with a prefix, by key.
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

// Update puts in the place of a record, as the stream has it now, what change makes of it; nil stands
// for none. Change may be called more than once, and must not keep what it is given. Its error is
// returned, and nothing is changed then. While the stream is away nothing can be changed. An
// error wraps ErrAway if it is not known whether the change was made.
func (s *Store) Update(key string, change func(old []byte) ([]byte, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*writeTimeout)
	defer cancel()
	for range updateTries {
		if s.Away() == nil && recordKey.MatchString(key) {
			if err := s.look(ctx, key); err != nil {
				return err
			}
		}
		r := s.Get(key)
		data, err := change(slices.Clone(r.Data))
		switch {
		case err != nil:
			return err
		case data == nil && r.Data == nil, data != nil && r.Data != nil && string(data) == string(r.Data) && r.Rev != 0:
			return nil
		case !recordKey.MatchString(key):
			return fmt.Errorf("%q is no key of a record", key)
		case r.Data == nil && s.full():
			return ErrFull
		}
		err = s.Write(ctx, Change{Key: key, Rev: r.Rev, Data: data})[0].Err
		if !errors.Is(err, ErrConflict) {
			return err
		}
		time.Sleep(rand.N(updatePause)) // before all who were not first try again together
	}
	return fmt.Errorf("%w: others change %s all the time", ErrAway, key)
}

// full reports whether there are as many records as there may be.
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

// Write makes changes, together, and returns what became of each. Of what was not as the
// writer thought followers are told, if they were not before.
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
		futures[i], results[i].Err = s.publish(&changes[i])
	}
	for i, f := range futures {
		if f == nil {
			continue
		}
		select {
		case ack := <-f.Ok():
			results[i].Rev = ack.Sequence
			s.apply(changes[i].record(ack.Sequence), 0)
		case err := <-f.Err():
			results[i].Err = storeError(err)
		case <-ctx.Done():
			results[i].Err = fmt.Errorf("%w: %w", ErrAway, ctx.Err())
		}
	}
}

// record is what a change makes.
func (c *Change) record(rev uint64) Record {
	r := Record{Key: c.Key, Rev: rev, Data: c.Data}
	if after := c.lasts(); after > 0 {
		r.Until = time.Now().Add(after)
	}
	return r
}

func (c *Change) lasts() time.Duration {
	if c.Data == nil {
		return removedFor
	}
	return c.For
}

// apply takes a record, from the stream in an epoch, or of epoch 0 because it was just written
// or read.
func (s *Store) apply(r Record, epoch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch == 0 {
		epoch = s.epoch
	}
	k := s.records[r.Key]
	switch {
	case k == nil:
		k = &known{}
		s.records[r.Key] = k
	case epoch > k.epoch: // what was known is of an earlier one, whose revisions say nothing
		k.epoch = epoch
		if r.Rev == k.Rev && string(r.Data) == string(k.Data) {
			return
		}
	case r.Rev <= k.Rev:
		return
	}
	k.Record, k.epoch = r, max(epoch, k.epoch)
	s.tellLocked(r)
}

func (s *Store) tellLocked(r Record) {
	for _, f := range s.followers {
		if strings.HasPrefix(r.Key, f.prefix) {
			f.tell(r)
		}
	}
	if r.Until.IsZero() || r.Data == nil {
		wakeUp(s.save)
	}
}

// Away returns why the stream is away, nil if it is there.
func (s *Store) Away() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
