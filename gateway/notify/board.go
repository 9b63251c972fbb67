package notify

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
)

// Limits for a Board.
const (
	keepItems = 4096 // per tenant
	keepOver  = 512  // remembered IDs per host, of events that need no action
	maxHosts  = 1 << 17
)

// A Change says how an event has changed.
type Change string

const (
	Raised    Change = "event"     // the event is new
	Withdrawn Change = "withdrawn" // the event is no longer open
)

// An Item is a change to an event on a Board.
type Item struct {
	Seq    uint64
	Tenant string
	Host   string
	Change Change
	Event  notice.Event // complete also for a withdrawal
	At     time.Time

	handled bool // another relay has received the event, and sends its notifications
}

// A Board holds the events that a relay knows. It is safe for concurrent use.
type Board struct {
	mu        sync.Mutex // guards the fields below; held while followers are called
	seq       uint64
	hosts     map[hostKey]*hostEvents
	tenants   map[string]*tenantItems
	followers []*follower
}

type hostKey struct{ tenant, host string }

type hostEvents struct {
	instance string
	seq      uint64                  // number of the last report that this relay received
	open     map[string]notice.Event // open events from the host-agent, by ID
	lacks    bool                    // the latest report names an open event that is not in open
	merged   mergedEvents
	own      map[string]notice.Event // events that the relay itself has detected, by ID
	over     []string                // IDs of events that need no action, oldest first
}

// mergedEvents are the events that this relay knows only through other relays. Those
// relays send the notifications, unless they end before they have stored the notification
// jobs.
type mergedEvents struct {
	seq  uint64          // number of the last merged report
	only map[string]bool // IDs of events known only through other relays
}

// reported returns the number of the latest report that h includes.
func (h *hostEvents) reported() uint64 { return max(h.seq, h.merged.seq) }

// begin resets the numbers of reports if the host-agent instance is new.
func (h *hostEvents) begin(instance string) {
	if h.instance != instance {
		h.instance, h.seq, h.merged.seq = instance, 0, 0
	}
}

// tenantItems holds a tenant's latest changes, oldest first.
type tenantItems struct {
	items []Item
	first uint64        // items has all changes after this number
	more  chan struct{} // closed and replaced when an item is added
}

type follower struct{ apply func(Item) }

// NewBoard returns an empty Board.
func NewBoard() *Board {
	return &Board{hosts: map[hostKey]*hostEvents{}, tenants: map[string]*tenantItems{}}
}

// Subscribe calls f for each item, in order, until cancel is called. f must neither block
// nor call the Board.
func (b *Board) Subscribe(f func(Item)) (cancel func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	added := &follower{f}
	b.followers = append(b.followers, added)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.followers = slices.DeleteFunc(b.followers, func(other *follower) bool { return other == added })
	}
}

// Take applies a report from the host-agent that serves a host. It passes each event in
// the report to the subscribers once, even if another relay has received the event
// before, because that relay may have ended.
func (b *Board) Take(tenant, host string, r notice.Report) notice.Ack {
	b.mu.Lock()
	defer b.mu.Unlock()
	ack := notice.Ack{Seq: r.Seq}
	h := b.hostLocked(hostKey{tenant, host})
	if h == nil || h.instance == r.Instance && r.Seq <= h.seq {
		return ack
	}
	h.begin(r.Instance)
	late := r.Seq < h.merged.seq // a merged report, already in h.open, is newer
	h.seq = r.Seq
	now := time.Now().UTC()
	if !late {
		b.withdrawLocked(tenant, host, h, &r, now)
	}
	for _, e := range r.Events {
		b.takeEventLocked(h, Item{Tenant: tenant, Host: host, Change: Raised, Event: e, At: now}, r.Open, late)
	}
	if !late {
		h.lacks = len(h.open) < len(r.Open)
		ack.Again = h.lacks
	}
	return ack
}

func (b *Board) takeEventLocked(h *hostEvents, item Item, open []string, late bool) {
	e := &item.Event
	if !e.Kind.Needs() {
		if h.markOver(e.ID) {
			b.addLocked(item)
		}
		return
	}
	before, known := h.open[e.ID]
	same := known && before.Digest() == e.Digest()
	switch {
	case same && h.merged.only[e.ID]:
		delete(h.merged.only, e.ID)
		b.offerLocked(item)
	case same || late || !slices.Contains(open, e.ID):
	default:
		delete(h.merged.only, e.ID)
		kept := *e
		kept.Pushes = nil
		h.open[e.ID] = kept
		if known {
			b.narrowLocked(before, item)
		}
		b.addLocked(item)
	}
}

// narrowLocked withdraws a changed event from those who may no longer see it because its session
// has become private. It also replaces the event in earlier items, which clients can request.
func (b *Board) narrowLocked(before notice.Event, now Item) {
	if now.Event.Only == "" || now.Event.Only == before.Only {
		return
	}
	for i := range b.tenantLocked(now.Tenant).items {
		if earlier := &b.tenants[now.Tenant].items[i]; earlier.Host == now.Host && earlier.Event.ID == now.Event.ID {
			earlier.Event = now.Event
			earlier.Event.Pushes = nil
		}
	}
	gone := now
	gone.Change, gone.Event, gone.handled = Withdrawn, before, true // see planLocked for notifications of the event
	b.addLocked(gone)
}

// withdrawLocked withdraws the events that are no longer open according to a report. It
// runs before the report's new events are added, because a question ends before its
// session does.
func (b *Board) withdrawLocked(tenant, host string, h *hostEvents, r *notice.Report, now time.Time) {
	for id, e := range h.open {
		if !slices.Contains(r.Open, id) {
			delete(h.open, id)
			delete(h.merged.only, id)
			e.Pushes = r.Ends[id]
			b.addLocked(Item{Tenant: tenant, Host: host, Change: Withdrawn, Event: e, At: now})
		}
	}
}

// merge applies a report, or part of a report, that another relay has received. It does
// nothing if this relay has a later report.
func (b *Board) merge(tenant, host string, r notice.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(hostKey{tenant, host})
	if h == nil || h.instance == r.Instance && r.Seq < h.reported() {
		return
	}
	h.begin(r.Instance)
	h.merged.seq = r.Seq
	now := time.Now().UTC()
	b.withdrawLocked(tenant, host, h, &r, now)
	for _, e := range r.Events {
		before, known := h.open[e.ID]
		same := known && (before.Digest() == e.Digest() || r.Seq <= h.seq) // this relay has received that report itself
		if same || !e.Kind.Needs() || !slices.Contains(r.Open, e.ID) {
			continue
		}
		h.open[e.ID] = e
		item := Item{Tenant: tenant, Host: host, Change: Raised, Event: e, At: now, handled: true}
		if known {
			b.narrowLocked(before, item)
		} else {
			h.merged.only[e.ID] = true
		}
		b.addLocked(item)
	}
	h.lacks = len(h.open) < len(r.Open)
}

// reports returns a tenant's open events as reports, with one or more parts for each
// host.
func (b *Board) reports(tenant string) map[string][]notice.Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string][]notice.Report{}
	for key, h := range b.hosts {
		if key.tenant != tenant || h.instance == "" {
			continue
		}
		open := slices.Collect(maps.Keys(h.open))
		r := notice.Report{Instance: h.instance, Seq: h.reported(), Open: open, Events: []notice.Event{}}
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

// Add adds an event that the relay itself has detected. If open is set, the event stays
// open until Remove.
func (b *Board) Add(tenant, host string, e notice.Event, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(hostKey{tenant, host})
	if h == nil {
		return
	}
	if _, known := h.own[e.ID]; known || !open && !h.markOver(e.ID) {
		return
	}
	if open {
		h.own[e.ID] = e
	}
	b.addLocked(Item{Tenant: tenant, Host: host, Change: Raised, Event: e, At: time.Now().UTC()})
}

// markOver records the ID of an event that needs no action, and reports whether it is
// new.
func (h *hostEvents) markOver(id string) bool {
	if slices.Contains(h.over, id) {
		return false
	}
	h.over = append(h.over, id)
	h.over = h.over[max(len(h.over)-keepOver, 0):]
	return true
}

// Remove withdraws an event that Add has added.
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

// hostLocked returns a host's events, or nil if there are too many hosts.
func (b *Board) hostLocked(key hostKey) *hostEvents {
	h := b.hosts[key]
	if h == nil && len(b.hosts) < maxHosts {
		h = &hostEvents{open: map[string]notice.Event{}, own: map[string]notice.Event{}, merged: mergedEvents{only: map[string]bool{}}}
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

// addLocked numbers an item and passes it to all subscribers.
func (b *Board) addLocked(item Item) {
	t := b.tenantLocked(item.Tenant)
	b.seq++
	item.Seq = b.seq
	t.items = append(t.items, item)
	t.items[len(t.items)-1].Event.Pushes = nil // large; only followers need them, at once
	if over := len(t.items) - keepItems; over > 0 {
		t.first = t.items[over-1].Seq
		t.items = slices.Delete(t.items, 0, over)
	}
	close(t.more)
	t.more = make(chan struct{})
	b.offerLocked(item)
}

// offerLocked passes an item to all subscribers.
func (b *Board) offerLocked(item Item) {
	for _, f := range b.followers {
		f.apply(item)
	}
}

// After returns a tenant's changes after number seq, and a channel that is closed when
// there are more. If the Board no longer has these changes, lost is true and items are
// all open events. next is the number to continue from.
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

// Open returns the open event with an ID.
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

// openLocked returns a tenant's open events, oldest first.
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
	slices.SortFunc(items, func(a, b Item) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Event.ID, b.Event.ID)) })
	return items
}

// MayHear reports whether a client may see an event: see the package documentation.
func MayHear(who auth.Client, tenant, host string, e *notice.Event) bool {
	switch {
	case !who.MayReach(tenant, host):
		return false
	case e.Only != "" && (e.Only != who.Subject || !who.Access.Includes(auth.AccessTalk)): // as hosts hide private sessions
		return false
	case e.Session == "":
		return true
	case len(who.Methods) > 0 && !auth.MatchesAny(who.Methods, "listSessions"):
		return false
	}
	return len(who.Channels) == 0 || auth.MatchesAny(who.Channels, e.Session)
}

// Heard reports whether the Board has a report of the host, perhaps through another relay.
func (b *Board) Heard(tenant, host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hosts[hostKey{tenant, host}]
	return h != nil && h.instance != ""
}

func (b *Board) knowsOpen(tenant, host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hosts[hostKey{tenant, host}]
	return h != nil && h.instance != "" && !h.lacks
}
