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
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// A Job is a notification about an event for a target.
type Job struct {
	ID        string       `json:"id"` // from the IDs of event and target; with the suffix afterwards, if the job reports the end
	Tenant    string       `json:"tenant"`
	Host      string       `json:"host"`
	Subject   string       `json:"subject"`
	Target    string       `json:"way"`
	Event     notice.Event `json:"event"`
	Withdrawn bool         `json:"withdrawn,omitempty"` // reports that the event is no longer open
	Due       time.Time    `json:"due"`
	Until     time.Time    `json:"until"` // time to give up
	Tries     int          `json:"tries,omitempty"`
}

// Records is the store that relays share; [store.Store] implements it.
type Records interface {
	Write(ctx context.Context, changes ...store.Change) []store.Result
	Follow(prefix string, tell func(store.Record)) (cancel func())
	Update(key string, change func(old []byte) ([]byte, error)) error
	All(prefix string) (map[string][]byte, error)
	Ready() <-chan struct{} // closed when all existing records have been read
}

// Limits and times of a queue.
const (
	maxJobs    = 64 << 10  // unfinished; a tenant may have as many as are free
	maxTold    = 256 << 10 // finished
	keepTold   = 24 * time.Hour
	sweepEvery = time.Minute

	// A relay begins a job within claimGood after claiming it, and needs at most
	// sendTimeout. Another relay treats the claim as void when claimLasts has passed since
	// it received the claim. By then the first relay has finished.
	claimGood  = 5 * time.Second
	claimLasts = claimGood + sendTimeout + 5*time.Second
)

const jobPrefix = "job."

// A queue holds the notification jobs of all relays, as shared records. A job is waiting,
// claimed by a relay, or over. A claim is a write that requires the revision of the
// waiting record, so only one relay gets the job. If that relay ends, another relay
// claims the job when the end is known or when the claim has become void. Records of
// finished jobs are kept for a day, so that repeated events are not sent again.
//
// Changes apply to memory at once. sync writes them to the records.
type queue struct {
	records  Records
	me       string                     // names this relay process
	hasEnded func(instance string) bool // reports whether another relay process has ended
	maxOpen  int                        // maxJobs
	maxDone  int                        // maxTold
	changed  func()                     // called when jobs may have become due
	wake     chan struct{}              // wakes run for pending writes; capacity 1
	stop     func()

	writing sync.Mutex // held by sync

	mu         sync.Mutex // guards the fields below; not held while records are written
	jobs       map[string]*entry
	open       map[string]*entry // unfinished jobs
	unfinished map[string]int    // numbers of jobs, by tenant
	finished   map[string]int
	dirty      map[string]bool // jobs with pending writes
	last       map[[2]string][]Delivery
	away       bool // the last write failed
}

// kept is the record of a job.
type kept struct {
	Job     *Job      `json:"job,omitempty"`   // nil when finished
	By      string    `json:"by,omitempty"`    // the relay process that has claimed the job
	Claim   int       `json:"claim,omitempty"` // counts claims, so that no two records are equal
	Maybe   bool      `json:"maybe,omitempty"` // a relay ended while it had the claim, so the notification may have been sent
	Last    *Delivery `json:"last,omitempty"`
	Tenant  string    `json:"tenant,omitempty"` // set with Last, or when finished
	Subject string    `json:"subject,omitempty"`
}

// An entry is a job's known state.
type entry struct {
	kept
	rev       uint64
	raw       string    // the record's bytes
	until     time.Time // when the record expires
	lastHeard time.Time // when the record arrived; for this relay's own record, when its write began
	want      *kept     // record to write; nil for none
	sent      []byte    // record that is being written
	since     time.Time // when that write began

	counts map[string]int // counts this entry for the tenant of: unfinished or finished; nil at first
	of     string
}

func (e *entry) now() *kept {
	if e.want != nil {
		return e.want
	}
	return &e.kept
}

func newQueue(r Records, me string, gone func(string) bool, changed func()) *queue {
	q := &queue{
		records: r, me: me, hasEnded: gone, maxOpen: maxJobs, maxDone: maxTold, changed: changed, wake: make(chan struct{}, 1),
		jobs: map[string]*entry{}, open: map[string]*entry{}, unfinished: map[string]int{}, finished: map[string]int{}, dirty: map[string]bool{}, last: map[[2]string][]Delivery{},
	}
	q.stop = r.Follow(jobPrefix, q.apply)
	return q
}

func (q *queue) apply(r store.Record) {
	id := r.Key[len(jobPrefix):]
	var k kept
	if r.Data != nil && json.Unmarshal(r.Data, &k) != nil {
		return // ignored: written by a different version
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
	case e.rev != 0 && e.raw == raw: // the known record again, perhaps from a different stream
		heard = e.lastHeard
	default: // another relay's write came first, so this relay drops its own
		e.want = nil
	}
	e.kept, e.rev, e.raw, e.until, e.lastHeard = k, r.Rev, string(r.Data), r.Until, heard
	q.indexLocked(id, e)
	if k.Last != nil {
		q.noteLocked([2]string{k.Tenant, k.Subject}, *k.Last)
	}
	q.boundLocked()
	q.changed()
}

// indexLocked updates the indexes and counts after an entry has changed.
func (q *queue) indexLocked(id string, e *entry) {
	q.unindexLocked(id, e)
	e.counts, e.of = q.finished, e.now().Tenant
	if job := e.now().Job; job != nil {
		e.counts, e.of = q.unfinished, job.Tenant
		q.open[id] = e
	}
	e.counts[e.of]++
	if e.want != nil {
		q.dirty[id] = true
	}
}

func (q *queue) unindexLocked(id string, e *entry) {
	delete(q.open, id)
	delete(q.dirty, id)
	if e.counts != nil {
		decrement(e.counts, e.of)
	}
}

func (q *queue) setLocked(id string, e *entry, want kept) {
	e.want = &want
	q.indexLocked(id, e)
	signal.Send(q.wake)
}

func (q *queue) forgetLocked(id string) {
	q.unindexLocked(id, q.jobs[id])
	delete(q.jobs, id)
}

// sweep forgets the jobs whose records have expired.
func (q *queue) sweep(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, e := range q.jobs {
		if e.want == nil && !e.until.IsZero() && e.until.Before(now) {
			q.forgetLocked(id)
		}
	}
}

// boundLocked forgets a finished job if there are too many.
func (q *queue) boundLocked() {
	if len(q.jobs)-len(q.open) <= q.maxDone {
		return
	}
	for id, e := range q.jobs {
		if e.now().Job == nil && e.want == nil {
			q.forgetLocked(id)
			return
		}
	}
}

// noteLocked records a delivery attempt in the list of a person's attempts.
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

// deliveries returns a person's latest delivery attempts.
func (q *queue) deliveries(tenant, subject string) []Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.last[[2]string{tenant, subject}])
}

// put adds a job, unless one with the same ID is known or the tenant has as many jobs as
// are free. If the job is due, the same write also claims it.
func (q *queue) put(job Job, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs[job.ID] != nil || q.unfinished[job.Tenant] >= q.maxOpen-len(q.open) {
		return
	}
	k := kept{Job: &job}
	if !job.Due.After(now) {
		k.By = q.me
	}
	e := &entry{}
	q.jobs[job.ID] = e
	q.setLocked(job.ID, e, k)
}

// claim claims a job for this relay, and reports whether it has succeeded.
func (q *queue) claim(ctx context.Context, id string) bool {
	q.mu.Lock()
	e := q.jobs[id]
	switch {
	case e == nil || e.now().Job == nil, e.now().By != "" && e.now().By != q.me && !q.voidLocked(e, time.Now()):
		q.mu.Unlock()
		return false // the job is no longer free
	case q.mineLocked(e): // put has claimed the job
		q.mu.Unlock()
		return true
	}
	if k := *e.now(); e.want == nil || k.By != q.me {
		k.Maybe = k.maybeSent(q.me)
		k.By = q.me
		k.Claim++
		q.setLocked(id, e, k)
	}
	q.mu.Unlock()
	if q.sync(ctx) != nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mineLocked(e)
}

// mineLocked reports whether this relay has claimed a job and may begin it.
func (q *queue) mineLocked(e *entry) bool {
	return e.want == nil && e.Job != nil && e.By == q.me && time.Since(e.lastHeard) < claimGood
}

// maybeSent reports whether a relay other than me may have sent the notification.
func (k *kept) maybeSent(me string) bool { return k.Maybe || k.By != "" && k.By != me }

// retry schedules a claimed job again.
func (q *queue) retry(id string, due time.Time, tries int, last *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.open[id]; e != nil {
		job := *e.now().Job
		job.Due, job.Tries = due.UTC(), tries
		q.attemptLocked(id, e, &job, &job, last)
	}
}

// unsure records that the notification of a claimed job may have been sent.
func (q *queue) unsure(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.open[id]; e != nil {
		k := *e.now()
		k.Maybe = true
		q.setLocked(id, e, k)
	}
}

// done finishes a job. last is nil if nothing was sent.
func (q *queue) done(id string, last *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.open[id]; e != nil {
		q.attemptLocked(id, e, nil, e.now().Job, last)
	}
}

// attemptLocked records an attempt and the job's new state. now is nil if the job is
// finished.
func (q *queue) attemptLocked(id string, e *entry, now, was *Job, last *Delivery) {
	k := kept{Job: now, Last: last, Maybe: e.now().maybeSent(q.me)}
	if now == nil || last != nil {
		k.Tenant, k.Subject = was.Tenant, was.Subject
	}
	if last != nil {
		q.noteLocked([2]string{k.Tenant, k.Subject}, *last)
	}
	q.setLocked(id, e, k)
}

// over records a finished job that was never queued, because it was a test.
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

// A jobState is how far a job has got.
type jobState int

const (
	noJob     jobState = iota // unknown job
	waiting                   // not claimed
	claimed                   // claimed by a relay
	delivered                 // finished, and sent or perhaps sent
	ended                     // finished without sending
)

func (q *queue) state(id string) jobState {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.jobs[id]
	switch {
	case e == nil:
		return noJob
	case e.now().Job == nil && (e.now().Maybe || e.now().Last != nil && e.now().Last.Outcome == Delivered):
		return delivered
	case e.now().Job == nil:
		return ended
	case e.rev != 0 && e.By != "" && e.now().By != "" && !q.voidLocked(e, time.Now()):
		return claimed
	}
	return waiting
}

// hostOf returns the host of a job, or "" if it is not known.
func (q *queue) hostOf(id string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.jobs[id]
	switch {
	case e == nil:
		return ""
	case e.now().Job != nil:
		return e.now().Job.Host
	case e.now().Last != nil:
		return e.now().Last.Host
	}
	return ""
}

// voidLocked reports whether a claim is too old, or the relay that made it has ended.
func (q *queue) voidLocked(e *entry, now time.Time) bool {
	return now.Sub(e.lastHeard) > claimLasts || e.By != q.me && q.hasEnded(e.By)
}

// due returns the jobs that this relay may begin now, and when to call due again. A zero
// time means after the next change. The caller must not change the jobs.
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
			soon(now.Add(time.Second)) // the claiming relay may have ended by then
		default:
			jobs = append(jobs, k.Job)
		}
	}
	return jobs, next
}

// knownForLocked returns how long a tenant's finished jobs are known: for keepTold, and less
// the larger the tenant's number is beside the free places. So no number of notifications
// fills the store, which other records share.
func (q *queue) knownForLocked(tenant string) time.Duration {
	free := max(q.maxDone-(len(q.jobs)-len(q.open)), 0)
	share := float64(free) / float64(max(free+q.finished[tenant], 1))
	return max(time.Duration(share*float64(keepTold)), time.Second)
}

// sync writes the pending changes. After an error they remain pending.
func (q *queue) sync(ctx context.Context) error {
	q.writing.Lock()
	defer q.writing.Unlock()
	q.mu.Lock()
	now := time.Now()
	var changes []store.Change
	var wants []*kept
	for id := range q.dirty {
		e := q.jobs[id]
		c := store.Change{Key: jobPrefix + id, Rev: e.rev, For: q.knownForLocked(e.of)}
		if e.want.Job != nil {
			c.For = max(e.want.Job.Until.Sub(now), 0) + keepTold
		}
		c.Data, _ = json.Marshal(e.want) // all fields can be encoded
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
		case e.want == wants[i]: // after a conflict, the winning record has arrived or will arrive
			e.want = nil
			if q.indexLocked(id, e); r.Err != nil && e.rev == 0 {
				q.forgetLocked(id)
			}
		}
	}
	return failed
}

func (q *queue) run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			q.sweep(time.Now())
			continue
		case <-q.wake:
		}
		for q.sync(ctx) != nil && ctx.Err() == nil {
			clock.Sleep(ctx, storeRetry)
		}
		q.changed()
	}
}

func (q *queue) isAway() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.away
}

// close releases this relay's claims, and tries to write the pending changes.
func (q *queue) close(ctx context.Context) error {
	q.mu.Lock()
	for id, e := range q.open {
		if k := *e.now(); k.By == q.me {
			k.By = ""
			q.setLocked(id, e, k)
		}
	}
	q.mu.Unlock()
	err := q.sync(ctx)
	q.stop()
	return err
}
