package registry

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
	"ahprelay/broker"
	"ahprelay/link"

	"github.com/nats-io/nats.go"
)

// Settings of a leaseDesk.
const (
	// leaseQueue is the group of relays that share the requests of host-agents.
	leaseQueue = "relays"

	deskWorkers   = 8           // requests of other relays that are answered at a time
	tenantWorkers = 2           // the same of a tenant's host-agents
	deskRoom      = 1024        // requests that wait, of other relays and of each tenant; more are dropped, and come again
	deskFlush     = time.Second // for the NATS server to stop sending requests

	// deskForward is how long another relay has to decide.
	deskForward = time.Second
)

// A leaseDesk answers the lease requests of host-agents, those of each tenant
// apart, so that none has to wait for another's. It has the relay decide that
// all relays agree on, and decides itself if that does not answer.
type leaseDesk struct {
	registry *Registry
	log      *slog.Logger
}

// A counter takes the requests that come through one connection.
type counter struct {
	desk    *leaseDesk
	conn    *broker.Conn
	tenant  string // whose host-agents ask; "": other relays do
	in      chan *nats.Msg
	quiet   chan struct{} // closed when no more requests come
	running sync.WaitGroup
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

// serveRelays decides for other relays, until stop.
func (d *leaseDesk) serveRelays(conn *broker.Conn) (stop func(), err error) {
	c := d.newCounter("", conn)
	unsubscribe, err := conn.Subscribe(relaySubject(d.registry.cfg.Instance, "lease"), c.in)
	if err != nil {
		return nil, err
	}
	return c.start(deskWorkers, unsubscribe), nil
}

// serveTenant answers the host-agents of a tenant, until stop.
func (d *leaseDesk) serveTenant(tenant string, conn *broker.Conn) (stop func(), err error) {
	c := d.newCounter(tenant, conn)
	subject := leaseSubject(tenant, "*")
	unsubscribe, err := conn.QueueSubscribe(subject, leaseQueue, c.in)
	if err != nil {
		return nil, err
	}
	return c.start(tenantWorkers, unsubscribe), nil
}

func (d *leaseDesk) newCounter(tenant string, conn *broker.Conn) *counter {
	return &counter{
		desk: d, conn: conn, tenant: tenant,
		in: make(chan *nats.Msg, deskRoom), quiet: make(chan struct{}),
	}
}

// start begins to answer. Stop answers what has come in, and then ends.
func (c *counter) start(workers int, unsubscribe func()) (stop func()) {
	for range workers {
		c.running.Go(c.work)
	}
	return func() {
		// These fail if the connection is away, and then nothing comes in.
		unsubscribe()
		_ = c.conn.Flush(deskFlush)
		close(c.quiet)
		c.running.Wait()
	}
}

func (c *counter) work() {
	for {
		select {
		case msg := <-c.in:
			c.serve(msg)
		case <-c.quiet:
			for {
				select {
				case msg := <-c.in:
					c.serve(msg)
				default:
					return
				}
			}
		}
	}
}

// serve answers one message.
func (c *counter) serve(msg *nats.Msg) {
	d := c.desk
	if c.tenant == "" {
		c.serveRelay(msg)
		return
	}
	host := strings.Split(msg.Subject, ".")[3] // the subscription has six tokens
	if err := ahp.CheckName("host", host); err != nil {
		d.log.Warn("lease request on a strange subject", "subject", msg.Subject, "error", err)
		return
	}
	// NATS lets a host-agent name any subject for the answer. The relay may
	// publish for all hosts of the tenant, and must not do so on its behalf.
	if !strings.HasPrefix(msg.Reply, link.HostPrefix(c.tenant, host)+"inbox.") {
		d.log.Warn("lease request with a reply subject of somebody else", "tenant", c.tenant, "host", host, "reply", msg.Reply)
		return
	}
	answer := d.answer(hostKey(c.tenant, host), msg.Data)
	if answer.Error != "" {
		d.log.Warn("lease request", "tenant", c.tenant, "host", host, "result", string(answer.Result), "error", answer.Error)
	}
	answer.Gone = d.registry.goneRelays()
	c.reply(msg, answer)
}

func (c *counter) reply(msg *nats.Msg, answer any) {
	body, err := json.Marshal(answer)
	if err == nil {
		err = c.conn.Publish(msg.Reply, body)
	}
	if err != nil {
		c.desk.log.Warn("lease answer", "subject", msg.Subject, "error", err)
	}
}

func (d *leaseDesk) answer(key string, body []byte) leaseAnswer {
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
	answer := d.decide(key, req)
	p := req.Presence
	if _, err := link.CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", d.registry.cfg.Version); err != nil && req.Op == opHold {
		answer.Upgrade = err.Error()
	}
	return answer
}

// decide carries a request out, or has another relay do so.
func (d *leaseDesk) decide(key string, req leaseRequest) leaseAnswer {
	if decider := d.registry.decider(); decider != "" {
		answer, err := d.forward(decider, key, req)
		if err == nil {
			return answer
		}
		d.log.Info("a relay that is to decide about leases does not answer; deciding here", "relay", decider, "error", err)
		d.registry.doubt(decider)
	}
	return d.registry.hold(key, req)
}

// forward has another relay decide.
func (d *leaseDesk) forward(relay, key string, req leaseRequest) (answer leaseAnswer, err error) {
	body, err := json.Marshal(forwardedRequest{d.registry.state(key), req})
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deskForward)
	defer cancel()
	reply, err := d.registry.cfg.Conn.Request(ctx, relaySubject(relay, "lease"), body)
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
func (c *counter) serveRelay(msg *nats.Msg) {
	d := c.desk
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
	c.reply(msg, forwardedAnswer{d.registry.state(f.State.Key), answer})
}
