package waiting

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/broker/remember"
	"ahprelay/broker/store"
	"ahprelay/broker/waiting"
	"ahprelay/gateway/desk"
)

// Names in the store.
const (
	Stream   = "ahp-waiting"
	Subjects = "ahp.relays.v1.waiting."

	Prefix = "w."
)

// Limits and times of a Keeper.
const (
	MaxRecords = 16384    // of all tenants
	maxBytes   = 64 << 20 // of all tenants; relays have all items in memory

	// StoreBytes limits the stream, which removes its oldest items beyond it. It is far
	// above maxBytes, because relays that do not know each other's latest items may exceed
	// maxBytes.
	StoreBytes = 4 * maxBytes

	ofPerson    = 32 // items per person and host
	ofHost      = 256
	ofTenant    = 4096
	tenantBytes = 16 << 20

	keepFor   = 7 * 24 * time.Hour // after an item has expired
	wakeEvery = 5 * time.Second
)

// Errors that are shown to people.
var (
	ErrConflict = errors.New("the item was changed on a different device meanwhile")
	ErrOver     = errors.New("the host has received the item already")
	ErrExpired  = errors.New("the item's time is past or too far away; an item may wait for up to 7 days")
	ErrFull     = errors.New("too many items wait already; remove some")
	ErrAway     = errors.New("the relays' store is unreachable, so the item was not saved; try again")
	ErrNone     = errors.New("there is no such item")
	ErrHost     = errors.New("there is no such host")
	ErrWaits    = errors.New("the item still waits; cancel it first")
)

// A Config configures a [Keeper].
type Config struct {
	Store    *store.Store       // required
	Tenants  *broker.Tenants    // required
	Registry *registry.Registry // required
	Log      *slog.Logger       // required

	// Standing returns a device's current authority, and false if it has none. An error
	// means that this is unknown at present. Required.
	Standing func(auth.Client) (auth.Client, bool, error)
	// Removed reports whether a device was removed. Required.
	Removed func(tenant, device string) bool
	// Sign signs a statement (auth.WaitingItems). Required.
	Sign func(body []byte) auth.Signed
	// Wakes reports whether Wake can wake a host. Wakes and Wake may both be nil.
	Wakes func(tenant, host string) bool
	// Wake wakes a host on a person's behalf, without waiting for the result.
	Wake func(who auth.Client, host string)
}

// A Stored is an item with the fields that the relay adds.
type Stored struct {
	Item   waiting.Item    `json:"item"`
	Host   string          `json:"host"`
	Who    auth.Client     `json:"who"`   // author of the latest version
	First  time.Time       `json:"first"` // when the first version arrived; items are delivered in this order
	At     time.Time       `json:"at"`    // of the latest version
	Woken  bool            `json:"woken,omitempty"`
	Result *waiting.Result `json:"result,omitempty"`
}

// Expired reports whether the item has expired.
func (s *Stored) Expired(now time.Time) bool { return now.UnixMilli() >= s.Item.Expires }

// waits reports whether the item has no result and has not expired.
func (s *Stored) waits(now time.Time) bool { return s.Result == nil && !s.Expired(now) }

// entry is an item in memory.
type entry struct {
	Stored
	size int
}

// A Keeper gives a relay access to the stored items. It is safe for concurrent use.
type Keeper struct {
	*desk.Office // answers hosts' requests, and removes old items

	cfg Config

	mu     sync.Mutex // guards the fields below
	items  map[desk.Key]*entry
	coming []*coming // changes that this relay is storing
}

// A coming is an item that is being stored. It counts against the limits, because
// otherwise simultaneous changes could exceed them together.
type coming struct {
	key desk.Key
	entry
}

// Start starts a Keeper. The caller must Close it.
func Start(cfg Config) *Keeper {
	k := &Keeper{cfg: cfg, items: map[desk.Key]*entry{}}
	stop := desk.Follow(cfg.Store, Prefix, k.apply)
	k.Office = desk.Open(desk.OfficeConfig{
		Tenants: cfg.Tenants, Registry: cfg.Registry, Log: cfg.Log, Name: "waiting items", Subject: waiting.Subject, Do: k.do, Sweep: k.sweep,
		Refused: func(err error) any { return waiting.Answer{Error: err.Error()} },
	})
	k.Also(stop)
	k.Every(wakeEvery, func(context.Context) { k.WakeDue() })
	return k
}

// apply is called for each record that changes in the store.
func (k *Keeper) apply(key desk.Key, r store.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := &entry{size: len(r.Data)}
	if r.Data == nil || json.Unmarshal(r.Data, &e.Stored) != nil {
		delete(k.items, key)
		return
	}
	k.items[key] = e
}

// where returns the items for which is returns true, in the order of delivery.
func (k *Keeper) where(is func(desk.Key, *entry) bool) (list []Stored) {
	k.mu.Lock()
	for key, e := range k.items {
		if is(key, e) {
			list = append(list, e.Stored)
		}
	}
	k.mu.Unlock()
	slices.SortFunc(list, func(a, b Stored) int {
		return cmp.Or(a.First.Compare(b.First), strings.Compare(a.Item.ID, b.Item.ID))
	})
	return list
}

// Of returns a person's items at all hosts that the token may reach. If the token names
// sessions, Of returns only the items of these sessions. It ignores names with wildcards.
func (k *Keeper) Of(who auth.Client) []Stored {
	return k.where(func(key desk.Key, e *entry) bool {
		return e.Who.Subject == who.Subject && who.MayReach(key.Tenant, key.Host) &&
			(len(who.Channels) == 0 || slices.ContainsFunc(who.Channels, func(c string) bool { return remember.IDOf(c) == e.Item.Session }))
	})
}

// Put stores a new version of an item. With ErrConflict and ErrOver, it also returns the
// current item. Most branches refuse an item.
func (k *Keeper) Put(ctx context.Context, who auth.Client, host string, item waiting.Item) (*Stored, error) {
	key := desk.Key{Tenant: who.Tenant, Host: host, ID: item.ID}
	switch err := k.cfg.Registry.Find(ctx, who.Tenant, host); {
	case errors.Is(err, registry.ErrUnknownHost):
		return nil, ErrHost
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	}
	release, err := k.reserve(key, who, &item)
	if err != nil {
		return nil, err
	}
	defer release()
	var kept Stored
	err = k.change(key, func(old *Stored) (*Stored, error) {
		now := time.Now().UTC()
		switch {
		case item.Expires <= now.UnixMilli() && !item.Cancelled, item.Expires > now.Add(waiting.MaxLife).UnixMilli():
			return nil, ErrExpired
		case old == nil && item.Version != 1:
			return nil, ErrNone
		case old == nil:
			kept = Stored{Item: item, Host: host, Who: who, First: now, At: now}
			return &kept, nil
		case old.Who.Subject != who.Subject:
			return nil, ErrNone
		}
		kept = *old
		switch {
		case old.Result != nil:
			return nil, ErrOver
		case item.Version != old.Item.Version+1, item.Session != old.Item.Session:
			return nil, ErrConflict
		}
		woken := old.Woken && old.Item.Wake == item.Wake
		kept.Item, kept.Who, kept.At, kept.Woken = item, who, now, woken
		return &kept, nil
	})
	switch {
	case errors.Is(err, ErrConflict), errors.Is(err, ErrOver):
		return &kept, err
	case err != nil:
		return nil, err
	}
	// The host may be online, although this relay has not read it yet. If this message is
	// lost, the host-agent gets the item with its next request.
	_ = k.Publish(ctx, who.Tenant, waiting.NewsSubject(who.Tenant, host), nil)
	return &kept, nil
}

// change applies a function to an item. A nil result removes the item.
func (k *Keeper) change(key desk.Key, change func(old *Stored) (*Stored, error)) error {
	err := k.cfg.Store.Update(key.In(Prefix), func(old []byte) ([]byte, error) {
		var was *Stored
		if old != nil {
			was = &Stored{}
			if err := json.Unmarshal(old, was); err != nil {
				return nil, fmt.Errorf("item %s: %w", key.In(Prefix), err)
			}
		}
		next, err := change(was)
		if err != nil || next == nil {
			return nil, err
		}
		return json.Marshal(next)
	})
	switch {
	case errors.Is(err, store.ErrFull):
		return ErrFull
	case errors.Is(err, store.ErrAway):
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	return err
}

// use is a number of items and their bytes.
type use struct{ items, bytes int }

func (u *use) add(e *entry) {
	u.items++
	u.bytes += e.size
}

// uses are the items that count against each limit, without the item that is being
// changed.
type uses struct {
	all, tenant, host, person use
	over                      use    // the person's items at the host that no longer wait
	oldest                    *entry // the oldest of them
}

// usesLocked counts all items except the one with the given key.
func (k *Keeper) usesLocked(key desk.Key, subject string, now time.Time) (u uses) {
	for at, e := range k.items {
		if at == key || !u.add(key, at, e, subject) || e.waits(now) {
			continue
		}
		if u.over.add(e); u.oldest == nil || e.At.Before(u.oldest.At) {
			u.oldest = e
		}
	}
	for _, c := range k.coming {
		if c.key != key {
			u.add(key, c.key, &c.entry, subject)
		}
	}
	return u
}

// add counts an item, and reports whether it belongs to the same person and host as key.
func (u *uses) add(key, at desk.Key, e *entry, subject string) (own bool) {
	u.all.add(e)
	if at.Tenant != key.Tenant {
		return false
	}
	u.tenant.add(e)
	if at.Host != key.Host {
		return false
	}
	u.host.add(e)
	if e.Who.Subject != subject {
		return false
	}
	u.person.add(e)
	return true
}

// fits reports whether another item of that size is within the limits, without these of
// the person's items at the host. A tenant may have as much as is free, so that no number
// of tenants leaves nothing for others.
func (u *uses) fits(bytes int, without use) bool {
	bytes -= without.bytes
	return u.tenant.items-without.items < min(ofTenant, MaxRecords-u.all.items) &&
		u.tenant.bytes+bytes <= min(tenantBytes, maxBytes-u.all.bytes) &&
		u.host.items-without.items < ofHost && u.person.items-without.items < ofPerson
}

// reserve counts an item against the limits until release is called. If the item does not
// fit, reserve removes the person's items that no longer wait, oldest first. It removes
// none, and fails, if that would not be enough.
func (k *Keeper) reserve(key desk.Key, who auth.Client, item *waiting.Item) (release func(), err error) {
	data, err := json.Marshal(item)
	if err != nil {
		return nil, err
	}
	c := &coming{key, entry{Stored{Item: *item, Who: who}, len(data)}}
	for {
		oldest, fits := k.reserveNow(c)
		switch {
		case fits:
			return func() { k.release(c) }, nil
		case oldest == "":
			return nil, ErrFull
		}
		err := k.change(desk.Key{Tenant: key.Tenant, Host: key.Host, ID: oldest}, func(old *Stored) (*Stored, error) {
			if old != nil && old.waits(time.Now()) { // its author has renewed it meanwhile
				return nil, ErrFull
			}
			return nil, nil
		})
		if err != nil {
			return nil, err
		}
	}
}

// reserveNow counts an item if it fits. If not, it returns the ID of uses.oldest, or "" if
// the removal of all items in uses.over does not make enough room.
func (k *Keeper) reserveNow(c *coming) (oldest string, fits bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	had := k.items[c.key]
	u := k.usesLocked(c.key, c.Who.Subject, time.Now())
	switch {
	case had != nil && had.size >= c.size, u.fits(c.size, use{}):
		k.coming = append(k.coming, c)
		return "", true
	case !u.fits(c.size, u.over):
		return "", false
	}
	return u.oldest.Item.ID, false
}

func (k *Keeper) release(c *coming) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.coming = slices.DeleteFunc(k.coming, func(o *coming) bool { return o == c })
}

// Remove removes a person's finished or expired item.
func (k *Keeper) Remove(who auth.Client, host, id string) error {
	return k.change(desk.Key{Tenant: who.Tenant, Host: host, ID: id}, func(old *Stored) (*Stored, error) {
		switch {
		case old == nil || old.Who.Subject != who.Subject:
			return nil, ErrNone
		case old.waits(time.Now()):
			return nil, ErrWaits
		}
		return nil, nil
	})
}

func (k *Keeper) do(_ context.Context, tenant, host string, data []byte, serves func(string) error) (any, error) {
	r, err := waiting.ReadRequest(data)
	if err != nil {
		return nil, err
	}
	if err := serves(r.Instance); err != nil {
		return nil, err
	}
	if err := k.cfg.Store.Away(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	}
	if r.Op == waiting.Report {
		return waiting.Answer{}, k.report(desk.Key{Tenant: tenant, Host: host, ID: r.Result.ID}, r.Result)
	}
	batch, err := k.batch(tenant, host, &r)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(batch)
	if err != nil {
		return nil, err
	}
	signed := k.cfg.Sign(body)
	return waiting.Answer{Batch: &signed}, nil
}

// report stores an item's result. A later result is stored only if it is certain and the
// stored result is uncertain.
func (k *Keeper) report(key desk.Key, result *waiting.Result) error {
	return k.change(key, func(old *Stored) (*Stored, error) {
		if old == nil || old.Result != nil && (old.Result.State != waiting.Unknown || result.State == waiting.Unknown) {
			return old, nil
		}
		next := *old
		next.Result = result
		return &next, nil
	})
}

// batch returns the next items for a host. While an author's authority is unknown, it
// returns an error, and the host-agent asks again later.
func (k *Keeper) batch(tenant, host string, r *waiting.Request) (waiting.Batch, error) {
	now := time.Now().UTC()
	b := waiting.Batch{Tenant: tenant, Host: host, Instance: r.Instance, Nonce: r.Nonce, Now: now, Items: []waiting.Offer{}}
	size := 0
	for _, s := range k.where(func(key desk.Key, e *entry) bool {
		return key.Tenant == tenant && key.Host == host && e.Result == nil && // expired items too, because the host-agent reports them
			!slices.Contains(r.Without, e.Who.Subject)
	}) {
		o, err := k.offer(&s, host)
		if err != nil {
			return waiting.Batch{}, err
		}
		data, _ := json.Marshal(&o) // all fields can be encoded
		if size += len(data); size > waiting.MaxBatch {
			b.More = true
			break
		}
		b.Items = append(b.Items, o)
	}
	for _, id := range r.Devices {
		if k.cfg.Removed(tenant, id) {
			b.Removed = append(b.Removed, id)
		}
	}
	return b, nil
}

// offer returns an item with its author's current authority.
func (k *Keeper) offer(s *Stored, host string) (waiting.Offer, error) {
	o := waiting.Offer{Item: s.Item, Subject: s.Who.Subject, Device: s.Who.Device, Token: s.Who.ID, Name: s.Who.DeviceName}
	who, ok, err := k.cfg.Standing(s.Who)
	if err != nil {
		return o, err
	}
	switch {
	case !ok:
		o.Out = "the device that left it has been removed"
	case !who.MayReach(s.Who.Tenant, host):
		o.Out = "you may no longer use this host"
	}
	if o.Out == "" {
		o.Access, o.Channels, o.Methods = string(who.Access), who.Channels, who.Methods
	}
	return o, nil
}

// sweep removes old items, and items for forgotten hosts.
func (k *Keeper) sweep(_ context.Context, unknown func(tenant, host string) bool) {
	now := time.Now()
	for key, e := range k.copied() {
		stays := func(s *Stored) bool {
			return !unknown(key.Tenant, key.Host) && now.Sub(time.UnixMilli(s.Item.Expires)) < keepFor
		}
		if stays(&e) {
			continue
		}
		err := k.change(key, func(old *Stored) (*Stored, error) {
			if old != nil && stays(old) { // its author has renewed it meanwhile
				return old, nil
			}
			return nil, nil
		})
		if err != nil {
			k.cfg.Log.Warn("old waiting item not removed", "tenant", key.Tenant, "host", key.Host, "error", err)
		}
	}
}

func (k *Keeper) copied() map[desk.Key]Stored {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make(map[desk.Key]Stored, len(k.items))
	for key, e := range k.items {
		all[key] = e.Stored
	}
	return all
}

// WakeDue wakes the hosts that have items whose wake time has come. Each branch is a condition of
// this.
func (k *Keeper) WakeDue() {
	if k.cfg.Wake == nil {
		return
	}
	now := time.Now()
	for _, s := range k.where(func(key desk.Key, e *entry) bool {
		return e.Item.Wake > 0 && e.Item.Wake <= now.UnixMilli() && !e.Woken && !e.Item.Cancelled && e.waits(now) && k.cfg.Wakes(key.Tenant, key.Host)
	}) {
		if h, _ := k.cfg.Registry.Lookup(s.Who.Tenant, s.Host); h.State == registry.Online {
			continue
		}
		who, ok, err := k.cfg.Standing(s.Who)
		if err != nil { // unknown at present: tried again
			continue
		}
		mine := false
		err = k.change(desk.Key{Tenant: s.Who.Tenant, Host: s.Host, ID: s.Item.ID}, func(old *Stored) (*Stored, error) {
			mine = old != nil && !old.Woken && old.Item.Version == s.Item.Version
			if !mine {
				return old, nil
			}
			next := *old
			next.Woken = true
			return &next, nil
		})
		if err == nil && mine && ok {
			k.cfg.Wake(who, s.Host)
		}
	}
}

// Stats are a Keeper's counters.
type Stats struct{ Items, Waiting, Bytes int }

// Stats returns the counters.
func (k *Keeper) Stats() (s Stats) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.items {
		s.Items++
		s.Bytes += e.size
		if e.waits(now) {
			s.Waiting++
		}
	}
	return s
}
