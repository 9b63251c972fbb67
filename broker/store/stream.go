package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// Streams and subjects of records.
const (
	streamSubjects = "ahp.relays.v1.records."

	// Names for a key-value bucket.
	bucketStream   = "KV_"
	bucketSubjects = "$KV."

	operationHeader = "KV-Operation"
	operationPurge  = "PURGE"

	markerTTL = time.Hour // how long JetStream keeps its own markers of expired records
)

// subjects returns the prefix of the records' subjects.
func (s *Store) subjects() string {
	if s.cfg.Bucket != "" {
		return bucketSubjects + s.cfg.Bucket + "."
	}
	return s.cfg.Subjects
}

// open opens the stream, and creates it if necessary.
func (s *Store) open(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	find := func(ctx context.Context) (jetstream.Stream, error) { return s.js.Stream(ctx, s.cfg.Stream) }
	stream, err := broker.AskAgain(ctx, find)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	err = broker.Create(ctx, s.create)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) && !errors.Is(err, jetstream.ErrBucketExists) {
		return nil, err
	}
	return broker.AskAgain(ctx, find) // a different relay may have created it with other settings
}

func (s *Store) create(ctx context.Context, copies int) (err error) {
	if s.cfg.Bucket != "" {
		_, err = s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: s.cfg.Bucket, Description: s.cfg.Name, History: 1,
			Storage: jetstream.FileStorage, Replicas: copies, LimitMarkerTTL: markerTTL,
		})
		return err
	}
	_, err = s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: s.cfg.Stream, Description: s.cfg.Name, Subjects: []string{s.cfg.Subjects + ">"},
		Storage: jetstream.FileStorage, Replicas: copies, MaxMsgsPerSubject: 1, AllowMsgTTL: true,
		MaxMsgs: MaxRecords, MaxBytes: s.cfg.MaxBytes, Discard: jetstream.DiscardOld, DenyDelete: true,
	})
	return err
}

func (s *Store) message(c *Change) *nats.Msg {
	msg := nats.NewMsg(s.subjects() + c.Key)
	switch {
	case c.Data == nil && s.cfg.Bucket != "":
		msg.Header.Set(operationHeader, operationPurge)
	case c.Data == nil:
	case s.cfg.Bucket != "":
		msg.Data, _ = json.Marshal(s.cfg.Sealer.Seal(c.Key, c.Data)) // cannot fail
	default:
		msg.Data = s.cfg.Sealer.Seal(c.Key, c.Data)
	}
	return msg
}

func (s *Store) publish(c *Change) (jetstream.PubAckFuture, error) {
	if len(c.Data) > MaxData {
		return nil, fmt.Errorf("%s: record of %d bytes; want at most %d", c.Key, len(c.Data), MaxData)
	}
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(c.Rev)}
	if after := s.cfg.lasts(c); after > 0 {
		opts = append(opts, jetstream.WithMsgTTL(max(after.Round(time.Second), time.Second)))
	}
	f, err := s.js.PublishMsgAsync(s.message(c), opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	}
	return f, nil
}

func storeError(err error) error {
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return ErrConflict
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// refresh reads a record from the stream, and applies it.
func (s *Store) refresh(ctx context.Context, key string) error {
	r, err := s.fetch(ctx, key)
	if err != nil || r.Rev == 0 {
		return err
	}
	s.learn(r)
	return nil
}

func (s *Store) learn(r Record) {
	if s.cfg.Sizes {
		r.Data = nil
	}
	s.apply(r, 0)
}

// fetch reads a record from the stream's leader. Its revision is 0 if there is none.
func (s *Store) fetch(ctx context.Context, key string) (Record, error) {
	s.mu.Lock()
	stream, known := s.stream, s.revLocked(key)
	s.mu.Unlock()
	if stream == nil {
		return Record{Key: key}, ErrAway
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	msg, err := broker.LastMessage(ctx, s.js, s.cfg.Stream, s.subjects()+key)
	switch {
	case err != nil:
		return Record{Key: key}, fmt.Errorf("%w: %w", ErrAway, err)
	case msg == nil:
		s.removed(key, known)
		return Record{Key: key}, nil
	}
	return s.read(msg.Subject, msg.Data, msg.Header, msg.Sequence, msg.Time)
}

func (s *Store) revLocked(key string) (rev uint64) {
	if k := s.records[key]; k != nil {
		rev = k.Rev
	}
	return rev
}

// removed deletes a revision of a record from memory, because the stream no longer has it. A
// later revision has arrived after the stream's answer, and stays.
func (s *Store) removed(key string, rev uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.records[key]; k != nil && k.Rev == rev {
		forgetLocked(s, key)
		if !k.gone() {
			s.notifyLocked(Record{Key: key})
		}
	}
}

func (s *Store) read(subject string, data []byte, header nats.Header, seq uint64, at time.Time) (Record, error) {
	r := Record{Key: strings.TrimPrefix(subject, s.subjects()), Rev: seq}
	if ttl := header.Get("Nats-TTL"); ttl != "" {
		after, err := time.ParseDuration(ttl)
		if err != nil {
			seconds, _ := strconv.Atoi(ttl) // 0: about to expire
			after = time.Duration(seconds) * time.Second
		}
		r.Until = at.Add(after)
	}
	if s.cfg.Sizes {
		r.Size, r.At = len(data), at
		if size := header.Get(nats.MsgSize); size != "" {
			r.Size, _ = strconv.Atoi(size) // set by the server
		}
	}
	if len(data) == 0 {
		return r, nil
	}
	var err error
	if s.cfg.Bucket != "" {
		if err := json.Unmarshal(data, &data); err != nil {
			return r, fmt.Errorf("record %s: %w", r.Key, err)
		}
	}
	if r.Data, err = s.cfg.Sealer.Open(r.Key, data); err != nil {
		return r, fmt.Errorf("record %s: %w", r.Key, err)
	}
	return r, nil
}

// follow keeps the records in memory up to date until ctx ends.
func (s *Store) follow(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := s.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		if s.err == nil { // it was reachable
			failures = 0
		}
		s.err = err
		s.mu.Unlock()
		if failures == 1 {
			s.cfg.Log.Warn("record store unreachable", "effect", "records are read-only", "store", s.cfg.Name, "error", err)
		}
		clock.Sleep(ctx, openRetry)
	}
}

// followOnce reads the stream and then watches it, until that fails.
func (s *Store) followOnce(ctx context.Context) error {
	stream, err := s.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.stream = stream
	s.epoch++
	s.seen = 0
	epoch := s.epoch
	s.mu.Unlock()
	info, err := within(ctx, stream.Info)
	if err != nil {
		return err
	}
	newest, err := s.newest(ctx)
	if err != nil {
		return err
	}
	at := &reading{epoch: epoch, id: info.Created.UTC().Format(time.RFC3339Nano), newest: newest, synced: newest == 0}
	messages, err := s.messages(ctx, at)
	if err != nil {
		return err
	}
	s.running.Go(func() { cancel(s.tend(ctx, stream, info.Created)) })
	s.running.Go(func() { s.copies(stream).Keep(ctx) })
	if at.synced {
		s.sync(ctx, epoch, at.id)
	}
	for err == nil {
		stopped := s.take(ctx, messages, at)
		messages.Stop()
		if ctx.Err() != nil {
			return errors.Join(stopped, context.Cause(ctx))
		}
		messages, err = s.messages(ctx, at) // there is a new leader, or a message was lost
	}
	return err
}

// A reading is a position in the stream.
type reading struct {
	epoch  uint64
	id     string // id of the stream
	last   uint64 // sequence of the last applied message
	newest uint64 // the newest sequence when the read began
	synced bool   // everything present when the read began was read
}

// errLags reports that a consumer reads from a copy which is behind the leader.
var errLags = errors.New("the messages come from a copy that lags")

// newest returns the newest sequence, as the leader of the copies knows it.
func (s *Store) newest(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	msg, err := broker.LastMessage(ctx, s.js, s.cfg.Stream, ">")
	if msg == nil {
		return 0, err
	}
	return msg.Sequence, err
}

// messages requests the messages after a position. It does not use JetStream's own
// ordered consumer, which ignores ctx while it renews its request: for half a minute
// if the cluster has no leader.
func (s *Store) messages(ctx context.Context, at *reading) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	cfg := jetstream.ConsumerConfig{
		FilterSubject: ">", DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		HeadersOnly: s.cfg.Sizes, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerIdle,
	}
	if at.last > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, at.last+1
	}
	consumer, err := broker.AskAgain(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return s.js.CreateConsumer(ctx, s.cfg.Stream, cfg) // an abandoned consumer expires
	})
	if err != nil {
		return nil, err
	}
	if !at.synced && consumer.CachedInfo().NumPending == 0 {
		return nil, errLags
	}
	return consumer.Messages(jetstream.PullExpiry(pullFor), jetstream.PullHeartbeat(pullHeartbeat))
}

// take applies messages in order until an error, which it returns.
func (s *Store) take(ctx context.Context, messages jetstream.MessagesContext, at *reading) error {
	for n := uint64(1); ; n++ {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != n {
			return errors.New("a message was lost")
		}
		if r, err := s.read(msg.Subject(), msg.Data(), msg.Headers(), meta.Sequence.Stream, meta.Timestamp); err == nil {
			s.apply(r, at.epoch)
		} else {
			s.cfg.Log.Warn("record invalid", "store", s.cfg.Name, "error", err)
		}
		at.last = meta.Sequence.Stream
		s.mu.Lock()
		s.seen = at.last
		s.mu.Unlock()
		if !at.synced && meta.NumPending == 0 {
			if at.last < at.newest {
				return errLags
			}
			at.synced = true
			s.sync(ctx, at.epoch, at.id)
		}
	}
}

// within calls info with a timeout, repeatedly if necessary.
func within(ctx context.Context, info func(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error)) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return broker.AskAgain(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) { return info(ctx) })
}

// missingLocked returns the records to write again, because a complete read has not
// delivered them. It deletes expired records, and, with removed set, all others that
// are missing.
func (s *Store) missingLocked(epoch uint64, removed bool, now time.Time) (missing []Change) {
	for key, k := range s.records {
		switch {
		case k.epoch >= epoch:
		case removed && !k.gone():
			forgetLocked(s, key)
			s.notifyLocked(Record{Key: key})
		case !k.Until.IsZero() && !k.Until.After(now), k.gone():
			forgetLocked(s, key)
		default:
			c := Change{Key: key, Data: k.Data}
			if !k.Until.IsZero() {
				c.For = k.Until.Sub(now)
			}
			missing = append(missing, c)
		}
	}
	return missing
}

// sync ends a complete read of the stream that has the given id. It writes lost records
// again, and deletes expired and removed records.
func (s *Store) sync(ctx context.Context, epoch uint64, id string) {
	now := time.Now()
	s.mu.Lock()
	s.err = nil
	first := !s.synced
	s.synced = true
	missing := s.missingLocked(epoch, s.cfg.Sizes || s.cfg.Known && id == s.streamID, now)
	s.mu.Unlock()
	whole := true
	if len(missing) > 0 {
		s.cfg.Log.Warn("writing missing records to the store again", "store", s.cfg.Name, "records", len(missing))
		for _, r := range s.Write(ctx, missing...) { // a failed write is repeated after the next complete read
			whole = whole && (r.Err == nil || errors.Is(r.Err, ErrConflict)) // a conflict means that a different relay has written it
		}
	}
	if whole { // otherwise the stream counts as unknown
		s.mu.Lock()
		s.streamID = id
		s.mu.Unlock()
		signal.Send(s.save)
	}
	if first {
		close(s.ready)
	}
}

var (
	errOther  = errors.New("the stream was replaced")
	errSilent = errors.New("the stream was unreachable for too long")
)

// tend removes expired records from memory. It returns when the stream was replaced or
// deleted, or has not answered for silentFor.
func (s *Store) tend(ctx context.Context, stream jetstream.Stream, created time.Time) error {
	heard := time.Now().Round(0) // a machine that sleeps hears nothing either
	for clock.Sleep(ctx, tendEvery) {
		info, err := within(ctx, stream.Info)
		now := time.Now().Round(0)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound), err == nil && !info.Created.Equal(created):
			return errOther
		case now.Sub(heard) > silentFor:
			return errSilent
		case err == nil:
			heard = now
		}
		s.mu.Lock()
		for key, k := range s.records {
			if !k.Until.IsZero() && k.Until.Before(now) {
				forgetLocked(s, key)
			}
		}
		s.mu.Unlock()
	}
	return ctx.Err()
}

// copies returns the configuration for keeping as many copies of the stream as
// possible.
func (s *Store) copies(stream jetstream.Stream) *broker.Copies {
	var found jetstream.StreamConfig
	return &broker.Copies{
		Count: func(ctx context.Context) (int, error) {
			info, err := within(ctx, stream.Info)
			if err != nil || info.Cluster == nil {
				return broker.MaxCopies, err
			}
			found = info.Config
			return found.Replicas, nil
		},
		Make: func(ctx context.Context, copies int) error {
			ctx, cancel := context.WithTimeout(ctx, openTimeout)
			defer cancel()
			more := found
			more.Replicas = copies
			_, err := s.js.UpdateStream(ctx, more)
			return err
		},
		Mine: s.cfg.Maintains, Servers: s.cfg.Servers,
	}
}
