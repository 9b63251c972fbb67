package notify

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
)

// openSubject is the NATS subject, in the account that relays share, on which a relay
// requests a tenant's open events. Host-agents report events only to relays that have
// opened their tenant's account. So a relay that opens an account later requests the
// earlier events from the others.
const openSubject = "ahp.relays.v1.open"

// Limits and times of an Exchange.
const (
	openRoom    = 256            // queued requests from other relays; further requests get no reply
	answersRoom = 1024           // queued replies; further replies are dropped
	followTime  = time.Second    // how long a follower waits for replies
	againEvery  = 2 * followTime // shortest interval between requests about a tenant
	pieceEvents = 32             // events per reply
	pieceHosts  = 256
)

// ExchangeConfig configures an [Exchange].
type ExchangeConfig struct {
	Board    *Board             // required
	Conn     *broker.Conn       // required; to other relays
	Tenants  *broker.Tenants    // required
	Registry *registry.Registry // required
	Log      *slog.Logger       // required
}

// An Exchange lets relays request open events from each other.
type Exchange struct {
	cfg     ExchangeConfig
	life    context.Context
	cancel  context.CancelFunc
	stop    []func()
	running sync.WaitGroup

	mu    sync.Mutex         // guards the field below
	asked map[string]*asking // by tenant with an open account
}

// An asking is a request to all other relays for a tenant's open events.
type asking struct {
	at   time.Time
	done chan struct{} // closed after the replies
}

// An openQuestion is a relay's request to all others.
type openQuestion struct {
	Tenant string `json:"tenant"`
}

// An openAnswer is a reply, or a part of it.
type openAnswer struct {
	Hosts []hostOpen `json:"hosts"`
	Last  bool       `json:"last"`
}

// hostOpen is a host's report, or a part of it.
type hostOpen struct {
	Host   string          `json:"host"`
	Report json.RawMessage `json:"report"` // notice.Report
}

// StartExchange starts an Exchange. The caller must Close it.
func StartExchange(cfg ExchangeConfig) (*Exchange, error) {
	x := &Exchange{cfg: cfg, asked: map[string]*asking{}}
	x.life, x.cancel = context.WithCancel(context.Background())
	questions := make(chan *nats.Msg, openRoom)
	unsubscribe, err := cfg.Conn.Subscribe(openSubject, questions)
	if err != nil {
		x.cancel()
		return nil, err
	}
	x.running.Go(func() {
		for {
			select {
			case msg := <-questions:
				x.answer(msg)
			case <-x.life.Done():
				return
			}
		}
	})
	x.stop = append(x.stop, unsubscribe, cfg.Tenants.Serve(func(tenant string, _ *broker.Conn) (func(), error) {
		return func() { x.closed(tenant) }, nil
	}))
	return x, nil
}

// Close ends the Exchange and waits for its goroutines.
func (x *Exchange) Close() {
	for _, stop := range x.stop {
		stop()
	}
	x.cancel()
	x.running.Wait()
}

// closed forgets a tenant when this relay has closed the tenant's account.
func (x *Exchange) closed(tenant string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.asked, tenant)
}

// Follow keeps the Board up to date for a tenant until release is called. It returns when
// the other relays have replied, or after followTime.
func (x *Exchange) Follow(ctx context.Context, tenant string) (release func()) {
	release, err := x.cfg.Tenants.Use(tenant)
	if err != nil {
		return func() {} // the tenant has no hosts
	}
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	if x.cfg.Tenants.Await(ctx, tenant) != nil {
		return release
	}
	select {
	case <-x.ask(tenant):
	case <-ctx.Done():
	}
	return release
}

// ask requests a tenant's open events from other relays. While the tenant's account stays
// open, it does so only once, except for AskAgain.
func (x *Exchange) ask(tenant string) (done <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	q := x.asked[tenant]
	if q == nil {
		q = x.askLocked(tenant)
	}
	return q.done
}

// AskAgain requests a tenant's open events from other relays once more, if the latest request
// was before againEvery.
func (x *Exchange) AskAgain(tenant string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if q := x.asked[tenant]; q != nil && time.Since(q.at) >= againEvery {
		x.askLocked(tenant)
	}
}

func (x *Exchange) askLocked(tenant string) *asking {
	q := &asking{time.Now(), make(chan struct{})}
	x.asked[tenant] = q
	x.running.Go(func() {
		defer close(q.done)
		x.askOthers(tenant)
	})
	return q
}

func (x *Exchange) askOthers(tenant string) {
	others := x.cfg.Registry.Stats().Relays - 1
	if others <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(x.life, followTime)
	defer cancel()
	inbox, answers := nats.NewInbox(), make(chan *nats.Msg, answersRoom)
	unsubscribe, err := x.cfg.Conn.Subscribe(inbox, answers)
	if err != nil {
		return
	}
	defer unsubscribe()
	body, _ := json.Marshal(openQuestion{tenant}) // all fields can be encoded
	if err := x.cfg.Conn.PublishRequest(openSubject, inbox, body); err != nil {
		return
	}
	for others > 0 {
		select {
		case <-ctx.Done():
			return
		case msg := <-answers:
			if x.take(tenant, msg.Data) {
				others--
			}
		}
	}
}

// take merges a reply, and reports whether it is the last from its relay.
func (x *Exchange) take(tenant string, data []byte) (last bool) {
	var a openAnswer
	if err := json.Unmarshal(data, &a); err != nil {
		x.cfg.Log.Warn("open events of a relay unreadable", "tenant", tenant, "error", err)
		return true
	}
	for _, h := range a.Hosts {
		report, err := notice.ReadReport(h.Report)
		if err == nil {
			err = ahp.CheckName("host", h.Host)
		}
		if err != nil {
			x.cfg.Log.Warn("open events of a relay unreadable", "tenant", tenant, "host", h.Host, "error", err)
			continue
		}
		// If no host-agent serves the host now, the last known report counts.
		known, there := x.cfg.Registry.Lookup(tenant, h.Host)
		serves := known.AgentInstance
		if there && (serves == report.Instance || serves == "" && !x.cfg.Board.Heard(tenant, h.Host)) {
			x.cfg.Board.merge(tenant, h.Host, report)
		}
	}
	return a.Last
}

// answer replies with the open events that this relay knows.
func (x *Exchange) answer(msg *nats.Msg) {
	var q openQuestion
	if json.Unmarshal(msg.Data, &q) != nil || ahp.CheckName("tenant", q.Tenant) != nil || msg.Reply == "" {
		return
	}
	var a openAnswer
	events := 0
	say := func() {
		body, err := json.Marshal(a)
		if err == nil {
			err = x.cfg.Conn.Publish(msg.Reply, body)
		}
		if err != nil {
			x.cfg.Log.Debug("open events not sent to a relay", "tenant", q.Tenant, "error", err)
		}
		a, events = openAnswer{}, 0
	}
	for host, reports := range x.cfg.Board.reports(q.Tenant) {
		for _, r := range reports {
			body, _ := json.Marshal(r) // all fields can be encoded
			if events += len(r.Events); events > pieceEvents || len(a.Hosts) >= pieceHosts {
				say()
				events = len(r.Events)
			}
			a.Hosts = append(a.Hosts, hostOpen{host, body})
		}
	}
	a.Last = true
	say()
}
