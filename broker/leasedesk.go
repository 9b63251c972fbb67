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
)

// Settings of a leaseDesk.
const (
	// leaseSubjects are the requests of all host-agents. Relays share them.
	leaseSubjects = subjectRoot + "*.*.ctl.lease"
	leaseQueue    = "relays"

	deskWorkers = 8           // requests answered at a time
	deskRoom    = 2048        // requests that wait; more are dropped, and come again
	deskFlush   = time.Second // for the NATS server to stop sending requests

	// deskForward is how long another relay has to decide.
	deskForward = time.Second
)

// A leaseDesk answers the lease requests of host-agents. It has the relay
// decide that all relays agree on, and decides itself if that does not answer.
type leaseDesk struct {
	conn     *Conn
	registry *Registry
	log      *slog.Logger

	requests chan *nats.Msg // of host-agents and relays
	quiet    chan struct{}  // closed when no more requests come
	running  sync.WaitGroup
}

// A forwardedRequest is a host-agent's request, on its way between relays. The
// relay that decides is to know what the other does, and the other way round.
type forwardedRequest struct {
	State   hostState    `json:"state"`
	Request leaseRequest `json:"request"`
}

// A forwardedAnswer goes back.
type forwardedAnswer struct {
	State  hostState   `json:"state"`
	Answer leaseAnswer `json:"answer"`
}

func newLeaseDesk(r *Registry) *leaseDesk {
	return &leaseDesk{
		conn: r.cfg.Conn, registry: r, log: r.cfg.Log,
		requests: make(chan *nats.Msg, deskRoom), quiet: make(chan struct{}),
	}
}

// start begins to answer. When ctx ends it answers what has come in, and then
// ends.
func (d *leaseDesk) start(ctx context.Context) error {
	forwarded, err := d.conn.Subscribe(relaySubject(d.registry.cfg.Instance, "lease"), d.requests)
	if err != nil {
		return err
	}
	sub, err := d.conn.nc.ChanQueueSubscribe(leaseSubjects, leaseQueue, d.requests)
	if err != nil {
		forwarded()
		return fmt.Errorf("subscribe to %s: %w", leaseSubjects, err)
	}
	for range deskWorkers {
		d.running.Go(func() { d.work(context.WithoutCancel(ctx)) })
	}
	d.running.Go(func() {
		<-ctx.Done()
		// These fail if the connection is away, and then nothing comes in.
		_ = sub.Unsubscribe()
		forwarded()
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
	if strings.HasPrefix(msg.Subject, relayRoot) {
		d.serveRelay(msg)
		return
	}
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
	answer := d.answer(ctx, hostKey(tenant, host), msg.Data)
	if answer.Error != "" {
		d.log.Warn("lease request", "tenant", tenant, "host", host, "result", string(answer.Result), "error", answer.Error)
	}
	answer.Gone = d.registry.goneRelays()
	d.reply(msg, answer)
}

func (d *leaseDesk) reply(msg *nats.Msg, answer any) {
	body, err := json.Marshal(answer)
	if err == nil {
		err = d.conn.Publish(msg.Reply, body)
	}
	if err != nil {
		d.log.Warn("lease answer", "subject", msg.Subject, "error", err)
	}
}

func (d *leaseDesk) answer(ctx context.Context, key string, body []byte) leaseAnswer {
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
	answer := d.decide(ctx, key, req)
	p := req.Presence
	if _, err := CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", d.registry.cfg.Version); err != nil && req.Op == opHold {
		answer.Upgrade = err.Error()
	}
	return answer
}

// decide carries a request out, or has another relay do so.
func (d *leaseDesk) decide(ctx context.Context, key string, req leaseRequest) leaseAnswer {
	if decider := d.registry.decider(); decider != "" {
		answer, err := d.forward(ctx, decider, key, req)
		if err == nil {
			return answer
		}
		d.log.Info("a relay that is to decide about leases does not answer; deciding here", "relay", decider, "error", err)
		d.registry.doubt(decider)
	}
	return d.registry.hold(key, req)
}

// forward has another relay decide.
func (d *leaseDesk) forward(ctx context.Context, relay, key string, req leaseRequest) (answer leaseAnswer, err error) {
	body, err := json.Marshal(forwardedRequest{d.registry.state(key), req})
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, deskForward)
	defer cancel()
	reply, err := d.conn.Request(ctx, relaySubject(relay, "lease"), body)
	if err != nil {
		return answer, err
	}
	var f forwardedAnswer
	if err := json.Unmarshal(reply, &f); err != nil {
		return answer, err
	}
	d.registry.hear([]hostState{f.State})
	return f.Answer, nil
}

// serveRelay decides for another relay. It does not ask a third: while relays
// have not heard of each other they may think different ones the eldest.
func (d *leaseDesk) serveRelay(msg *nats.Msg) {
	var f forwardedRequest
	err := json.Unmarshal(msg.Data, &f)
	if err == nil {
		err = errors.Join(f.State.check(), f.Request.check())
	}
	if err != nil {
		d.log.Warn("lease request of another relay", "error", err)
		return
	}
	d.registry.hear([]hostState{f.State})
	answer := d.registry.hold(f.State.Key, f.Request)
	d.reply(msg, forwardedAnswer{d.registry.state(f.State.Key), answer})
}
