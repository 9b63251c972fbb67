package registry

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/test/natssite"

	"github.com/nats-io/nats.go/jetstream"
)

// A laggingCopy is a JetStream whose watches read the bucket copy, which lacks the newest
// entries, while lags is true.
type laggingCopy struct {
	jetstream.JetStream
	copy jetstream.KeyValue
	lags atomic.Bool
}

func (l *laggingCopy) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	kv, err := l.JetStream.KeyValue(ctx, bucket)
	return laggingBucket{kv, l}, err
}

type laggingBucket struct {
	jetstream.KeyValue
	l *laggingCopy
}

func (b laggingBucket) WatchAll(ctx context.Context, opts ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	if b.l.lags.Load() {
		return b.l.copy.WatchAll(ctx, opts...)
	}
	return b.KeyValue.WatchAll(ctx, opts...)
}

// TestLaggingCopyIsNotTheStore makes a relay read the store from an empty copy. JetStream permits
// that to a relay which has just replaced another. The read must fail, and all hosts stay known.
// Reading the current copy must then succeed.
func TestLaggingCopyIsNotTheStore(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{})
	natssite.Eventually(t, "the store has been read", func() bool { return r.Unread() == nil })
	natssite.Enrol(t, r, "acme", "laptop")
	empty, err := r.view.store.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "empty"})
	if err != nil {
		t.Fatal(err)
	}
	lagging := &laggingCopy{JetStream: r.view.store.js, copy: empty}
	lagging.lags.Store(true)
	v := &view{r: r, name: "us", store: &store{js: lagging, name: bucket}}
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if err := v.followOnce(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) || v.isSynced {
		t.Fatalf("a lagging copy was read: synced %v, %v; want an error", v.isSynced, err)
	}
	lagging.lags.Store(false)
	over, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- v.followOnce(over) }()
	natssite.Eventually(t, "the current copy has been read", func() bool {
		r.mu.RLock()
		defer r.mu.RUnlock()
		return v.isSynced
	})
	end()
	select {
	case <-done:
	case <-time.After(natssite.Patience):
		t.Fatal("followOnce did not end on a copy that lags; want an error")
	}
	if _, known := r.Lookup("acme", "laptop"); !known {
		t.Error("the host is forgotten after reading a copy that lags; want it known")
	}
}

// TestNewestRevisionHasNotExpired lets the bucket's newest entry expire. The newest revision is
// then that of the entry before, because a watch delivers nothing newer.
func TestNewestRevisionHasNotExpired(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{})
	js := r.view.store.js
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "short", LimitMarkerTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := kv.Put(t.Context(), "kept", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge(t.Context(), "gone", jetstream.PurgeTTL(time.Second)); err != nil {
		t.Fatal(err)
	}
	s := &store{js: js, name: "short"}
	natssite.Eventually(t, "the newest revision is the kept entry's", func() bool {
		rev, err := s.last(t.Context())
		return err == nil && rev == kept
	})
}
