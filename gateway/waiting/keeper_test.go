package waiting

import (
	"encoding/json"
	"fmt"
	"strings"
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

// TestBatchIsBoundedWithItsAuthors fills a host with small items whose authors have long lists of
// channels. The answer to the host-agent must fit into a NATS message, and further batches must
// follow.
func TestBatchIsBoundedWithItsAuthors(t *testing.T) {
	k := &Keeper{items: map[desk.Key]*entry{}, cfg: Config{
		Standing: func(who auth.Client) (auth.Client, bool) { return who, true },
		Sign:     func([]byte) (key, signature []byte) { return nil, nil },
	}}
	channels := strings.Fields(strings.Repeat(strings.Repeat("c", 500)+" ", 10)) // a token may have them
	for n := range ofHost {
		e := &entry{Stored: Stored{Who: auth.Client{Tenant: "acme", Subject: fmt.Sprint("ada", n/ofPerson), Hosts: []string{"*"}, Channels: channels}}}
		e.Item.ID = fmt.Sprintf("%032x", n)
		k.items[desk.Key{Tenant: "acme", Host: "laptop", ID: e.Item.ID}] = e
	}
	b := k.batch("acme", "laptop", &waiting.Request{})
	body, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := json.Marshal(waiting.Answer{Batch: &waiting.Signed{Body: body}})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer) >= 1<<20 || len(b.Items) == 0 || !b.More {
		t.Errorf("the answer has %d items in %d bytes, and more = %v; want items in less than 1 MiB, and more", len(b.Items), len(answer), b.More)
	}
}
