package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker"
	"ahprelay/test/natssite"
)

// A laggingCopy is a JetStream whose consumers read another stream, which stands for a copy
// that lacks the newest records, while lags is true.
type laggingCopy struct {
	jetstream.JetStream
	stream string // the stream with the copy
	lags   atomic.Bool
}

func (l *laggingCopy) CreateConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if l.lags.Load() {
		stream = l.stream
	}
	return l.JetStream.CreateConsumer(ctx, stream, cfg)
}

// TestLaggingCopyIsNotTheStore reads the records from a copy that lacks some or all of them.
// JetStream permits that to a relay which has just replaced another. The read must fail with
// errLags, and the known records stay. Reading the current copy must then succeed.
func TestLaggingCopyIsNotTheStore(t *testing.T) {
	t.Parallel()
	for _, copied := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d of 2 records", copied), func(t *testing.T) {
			t.Parallel()
			site := natssite.New(t)
			conn := site.Relays(t)
			js, err := conn.JetStream()
			if err != nil {
				t.Fatal(err)
			}
			sealer, err := site.Keys.Sealer("test")
			if err != nil {
				t.Fatal(err)
			}
			first, err := Start(t.Context(), Config{Conn: conn, Sealer: sealer, Name: "people", Known: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(first.Close)
			natssite.Next(t, "the first read of the stream", first.Ready())
			const lags = "lags"
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: lags, Subjects: []string{"ahp.relays.v1.lags"}}); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				key, data := fmt.Sprintf("device.%d", i), json.RawMessage(`"ada's"`)
				for _, result := range first.Write(t.Context(), Change{Key: key, Data: data}) {
					if result.Err != nil {
						t.Fatal(result.Err)
					}
				}
			}
			if copied > 0 {
				if _, err := js.Publish(t.Context(), "ahp.relays.v1.lags", []byte("of the copy")); err != nil {
					t.Fatal(err)
				}
			}
			lagging := &laggingCopy{JetStream: js, stream: lags}
			lagging.lags.Store(true) // also for the second consumer, which asks for the remaining records
			s := &Store{
				cfg: first.cfg, js: lagging, cancel: func() {}, ready: make(chan struct{}), save: make(chan struct{}, 1),
				records: map[string]*known{"device.0": {Record: first.Get("device.0")}}, streamID: first.streamID,
			}
			ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
			defer cancel()
			if err := s.followOnce(ctx); !errors.Is(err, errLags) || s.synced {
				t.Fatalf("a lagging copy was read: synced %v, %v; want %v", s.synced, err, errLags)
			}
			lagging.lags.Store(false)
			life, end := context.WithCancel(ctx)
			s.running.Go(func() { _ = s.followOnce(life) })
			natssite.Next(t, "a read of the current copy", s.ready)
			for _, key := range []string{"device.0", "device.1"} {
				if string(s.Get(key).Data) != `"ada's"` {
					t.Errorf("the store's %s is lost; want it kept", key)
				}
			}
			end()
			s.Close()
		})
	}
}

// laggingReads is a JetStream whose direct reads use a copy that has no record yet. It calls asked
// when a read of the leader's copy begins.
type laggingReads struct {
	jetstream.JetStream
	asked func()
}

func (l *laggingReads) Conn() *nats.Conn {
	l.asked()
	return l.JetStream.Conn()
}

func (l *laggingReads) Stream(ctx context.Context, stream string) (jetstream.Stream, error) {
	s, err := l.JetStream.Stream(ctx, stream)
	return laggingStream{s}, err
}

type laggingStream struct{ jetstream.Stream }

func (laggingStream) GetLastMsgForSubject(context.Context, string) (*jetstream.RawStreamMsg, error) {
	return nil, jetstream.ErrMsgNotFound
}

// peopleAt returns a store of people that has read its bucket.
func peopleAt(t *testing.T, site *natssite.Site, conn *broker.Conn) *Store {
	t.Helper()
	sealer, err := site.Keys.Sealer("test")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Config{Conn: conn, Sealer: sealer, Name: "people", Bucket: "people", Known: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	natssite.Next(t, "the first read of the bucket", s.Ready())
	return s
}

// TestReadAsksTheLeader reads and changes records while a copy of the bucket lacks them. All copies
// may answer direct reads. The store must find the records, and keep them in memory.
func TestReadAsksTheLeader(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	conn := site.Relays(t)
	first, s := peopleAt(t, site, conn), peopleAt(t, site, conn)
	s.mu.Lock()
	s.js = &laggingReads{JetStream: s.js, asked: func() {}}
	s.stream = laggingStream{s.stream}
	s.mu.Unlock()
	write := func(key, data string) {
		t.Helper()
		if err := first.Update(key, func([]byte) ([]byte, error) { return []byte(data), nil }); err != nil {
			t.Fatal(err)
		}
	}
	write("device.0", "ada's")
	if data, err := s.Read("device.0"); string(data) != "ada's" || err != nil {
		t.Errorf("Read of a new record: %q, %v; want it", data, err)
	}
	err := s.Update("device.0", func(old []byte) ([]byte, error) { return append(old, " phone"...), nil })
	if got := s.Get("device.0"); err != nil || string(got.Data) != "ada's phone" {
		t.Errorf("Update of a new record: %q, %v; want the changed record", got.Data, err)
	}

	// The watch delivers a record after the leader has answered that there is none.
	s.mu.Lock()
	s.js = &laggingReads{JetStream: s.js, asked: func() { s.apply(Record{Key: "device.1", Rev: 100, Data: []byte("bob's")}, 0) }}
	s.mu.Unlock()
	if data, err := s.Read("device.1"); string(data) != "bob's" || err != nil {
		t.Errorf("Read of a record that arrives meanwhile: %q, %v; want it", data, err)
	}
}

// TestCatchUpWaitsForTheWatch writes records at one relay. Another relay must have each of them after
// CatchUp. Without a watch, CatchUp must fail.
func TestCatchUpWaitsForTheWatch(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	first, s := peopleAt(t, site, site.Relays(t)), peopleAt(t, site, site.Relays(t))
	catchUp := func(s *Store) (err error) {
		for end := time.Now().Add(natssite.Patience); time.Now().Before(end); { // on a busy machine, the store may take too long
			if err = s.CatchUp(t.Context()); err == nil {
				break
			}
		}
		return err
	}
	if err := catchUp(s); err != nil {
		t.Errorf("CatchUp of an empty bucket: %v; want no error", err)
	}
	for i := range 100 {
		key := fmt.Sprint("device.", i)
		if err := first.Update(key, func([]byte) ([]byte, error) { return []byte("ada's"), nil }); err != nil {
			t.Fatal(err)
		}
		if err := catchUp(s); err != nil || s.Get(key).Data == nil {
			t.Fatalf("after CatchUp, %v, the store's %s is %q; want ada's", err, key, s.Get(key).Data)
		}
	}
	s.Close()
	s.mu.Lock()
	s.seen = 0 // as before the first message of a watch
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.CatchUp(ctx); !errors.Is(err, ErrAway) {
		t.Errorf("CatchUp without a watch: %v; want %v", err, ErrAway)
	}
}
