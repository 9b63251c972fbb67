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

// A lossy is a JetStream that loses the first request of each kind, as while a new server does not
// reach its whole cluster yet.
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

// TestStoreIsFoundAfterLostRequests opens and watches the store while the first request of each
// kind is lost. Both must succeed, because the relay repeats the requests.
func TestStoreIsFoundAfterLostRequests(t *testing.T) {
	t.Parallel()
	server := newTestServer(t)
	startTest(t, server, Config{}) // creates the bucket
	s, err := newStore(dialTest(t, server, "other"), bucket, "a test")
	if err != nil {
		t.Fatal(err)
	}
	s.js = &lossy{JetStream: s.js}
	if _, err := s.open(t.Context()); err != nil {
		t.Fatalf("open: %v; want the answer to the repeated request", err)
	}
	watch, err := s.watch(t.Context())
	if err != nil {
		t.Fatalf("watch: %v; want the answer to what was asked again", err)
	}
	defer func() { _ = watch.Stop() }()
	if entry := <-watch.Updates(); entry == nil {
		t.Error("a new watch delivers nothing; want the bucket's entry")
	}
}

// TestLaggingWatchIsNotStalled delivers only other entries for a long time, and not this relay's
// own write, as under load. The watch must not count as stalled, because a new watch would begin
// with all entries again. Without any entries, it must.
func TestLaggingWatchIsNotStalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, began := &Registry{beatEvery: beatEvery, cfg: Config{Instance: "me"}}, time.Now()
		r.wire()
		for i := range 10 {
			time.Sleep(beatEvery)
			r.upkeep.wrote = time.Now()
			r.view.noteProgress(uint64(i))
			if r.view.watchStalled(began) {
				t.Fatalf("after %d entries from different relays, the watch counts as stalled; want it running", i+1)
			}
		}
		time.Sleep(10 * beatEvery)
		r.upkeep.wrote = time.Now()
		if !r.view.watchStalled(began) {
			t.Error("a watch that does not deliver written entries counts as running; want it stalled")
		}
		if r.view.watchStalled(time.Now()) {
			t.Error("a watch that has just begun counts as stalled; want it running")
		}
		far := &view{r: r, name: "far", heard: time.Now()}
		began = time.Now().Add(beatEvery)
		time.Sleep(6 * beatEvery)
		if far.watchStalled(began) {
			t.Error("a watch of a different region, begun 5 beats ago, counts as stalled; want it running")
		}
		time.Sleep(beatEvery)
		if !far.watchStalled(began) {
			t.Error("a watch of a different region that has never delivered an entry counts as running; want it stalled")
		}
	})
}

// TestJoiningWritesItsFileOnce delivers a hundred hosts from the store. The state file must become
// due only when all are read, and not after each host.
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
		r.applyHost(&r.view, hostState{Key: fmt.Sprint("acme.host-", rev)}, rev, r.view.epoch, false)
	}
	r.view.newEpoch("bucket")
	for rev := range uint64(100) {
		take(rev + 1)
	}
	if due() || len(r.hosts) != 100 {
		t.Fatalf("of %d hosts that were read, the file is to be written: %v; want not yet", len(r.hosts), due())
	}
	if r.view.synced(r.view.epoch, "bucket"); !due() {
		t.Error("the whole store is read, but the file is not due; want it due")
	}
}
