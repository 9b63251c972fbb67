package remembered

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/broker/remember"
	"ahprelay/broker/store"
	"ahprelay/gateway/desk"
)

// Names in the store.
const (
	Stream   = "ahp-remembered"
	Subjects = "ahp.relays.v1.remembered."

	Prefix = "s."
)

// Limits of a Keeper.
const (
	DefaultPerHost   = 64 << 20 // bytes
	DefaultPerTenant = 1 << 30

	// MaxBytes limits the records of all tenants together. Beyond it, the oldest records
	// are removed.
	MaxBytes = 4 << 30

	overhead = 256 // bytes that a record costs in addition to its content

	writeTries = 3
)

// A Config configures a [Keeper].
type Config struct {
	Store     *store.Store       // required; with Sizes in its configuration
	Tenants   *broker.Tenants    // required
	Registry  *registry.Registry // required
	PerHost   int64              // quota in bytes; default: DefaultPerHost
	PerTenant int64              // default: DefaultPerTenant
	Log       *slog.Logger       // required
}

type hostKey struct{ tenant, host string }

// A Keeper gives a relay access to the stored records. It is safe for concurrent use.
type Keeper struct {
	*desk.Office // answers hosts' requests, and removes records of forgotten hosts

	cfg  Config
	stop func() // stops following the store

	mu      sync.Mutex // guards the fields below
	hosts   map[hostKey]*kept
	tenants map[string]int64 // bytes
}

// kept is the index of a host's records.
type kept struct {
	of    map[string]Entry // by ID
	bytes int64
}

// An Entry is a stored record without its content.
type Entry struct {
	ID     string    `json:"id"`
	Size   int       `json:"size"` // in bytes
	Stored time.Time `json:"stored"`
}

// Start starts a Keeper. The caller must Close it.
func Start(cfg Config) *Keeper {
	k := newKeeper(cfg)
	k.Office = desk.Open(desk.OfficeConfig{
		Tenants: cfg.Tenants, Registry: cfg.Registry, Log: cfg.Log, Name: "remembered sessions", Subject: remember.Subject, Do: k.do, Sweep: k.sweep,
		Refused: func(err error) any { return remember.Answer{Error: err.Error()} },
	})
	k.Also(k.stop)
	return k
}

func newKeeper(cfg Config) *Keeper {
	cfg.PerHost, cfg.PerTenant = cmp.Or(cfg.PerHost, DefaultPerHost), cmp.Or(cfg.PerTenant, DefaultPerTenant)
	k := &Keeper{cfg: cfg, hosts: map[hostKey]*kept{}, tenants: map[string]int64{}}
	k.stop = desk.Follow(cfg.Store, Prefix, k.apply)
	return k
}

func keyOf(of hostKey, id string) string {
	return desk.Key{Tenant: of.tenant, Host: of.host, ID: id}.In(Prefix)
}

// apply is called for each record that changes in the store.
func (k *Keeper) apply(key desk.Key, r store.Record) {
	of, id := hostKey{key.Tenant, key.Host}, key.ID
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.hosts[of]
	if h == nil {
		if r.Size == 0 {
			return
		}
		h = &kept{of: map[string]Entry{}}
		k.hosts[of] = h
	}
	was, had := h.of[id]
	change := int64(0)
	if had {
		change -= cost(was.Size)
		delete(h.of, id)
	}
	if r.Size > 0 {
		change += cost(r.Size)
		h.of[id] = Entry{id, r.Size, r.At.UTC()}
	}
	h.bytes += change
	k.tenants[of.tenant] += change
	if len(h.of) == 0 {
		delete(k.hosts, of)
	}
	if k.tenants[of.tenant] == 0 {
		delete(k.tenants, of.tenant)
	}
}

// cost returns how much a record counts against the quotas, in bytes.
func cost(size int) int64 { return int64(size) + overhead }

// Entries returns a host's records without content, latest first.
func (k *Keeper) Entries(tenant, host string) []Entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.hosts[hostKey{tenant, host}]
	if h == nil {
		return nil
	}
	list := slices.Collect(maps.Values(h.of))
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Or(b.Stored.Compare(a.Stored), strings.Compare(a.ID, b.ID)) })
	return list
}

// Stats are a Keeper's counters.
type Stats struct {
	Hosts, Records int
	Bytes          int64
}

// Stats returns the counters.
func (k *Keeper) Stats() (s Stats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.hosts {
		s.Hosts++
		s.Records += len(h.of)
		s.Bytes += h.bytes
	}
	return s
}

// Load returns a record and when it was stored. The record is nil if there is none.
func (k *Keeper) Load(ctx context.Context, tenant, host, id string) (*remember.Record, time.Time, error) {
	var r store.Record
	record, err := k.load(ctx, keyOf(hostKey{tenant, host}, id), &r)
	if err != nil || record == nil {
		return nil, time.Time{}, err
	}
	return record, r.At.UTC(), nil
}

// load reads a record from the stream, and sets r also if the record is removed or unreadable.
func (k *Keeper) load(ctx context.Context, key string, r *store.Record) (record *remember.Record, err error) {
	if *r, err = k.cfg.Store.Load(ctx, key); err != nil || r.Data == nil {
		return nil, err
	}
	if err = json.Unmarshal(r.Data, &record); err != nil {
		return nil, fmt.Errorf("record %s: %w", key, err)
	}
	return record, nil
}

// Forget removes all records of a host.
func (k *Keeper) Forget(ctx context.Context, tenant, host string) error {
	failed := k.cfg.Store.CatchUp(ctx) // another relay may just have stored a record
	for _, e := range k.Entries(tenant, host) {
		failed = errors.Join(failed, k.drop(ctx, hostKey{tenant, host}, e.ID))
	}
	return failed
}

// drop removes a record. Another relay may just have stored it, so this relay's memory does not
// suffice to call it missing. A slow relay may still store a missing one, so it gets a marker too.
func (k *Keeper) drop(ctx context.Context, of hostKey, id string) (err error) {
	key := keyOf(of, id)
	r := k.cfg.Store.Get(key)
	if r.Size == 0 {
		r, err = k.cfg.Store.Load(ctx, key)
	}
	if err != nil || r.Size == 0 && r.Rev != 0 {
		return err
	}
	err = k.cfg.Store.Write(ctx, store.Change{Key: key, Rev: r.Rev})[0].Err
	switch {
	case errors.Is(err, store.ErrConflict): // the stream may have dropped it to make room
		if r, e := k.cfg.Store.Load(ctx, key); e == nil && r.Size == 0 {
			err = nil
		}
	case errors.Is(err, store.ErrFull): // then no relay stores the missing record
		err = nil
	}
	return err
}

var errQuota = errors.New("the quota for remembered sessions is used up")

// errOvertaken reports that a later request has replaced or removed the record meanwhile.
var errOvertaken = errors.New("the record was changed meanwhile")

// put stores a record. It does not replace what a later request of the host-agent has left: that
// request may have come to another relay, while this one was slow.
func (k *Keeper) put(ctx context.Context, of hostKey, record *remember.Record) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := k.makeRoom(ctx, of, record.ID, cost(len(data))); err != nil {
		return err
	}
	key := keyOf(of, record.ID)
	known := k.cfg.Store.Get(key)
	for try := range writeTries {
		if try > 0 || known.Size > 0 {
			stored, err := k.load(ctx, key, &known)
			switch {
			case errors.Is(err, store.ErrAway):
				return err
			case err != nil: // unreadable, so it is replaced
			case stored == nil && known.Rev != 0, stored != nil && stored.Key == record.Key && stored.Version >= record.Version:
				return errOvertaken
			}
		}
		err = k.cfg.Store.Write(ctx, store.Change{Key: key, Rev: known.Rev, Data: data})[0].Err
		switch {
		case errors.Is(err, store.ErrFull):
			return errQuota
		case !errors.Is(err, store.ErrConflict):
			return err
		}
	}
	return err
}

// makeRoom removes a host's oldest records until the new record fits. It removes none, and
// fails, if that would not be enough.
func (k *Keeper) makeRoom(ctx context.Context, of hostKey, id string, bytes int64) error {
	for {
		oldest, fits := k.oldest(of, id, bytes)
		switch {
		case fits:
			return nil
		case oldest == "":
			return errQuota
		}
		if err := k.drop(ctx, of, oldest); err != nil {
			return err
		}
	}
}

// oldest reports whether a record fits into the quotas. If not, it returns the ID of the
// host's oldest other record, or "" if the removal of all others does not make enough room.
func (k *Keeper) oldest(of hostKey, id string, bytes int64) (oldest string, fits bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := cmp.Or(k.hosts[of], &kept{})
	was, had := h.of[id]
	if had {
		bytes -= cost(was.Size)
	}
	within := func(bytes int64) bool {
		return h.bytes+bytes <= k.cfg.PerHost && k.tenants[of.tenant]+bytes <= k.cfg.PerTenant
	}
	if within(bytes) && (had || len(h.of) < remember.MaxRecords) {
		return "", true
	}
	var first time.Time
	for other, e := range h.of {
		if other == id || other == remember.ListID {
			continue
		}
		bytes -= cost(e.Size)
		if oldest == "" || e.Stored.Before(first) {
			oldest, first = other, e.Stored
		}
	}
	if !within(bytes) {
		return "", false
	}
	return oldest, false
}

func (k *Keeper) sweep(ctx context.Context, unknown func(tenant, host string) bool) {
	k.mu.Lock()
	all := slices.Collect(maps.Keys(k.hosts))
	k.mu.Unlock()
	for _, of := range all {
		if unknown(of.tenant, of.host) {
			if err := k.Forget(ctx, of.tenant, of.host); err != nil {
				k.cfg.Log.Warn("remembered sessions of a forgotten host not removed", "tenant", of.tenant, "host", of.host, "error", err)
			}
		}
	}
}

func (k *Keeper) do(ctx context.Context, tenant, host string, data []byte, serves func(string) error) (any, error) {
	var answer remember.Answer
	r, err := remember.ReadRequest(data)
	if err != nil {
		return nil, err
	}
	if err := serves(r.Instance); err != nil {
		return nil, err
	}
	if err := k.cfg.Store.Away(); err != nil && r.Op != remember.Check {
		return nil, fmt.Errorf("%w: %w", store.ErrAway, err)
	}
	of := hostKey{tenant, host}
	switch r.Op {
	case remember.Put:
		err = k.put(ctx, of, r.Record)
	case remember.Get:
		answer.Record, _, err = k.Load(ctx, of.tenant, of.host, r.ID)
	case remember.Index:
		err = k.cfg.Store.CatchUp(ctx) // another relay may just have stored a record
		for _, e := range k.Entries(of.tenant, of.host) {
			answer.IDs = append(answer.IDs, e.ID)
		}
	case remember.Drop:
		if r.ID == "" {
			err = k.Forget(ctx, of.tenant, of.host)
		} else {
			err = k.drop(ctx, of, r.ID)
		}
	case remember.Check:
		answer.Removed = k.removed(of.tenant, r.Holders)
	}
	return answer, err
}

// removed returns the indices of the holders whose token, device, subject or origin is
// revoked.
func (k *Keeper) removed(tenant string, holders []auth.Holder) []int {
	var list []int
	for i, h := range holders {
		keys := []auth.RevocationKey{{Tenant: tenant, Subject: h.Subject}}
		for _, token := range []string{h.Token, h.Device} {
			if token != "" {
				keys = append(keys, auth.RevocationKey{Token: token})
			}
		}
		if revoked := k.cfg.Registry.Revocations(); revoked.Revoked(h.At, keys...) || revoked.RevokedOrigin(tenant, h.Origins) {
			list = append(list, i)
		}
	}
	return list
}
