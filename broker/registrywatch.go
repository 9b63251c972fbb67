package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// errWatchEnded reports that the library gave up watching a bucket.
var errWatchEnded = errors.New("watch ended")

// A bucketWatch is one look at both buckets, from what is in them on.
type bucketWatch struct {
	leases, hosts jetstream.KeyWatcher
	cancel        context.CancelFunc
}

// stopTimeout bounds the wait for a watch to end.
const stopTimeout = 2 * time.Second

// watch begins to watch both buckets and reads what is in them. What the view
// has and they do not is gone.
func (r *Registry) watch(ctx context.Context) (*bucketWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &bucketWatch{cancel: cancel}
	err := r.begin(ctx, w)
	if err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

func (r *Registry) begin(ctx context.Context, w *bucketWatch) (err error) {
	if w.hosts, err = r.desk.hosts.WatchAll(ctx); err != nil {
		return fmt.Errorf("watch %s: %w", hostBucket, err)
	}
	if w.leases, err = r.desk.leases.WatchAll(ctx); err != nil {
		return fmt.Errorf("watch %s: %w", leaseBucket, err)
	}
	return r.readAll(ctx, w)
}

func (r *Registry) readAll(ctx context.Context, w *bucketWatch) error {
	leased, err := readBucket(ctx, w.leases, r.heardLease)
	if err != nil {
		return fmt.Errorf("read %s: %w", leaseBucket, err)
	}
	recorded, err := readBucket(ctx, w.hosts, func(e jetstream.KeyValueEntry) { r.takeRecord(e, true) })
	if err != nil {
		return fmt.Errorf("read %s: %w", hostBucket, err)
	}
	for key, k := range r.snapshot() {
		if !leased[key] {
			r.lost(key, k.revision+1)
		}
		if !recorded[key] {
			r.forget(key)
		}
	}
	return nil
}

// readBucket takes what is in a bucket and returns the keys.
func readBucket(ctx context.Context, w jetstream.KeyWatcher, heard func(jetstream.KeyValueEntry)) (map[string]bool, error) {
	keys := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case e, ok := <-w.Updates():
			if !ok {
				return nil, errWatchEnded
			}
			if e == nil {
				return keys, nil
			}
			keys[e.Key()] = true
			heard(e)
		}
	}
}

// snapshot copies the view, without what its pointers lead to.
func (r *Registry) snapshot() map[string]knownHost {
	r.mu.RLock()
	defer r.mu.RUnlock()
	hosts := make(map[string]knownHost, len(r.hosts))
	for key, k := range r.hosts {
		hosts[key] = *k
	}
	return hosts
}

// follow keeps the view up to date until ctx ends. It begins a new watch if
// one ends.
func (r *Registry) follow(ctx context.Context, w *bucketWatch) {
	doubt := time.NewTicker(r.ttl / doubtShare)
	defer doubt.Stop()
	for attempt := 0; ctx.Err() == nil; {
		if w != nil {
			attempt = 0
			r.followWatch(ctx, w, doubt.C)
			w.stop()
		}
		var err error
		if w, err = r.watch(ctx); err == nil || ctx.Err() != nil {
			continue
		}
		attempt++
		r.log.Warn("registry cannot be followed", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay(attempt)):
		}
	}
	if w != nil {
		w.stop()
	}
}

func (r *Registry) followWatch(ctx context.Context, w *bucketWatch, doubt <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.leases.Updates():
			if !ok {
				return
			}
			if e != nil {
				r.heardLease(e)
			}
		case e, ok := <-w.hosts.Updates():
			if !ok {
				return
			}
			if e != nil {
				r.heardRecord(e)
			}
		case <-doubt:
			r.checkSilent(ctx)
		}
	}
}

// checkSilent looks up the leases of which nothing was heard for too long:
// after the connection was away for longer than markerTTL, the notice of their
// end may be gone. If they cannot be looked up, they stay: the links to the
// hosts may work all the same, and notice themselves if not.
func (r *Registry) checkSilent(ctx context.Context) {
	for key, k := range r.snapshot() {
		if k.early != nil { // long enough
			r.change(key, func(k *knownHost) { k.settle(true) })
		}
		if !k.lease.held() || time.Since(k.heard) < r.ttl+r.ttl/doubtShare {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, deskTimeout)
		entry, err := r.desk.leases.Get(limited, key)
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			r.lost(key, k.revision+1)
		case err != nil:
			r.log.Warn("registry cannot be read", "error", err)
			return
		default:
			r.heardLease(entry)
		}
	}
}

// stop ends a watch. Its goroutines may be waiting to hand something over.
func (w *bucketWatch) stop() {
	w.cancel()
	deadline := time.After(stopTimeout)
	for _, k := range []jetstream.KeyWatcher{w.hosts, w.leases} {
		if k == nil {
			continue
		}
		_ = k.Stop() // fails if it has ended already
		for open := true; open; {
			select {
			case _, open = <-k.Updates():
			case <-deadline:
				return
			}
		}
	}
}
