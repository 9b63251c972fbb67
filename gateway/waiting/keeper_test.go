package waiting

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/broker/store"
	"ahprelay/broker/waiting"
	"ahprelay/gateway/desk"
	"ahprelay/test/natssite"
)

// TestFinishedItemsStayUnlessTheirRoomIsEnough has a tenant whose items leave 100 bytes, and a
// person with two finished items of 50 bytes. A new item takes the place of the oldest only if it
// fits then, or after the removal of both.
func TestFinishedItemsStayUnlessTheirRoomIsEnough(t *testing.T) {
	now := time.Now()
	item := func(subject string, size, age int) *entry {
		e := &entry{Stored{Who: auth.Client{Subject: subject}, At: now.Add(time.Duration(-age))}, size}
		e.Item.ID, e.Item.Expires = subject, now.Add(time.Hour).UnixMilli()
		return e
	}
	k := &Keeper{items: map[desk.Key]*entry{}}
	k.items[desk.Key{Tenant: "acme", Host: "other", ID: "x"}] = item("bob", tenantBytes-200, 0)
	for age, id := range []string{"newer", "older"} {
		e := item("ada", 50, age)
		e.Item.ID, e.Result = id, &waiting.Result{}
		k.items[desk.Key{Tenant: "acme", Host: "laptop", ID: id}] = e
	}
	for _, c := range []struct {
		size   int
		oldest string
		fits   bool
	}{{100, "", true}, {101, "older", false}, {200, "older", false}, {201, "", false}} {
		k.coming = nil
		oldest, fits := k.reserveNow(&coming{desk.Key{Tenant: "acme", Host: "laptop", ID: "new"}, *item("ada", c.size, 0)})
		if oldest != c.oldest || fits != c.fits {
			t.Errorf("for %d bytes, reserveNow = %q, %v; want %q, %v", c.size, oldest, fits, c.oldest, c.fits)
		}
	}
}

// TestItemsOfTenantsLeaveRoomForOthers: eight tenants leave as many of the largest items as
// fit. Another tenant still has room.
func TestItemsOfTenantsLeaveRoomForOthers(t *testing.T) {
	k := &Keeper{items: map[desk.Key]*entry{}}
	leave := func(tenant string, n int) (fits bool) {
		e := entry{Stored{Who: auth.Client{Subject: fmt.Sprint("ada", n/ofPerson)}}, waiting.MaxItem}
		e.Item.Expires = time.Now().Add(time.Hour).UnixMilli()
		key := desk.Key{Tenant: tenant, Host: "laptop", ID: fmt.Sprint(n)}
		k.coming = nil
		if _, fits = k.reserveNow(&coming{key, e}); fits {
			k.items[key] = &e
		}
		return fits
	}
	for i := range 8 {
		n := 0
		for leave(fmt.Sprint("loud", i), n) {
			n++
		}
		t.Logf("tenant %d has left %d items", i, n)
	}
	if !leave("acme", 0) {
		t.Error("another tenant's item was refused; want room for it")
	}
}

// TestBatchIsBoundedWithItsAuthors fills a host with small items whose authors have long lists of
// channels. The answer to the host-agent must fit into a NATS message, and further batches must
// follow.
func TestBatchIsBoundedWithItsAuthors(t *testing.T) {
	k := &Keeper{items: map[desk.Key]*entry{}, cfg: Config{
		Standing: func(who auth.Client) (auth.Client, bool, error) { return who, true, nil },
		Sign:     func([]byte) (s auth.Signed) { return s },
	}}
	channels := strings.Fields(strings.Repeat(strings.Repeat("c", 500)+" ", 10)) // a token may have them
	for n := range ofHost {
		e := &entry{Stored: Stored{Who: auth.Client{Tenant: "acme", Subject: fmt.Sprint("ada", n/ofPerson), Hosts: []string{"*"}, Channels: channels}}}
		e.Item.ID = fmt.Sprintf("%032x", n)
		k.items[desk.Key{Tenant: "acme", Host: "laptop", ID: e.Item.ID}] = e
	}
	b, err := k.batch("acme", "laptop", &waiting.Request{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := json.Marshal(waiting.Answer{Batch: &auth.Signed{Body: body}})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer) >= 1<<20 || len(b.Items) == 0 || !b.More {
		t.Errorf("the answer has %d items in %d bytes, and more = %v; want items in less than 1 MiB, and more", len(b.Items), len(answer), b.More)
	}
}

// TestRenewedItemIsNotRemoved: a person gives an expired item a new time at a different relay. A
// relay that has not learned of it removes old items, and makes room for a new item. Neither must
// remove the renewed item.
func TestRenewedItemIsNotRemoved(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	records := recordsAt(t, site)
	now, ada := time.Now(), auth.Client{Tenant: "acme", Subject: "ada"}
	k := &Keeper{cfg: Config{Store: records, Log: slog.New(slog.DiscardHandler)}, items: map[desk.Key]*entry{}}
	for n := range ofPerson {
		e := &entry{Stored: Stored{Who: ada}}
		e.Item.ID, e.Item.Expires = fmt.Sprintf("%032x", n), now.Add(time.Hour).UnixMilli()
		k.items[desk.Key{Tenant: "acme", Host: "laptop", ID: e.Item.ID}] = e
	}
	renewed := desk.Key{Tenant: "acme", Host: "laptop", ID: fmt.Sprintf("%032x", 0)}
	if err := k.change(renewed, func(*Stored) (*Stored, error) { s := k.items[renewed].Stored; return &s, nil }); err != nil {
		t.Fatal(err)
	}
	k.items[renewed].Item.Expires = now.Add(-2 * keepFor).UnixMilli() // as the relay knows it

	defer desk.Follow(records, Prefix, func(key desk.Key, r store.Record) {
		if r.Data == nil { // the relay learns of removals only
			k.apply(key, r)
		}
	})()

	k.sweep(t.Context(), func(string, string) bool { return false })
	if records.Get(renewed.In(Prefix)).Data == nil {
		t.Error("the removal of old items has removed the renewed item")
	}
	if _, err := k.reserve(desk.Key{Tenant: "acme", Host: "laptop", ID: "new"}, ada, &waiting.Item{}); !errors.Is(err, ErrFull) {
		t.Errorf("reserve = %v; want %v", err, ErrFull)
	}
	if records.Get(renewed.In(Prefix)).Data == nil {
		t.Error("a new item has taken the place of the renewed item")
	}
}

// TestItemsWaitWhileGrantsAreUnknown asks for a host's items while the relay cannot read whether
// their author's device was removed. The batch must fail, so that the host-agent asks again. A
// batch with the item would end it as the item of a removed device.
func TestItemsWaitWhileGrantsAreUnknown(t *testing.T) {
	away := errors.New("the store is away")
	e := &entry{Stored: Stored{Who: auth.Client{Subject: "ada"}}}
	k := &Keeper{
		cfg:   Config{Standing: func(who auth.Client) (auth.Client, bool, error) { return who, false, away }},
		items: map[desk.Key]*entry{{Tenant: "acme", Host: "laptop", ID: "x"}: e},
	}
	if b, err := k.batch("acme", "laptop", &waiting.Request{}); !errors.Is(err, away) {
		t.Errorf("batch = %+v, %v; want %v", b, err, away)
	}
}

// recordsAt returns a site's store of waiting items, after it has been read.
func recordsAt(t *testing.T, site *natssite.Site) *store.Store {
	t.Helper()
	sealer, err := site.Keys.Sealer("waiting")
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Start(t.Context(), store.Config{Conn: site.Relays(t), Sealer: sealer, Name: "waiting items", Stream: Stream, Subjects: Subjects})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(records.Close)
	natssite.Next(t, "all that the stream has", records.Ready())
	return records
}

// TestItemIsAnnouncedToAHostThatHasJustCome leaves an item for a host with a connected host-agent,
// while the relay has not read yet that the host is online. The host-agent must learn of the item at
// once: it has asked for its items before, and asks again in five minutes only.
func TestItemIsAnnouncedToAHostThatHasJustCome(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	tenants := site.Tenants(t)
	hosts, err := registry.Start(t.Context(), registry.Config{Conn: site.Relays(t), Tenants: tenants})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hosts.Close)
	k := Start(Config{Store: recordsAt(t, site), Tenants: tenants, Registry: hosts, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(k.Close)
	natssite.Enrol(t, hosts, "acme", "laptop")
	natssite.Open(t, tenants, "acme")
	agent := natssite.DialAgent(t, site.AgentConfig(t, "acme", "laptop", 0))
	news := natssite.Subscribe(t, agent, waiting.NewsSubject("acme", "laptop"))
	if err := agent.Flush(natssite.Patience); err != nil { // the server has the subscription
		t.Fatal(err)
	}
	item := waiting.Item{ID: fmt.Sprintf("%032x", 1), Version: 1, Expires: time.Now().Add(time.Hour).UnixMilli()}
	if _, err := k.Put(t.Context(), auth.Client{Tenant: "acme", Subject: "ada"}, "laptop", item); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "announcement of the item", news)
}
