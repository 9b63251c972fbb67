package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"ahprelay/broker/notice"
	"ahprelay/broker/store"
)

// A Job is to tell one way of one person of an event.
type Job struct {
	ID        string       `json:"id"` // of the event, the way, and of what is told
	Tenant    string       `json:"tenant"`
	Host      string       `json:"host"`
	Subject   string       `json:"subject"`
	Way       string       `json:"way"`
	Event     notice.Event `json:"event"`
	Withdrawn bool         `json:"withdrawn,omitempty"` // it is told that it is not open any more
	Due       time.Time    `json:"due"`
	Until     time.Time    `json:"until"` // then it is given up
	Tries     int          `json:"tries,omitempty"`
}

// Records are where relays keep what they share, as package store does.
type Records interface {
	Write(ctx context.Context, changes ...store.Change) []store.Result
	Follow(prefix string, tell func(store.Record)) (cancel func())
	Update(key string, change func(old []byte) ([]byte, error)) error
	All(prefix string) (map[string][]byte, error)
}

// Bounds and times of a Queue.
const (
	maxJobs  = 64 << 10
	maxTold  = 256 << 10
	keepTold = 24 * time.Hour

	// A relay may begin a job for claimGood after it has claimed it, and needs sendTimeout at the
	// most. Others take it that it does not do it any more claimLasts after they have heard
	// of the claim, which is later than it was made.
	claimGood  = 5 * time.Second
	claimLasts = claimGood + sendTimeout + 5*time.Second
)

const jobPrefix = "job."

// A queue has the jobs of all relays, each a record with its state: it waits, a relay has
// claimed it, or it is over. Who claims a job names the revision in which it waited, so one
// relay does it; if that relay ends, another claims it when it is known to be gone, or the claim
// has lasted. That a job is over is kept for a day, so that what comes again is not told again.
//
// What is said to a queue changes its memory at once, and the records with sync.
type queue struct {
	records  Records
	me       string                     // this relay
	hasEnded func(instance string) bool // whether another one has ended
	changed  func()                     // there may be something to do
	wake     chan struct{}              // for run: there is something to write; holds one
	stop     func()

	writing sync.Mutex // held by sync

	mu    sync.Mutex // guards the fields below; not held while records are written
	jobs  map[string]*entry
	open  map[string]*entry // of those that are not over
	dirty map[string]bool   // of which something is to be written
	last  map[[2]string][]Delivery
	away  bool // what was said last could not be written
}

// kept is the record of a job.
type kept struct {
	Job     *Job      `json:"job,omitempty"`   // nil: it is over
	By      string    `json:"by,omitempty"`    // the relay that has claimed it
	Claim   int       `json:"claim,omitempty"` // counts claims: no two records are the same
	Maybe   bool      `json:"maybe,omitempty"` // a relay that had claimed it ended, and may have told it
	Last    *Delivery `json:"last,omitempty"`
	Tenant  string    `json:"tenant,omitempty"` // with Last, as Subject: whose
	Subject string    `json:"subject,omitempty"`
}

// An entry is what is known of one job.
type entry struct {
	kept
	rev       uint64
	raw       string    // the record
	lastHeard time.Time // when By was, or before this relay wrote it
	want      *kept     // what is to be written; nil: nothing
	sent      []byte    // what is being written
	since     time.Time // when that began
}

// now is what an entry says, or will.
func (e *entry) now() *kept {
	if e.want != nil {
		return e.want
	}
	return &e.kept
}

func newQueue(r Records, me string, gone func(string) bool, changed func()) *queue {
	q := &queue{
		records: r, me: me, hasEnded: gone, changed: changed, wake: make(chan struct{}, 1),
		jobs: map[string]*entry{}, open: map[string]*entry{}, dirty: map[string]bool{}, last: map[[2]string][]Delivery{},
	}
	q.stop = r.Follow(jobPrefix, q.apply)
	return q
}

// apply takes what a record says now.
func (q *queue) apply(r store.Record) {
	id := r.Key[len(jobPrefix):]
	var k kept
	if r.Data != nil && json.Unmarshal(r.Data, &k) != nil {
		return // of another version; it is left alone
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.jobs[id]
	if r.Data == nil {
		if e != nil && e.want == nil {
			q.forgetLocked(id)
		} else if e != nil {
			e.rev = 0
		}
		return
	}
	if e == nil {
		e = &entry{}
		q.jobs[id] = e
	}
	heard := time.Now()
	switch raw := string(r.Data); {
	case e.sent != nil && string(e.sent) == raw:
		heard = e.since
	case e.rev != 0 && e.raw == raw: // told again, perhaps of another stream
		heard = e.lastHeard
	default: // another relay was first, and its word counts
		e.want = nil
	}
	e.kept, e.rev, e.raw, e.lastHeard = k, r.Rev, string(r.Data), heard
	q.indexLocked(id, e)
	if k.Last != nil {
		q.noteLocked([2]string{k.Tenant, k.Subject}, *k.Last)
	}
	q.boundLocked()
	q.changed()
}

// indexLocked is called after each change of an entry.
func (q *queue) indexLocked(id string, e *entry) {
	delete(q.open, id)
	delete(q.dirty, id)
	if e.now().Job != nil {
		q.open[id] = e
	}
	if e.want != nil {
		q.dirty[id] = true
	}
}

// sayLocked says what is to be written of a job.
func (q *queue) sayLocked(id string, e *entry, want kept) {
	e.want = &want
	q.indexLocked(id, e)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) forgetLocked(id string) {
	delete(q.jobs, id)
	delete(q.open, id)
	delete(q.dirty, id)
}

// boundLocked forgets some job that is over, if there are too many.
func (q *queue) boundLocked() {
	if len(q.jobs)-len(q.open) <= maxTold {
		return
	}
	for id, e := range q.jobs {
		if e.now().Job == nil && e.want == nil {
			q.forgetLocked(id)
			return
		}
	}
}

// noteLocked notes an attempt to tell somebody.
func (q *queue) noteLocked(whose [2]string, d Delivery) {
	list := q.last[whose]
	at, there := slices.BinarySearchFunc(list, d, func(a, b Delivery) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Outcome, b.Outcome))
	})
	if there || at == keepDeliveries {
		return
	}
	list = slices.Insert(slices.Clone(list), at, d)
	q.last[whose] = list[:min(len(list), keepDeliveries)]
}

// deliveries returns what somebody was told last.
func (q *queue) deliveries(tenant, subject string) []Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.last[[2]string{tenant, subject}])
}

// put adds a job, unless one with its ID is there or was in the last day. One that is
// due is claimed as it is written.
func (q *queue) put(job Job, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs[job.ID] != nil || len(q.open) >= maxJobs {
		return false
	}
	k := kept{Job: &job}
	if !job.Due.After(now) {
		k.By = q.me
	}
	e := &entry{}
	q.jobs[job.ID] = e
	q.sayLocked(job.ID, e, k)
	return true
}

// claim has this relay do a job, and reports whether it may.
func (q *queue) claim(ctx context.Context, id string) bool {
	q.mu.Lock()
	e := q.jobs[id]
	switch {
	case e == nil || e.now().Job == nil, e.now().By != "" && e.now().By != q.me && !q.voidLocked(e, time.Now()):
		q.mu.Unlock()
		return false // it was free when it was looked at
	case q.mineLocked(e): // as it was made
		q.mu.Unlock()
		return true
	}
	if k := *e.now(); e.want == nil || k.By != q.me {
		k.Maybe = k.mayBeTold(q.me)
		k.By = q.me
		k.Claim++
		q.sayLocked(id, e, k)
	}
	q.mu.Unlock()
	if q.sync(ctx) != nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mineLocked(e)
}

// mineLocked reports whether this relay may begin a job.
func (q *queue) mineLocked(e *entry) bool {
	return e.want == nil && e.Job != nil && e.By == q.me && time.Since(e.lastHeard) < claimGood
}

// mayBeTold reports whether another relay than me has claimed a job, or had, and may have told it.
func (k *kept) mayBeTold(me string) bool { return k.Maybe || k.By != "" && k.By != me }

// retry puts a job off that this relay has claimed.
func (q *queue) retry(id string, due time.Time, tries int, last *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.open[id]; e != nil {
		job := *e.now().Job
		job.Due, job.Tries = due.UTC(), tries
		q.attemptLocked(id, e, &job, &job, last)
	}
}

// unsure has it known that a job that this relay has claimed may have been told.
func (q *queue) unsure(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.open[id]; e != nil {
		k := *e.now()
		k.Maybe = true
		q.sayLocked(id, e, k)
	}
}

// done ends a job; last is nil if nobody was told.
func (q *queue) done(id string, last *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.open[id]; e != nil {
		q.attemptLocked(id, e, nil, e.now().Job, last)
	}
}

// attemptLocked says what became of a job, and what it is now; nil: it is over.
func (q *queue) attemptLocked(id string, e *entry, now, was *Job, last *Delivery) {
	k := kept{Job: now, Last: last, Maybe: e.now().mayBeTold(q.me)}
	if last != nil {
		k.Tenant, k.Subject = was.Tenant, was.Subject
		q.noteLocked([2]string{k.Tenant, k.Subject}, *last)
	}
	q.sayLocked(id, e, k)
}

// over has it known that a job is over that may never have been there: a test, or one that
// a relay did before there were records.
func (q *queue) over(id, tenant, subject string, last *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs[id] != nil {
		return
	}
	e := &entry{}
	q.jobs[id] = e
	q.attemptLocked(id, e, nil, &Job{Tenant: tenant, Subject: subject}, last)
}

// A jobState is how far a job is.
type jobState int

const (
	noJob   jobState = iota // there is none
	waiting                 // nobody does it now
	claimed                 // a relay may be doing it
	told                    // it is over, and somebody was told, or may have been
	ended                   // it is over, and nobody was
)

func (q *queue) state(id string) jobState {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.jobs[id]
	switch {
	case e == nil:
		return noJob
	case e.now().Job == nil && (e.now().Maybe || e.now().Last != nil && e.now().Last.Outcome == "ok"):
		return told
	case e.now().Job == nil:
		return ended
	case e.rev != 0 && e.By != "" && e.now().By != "" && !q.voidLocked(e, time.Now()):
		return claimed
	}
	return waiting
}

// voidLocked reports whether the claim of another relay does not count any more.
func (q *queue) voidLocked(e *entry, now time.Time) bool {
	return now.Sub(e.lastHeard) > claimLasts || e.By != q.me && q.hasEnded(e.By)
}

// due returns the jobs that this relay may do now, which are not to be changed, and when it is to look again; zero: when
// something has changed.
func (q *queue) due(now time.Time) (jobs []*Job, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	soon := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, e := range q.open {
		k := e.now()
		switch {
		case k.Job.Due.After(now):
			soon(k.Job.Due)
		case k.By != "" && k.By != q.me && !q.voidLocked(e, now):
			soon(now.Add(time.Second)) // it may be known to be gone
		default:
			jobs = append(jobs, k.Job)
		}
	}
	return jobs, next
}

// sync writes what was said. While the records are away it fails, and what was said is
// written with the next sync.
func (q *queue) sync(ctx context.Context) error {
	q.writing.Lock()
	defer q.writing.Unlock()
	q.mu.Lock()
	now := time.Now()
	var changes []store.Change
	var wants []*kept
	for id := range q.dirty {
		e := q.jobs[id]
		c := store.Change{Key: jobPrefix + id, Rev: e.rev, For: keepTold}
		if e.want.Job != nil {
			c.For = max(e.want.Job.Until.Sub(now), 0) + keepTold
		}
		c.Data, _ = json.Marshal(e.want) // no field can fail
		e.sent, e.since = c.Data, now
		changes, wants = append(changes, c), append(wants, e.want)
	}
	q.mu.Unlock()
	if len(changes) == 0 {
		return nil
	}
	results := q.records.Write(ctx, changes...)
	q.mu.Lock()
	defer q.mu.Unlock()
	var failed error
	defer func() { q.away = failed != nil }()
	for i, r := range results {
		id := changes[i].Key[len(jobPrefix):]
		e := q.jobs[id]
		if e == nil {
			continue
		}
		e.sent = nil
		switch {
		case r.Err != nil && !errors.Is(r.Err, store.ErrConflict):
			failed = r.Err
		case e.want == wants[i]: // of a conflict the record was heard since, or comes
			e.want = nil
			if q.indexLocked(id, e); r.Err != nil && e.rev == 0 {
				q.forgetLocked(id)
			}
		}
	}
	return failed
}

// run writes what is said, until ctx ends.
func (q *queue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for q.sync(ctx) != nil && ctx.Err() == nil {
			pause(ctx, storeRetry)
		}
		q.changed()
	}
}

// isAway reports whether nothing can be written.
func (q *queue) isAway() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.away
}

// close lets go of what this relay has claimed, and writes what was said last, as far as can be.
func (q *queue) close(ctx context.Context) error {
	q.mu.Lock()
	for id, e := range q.open {
		if k := *e.now(); k.By == q.me {
			k.By = ""
			q.sayLocked(id, e, k)
		}
	}
	q.mu.Unlock()
	err := q.sync(ctx)
	q.stop()
	return err
}
