package notify

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/store"
)

// Settings of a Teller.
const (
	lookingFor   = 30 * time.Second // a page says again and again that somebody looks
	lookingDelay = 10 * time.Second // for that long, who looks is not told

	needsFor   = 24 * time.Hour // for so long it is tried to tell that somebody is needed
	momentsFor = 4 * time.Hour  // and of what is over

	sendsAtOnce  = 256
	sendsOfHost  = 32 // to one name
	sendsOfWay   = 8
	firstRetry   = time.Second
	mostRetry    = 15 * time.Minute
	mostObeyed   = time.Hour        // of Retry-After
	reportsGrace = 30 * time.Second // after a start, for host-agents to say what is open

	keepDeliveries = 10
	testsEvery     = 20 * time.Second // of a person, beside the first few
	testsAtOnce    = 5
	mailsInHour    = 20 // of a person
)

// TellerConfig says how people are told.
type TellerConfig struct {
	Board    *Board       // required
	Records  Records      // required; what relays share: what people have set, and what is to be told
	Instance string       // required; of this relay
	Log      *slog.Logger // required

	// HasEnded reports whether another relay is known to have ended. May be nil.
	HasEnded func(instance string) bool

	Bus    link.Bus // to other relays; nil: there are none
	Former Former   // what a relay has that kept it for itself
	Ways   []TenantWay

	// Follow has the Board know what other relays do of a tenant, until release. May be nil.
	Follow func(ctx context.Context, tenant string) (release func())

	// Standing returns what a token that set a way may hear and do now; false: nothing
	// any more. Required.
	Standing func(auth.Client) (auth.Client, bool)

	// Capability makes an answer to an event of somebody's, see package gateway; "": none.
	// May be nil.
	Capability func(job *Job, who auth.Client, o notice.Option) string

	PublicURL string         // of the relay, for links; "": there are none
	Contact   string         // of the operator, for push services: mailto:… or https://…; required
	Mail      *MailConfig    // nil: no such way
	Private   []netip.Prefix // addresses that are not public, and may be ways all the same

	Transport http.RoundTripper // in the place of the network; for tests
}

// A Delivery is an attempt to tell somebody.
type Delivery struct {
	ID      string      `json:"id"` // of the event, the way, and of what is told
	Way     string      `json:"way"`
	Kind    notice.Kind `json:"kind"`
	Host    string      `json:"host"`
	Session string      `json:"session,omitempty"`
	At      time.Time   `json:"at"`
	Outcome string      `json:"outcome"` // ok, retry, refused, gone or expired
	Why     string      `json:"why,omitempty"`
}

// A Teller tells people of what is on a Board, in the ways that they have set. It is
// safe for concurrent use.
type Teller struct {
	cfg     TellerConfig
	http    *http.Client
	started time.Time
	stop    []func() // of the Board, and of what people set
	queue   *queue
	looked  chan *nats.Msg // of other relays
	cancel  context.CancelFunc
	wake    chan struct{} // for run; holds one
	running sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	people   map[string]map[string]*Person
	waiting  []Item                  // of the Board, that are not looked at yet
	looks    map[[2]string]time.Time // until when somebody looks, by tenant and subject
	prepared bool                    // what was Former is taken over, and there is a key for push services
	keys     []PushKey               // of push services; the first is the one to subscribe to
	rests    map[string]rest         // of ways
	busy     map[string]bool         // jobs that are being done
	ofWay    map[string]int          // of them
	ofHost   map[string]int
	tests    map[[2]string]*allowance
	mails    map[[2]string]*allowance
}

// A rest is the time that a way gets after a failure.
type rest struct {
	failures int
	until    time.Time
}

// An allowance is what is left of something that comes back with time.
type allowance struct {
	left float64
	at   time.Time
}

// take takes one, if there is one.
func (a *allowance) take(now time.Time, most float64, every time.Duration) bool {
	a.left = min(most, a.left+float64(now.Sub(a.at))/float64(every))
	a.at = now
	if a.left < 1 {
		return false
	}
	a.left--
	return true
}

// StartTeller begins to tell what there is. Close ends it.
func StartTeller(cfg TellerConfig) (*Teller, error) {
	t := &Teller{
		cfg: cfg, http: newClient(cfg.Private), started: time.Now(), wake: make(chan struct{}, 1),
		people: map[string]map[string]*Person{}, looks: map[[2]string]time.Time{},
		rests: map[string]rest{}, busy: map[string]bool{}, ofWay: map[string]int{}, ofHost: map[string]int{},
		tests: map[[2]string]*allowance{}, mails: map[[2]string]*allowance{},
	}
	if cfg.Transport != nil {
		t.http.Transport = cfg.Transport
	}
	gone := cfg.HasEnded
	if gone == nil {
		gone = func(string) bool { return false }
	}
	if err := t.takeTenantWays(context.Background(), cfg.Ways); err != nil {
		return nil, err
	}
	t.looked = make(chan *nats.Msg, looksRoom)
	if cfg.Bus != nil {
		deaf, err := cfg.Bus.Subscribe(lookingSubject, t.looked)
		if err != nil {
			return nil, err
		}
		t.stop = append(t.stop, deaf)
	}
	t.queue = newQueue(cfg.Records, cfg.Instance, gone, t.signal)
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	t.stop = append(t.stop, cfg.Records.Follow(personPrefix, t.takePerson), cfg.Records.Follow(pushKeys, t.takePushKeys), cfg.Board.Subscribe(t.hear))
	if err := t.prepare(); err != nil && !errors.Is(err, store.ErrAway) {
		t.cancel()
		for _, stop := range t.stop {
			stop()
		}
		t.queue.stop()
		return nil, err
	}
	t.running.Go(func() { t.run(ctx) })
	t.running.Go(func() { t.queue.run(ctx) })
	return t, nil
}

// closeTimeout bounds what is still written at the end.
const closeTimeout = time.Second

// Close returns when nobody is told any more. What is left, the next relay tells.
func (t *Teller) Close() {
	for _, stop := range t.stop {
		stop()
	}
	t.cancel()
	t.running.Wait()
	t.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := t.queue.close(ctx); err != nil {
		t.cfg.Log.Warn("what was told last is not kept", "error", err)
	}
}

// hear takes an item of the Board.
func (t *Teller) hear(item Item) {
	if item.told {
		return
	}
	t.mu.Lock()
	t.waiting = append(t.waiting, item)
	t.mu.Unlock()
	t.signal()
}

func (t *Teller) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Keep returns when all that is on the Board is kept by relays.
func (t *Teller) Keep() error {
	t.absorb()
	return t.queue.sync(context.Background())
}

// absorb makes jobs of what has come.
func (t *Teller) absorb() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for i := range t.waiting {
		item := &t.waiting[i]
		for _, p := range t.people[item.Tenant] {
			for w := range p.Ways {
				t.planLocked(item, p, &p.Ways[w], now)
			}
		}
	}
	t.waiting = nil
}

// afterwards ends the IDs of jobs that follow on others.
const afterwards = ".w"

// planLocked makes a job of an item, for one way, if there is to be one.
func (t *Teller) planLocked(item *Item, p *Person, w *Way, now time.Time) {
	e := &item.Event
	id := e.ID + "." + w.ID
	if item.Change == Withdrawn {
		if t.queue.state(id) == waiting && !t.busy[id] {
			t.queue.done(id, nil)
		}
		state := t.queue.state(id)
		if (w.Kind == WebPush || w.Kind == Webhook) && (state == told || state == claimed || t.busy[id]) {
			// Whether anything was told is known when it is over.
			t.queue.put(t.job(id+afterwards, item, p, w, now, now.Add(momentsFor)), now)
		}
		return
	}
	who, good := t.standing(w)
	quiet, mutes := p.TimesFor(who)
	if !good || !w.wants(e.Kind) || muted(mutes, item.Host, e, now) || !MayHear(who, item.Tenant, item.Host, e) {
		return
	}
	due, until := now, now.Add(momentsFor)
	if e.Kind.Needs() {
		until = now.Add(needsFor)
	}
	if t.looks[[2]string{p.Tenant, p.Subject}].After(now) {
		due = now.Add(lookingDelay)
	}
	if quiet != nil {
		if end, isQuiet, err := quiet.until(now); err == nil && isQuiet {
			due, until = end, end.Add(until.Sub(now))
		}
	}
	t.queue.put(t.job(id, item, p, w, due, until), now)
}

func (t *Teller) job(id string, item *Item, p *Person, w *Way, due, until time.Time) Job {
	return Job{
		ID: id, Tenant: item.Tenant, Host: item.Host, Subject: p.Subject, Way: w.ID, Event: item.Event,
		Withdrawn: item.Change == Withdrawn, Due: due.UTC(), Until: until.UTC(),
	}
}

// run has jobs done when they are due.
func (t *Teller) run(ctx context.Context) {
	for {
		t.absorb()
		next := storeRetry
		if t.prepare() == nil && !t.queue.isAway() {
			next = t.begin(ctx)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-t.wake:
		case msg := <-t.looked:
			t.hearLooking(msg)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// How long run does nothing.
const (
	longestPause = time.Minute
	storeRetry   = time.Second // while the relays' store is away
)

// begin begins what is due, and returns when it is to be called again.
func (t *Teller) begin(ctx context.Context) time.Duration {
	t.mu.Lock() // what was done before is no job any more
	defer t.mu.Unlock()
	now, next := time.Now(), longestPause
	jobs, later := t.queue.due(now)
	if !later.IsZero() {
		next = min(next, later.Sub(now))
	}
	slices.SortFunc(jobs, func(a, b *Job) int {
		return cmp.Or(a.Due.Compare(b.Due), a.Event.At.Compare(b.Event.At), cmp.Compare(a.ID, b.ID))
	})
	for _, job := range jobs {
		if t.busy[job.ID] || !t.followsLocked(job) {
			continue
		}
		if wait := t.rests[job.Way].until.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		w := t.wayLocked(job)
		if w == nil {
			t.queue.done(job.ID, nil)
			continue
		}
		to := target(w)
		if len(t.busy) >= sendsAtOnce || t.ofWay[w.ID] >= sendsOfWay || t.ofHost[to] >= sendsOfHost {
			continue // whoever ends wakes run
		}
		t.busy[job.ID] = true
		t.ofWay[w.ID]++
		t.ofHost[to]++
		t.running.Go(func() {
			if t.queue.claim(ctx, job.ID) {
				t.do(ctx, job, w)
			} else {
				pause(ctx, claimPause) // what another relay has said may not be heard yet
			}
			t.mu.Lock()
			delete(t.busy, job.ID)
			less(t.ofWay, w.ID)
			less(t.ofHost, to)
			t.mu.Unlock()
			t.signal()
		})
	}
	return next
}

// claimPause is how long a job rests that could not be claimed.
const claimPause = 100 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// followsLocked reports whether the job is over on which this one follows, if it does. If nobody
// was told then, nobody is told now.
func (t *Teller) followsLocked(job *Job) bool {
	before, follows := strings.CutSuffix(job.ID, afterwards)
	if !follows {
		return true
	}
	switch t.queue.state(before) {
	case told:
		return true
	case ended, noJob:
		t.queue.done(job.ID, nil)
	}
	return false
}

func less(counts map[string]int, key string) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// target is what the ways have in common that one server is behind.
func target(w *Way) string {
	if u, err := url.Parse(w.URL); err == nil && w.URL != "" {
		return u.Host
	}
	return string(w.Kind)
}

// wayLocked returns a copy of the way of a job, nil if it is gone.
func (t *Teller) wayLocked(job *Job) *Way {
	p := t.people[job.Tenant][job.Subject]
	if p == nil {
		return nil
	}
	for _, w := range p.Ways {
		if w.ID == job.Way {
			return &w
		}
	}
	return nil
}

// An outcome is what became of an attempt.
type outcome struct {
	name  string // of Delivery
	why   string
	after time.Duration // retry: not before; 0: whenever
}

// do does one job, or puts it off.
func (t *Teller) do(ctx context.Context, job *Job, w *Way) {
	now := time.Now()
	who, good := t.standing(w)
	e := &job.Event
	open, known, release := t.isOpen(ctx, job)
	defer release()
	switch {
	case !good, !MayHear(who, job.Tenant, job.Host, e) && e.Kind != notice.Test:
		t.queue.done(job.ID, nil)
		return
	case now.After(job.Until):
		t.end(job, outcome{name: "expired", why: "it could not be told in time"})
		return
	case job.Withdrawn || !e.Kind.Needs() || open:
	case known: // it was withdrawn while nobody heard
		t.queue.done(job.ID, nil)
		return
	case now.Sub(t.started) < reportsGrace:
		t.queue.retry(job.ID, now.Add(time.Second), job.Tries, nil)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	result := t.send(ctx, job, w, who)
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		t.queue.unsure(job.ID)
		return // the relay stops, and lets go of the job
	}
	t.end(job, result)
}

// isOpen reports whether an event is open, as far as its host has said, to whichever relay.
func (t *Teller) isOpen(ctx context.Context, job *Job) (open, known bool, release func()) {
	release = func() {}
	if job.Event.Kind.Needs() && !job.Withdrawn && t.cfg.Follow != nil {
		release = t.cfg.Follow(ctx, job.Tenant)
	}
	_, open = t.cfg.Board.Open(job.Tenant, job.Host, job.Event.ID)
	return open, open || t.cfg.Board.Heard(job.Tenant, job.Host), release
}

// end notes what became of an attempt.
func (t *Teller) end(job *Job, result outcome) {
	now := time.Now()
	t.mu.Lock()
	r := t.rests[job.Way]
	switch result.name {
	case "retry":
		r.failures++
		wait := min(firstRetry<<min(2*(r.failures-1), 20), mostRetry)
		wait = max(wait/2+mathrand.N(wait/2+1), min(result.after, mostObeyed))
		r.until = now.Add(wait)
		t.rests[job.Way] = r
	default:
		if !r.until.After(now) { // else another attempt has just failed
			delete(t.rests, job.Way)
		}
	}
	d := Delivery{ID: job.ID, Way: job.Way, Kind: job.Event.Kind, Host: job.Host, Session: job.Event.Session, At: now.UTC(), Outcome: result.name, Why: result.why}
	if job.Withdrawn {
		d.Why = cmp.Or(d.Why, "withdrawn")
	}
	t.mu.Unlock()
	log := t.cfg.Log.With("tenant", job.Tenant, "subject", job.Subject, "way", job.Way, "kind", string(job.Event.Kind))
	if result.name == "retry" {
		t.queue.retry(job.ID, r.until, job.Tries+1, &d)
		log.Info("somebody is told later", "why", result.why, "tries", job.Tries+1)
		return
	}
	t.queue.done(job.ID, &d)
	if result.name == "gone" {
		log.Info("a way is gone", "why", result.why)
		if err := t.remove(job.Tenant, job.Subject, job.Way, func(*Way) bool { return true }); err != nil && !errors.Is(err, ErrNoWay) {
			log.Error("a way that is gone cannot be removed", "error", err)
		}
	}
}

// mend lets a way that was set anew be tried at once.
func (t *Teller) mend(way string) {
	t.mu.Lock()
	delete(t.rests, way)
	t.mu.Unlock()
	t.signal()
}

// Deliveries returns what somebody was told last, by any relay, and how that went.
func (t *Teller) Deliveries(tenant, subject string) []Delivery {
	return t.queue.deliveries(tenant, subject)
}

// ErrTooOften reports what was asked for too often.
var ErrTooOften = errors.New("too often; wait a moment")

// Try tells somebody in one way that it works, now. The Delivery says whether.
func (t *Teller) Try(ctx context.Context, who auth.Client, way string) (Delivery, error) {
	job := &Job{
		Tenant: who.Tenant, Subject: who.Subject, Way: way, Until: time.Now().Add(time.Minute),
		Event: notice.Event{ID: notice.ID("test", way), Kind: notice.Test, Text: "This is how you will be told.", At: time.Now().UTC()},
	}
	key := [2]string{who.Tenant, who.Subject}
	t.mu.Lock()
	w := t.wayLocked(job)
	if w == nil {
		t.mu.Unlock()
		return Delivery{}, ErrNoWay
	}
	may := takeLocked(t.tests, key, testsAtOnce, testsEvery)
	t.mu.Unlock()
	if !may {
		return Delivery{}, ErrTooOften
	}
	result := t.send(ctx, job, w, who)
	d := Delivery{ID: "test." + strings.ToLower(rand.Text()), Way: way, Kind: notice.Test, At: time.Now().UTC(), Outcome: result.name, Why: result.why}
	t.queue.over(d.ID, who.Tenant, who.Subject, &d)
	t.signal()
	return d, nil
}

// takeLocked takes one of somebody's allowance.
func takeLocked(of map[[2]string]*allowance, key [2]string, most float64, every time.Duration) bool {
	now := time.Now()
	if len(of) > maxAllowances {
		clear(of) // all who wait get a little more
	}
	a := of[key]
	if a == nil {
		a = &allowance{most, now}
		of[key] = a
	}
	return a.take(now, most, every)
}

// maxAllowances bounds whose allowances are remembered.
const maxAllowances = 64 << 10

// SendsMail reports whether mail is a way.
func (t *Teller) SendsMail() bool { return t.cfg.Mail != nil }
