package registry

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A lossy way to JetStream loses the first question of each kind, as those of a server are lost that
// does not reach the others of its cluster yet.
type lossy struct {
	jetstream.JetStream
	lost int
}

func (l *lossy) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	if l.lost++; l.lost == 1 {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	kv, err := l.JetStream.KeyValue(ctx, bucket)
	return &lossyBucket{KeyValue: kv}, err
}

type lossyBucket struct {
	jetstream.KeyValue
	lost, watches int
}

func (l *lossyBucket) Status(ctx context.Context) (jetstream.KeyValueStatus, error) {
	if l.lost++; l.lost == 1 {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return l.KeyValue.Status(ctx)
}

func (l *lossyBucket) WatchAll(ctx context.Context, opts ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	if l.watches++; l.watches == 1 {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return l.KeyValue.WatchAll(ctx, opts...)
}

// TestLostQuestions has a relay find the store, and begin to watch it, though its first questions
// are lost.
func TestLostQuestions(t *testing.T) {
	t.Parallel()
	server := newTestServer(t)
	startTest(t, server, Config{}) // makes the bucket
	s, err := newStore(dialTest(t, server, "other"), bucket, "a test")
	if err != nil {
		t.Fatal(err)
	}
	s.js = &lossy{JetStream: s.js}
	if _, err := s.open(t.Context()); err != nil {
		t.Fatalf("open: %v; want the answer to what was asked again", err)
	}
	watch, err := s.watch(t.Context())
	if err != nil {
		t.Fatalf("watch: %v; want the answer to what was asked again", err)
	}
	defer func() { _ = watch.Stop() }()
	if entry := <-watch.Updates(); entry == nil {
		t.Error("the watch brings nothing; want what the bucket has")
	}
}

// TestBehindIsNotDeaf has the watch bring other entries than what this relay wrote long ago, as it
// does when there is more than can be taken at once: it is not begun anew for that, which would
// bring all of it again. When nothing comes it is.
func TestBehindIsNotDeaf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, began := &Registry{beatEvery: beatEvery, cfg: Config{Instance: "me"}}, time.Now()
		r.wire()
		for i := range 10 {
			time.Sleep(beatEvery)
			r.upkeep.wrote = time.Now()
			r.noteProgress(&r.view, uint64(i))
			if r.watchStalled(&r.view, began) {
				t.Fatalf("after %d entries of others the watch is said to be over", i+1)
			}
		}
		time.Sleep(10 * beatEvery)
		r.upkeep.wrote = time.Now()
		if !r.watchStalled(&r.view, began) {
			t.Error("the watch brings nothing of what is written; want it begun anew")
		}
		if r.watchStalled(&r.view, time.Now()) {
			t.Error("a watch that has just begun is said to be over")
		}
		far := &view{name: "far", heard: time.Now()}
		began = time.Now().Add(beatEvery)
		time.Sleep(6 * beatEvery)
		if r.watchStalled(far, began) {
			t.Error("a watch of another region that has begun 5 beats ago is said to be over")
		}
		time.Sleep(beatEvery)
		if !r.watchStalled(far, began) {
			t.Error("a watch of another region has never brought anything; want it begun anew")
		}
	})
}

// TestJoiningWritesItsFileOnce has a relay read what the store has: its file is written when it
// has all of that, and not for each host.
func TestJoiningWritesItsFileOnce(t *testing.T) {
	t.Parallel()
	revoked, err := LoadRevocations("", nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := &Registry{
		cfg: Config{Instance: "me", LeaseTTL: DefaultLeaseTTL, Log: log, Revocations: revoked}, beatEvery: beatEvery, file: newStateFile("", log),
		wake: make(chan struct{}, 1), ready: make(chan struct{}),
		hosts:   map[string]*knownHost{},
		changed: map[string]bool{},
	}
	r.wire()
	due := func() bool { return !r.file.due.IsZero() }
	take := func(rev uint64) {
		r.applyHost(&r.view, hostState{Key: fmt.Sprint("acme.host-", rev)}, rev, r.epoch, false)
	}
	r.newEpoch(&r.view, "bucket")
	for rev := range uint64(100) {
		take(rev + 1)
	}
	if due() || len(r.hosts) != 100 {
		t.Fatalf("of %d hosts that were read, the file is to be written: %v; want not yet", len(r.hosts), due())
	}
	if r.synced(&r.view, r.epoch, "bucket"); !due() {
		t.Error("all is read, and the file is not to be written")
	}
}
