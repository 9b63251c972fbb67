package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The store is one JetStream bucket that all relays of a region share:
//
//	host.<tenant>.<name>     hostState
//	former.<tenant>.<name>   hostState with the users of a forgotten host, until their credentials have expired
//	relay.<instance>         session, rewritten periodically by that relay
//	revoked.<SHA-256>        auth.Revocation
//
// Hosts and revocations are written only when they change. Each such write names the
// revision that it replaces, so if two writers are concurrent, the second gets a
// conflict.
const (
	bucket      = "ahp-registry"
	hostKeys    = "host."
	formerKeys  = "former."
	relayKeys   = "relay."
	revokedKeys = "revoked."

	// markerTTL is how long the store keeps the marker of a removed key.
	markerTTL = time.Hour
)

// Times of the store.
const (
	writeTimeout = 2 * time.Second // bound for a single read or write
	openTimeout  = 2 * time.Second // bound for opening the bucket, and for requests about it
	openRetry    = 500 * time.Millisecond
	tendEvery    = 6 * time.Second // interval at which the copies are checked
	tendSoon     = 2 * time.Second // that interval while a copy is offline
)

// A server whose copy is offline is removed after one of these times. The long time applies
// normally, because the server may return with its data. The short time applies if a replacement
// has already joined.
const (
	giveUpAfter   = 10 * time.Minute
	replacedAfter = 6 * time.Second
)

// ErrStoreAway reports that the store cannot be used now. The error that wraps it names the cause:
// the store is unreachable or full, or the change has met too many others.
var ErrStoreAway = errors.New("the registry store cannot be used now")

var errNotOpen = fmt.Errorf("%w: it is not open yet", ErrStoreAway)

// ErrNoStore reports that the NATS servers offer no JetStream in the relays' account.
var ErrNoStore = errors.New("the NATS servers have no JetStream for relays")

// errConflict reports that a key has a different revision than expected.
var errConflict = errors.New("changed meanwhile")

// A store gives a relay access to a bucket.
type store struct {
	js     jetstream.JetStream
	name   string // name of the bucket
	about  string // description of the bucket, for operators
	region string // where the bucket is placed; "": anywhere
	found  bool   // a different region creates the bucket

	mu sync.RWMutex
	kv jetstream.KeyValue // nil: not opened yet
}

func newStore(conn *broker.Conn, name, about string) (*store, error) {
	js, err := conn.JetStream()
	if err != nil {
		return nil, err
	}
	return &store{js: js, name: name, about: about}, nil
}

// open opens the bucket, and creates it if necessary, with as many copies as possible.
// It returns the bucket's unique id.
func (s *store) open(ctx context.Context) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	kv, err := broker.AskAgain(ctx, func(ctx context.Context) (jetstream.KeyValue, error) { return s.js.KeyValue(ctx, s.name) })
	if errors.Is(err, jetstream.ErrBucketNotFound) && !s.found {
		kv, err = s.create(ctx)
	}
	if err != nil {
		if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
			return "", fmt.Errorf("%w: %w", ErrNoStore, err)
		}
		return "", err
	}
	status, err := broker.AskAgain(ctx, kv.Status)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	s.kv = kv
	s.mu.Unlock()
	return streamInfo(status).Created.UTC().Format(time.RFC3339Nano), nil
}

// watch returns a watcher that delivers the bucket's contents and then each change,
// until ctx ends.
func (s *store) watch(ctx context.Context) (jetstream.KeyWatcher, error) {
	limit, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return broker.AskAgain(limit, func(once context.Context) (jetstream.KeyWatcher, error) {
		life, end := context.WithCancel(ctx)
		answered := context.AfterFunc(once, end)
		w, err := s.bucket().WatchAll(life)
		if !answered() && err == nil {
			_ = w.Stop()
			err = context.Cause(once)
		}
		if err != nil {
			end()
		}
		return w, err
	})
}

func (s *store) config(replicas int) jetstream.KeyValueConfig {
	cfg := jetstream.KeyValueConfig{
		Bucket: s.name, Description: s.about, History: 1,
		Storage: jetstream.FileStorage, Replicas: replicas, LimitMarkerTTL: markerTTL,
	}
	if s.region != "" {
		cfg.Placement = &jetstream.Placement{Cluster: s.region}
	}
	return cfg
}

func (s *store) create(ctx context.Context) (kv jetstream.KeyValue, err error) {
	err = broker.Create(ctx, func(ctx context.Context, copies int) (err error) {
		kv, err = s.js.CreateKeyValue(ctx, s.config(copies))
		return err
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		return s.js.KeyValue(ctx, s.name)
	}
	return kv, err
}

func streamInfo(status jetstream.KeyValueStatus) *jetstream.StreamInfo {
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok && s.StreamInfo() != nil {
		return s.StreamInfo()
	}
	return &jetstream.StreamInfo{}
}

// A storeStatus describes the copies of the store.
type storeStatus struct {
	copies  int      // number of configured copies
	current int      // number of copies that are online
	away    []string // servers whose copy is offline
}

// copies returns the configuration for keeping as many copies as possible.
func (s *store) copies(mine func() bool, servers func() int) *broker.Copies {
	return &broker.Copies{
		Count: func(ctx context.Context) (int, error) {
			info, err := s.info(ctx)
			if err != nil || info.Cluster == nil {
				return broker.MaxCopies, err
			}
			return info.Config.Replicas, nil
		},
		Make: func(ctx context.Context, copies int) error {
			ctx, cancel := context.WithTimeout(ctx, openTimeout)
			defer cancel()
			_, err := s.js.UpdateKeyValue(ctx, s.config(copies))
			return err
		},
		Mine: mine, Servers: servers,
	}
}

func (s *store) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	kv := s.bucket()
	if kv == nil {
		return nil, errNotOpen
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, err
	}
	return streamInfo(status), nil
}

func (s *store) status(ctx context.Context) (storeStatus, error) {
	info, err := s.info(ctx)
	if err != nil {
		return storeStatus{}, err
	}
	st := storeStatus{copies: max(info.Config.Replicas, 1), current: 1}
	if info.Cluster == nil {
		return st, nil
	}
	for _, peer := range info.Cluster.Replicas {
		if peer.Offline {
			st.away = append(st.away, peer.Name)
		} else {
			st.current++
		}
	}
	return st, nil
}

func (s *store) bucket() jetstream.KeyValue {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.kv
}

// write replaces the given revision of a key, and returns the new revision. Revision 0
// means that the key must not exist. The error is errConflict if the key has a
// different revision. It wraps ErrStoreAway if it is unknown whether the write has
// succeeded.
func (s *store) write(ctx context.Context, key string, value any, rev uint64) (uint64, error) {
	return s.change(ctx, value, func(ctx context.Context, kv jetstream.KeyValue, data []byte) (uint64, error) {
		if rev == 0 {
			return kv.Create(ctx, key, data)
		}
		return kv.Update(ctx, key, data, rev)
	})
}

// put sets a key that only this relay writes, and returns the new revision.
func (s *store) put(ctx context.Context, key string, value any) (uint64, error) {
	return s.change(ctx, value, func(ctx context.Context, kv jetstream.KeyValue, data []byte) (uint64, error) {
		return kv.Put(ctx, key, data)
	})
}

// putFor sets a key until a time has passed.
func (s *store) putFor(ctx context.Context, key string, value any, ttl time.Duration) error {
	_, err := s.change(ctx, value, func(ctx context.Context, _ jetstream.KeyValue, data []byte) (uint64, error) {
		_, err := s.js.Publish(ctx, s.subject(key), data, jetstream.WithMsgTTL(ttl.Truncate(time.Second)+time.Second)) // the server accepts whole seconds
		return 0, err
	})
	return err
}

func (s *store) subject(key string) string { return "$KV." + s.name + "." + key }

func (s *store) change(ctx context.Context, value any, with func(context.Context, jetstream.KeyValue, []byte) (uint64, error)) (uint64, error) {
	kv := s.bucket()
	if kv == nil {
		return 0, errNotOpen
	}
	data, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	rev, err := with(ctx, kv, data)
	return rev, storeError(err)
}

// remove deletes a key if it has the given revision.
func (s *store) remove(ctx context.Context, key string, rev uint64) error {
	kv := s.bucket()
	if kv == nil {
		return errNotOpen
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return storeError(kv.Purge(ctx, key, jetstream.LastRevision(rev), jetstream.PurgeTTL(markerTTL)))
}

// read decodes a key into value, and returns its revision, or 0 if the key does not
// exist. It asks the leader of the copies.
func (s *store) read(ctx context.Context, key string, value any) (uint64, error) {
	if s.bucket() == nil {
		return 0, errNotOpen
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	rev, data, err := s.lastMessage(ctx, key)
	if err != nil || len(data) == 0 {
		return 0, err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return 0, fmt.Errorf("registry entry %s: %w", key, err)
	}
	return rev, nil
}

// last returns the bucket's newest revision that has not expired, as the leader of the copies
// knows it.
func (s *store) last(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	rev, _, err := s.lastMessage(ctx, ">")
	return rev, err
}

// lastMessage returns the revision and data of the newest entry with a key, which may contain
// wildcards, or zero values. It asks the leader of the copies. The other copies, which also
// deliver watches, can be out of date.
func (s *store) lastMessage(ctx context.Context, key string) (rev uint64, data []byte, err error) {
	msg, err := broker.LastMessage(ctx, s.js, "KV_"+s.name, s.subject(key))
	if msg == nil {
		return 0, nil, storeError(err)
	}
	return msg.Sequence, msg.Data, storeError(err)
}

func storeError(err error) error {
	var refused *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrKeyExists),
		errors.As(err, &refused) && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return errConflict
	}
	return fmt.Errorf("%w: %w", ErrStoreAway, err)
}

// refuses reports whether an error is an answer of the store that refuses the request.
func refuses(err error) bool {
	var refused *jetstream.APIError
	return errors.Is(err, ErrNoStore) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.As(err, &refused)
}

func revokedKey(rev auth.Revocation) string {
	k := rev.Key()
	sum := sha256.Sum256([]byte(strings.Join([]string{k.Token, k.Tenant, k.Subject, k.Host}, "\x00")))
	return revokedKeys + hex.EncodeToString(sum[:])
}
