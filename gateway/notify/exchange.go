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

// openSubject is where a relay asks the others what is open in a tenant, in their own
// account. Host-agents tell those relays that have their tenant's account open, and only
// those that serve it have: a relay where somebody follows events, or answers one, opens it,
// and asks for what was told before.
const openSubject = "ahp.relays.v1.open"

// Settings of an Exchange.
const (
	openRoom    = 256         // questions of other relays that wait; more are dropped, as if this one knew nothing
	answersRoom = 1024        // answers of theirs; the same
	followTime  = time.Second // how long is waited for them
	pieceEvents = 32          // in one answer
	pieceHosts  = 256
)

// ExchangeConfig says how to run an [Exchange].
type ExchangeConfig struct {
	Board    *Board             // required
	Conn     *broker.Conn       // required; to other relays
	Tenants  *broker.Tenants    // required
	Registry *registry.Registry // required
	Log      *slog.Logger       // required
}

// An Exchange has relays tell each other what is open, when somebody wants to know.
type Exchange struct {
	cfg     ExchangeConfig
	life    context.Context
	cancel  context.CancelFunc
	stop    []func()
	running sync.WaitGroup

	mu    sync.Mutex               // guards the fields below
	asked map[string]chan struct{} // tenants whose account has been open since others were asked; closed when they have said it
}

// An openQuestion goes to all relays.
type openQuestion struct {
	Tenant string `json:"tenant"`
}

// An openAnswer is a part of what a relay answers.
type openAnswer struct {
	Hosts []hostOpen `json:"hosts"`
	Last  bool       `json:"last"`
}

// hostOpen is what a host-agent has said is open, or a part of it.
type hostOpen struct {
	Host   string          `json:"host"`
	Report json.RawMessage `json:"report"` // notice.Report
}

// StartExchange begins to answer. Close ends it.
func StartExchange(cfg ExchangeConfig) (*Exchange, error) {
	x := &Exchange{cfg: cfg, asked: map[string]chan struct{}{}}
	x.life, x.cancel = context.WithCancel(context.Background())
	questions := make(chan *nats.Msg, openRoom)
	deaf, err := cfg.Conn.Subscribe(openSubject, questions)
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
	x.stop = append(x.stop, deaf, cfg.Tenants.Serve(func(tenant string, _ *broker.Conn) (func(), error) {
		return func() { x.closed(tenant) }, nil
	}))
	return x, nil
}

// Close returns when nothing of the Exchange runs any more.
func (x *Exchange) Close() {
	for _, stop := range x.stop {
		stop()
	}
	x.cancel()
	x.running.Wait()
}

// closed forgets that others were asked about a tenant of which this relay hears nothing more.
func (x *Exchange) closed(tenant string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.asked, tenant)
}

// Follow has the Board hear what is told in a tenant until release. It returns when the Board
// knows what other relays do, or after a moment.
func (x *Exchange) Follow(ctx context.Context, tenant string) (release func()) {
	release, err := x.cfg.Tenants.Use(tenant)
	if err != nil {
		return func() {} // there are no hosts of which anything could be told
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

// ask has others asked, once while the tenant's account is open.
func (x *Exchange) ask(tenant string) (done <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	known, begun := x.asked[tenant]
	if !begun {
		known = make(chan struct{})
		x.asked[tenant] = known
		x.running.Go(func() {
			defer close(known)
			x.askOthers(tenant)
		})
	}
	return known
}

// askOthers takes what other relays know of a tenant.
func (x *Exchange) askOthers(tenant string) {
	others := x.cfg.Registry.Stats().Relays - 1
	if others <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(x.life, followTime)
	defer cancel()
	inbox, answers := nats.NewInbox(), make(chan *nats.Msg, answersRoom)
	deaf, err := x.cfg.Conn.Subscribe(inbox, answers)
	if err != nil {
		return
	}
	defer deaf()
	body, _ := json.Marshal(openQuestion{tenant}) // no field can fail
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

// take takes an answer, and reports whether it is the last of a relay.
func (x *Exchange) take(tenant string, data []byte) (last bool) {
	var a openAnswer
	if err := json.Unmarshal(data, &a); err != nil {
		x.cfg.Log.Warn("what another relay says is open", "tenant", tenant, "error", err)
		return true
	}
	for _, h := range a.Hosts {
		report, err := notice.ReadReport(h.Report)
		if err != nil || ahp.CheckName("host", h.Host) != nil {
			x.cfg.Log.Warn("what another relay says is open", "tenant", tenant, "host", h.Host, "error", err)
			continue
		}
		// Of a host that nobody serves the last word counts, whoever has heard it.
		known, there := x.cfg.Registry.Lookup(tenant, h.Host)
		serves := known.AgentInstance
		if there && (serves == report.Instance || serves == "" && !x.cfg.Board.Heard(tenant, h.Host)) {
			x.cfg.Board.merge(tenant, h.Host, report)
		}
	}
	return a.Last
}

// answer says what this relay has heard.
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
			x.cfg.Log.Debug("what is open cannot be told to another relay", "tenant", q.Tenant, "error", err)
		}
		a, events = openAnswer{}, 0
	}
	for host, reports := range x.cfg.Board.reports(q.Tenant) {
		for _, r := range reports {
			body, _ := json.Marshal(r) // no field can fail
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
