package notify

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/store"
	"ahprelay/internal/clock"
	"ahprelay/internal/fair"
	"ahprelay/internal/signal"
)

// Limits and times of a Notifier.
const (
	lookingFor   = 30 * time.Second // how long a page counts as visible after its report
	lookingDelay = 10 * time.Second // notifications to a person with a visible page are delayed by this time

	needsFor   = 24 * time.Hour // time after which attempts end for an event that needs a person
	momentsFor = 4 * time.Hour  // time after which attempts end for any other event

	sendsAtOnce   = 256 // a tenant may have as many as are free
	sendsOfServer = 32
	sendsOfTarget = 8
	firstRetry    = time.Second
	mostRetry     = 15 * time.Minute
	mostObeyed    = time.Hour        // longest Retry-After that a Notifier obeys
	reportsGrace  = 30 * time.Second // after a start, for host-agents to report open events

	keepDeliveries = 10
	testsEvery     = 20 * time.Second // interval of a person's tests, after testsAtOnce
	testsAtOnce    = 5
	lettersEvery   = 5 * time.Second // interval of a browser's encrypted answers, after lettersAtOnce
	lettersAtOnce  = 20
)

// Config configures a Notifier.
type Config struct {
	Board    *Board       // required
	Records  Records      // required; settings and jobs, shared by relays
	Instance string       // required; names this relay process
	Log      *slog.Logger // required

	// HasEnded reports whether another relay process is known to have ended. May be nil.
	HasEnded func(instance string) bool

	Bus     link.Bus // connects to other relays; nil if there are none
	Targets []TenantTarget

	// Follow keeps the Board up to date for a tenant until release is called. May be nil.
	Follow func(ctx context.Context, tenant string) (release func())

	// Standing returns the current authority for the token that set a target, and false
	// if that token is no longer valid. An error means that this is unknown at present.
	// Required.
	Standing func(auth.Client) (auth.Client, bool, error)

	// Capability returns the capability for an answer to a job's event, or "" if the
	// person may not answer; see package gateway/api/notify. May be nil.
	Capability func(job *Job, who auth.Client, o notice.Option) string

	PublicURL string         // the relay's base URL, for links; "": see LearnURL
	Contact   string         // the operator's contact, for push services: a mail address or https://…; required
	Mail      *MailConfig    // nil disables mail
	Private   []netip.Prefix // permitted addresses that are not public

	Transport http.RoundTripper // replaces the network in tests
}

// A Delivery is an attempt to deliver a notification.
type Delivery struct {
	ID      string      `json:"id"` // ID of the job
	Target  string      `json:"way"`
	Kind    notice.Kind `json:"kind"`
	Host    string      `json:"host"`
	Session string      `json:"session,omitempty"`
	Only    string      `json:"only,omitempty"` // as in [notice.Event]
	At      time.Time   `json:"at"`
	Outcome Result      `json:"outcome"`
	Why     string      `json:"why,omitempty"`
	Missing []string    `json:"missing,omitempty"` // in a test: what notifications to the target lack, and the remedy
}

// A Notifier sends notifications about a Board's events to people's targets. It is safe for
// concurrent use.
type Notifier struct {
	cfg      Config
	http     *http.Client
	services map[TargetKind]service
	keys     *pushKeyring
	public   *publicURL
	tests    *fair.Buckets
	letters  *fair.Buckets // rate of browsers' encrypted answers, by target
	started  time.Time
	stop     []func() // cancels the subscriptions
	queue    *queue
	looked   chan *nats.Msg // reports of visible pages from other relays
	cancel   context.CancelFunc
	wake     chan struct{} // wakes run; capacity 1
	running  sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	people   map[string]map[string]*Person
	waiting  []Item                  // items on the Board that have no jobs yet
	looking  map[[2]string]time.Time // end of a page's visibility, by tenant and subject
	backoff  map[string]backoff      // by target
	busy     map[string]bool         // running jobs
	ofTarget map[string]int          // running jobs by target
	ofServer map[string]int          // running jobs by server
	ofTenant map[string]int          // running jobs by tenant
}

// A backoff is a target's pause after failures.
type backoff struct {
	failures int
	until    time.Time
}

// Start starts a Notifier. The caller must Close it.
func Start(cfg Config) (*Notifier, error) {
	n := &Notifier{
		cfg: cfg, http: newClient(cfg.Private), keys: &pushKeyring{records: cfg.Records}, public: &publicURL{configured: cfg.PublicURL, records: cfg.Records, log: cfg.Log}, tests: fair.NewBuckets(testsEvery, testsAtOnce),
		letters: fair.NewBuckets(lettersEvery, lettersAtOnce),
		started: time.Now(), looked: make(chan *nats.Msg, lookingRoom), wake: make(chan struct{}, 1),
		people: map[string]map[string]*Person{}, looking: map[[2]string]time.Time{},
		backoff: map[string]backoff{}, busy: map[string]bool{}, ofTarget: map[string]int{}, ofServer: map[string]int{}, ofTenant: map[string]int{},
	}
	if cfg.Transport != nil {
		n.http.Transport = cfg.Transport
	}
	n.services = services(&cfg, n.http, n.keys)
	hasEnded := cfg.HasEnded
	if hasEnded == nil {
		hasEnded = func(string) bool { return false }
	}
	if err := n.addTenantTargets(context.Background(), cfg.Targets); err != nil {
		return nil, err
	}
	if cfg.Bus != nil {
		unsubscribe, err := cfg.Bus.Subscribe(lookingSubject, n.looked)
		if err != nil {
			return nil, err
		}
		n.stop = append(n.stop, unsubscribe)
	}
	n.queue = newQueue(cfg.Records, cfg.Instance, hasEnded, n.signal)
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.stop = append(n.stop, cfg.Records.Follow(SettingsPrefix, n.applyPerson), cfg.Records.Follow(pushKeysRecord, n.keys.apply), cfg.Records.Follow(publicURLRecord, n.public.apply), cfg.Board.Subscribe(n.enqueue))
	if err := n.keys.ensure(); err != nil && !errors.Is(err, store.ErrAway) {
		n.cancel()
		for _, stop := range n.stop {
			stop()
		}
		n.queue.stop()
		return nil, err
	}
	n.running.Go(func() { n.run(ctx) })
	n.running.Go(func() { n.queue.run(ctx) })
	return n, nil
}

// closeTimeout limits the last write.
const closeTimeout = time.Second

// Close ends the Notifier and waits for its goroutines. Other relays then take over its
// jobs.
func (n *Notifier) Close() {
	for _, stop := range n.stop {
		stop()
	}
	n.cancel()
	n.running.Wait()
	n.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := n.queue.close(ctx); err != nil {
		n.cfg.Log.Warn("notification jobs not stored", "error", err)
	}
}

func (n *Notifier) enqueue(item Item) {
	if item.handled {
		return
	}
	n.mu.Lock()
	n.waiting = append(n.waiting, item)
	n.mu.Unlock()
	n.signal()
}

func (n *Notifier) signal() { signal.Send(n.wake) }

// Keep returns when the jobs for all items on the Board are stored. It fails until the
// relay has read the shared records, which contain the targets.
func (n *Notifier) Keep() error {
	if !n.absorb() {
		return fmt.Errorf("notification targets not read yet: %w", store.ErrAway)
	}
	return n.queue.sync(context.Background())
}

// absorb creates jobs for the waiting items. While the targets are unknown, it does
// nothing and returns false.
func (n *Notifier) absorb() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.cfg.Records.Ready():
	default:
		n.waiting = n.waiting[max(len(n.waiting)-maxJobs, 0):] // host-agents repeat dropped items, because these are not confirmed
		return false
	}
	now := time.Now()
	for i := range n.waiting {
		item := &n.waiting[i]
		for _, p := range n.people[item.Tenant] {
			for t := range p.Targets {
				n.planLocked(item, p, &p.Targets[t], now)
			}
		}
	}
	n.waiting = nil
	return true
}

// afterwards is the ID suffix of a job that follows another job.
const afterwards = ".w"

// planEndLocked handles a withdrawn item, or a private one for a person who may not see it. It drops a job that no
// relay has begun. If the notification was or may be sent, and the target's service reports ends, it
// creates a job that does so.
func planEndLocked(n *Notifier, id string, item *Item, p *Person, t *Target, now time.Time) {
	if of := n.queue.hostOf(id); of != "" && of != item.Host {
		return // a host could report another host's event IDs
	}
	if item.Change == Withdrawn && n.queue.state(id) == waiting && !n.busy[id] { // do checks private ones, which may become visible again
		n.queue.done(id, nil)
	}
	state := n.queue.state(id)
	if t.Kind.updates() && t.reads(&item.Event) && (state == delivered || state == claimed || n.busy[id]) {
		// The new job waits for the first job, and is dropped if the first job has sent nothing.
		end := newJob(id+afterwards, item, p, t, now, now.Add(momentsFor))
		if end.Withdrawn = true; isForOthers(&end.Event, p) {
			end.Event = notice.Event{ID: end.Event.ID, Kind: end.Event.Kind, Session: end.Event.Session, Chat: end.Event.Chat, At: end.Event.At}
		}
		n.queue.put(end, now)
	}
}

// isForOthers reports whether an event is of a private session that a person may not see.
func isForOthers(e *notice.Event, p *Person) bool { return e.Only != "" && e.Only != p.Subject }

// planLocked creates the job for an item and a target, if the target wants it. For a person who may not
// see an event any more because its session has become private, the event has ended.
func (n *Notifier) planLocked(item *Item, p *Person, t *Target, now time.Time) {
	e := &item.Event
	id := e.ID + "." + t.ID
	if item.Change == Withdrawn || isForOthers(e, p) {
		planEndLocked(n, id, item, p, t, now)
		return
	}
	who, good, err := n.standing(t)
	quiet, mutes := n.TimesFor(p, who)
	gone := !good && err == nil // if it is unknown, do decides later
	if gone || !t.wants(e.Kind) || !t.reads(e) || muted(mutes, item.Host, e, now) || !MayHear(who, item.Tenant, item.Host, e) {
		return
	}
	due, until := now, now.Add(momentsFor)
	if e.Kind.Needs() {
		until = now.Add(needsFor)
	}
	if n.looking[[2]string{p.Tenant, p.Subject}].After(now) {
		due = now.Add(lookingDelay)
	}
	if quiet != nil {
		if end, isQuiet, err := quiet.until(now); err == nil && isQuiet {
			due, until = end, end.Add(until.Sub(now))
		}
	}
	n.queue.put(newJob(id, item, p, t, due, until), now)
}

func newJob(id string, item *Item, p *Person, t *Target, due, until time.Time) Job {
	e := item.Event
	e.Pushes = slices.DeleteFunc(slices.Clone(e.Pushes), func(p notice.Push) bool { return t.Kind != WebPush || p.Target != t.ID })
	return Job{
		ID: id, Tenant: item.Tenant, Host: item.Host, Subject: p.Subject, Target: t.ID, Event: e,
		Withdrawn: item.Change == Withdrawn, Due: due.UTC(), Until: until.UTC(),
	}
}

func (n *Notifier) run(ctx context.Context) {
	ready := n.cfg.Records.Ready()
	for {
		n.absorb()
		next := storeRetry
		if n.keys.ensure() == nil && !n.queue.isAway() {
			next = n.begin(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		case <-ready:
			ready = nil
		case msg := <-n.looked:
			n.applyLooking(msg)
		case <-time.After(next):
		}
	}
}

// Pauses of run.
const (
	longestPause = time.Minute
	storeRetry   = time.Second // pause while the shared store is unreachable
)

// begin starts the due jobs, and returns the pause before the next call.
func (n *Notifier) begin(ctx context.Context) time.Duration {
	n.mu.Lock() // before due, so that due omits jobs that have just ended
	defer n.mu.Unlock()
	now, next := time.Now(), longestPause
	jobs, later := n.queue.due(now)
	if !later.IsZero() {
		next = min(next, later.Sub(now))
	}
	slices.SortFunc(jobs, func(a, b *Job) int {
		return cmp.Or(a.Due.Compare(b.Due), a.Event.At.Compare(b.Event.At), cmp.Compare(a.ID, b.ID))
	})
	for _, job := range jobs {
		if n.busy[job.ID] || !n.followsLocked(job) {
			continue
		}
		if wait := n.backoff[job.Target].until.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		t := n.targetLocked(job)
		if t == nil {
			n.queue.done(job.ID, nil)
			continue
		}
		server := t.limitKey()
		if n.ofTenant[job.Tenant] >= sendsAtOnce-len(n.busy) || n.ofTarget[t.ID] >= sendsOfTarget || n.ofServer[server] >= sendsOfServer {
			continue // the end of a job wakes run
		}
		n.busy[job.ID] = true
		n.ofTarget[t.ID]++
		n.ofServer[server]++
		n.ofTenant[job.Tenant]++
		n.running.Go(func() {
			if n.queue.claim(ctx, job.ID) {
				n.do(ctx, job, t)
			} else {
				clock.Sleep(ctx, claimPause) // for a different relay's write to arrive
			}
			n.mu.Lock()
			delete(n.busy, job.ID)
			decrement(n.ofTarget, t.ID)
			decrement(n.ofServer, server)
			decrement(n.ofTenant, job.Tenant)
			n.mu.Unlock()
			n.signal()
		})
	}
	return next
}

// claimPause is a job's pause after a failed claim.
const claimPause = 100 * time.Millisecond

// followsLocked reports whether a job may begin. A job that follows another waits for it, and is
// dropped if the first has sent nothing.
func (n *Notifier) followsLocked(job *Job) bool {
	before, follows := strings.CutSuffix(job.ID, afterwards)
	if !follows {
		return true
	}
	switch n.queue.state(before) {
	case delivered:
		return true
	case ended, noJob:
		n.queue.done(job.ID, nil)
	}
	return false
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// targetLocked returns a copy of a job's target, or nil if the target was removed.
func (n *Notifier) targetLocked(job *Job) *Target {
	p := n.people[job.Tenant][job.Subject]
	if p == nil {
		return nil
	}
	for _, t := range p.Targets {
		if t.ID == job.Target {
			return &t
		}
	}
	return nil
}

// unsureWait is the pause of a job while the person's authority is unknown.
const unsureWait = 5 * time.Second

// do sends a claimed job's notification. It drops the job if the person may no longer see
// the event, or if the event has ended. It postpones the job while the person's authority is
// unknown and, for reportsGrace after the start, an event of which no relay knows. It sends the
// event as it is now, because the question may have changed since the job was made, or be for
// another subject only. Each reason to drop or postpone a job has its branch.
func (n *Notifier) do(ctx context.Context, job *Job, t *Target) {
	now := time.Now()
	who, good, err := n.standing(t)
	current, open, known, release := n.isOpen(ctx, job)
	defer release()
	if open && !job.Withdrawn {
		latest := *job
		latest.Event, latest.Event.Pushes = current, job.Event.Pushes
		job = &latest
	}
	e := &job.Event
	switch {
	case !good && err == nil, !t.reads(e), !MayHear(who, job.Tenant, job.Host, e) && e.Kind != notice.Test:
		n.queue.done(job.ID, nil)
		return
	case now.After(job.Until):
		n.end(job, outcome{result: Expired, why: "not delivered in time"})
		return
	case err != nil:
		n.queue.retry(job.ID, now.Add(unsureWait), job.Tries, nil)
		return
	case job.Withdrawn || !e.Kind.Needs() || open:
	case known: // the event has ended, although no relay has dropped the job
		n.queue.done(job.ID, nil)
		return
	case now.Sub(n.started) < reportsGrace:
		n.queue.retry(job.ID, now.Add(time.Second), job.Tries, nil)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	result := n.send(ctx, job, t, who)
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		n.queue.unsure(job.ID)
		return // the relay stops, and releases the claim
	}
	if result.result == Gone {
		result = removeGone(n, job, t, result)
	}
	n.end(job, result)
}

// removeGone removes a target after its service has answered that it is gone. If the target's address
// was changed during the attempt, the target stays, and the attempt is to be repeated.
func removeGone(n *Notifier, job *Job, t *Target, o outcome) outcome {
	log := n.cfg.Log.With("tenant", job.Tenant, "subject", job.Subject, "target", job.Target)
	err := n.remove(job.Tenant, job.Subject, job.Target, func(now *Target) bool { return now.URL == t.URL })
	switch {
	case errors.Is(err, ErrLess):
		o.result = Retry
		return o
	case err != nil && !errors.Is(err, ErrNoTarget):
		log.Error("notification target not removed", "error", err)
	}
	log.Info("notification target gone", "reason", o.why)
	return o
}

func (n *Notifier) send(ctx context.Context, job *Job, t *Target, who auth.Client) outcome {
	s := n.services[t.Kind]
	if s == nil {
		return outcome{result: Refused, why: "unknown kind"}
	}
	m := n.message(job, t, who)
	return s.send(ctx, job, t, &m)
}

// isOpen reports whether a job's event is open, and returns the event as it is now. known means
// that the host-agent's open events are known. The caller must call release.
func (n *Notifier) isOpen(ctx context.Context, job *Job) (current notice.Event, open, known bool, release func()) {
	release = func() {}
	if job.Event.Kind.Needs() && !job.Withdrawn && n.cfg.Follow != nil {
		release = n.cfg.Follow(ctx, job.Tenant)
	}
	current, open = n.cfg.Board.Open(job.Tenant, job.Host, job.Event.ID)
	return current, open, open || n.cfg.Board.knowsOpen(job.Tenant, job.Host), release
}

func (n *Notifier) end(job *Job, o outcome) {
	now := time.Now()
	n.mu.Lock()
	b := n.backoff[job.Target]
	if o.result == Retry {
		b.failures++
		wait := min(firstRetry<<min(2*(b.failures-1), 20), mostRetry)
		wait = max(wait/2+mathrand.N(wait/2+1), min(o.after, mostObeyed))
		b.until = now.Add(wait)
		n.backoff[job.Target] = b
	} else if !b.until.After(now) { // keeps a pause that a concurrent attempt has just begun
		delete(n.backoff, job.Target)
	}
	n.mu.Unlock()
	d := Delivery{ID: job.ID, Target: job.Target, Kind: job.Event.Kind, Host: job.Host, Session: job.Event.Session, Only: job.Event.Only, At: now.UTC(), Outcome: o.result, Why: o.why}
	if job.Withdrawn {
		d.Why = cmp.Or(d.Why, "withdrawn")
	}
	log := n.cfg.Log.With("tenant", job.Tenant, "subject", job.Subject, "target", job.Target, "kind", string(job.Event.Kind))
	if o.result == Retry {
		n.queue.retry(job.ID, b.until, job.Tries+1, &d)
		log.Info("notification delayed", "reason", o.why, "attempt", job.Tries+1)
		return
	}
	n.queue.done(job.ID, &d)
}

// endBackoff ends the pause of a target, because it was changed.
func (n *Notifier) endBackoff(target string) {
	n.mu.Lock()
	delete(n.backoff, target)
	n.mu.Unlock()
	n.signal()
}

// Deliveries returns a person's latest delivery attempts by all relays.
func (n *Notifier) Deliveries(tenant, subject string) []Delivery {
	return n.queue.deliveries(tenant, subject)
}

// ErrTooOften reports a rate limit.
var ErrTooOften = errors.New("too many attempts; wait a moment")

// Try sends a test notification to a target at once, and returns the result.
func (n *Notifier) Try(ctx context.Context, who auth.Client, target string) (Delivery, error) {
	job := &Job{
		Tenant: who.Tenant, Subject: who.Subject, Target: target, Until: time.Now().Add(time.Minute),
		Event: notice.Event{ID: notice.ID("test", target), Kind: notice.Test, Text: "Notifications will look like this.", At: time.Now().UTC()},
	}
	n.mu.Lock()
	t := n.targetLocked(job)
	n.mu.Unlock()
	if t == nil {
		return Delivery{}, ErrNoTarget
	}
	if n.tests.Take(personKey(who.Tenant, who.Subject)) > 0 {
		return Delivery{}, ErrTooOften
	}
	o := n.send(ctx, job, t, who)
	d := Delivery{ID: "test." + strings.ToLower(rand.Text()), Target: target, Kind: notice.Test, At: time.Now().UTC(), Outcome: o.result, Why: o.why, Missing: n.missing(t)}
	n.queue.over(d.ID, who.Tenant, who.Subject, &d)
	n.signal()
	return d, nil
}

// PushKey returns the public key with which browsers subscribe, or "" if it is not known
// yet.
func (n *Notifier) PushKey() string { return n.keys.current() }

// PublicURL returns the relays' public base URL, or "" if it is not known yet.
func (n *Notifier) PublicURL() string { return n.public.get() }

// LearnURL reports an address at which an owner's device has reached this relay. If the
// relays do not know their public base URL, they use this address.
func (n *Notifier) LearnURL(address string) { n.public.learn(address) }

// SendsMail reports whether mail is configured.
func (n *Notifier) SendsMail() bool { return n.cfg.Mail != nil }
