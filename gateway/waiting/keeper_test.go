package waiting

import (
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/waiting"
	"ahprelay/gateway/desk"
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
