package records

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker"
)

const subjects = "ahp.relays.v1.records."

// config is the stream's.
func (s *Store) config(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: s.cfg.Stream, Description: "what AHP relays keep together", Subjects: []string{subjects + ">"},
		Storage: jetstream.FileStorage, Replicas: replicas, MaxMsgsPerSubject: 1, AllowMsgTTL: true,
		MaxMsgs: maxRecords, MaxBytes: maxBytes, Discard: jetstream.DiscardOld, DenyDelete: true,
	}
}

// open finds the stream, or makes it.
func (s *Store) open(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	err = broker.MostCopies(func(copies int) (err error) {
		stream, err = s.js.CreateStream(ctx, s.config(copies))
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another relay was first, with other copies
		stream, err = s.js.Stream(ctx, s.cfg.Stream)
	}
	return stream, err
}

// publish begins a change.
func (s *Store) publish(c *Change) (jetstream.PubAckFuture, error) {
	if len(c.Data) > MaxData {
		return nil, fmt.Errorf("%s: record of %d bytes; want at most %d", c.Key, len(c.Data), MaxData)
	}
	msg := nats.NewMsg(subjects + c.Key)
	if c.Data != nil {
		msg.Data = s.cfg.Sealer.Seal(c.Key, c.Data)
	}
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(c.Rev)}
	if after := c.lasts(); after > 0 {
		opts = append(opts, jetstream.WithMsgTTL(max(after.Round(time.Second), time.Second)))
	}
	f, err := s.js.PublishMsgAsync(msg, opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	}
	return f, nil
}

func storeError(err error) error {
	var refused *jetstream.APIError
	if errors.As(err, &refused) && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return ErrConflict
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// look reads a record from the stream.
func (s *Store) look(ctx context.Context, key string) {
	s.mu.Lock()
	stream := s.stream
	s.mu.Unlock()
	msg, err := stream.GetLastMsgForSubject(ctx, subjects+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		s.removed(key)
		return
	}
	if err != nil {
		return // the stream brings it
	}
	if r, err := s.read(msg.Subject, msg.Data, msg.Header, msg.Sequence, msg.Time); err == nil {
		s.apply(r, 0)
	}
}

// removed notes that the stream does not have a record any more.
func (s *Store) removed(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.records[key]; k != nil {
		delete(s.records, key)
		if k.Data != nil {
			s.tellLocked(Record{Key: key})
		}
	}
}

// read makes a record of a message.
func (s *Store) read(subject string, data []byte, header nats.Header, seq uint64, at time.Time) (Record, error) {
	r := Record{Key: strings.TrimPrefix(subject, subjects), Rev: seq}
	if ttl := header.Get("Nats-TTL"); ttl != "" {
		after, err := time.ParseDuration(ttl)
		if err != nil {
			seconds, _ := strconv.Atoi(ttl) // 0: as good as over
			after = time.Duration(seconds) * time.Second
		}
		r.Until = at.Add(after)
	}
	if len(data) == 0 {
		return r, nil
	}
	var err error
	if r.Data, err = s.cfg.Sealer.Open(r.Key, data); err != nil {
		return r, fmt.Errorf("record %s: %w", r.Key, err)
	}
	return r, nil
}

// follow keeps this relay's view what the stream has, until ctx ends.
func (s *Store) follow(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := s.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		if failures == 1 {
			s.cfg.Log.Warn("the relays' store", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(openRetry):
		}
	}
}

// followOnce takes what the stream has, and each change, until that ends.
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
	epoch := s.epoch
	s.mu.Unlock()
	info, err := within(ctx, stream.Info)
	if err != nil {
		return err
	}
	opened, done := context.WithTimeout(ctx, openTimeout)
	consumer, err := s.js.OrderedConsumer(opened, s.cfg.Stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, MaxResetAttempts: 3,
	})
	done()
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullExpiry(pullFor), jetstream.PullHeartbeat(pullHeartbeat))
	if err != nil {
		return err
	}
	defer messages.Stop()
	s.running.Go(func() { cancel(s.tend(ctx, stream, info.Created)) })
	if info.State.Msgs == 0 {
		s.sync(ctx, epoch)
	}
	for synced := info.State.Msgs == 0; ; {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if r, err := s.read(msg.Subject(), msg.Data(), msg.Headers(), meta.Sequence.Stream, meta.Timestamp); err == nil {
			s.apply(r, epoch)
		} else {
			s.cfg.Log.Warn("the relays' store", "error", err)
		}
		if !synced && meta.NumPending == 0 {
			synced = true
			s.sync(ctx, epoch)
		}
	}
}

// within asks with a time limit.
func within(ctx context.Context, info func(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error)) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return info(ctx)
}

// sync is called when all was taken that the stream has. What it has not, and should, it
// gets again; what has ended is forgotten.
func (s *Store) sync(ctx context.Context, epoch uint64) {
	now := time.Now()
	s.mu.Lock()
	s.err = nil
	first := !s.synced
	s.synced = true
	var missing []Change
	for key, k := range s.records {
		switch {
		case k.epoch >= epoch:
		case !k.Until.IsZero() && !k.Until.After(now), k.Data == nil:
			delete(s.records, key)
		default:
			c := Change{Key: key, Data: k.Data}
			if !k.Until.IsZero() {
				c.For = k.Until.Sub(now)
			}
			missing = append(missing, c)
		}
	}
	s.mu.Unlock()
	if len(missing) > 0 {
		s.cfg.Log.Warn("the relays' store has lost records, or is new: it gets them again", "records", len(missing))
		s.Write(ctx, missing...) // what fails is tried with the next change, or the next time
	}
	if first {
		close(s.ready)
	}
}

// errOther reports that the stream is not the one that was found.
var errOther = errors.New("the stream is another one now")

// tend has the stream have more copies, if there are servers for them, forgets what has
// ended, and returns if the stream was replaced.
func (s *Store) tend(ctx context.Context, stream jetstream.Stream, created time.Time) error {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		info, err := within(ctx, stream.Info)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound), err == nil && !info.Created.Equal(created):
			return errOther
		case err == nil && info.Cluster != nil && info.Config.Replicas < broker.MaxCopies:
			_ = broker.MostCopies(func(copies int) error {
				if copies <= info.Config.Replicas {
					return nil
				}
				ctx, cancel := context.WithTimeout(ctx, openTimeout)
				defer cancel()
				_, err := s.js.UpdateStream(ctx, s.config(copies))
				return err
			})
		}
		s.forget(time.Now())
	}
}

// forget forgets what has ended.
func (s *Store) forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range s.records {
		if !k.Until.IsZero() && k.Until.Before(now) {
			delete(s.records, key)
		}
	}
}
