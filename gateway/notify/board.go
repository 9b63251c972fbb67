package notify

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
)

// Bounds of a Board.
const (
	keepItems = 4096 // of each tenant
	keepOver  = 512  // ids of events of a host that were told and are over
	maxHosts  = 1 << 17
)

// A Change is what has happened to an event.
type Change string

// The changes.
const (
	Raised    Change = "event"     // it is told
	Withdrawn Change = "withdrawn" // it was open, and is not any more
)

// An Item is one change of a Board.
type Item struct {
	Seq    uint64
	Tenant string
	Host   string
	Change Change
	Event  notice.Event // all of it, of one that is withdrawn too
	At     time.Time

	told bool // another relay has heard it, and seen to whom it is to be told
}

// A Board is what a relay knows of events. It is safe for concurrent use.
type Board struct {
	mu        sync.Mutex // guards all that follows; not held while followers are called
	seq       uint64
	hosts     map[hostKey]*hostEvents
	tenants   map[string]*tenantItems
	followers []*follower
}

type hostKey struct{ tenant, host string }

// hostEvents are those of one host.
type hostEvents struct {
	instance string
	seq      uint64
	open     map[string]notice.Event // as the host-agent tells them
	own      map[string]notice.Event // as the relay has seen them
	over     []string                // ids, the oldest first
}

// tenantItems are the latest changes of a tenant, the oldest first.
type tenantItems struct {
	items []Item
	first uint64        // everything after this number is in items
	more  chan struct{} // closed and replaced with each item
}

type follower struct{ tell func(Item) }

// NewBoard returns an empty Board.
func NewBoard() *Board {
	return &Board{hosts: map[hostKey]*hostEvents{}, tenants: map[string]*tenantItems{}}
}

// Subscribe has tell called with each item, in order, until cancel. It must not
// block, nor call back.
func (b *Board) Subscribe(tell func(Item)) (cancel func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := &follower{tell}
	b.followers = append(b.followers, f)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.followers = slices.DeleteFunc(b.followers, func(other *follower) bool { return other == f })
	}
}

// Take takes a report of the host-agent that serves a host.
func (b *Board) Take(tenant, host string, r notice.Report) notice.Ack {
	b.mu.Lock()
	defer b.mu.Unlock()
	ack := notice.Ack{Seq: r.Seq}
	h := b.hostLocked(hostKey{tenant, host})
	if h == nil || h.instance == r.Instance && r.Seq <= h.seq {
		return ack
	}
	h.instance, h.seq = r.Instance, r.Seq
	now := time.Now().UTC()
	for _, e := range r.Events {
		item := Item{Tenant: tenant, Host: host, Change: Raised, Event: e, At: now}
		if !e.Kind.Needs() {
			if h.isOver(e.ID) {
				b.addLocked(item)
			}
			continue
		}
		if before, known := h.open[e.ID]; known && before.Digest() == e.Digest() || !slices.Contains(r.Open, e.ID) {
			continue
		}
		h.open[e.ID] = e
		b.addLocked(item)
	}
	b.withdrawLocked(tenant, host, h, r.Open, now)
	ack.Again = len(h.open) < len(r.Open)
	return ack
}

// withdrawLocked withdraws what is not open any more.
func (b *Board) withdrawLocked(tenant, host string, h *hostEvents, open []string, now time.Time) {
	for id, e := range h.open {
		if !slices.Contains(open, id) {
			delete(h.open, id)
			b.addLocked(Item{Tenant: tenant, Host: host, Change: Withdrawn, Event: e, At: now})
		}
	}
}

// merge takes what another relay has heard of a host, or a part of it, unless this one has
// heard later.
func (b *Board) merge(tenant, host string, r notice.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(hostKey{tenant, host})
	if h == nil || h.instance == r.Instance && r.Seq < h.seq {
		return
	}
	h.instance, h.seq = r.Instance, r.Seq
	now := time.Now().UTC()
	for _, e := range r.Events {
		if _, known := h.open[e.ID]; known || !e.Kind.Needs() || !slices.Contains(r.Open, e.ID) {
			continue
		}
		h.open[e.ID] = e
		b.addLocked(Item{Tenant: tenant, Host: host, Change: Raised, Event: e, At: now, told: true})
	}
	b.withdrawLocked(tenant, host, h, r.Open, now)
}

// reports returns what the host-agents of a tenant have said is open: of each host some
// reports, of which each has a part of the events.
func (b *Board) reports(tenant string) map[string][]notice.Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string][]notice.Report{}
	for key, h := range b.hosts {
		if key.tenant != tenant || h.instance == "" {
			continue
		}
		open := slices.Collect(maps.Keys(h.open))
		r := notice.Report{Instance: h.instance, Seq: h.seq, Open: open, Events: []notice.Event{}}
		for some := range slices.Chunk(open, pieceEvents) {
			piece := r
			for _, id := range some {
				piece.Events = append(piece.Events, h.open[id])
			}
			all[key.host] = append(all[key.host], piece)
		}
		if len(open) == 0 {
			all[key.host] = []notice.Report{r}
		}
	}
	return all
}

// Add tells an event that the relay has seen itself. One that is open stays so
// until Remove.
func (b *Board) Add(tenant, host string, e notice.Event, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(hostKey{tenant, host})
	if h == nil {
		return
	}
	if _, known := h.own[e.ID]; known || !open && !h.isOver(e.ID) {
		return
	}
	if open {
		h.own[e.ID] = e
	}
	b.addLocked(Item{Tenant: tenant, Host: host, Change: Raised, Event: e, At: time.Now().UTC()})
}

// isOver notes an event that is over, and reports whether that is news.
func (h *hostEvents) isOver(id string) bool {
	if slices.Contains(h.over, id) {
		return false
	}
	h.over = append(h.over, id)
	h.over = h.over[max(len(h.over)-keepOver, 0):]
	return true
}

// Remove withdraws an event of Add's.
func (b *Board) Remove(tenant, host, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hosts[hostKey{tenant, host}]
	if h == nil {
		return
	}
	if e, known := h.own[id]; known {
		delete(h.own, id)
		b.addLocked(Item{Tenant: tenant, Host: host, Change: Withdrawn, Event: e, At: time.Now().UTC()})
	}
}

// hostLocked returns the events of a host; nil if there are too many hosts.
func (b *Board) hostLocked(key hostKey) *hostEvents {
	h := b.hosts[key]
	if h == nil && len(b.hosts) < maxHosts {
		h = &hostEvents{open: map[string]notice.Event{}, own: map[string]notice.Event{}}
		b.hosts[key] = h
	}
	return h
}

func (b *Board) tenantLocked(tenant string) *tenantItems {
	t := b.tenants[tenant]
	if t == nil {
		t = &tenantItems{first: b.seq, more: make(chan struct{})}
		b.tenants[tenant] = t
	}
	return t
}

// addLocked numbers an item, and tells it.
func (b *Board) addLocked(item Item) {
	t := b.tenantLocked(item.Tenant)
	b.seq++
	item.Seq = b.seq
	t.items = append(t.items, item)
	if over := len(t.items) - keepItems; over > 0 {
		t.first = t.items[over-1].Seq
		t.items = slices.Delete(t.items, 0, over)
	}
	close(t.more)
	t.more = make(chan struct{})
	for _, f := range b.followers {
		f.tell(item)
	}
}

// After returns what has changed in a tenant after a number, and a channel that is
// closed when there is more. If the Board does not know any more what that was, or
// never did, lost says so, and the items are all that is open, with the number to
// go on from.
func (b *Board) After(tenant string, seq uint64) (items []Item, next uint64, more <-chan struct{}, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tenantLocked(tenant)
	if seq < t.first || seq > b.seq {
		return b.openLocked(tenant), b.seq, t.more, true
	}
	i, _ := slices.BinarySearchFunc(t.items, seq+1, func(item Item, seq uint64) int { return int(int64(item.Seq) - int64(seq)) })
	return slices.Clone(t.items[i:]), b.seq, t.more, false
}

// Open returns an event that is open.
func (b *Board) Open(tenant, host, id string) (notice.Event, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hosts[hostKey{tenant, host}]
	if h == nil {
		return notice.Event{}, false
	}
	e, ok := h.open[id]
	if !ok {
		e, ok = h.own[id]
	}
	return e, ok
}

// openLocked returns what is open in a tenant, the oldest first.
func (b *Board) openLocked(tenant string) (items []Item) {
	for key, h := range b.hosts {
		if key.tenant != tenant {
			continue
		}
		for _, list := range []map[string]notice.Event{h.open, h.own} {
			for _, e := range list {
				items = append(items, Item{Seq: b.seq, Tenant: tenant, Host: key.host, Change: Raised, Event: e, At: e.At})
			}
		}
	}
	slices.SortFunc(items, func(a, b Item) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return strings.Compare(a.Event.ID, b.Event.ID)
	})
	return items
}

// MayHear reports whether who has a token may hear of an event.
func MayHear(who auth.Client, tenant, host string, e *notice.Event) bool {
	switch {
	case !who.MayReach(tenant, host):
		return false
	case e.Session == "":
		return true
	case len(who.Methods) > 0 && !auth.MatchesAny(who.Methods, "listSessions"):
		return false
	}
	return len(who.Channels) == 0 || auth.MatchesAny(who.Channels, e.Session)
}

// Heard reports whether a host's host-agent has said what is open.
func (b *Board) Heard(tenant, host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hosts[hostKey{tenant, host}]
	return h != nil && h.instance != ""
}
