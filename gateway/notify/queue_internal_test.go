package notify

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/broker/store"
)

// expiring is a store of records that expire. It keeps only when.
type expiring struct {
	Records
	until map[string]time.Time
	tell  func(store.Record)
	rev   uint64
}

func (x *expiring) Follow(_ string, tell func(store.Record)) func() {
	x.tell = tell
	return func() {}
}

func (x *expiring) Write(_ context.Context, changes ...store.Change) []store.Result {
	for _, c := range changes {
		x.rev++
		x.until[c.Key] = time.Now().Add(c.For)
		x.tell(store.Record{Key: c.Key, Rev: x.rev, Data: c.Data, Until: x.until[c.Key]})
	}
	return make([]store.Result, len(changes))
}

func (x *expiring) count() (n int) {
	for _, until := range x.until {
		if until.After(time.Now()) {
			n++
		}
	}
	return n
}

func newQueueOf(x *expiring) *queue {
	return newQueue(x, "me", func(string) bool { return false }, func() {})
}

// putMany adds jobs of a tenant, which are due at once.
func (q *queue) putMany(tenant string, n int) (ids []string) {
	now := time.Now()
	for i := range n {
		id := fmt.Sprint(tenant, now.Unix(), ".", i)
		q.put(Job{ID: id, Tenant: tenant, Due: now, Until: now.Add(momentsFor)}, now)
		ids = append(ids, id)
	}
	return ids
}

// TestFinishedJobsFillNoStore: a tenant has four times as many notifications in a day as
// the queue may know. The queue and its store keep fewer than that, and another
// tenant's for nearly a day.
func TestFinishedJobsFillNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &expiring{until: map[string]time.Time{}}
		q := newQueueOf(x)
		q.maxDone = 1000
		finish := func(tenant string, n int) {
			for _, id := range q.putMany(tenant, n) {
				q.done(id, nil)
			}
			if err := q.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		most := 0
		for range 36 * 4 {
			finish("loud", 4*q.maxDone/24/4)
			time.Sleep(time.Hour / 4)
			q.sweep(time.Now())
			most = max(most, x.count(), len(q.jobs))
		}
		if most >= q.maxDone {
			t.Errorf("up to %d finished jobs were kept; want fewer than %d", most, q.maxDone)
		}
		finish("quiet", 1)
		for key, until := range x.until {
			if left := time.Until(until); strings.HasPrefix(key, "job.quiet") && left < 23*time.Hour {
				t.Errorf("the quiet tenant's %s is known for %v; want nearly a day", key, left)
			}
		}
	})
}

// TestJobsOfATenantLeaveRoomForOthers: a tenant with more notifications than the queue can
// hold leaves room for other tenants, and gets its places back.
func TestJobsOfATenantLeaveRoomForOthers(t *testing.T) {
	q := newQueueOf(&expiring{until: map[string]time.Time{}})
	q.maxOpen = 100
	loud := q.putMany("loud", 200)
	for _, tenant := range []string{"a", "b", "c"} {
		if id := q.putMany(tenant, 1)[0]; q.state(id) != waiting {
			t.Errorf("the notification of tenant %s was refused; want room for it", tenant)
		}
	}
	if got := q.unfinished["loud"]; got != 50 {
		t.Errorf("the loud tenant has %d unfinished jobs; want 50", got)
	}
	for _, id := range loud {
		q.done(id, nil)
	}
	if got := q.unfinished["loud"]; got != 0 {
		t.Errorf("the loud tenant has %d unfinished jobs after their end; want none", got)
	}
}
