package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Settings of a leaseDesk.
const (
	// leaseSubjects are the requests of all host-agents. Relays share them.
	leaseSubjects = subjectRoot + "*.*.ctl.lease"
	leaseQueue    = "relays"

	deskWorkers = 8    // requests answered at a time
	deskRoom    = 2048 // requests that wait; more are dropped, and come again
	deskTimeout = 2 * time.Second
	deskFlush   = time.Second // for the NATS server to stop sending requests
	deskTries   = 10          // when others write the same key

	// lastSeenEvery is how often a record is written only to say that the host
	// is still there.
	lastSeenEvery = time.Minute
)

// A leaseDesk answers the lease requests of host-agents and writes the
// buckets. Several may work on the same ones: each write names the revision
// that it replaces.
type leaseDesk struct {
	conn          *Conn
	leases, hosts jetstream.KeyValue
	known         func(key string) (record, bool) // what the registry has heard
	log           *slog.Logger

	requests chan *nats.Msg
	errands  chan func(context.Context) // of the registry
	quiet    chan struct{}              // closed when no more requests come
	running  sync.WaitGroup
}

// start begins to answer. When ctx ends it answers what has come in, and then
// ends.
func (d *leaseDesk) start(ctx context.Context) error {
	sub, err := d.conn.nc.ChanQueueSubscribe(leaseSubjects, leaseQueue, d.requests)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", leaseSubjects, err)
	}
	for range deskWorkers {
		d.running.Go(func() { d.work(context.WithoutCancel(ctx)) })
	}
	d.running.Go(func() {
		<-ctx.Done()
		// These fail if the connection is away, and then nothing comes in.
		_ = sub.Unsubscribe()
		_ = d.conn.nc.FlushTimeout(deskFlush)
		close(d.quiet)
	})
	return nil
}

func (d *leaseDesk) work(ctx context.Context) {
	for {
		select {
		case msg := <-d.requests:
			d.serve(ctx, msg)
		case errand := <-d.errands:
			limited, cancel := context.WithTimeout(ctx, deskTimeout)
			errand(limited)
			cancel()
		case <-d.quiet:
			for {
				select {
				case msg := <-d.requests:
					d.serve(ctx, msg)
				default:
					return
				}
			}
		}
	}
}

// serve answers one message.
func (d *leaseDesk) serve(ctx context.Context, msg *nats.Msg) {
	tokens := strings.Split(msg.Subject, ".")
	tenant, host := tokens[2], tokens[3] // the subscription has six tokens
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		d.log.Warn("lease request on a strange subject", "subject", msg.Subject, "error", err)
		return
	}
	// NATS lets a host-agent name any subject for the answer. The relay may
	// publish everywhere, and must not do so on its behalf.
	if !strings.HasPrefix(msg.Reply, HostPrefix(tenant, host)+"inbox.") {
		d.log.Warn("lease request with a reply subject of somebody else", "tenant", tenant, "host", host, "reply", msg.Reply)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deskTimeout)
	defer cancel()
	answer := d.answer(ctx, tenant, host, msg.Data)
	if answer.Error != "" {
		d.log.Warn("lease request", "tenant", tenant, "host", host, "result", string(answer.Result), "error", answer.Error)
	}
	body, err := json.Marshal(answer)
	if err == nil {
		err = d.conn.Publish(msg.Reply, body)
	}
	if err != nil {
		d.log.Warn("lease answer", "tenant", tenant, "host", host, "error", err)
	}
}

func (d *leaseDesk) answer(ctx context.Context, tenant, host string, body []byte) leaseAnswer {
	var req leaseRequest
	if len(body) > maxLeaseBody {
		return leaseAnswer{Result: leaseRefused, Error: fmt.Sprintf("request of %d bytes; want at most %d", len(body), maxLeaseBody)}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return leaseAnswer{Result: leaseRefused, Error: "request is no JSON of the right form"}
	}
	if err := req.check(); err != nil {
		return leaseAnswer{Result: leaseRefused, Error: err.Error()}
	}
	answer, err := d.apply(ctx, hostKey(tenant, host), req)
	if err != nil {
		return leaseAnswer{Result: leaseRetry, Error: err.Error()}
	}
	return answer
}

// apply carries a request out, as if no other relay did anything meanwhile.
func (d *leaseDesk) apply(ctx context.Context, key string, req leaseRequest) (leaseAnswer, error) {
	for range deskTries {
		current, revision, err := getValue[lease](ctx, d.leases, key)
		if err != nil {
			return leaseAnswer{}, err
		}
		var before record
		if current == nil {
			if r, _, err := getValue[record](ctx, d.hosts, key); err != nil {
				return leaseAnswer{}, err
			} else if r != nil {
				before = *r
			}
		}
		now := time.Now().UTC()
		next, answer := decide(current, before, revision, req, now)
		if next == nil {
			return answer, nil
		}
		revision, err = putValue(ctx, d.leases, key, next, revision)
		if errors.Is(err, errOvertaken) {
			continue
		}
		if err != nil {
			return leaseAnswer{}, err
		}
		if err := d.note(ctx, key, recordOf(next, revision, now)); err != nil {
			d.log.Warn("host record", "host", key, "error", err) // the lease counts
		}
		return answer, nil
	}
	return leaseAnswer{}, errOvertaken
}

// recordOf returns what a lease says about its host.
func recordOf(l *lease, revision uint64, seen time.Time) record {
	presence := l.Presence
	presence.Clients = 0 // changes often, and means nothing without a lease
	return record{
		LastSeen: seen, Since: l.Since, Instance: l.Instance, Revision: revision, Presence: presence,
	}
}

// note writes a record if it has news.
func (d *leaseDesk) note(ctx context.Context, key string, news record) error {
	if known, ok := d.known(key); ok && known.says(news) {
		return nil
	}
	for range deskTries {
		old, revision, err := getValue[record](ctx, d.hosts, key)
		if err != nil {
			return err
		}
		news.Enrolled = news.LastSeen
		if old != nil {
			news.Enrolled = old.Enrolled
			if old.says(news) || old.newer(news) {
				return nil
			}
		}
		if _, err = putValue(ctx, d.hosts, key, &news, revision); !errors.Is(err, errOvertaken) {
			return err
		}
	}
	return errOvertaken
}

// says reports whether news is not worth writing.
func (r *record) says(news record) bool {
	return r.Presence == news.Presence && r.Instance == news.Instance && r.Since.Equal(news.Since) &&
		news.LastSeen.Sub(r.LastSeen) < lastSeenEvery
}

// newer reports whether r was written after news came in: revisions of leases
// only grow, unless their bucket was lost.
func (r *record) newer(news record) bool {
	return r.Revision > news.Revision && news.LastSeen.Sub(r.LastSeen) < 2*lastSeenEvery
}

// enrol writes the record of a host that has none.
func (d *leaseDesk) enrol(ctx context.Context, key string) error {
	if _, ok := d.known(key); ok {
		return nil
	}
	now := time.Now().UTC()
	_, err := putValue(ctx, d.hosts, key, &record{
		Enrolled: now, Since: now, Presence: Presence{State: Offline, Reason: reasonNever},
	}, 0)
	if errors.Is(err, errOvertaken) {
		return nil
	}
	return err
}

// errOvertaken reports that another relay wrote the same key.
var errOvertaken = errors.New("others write the same host all the time")

// getValue reads a value; nil means that there is none. Revision is zero then.
func getValue[V any](ctx context.Context, bucket jetstream.KeyValue, key string) (value *V, revision uint64, err error) {
	entry, err := bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", bucket.Bucket(), err)
	}
	value = new(V)
	if err := json.Unmarshal(entry.Value(), value); err != nil {
		return nil, 0, fmt.Errorf("read %s: %s: %w", bucket.Bucket(), key, err)
	}
	return value, entry.Revision(), nil
}

// putValue writes a value in place of the one with the given revision, zero if
// there is none. The error is errOvertaken if that is no longer there.
func putValue[V any](ctx context.Context, bucket jetstream.KeyValue, key string, value *V, revision uint64) (uint64, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	if revision == 0 {
		revision, err = bucket.Create(ctx, key, data)
	} else {
		revision, err = bucket.Update(ctx, key, data, revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return 0, errOvertaken
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", bucket.Bucket(), err)
	}
	return revision, nil
}
