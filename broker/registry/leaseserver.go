package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/internal/fair"

	"github.com/nats-io/nats.go"
)

// A leaseServer's bounds.
const (
	// leaseQueue is the queue group for requests that are not addressed to a
	// particular relay. NATS delivers each of them to only one relay.
	leaseQueue = "relays"

	leaseBacklog = 1024        // waiting requests, from relays and from each tenant; further requests are dropped, and their senders repeat them
	leaseFlush   = time.Second // bound for the wait until the NATS server has stopped sending requests

	// leaseWrites bounds the requests that wait for the store. Further requests are
	// answered with leaseRetry. Renewals do not wait.
	leaseWrites = 256
	busyDelay   = 2 * time.Second

	// leaseRate (per second) and leaseBurst bound the requests per host that this relay
	// reads: far more than host-agents send. Further requests are dropped unread, and their
	// senders repeat them. The bound exists because a request costs the relay more
	// than its sender.
	leaseRate  = 50
	leaseBurst = 256

	// leaseForward bounds the wait for the answer of a different relay.
	leaseForward = time.Second
)

// A leaseServer answers the lease requests of host-agents: a renewal at once, other requests
// when the store or the lease's keeper has decided.
type leaseServer struct {
	registry *Registry
	log      *slog.Logger
	writes   chan struct{} // has a token for each request that waits for the store
}

// A leaseConn receives requests from one NATS connection.
type leaseConn struct {
	server  *leaseServer
	conn    *broker.Conn
	tenant  string // the host-agents' tenant; "": requests come from relays
	in      chan *nats.Msg
	quiet   chan struct{} // closed when no more requests arrive
	running sync.WaitGroup

	rates  *fair.Buckets // limits the requests of each host
	warned *fair.Buckets // limits the warnings about each host
}

// A forwardedRequest is a host-agent's request, forwarded to the relay that keeps the
// lease.
type forwardedRequest struct {
	Key     string       `json:"host"`
	From    string       `json:"from"` // the relay that received the request
	Request leaseRequest `json:"request"`
}

// serveRelays answers forwarded requests until stop.
func (s *leaseServer) serveRelays(conn *broker.Conn) (stop func(), err error) {
	c := s.newConn("", conn)
	unsubscribe, err := conn.Subscribe(relaySubject(s.registry.cfg.Instance, "lease"), c.in)
	if err != nil {
		return nil, err
	}
	return c.start(unsubscribe), nil
}

// serveTenant answers the requests of a tenant's host-agents until stop.
func (s *leaseServer) serveTenant(tenant string, conn *broker.Conn) (stop func(), err error) {
	c := s.newConn(tenant, conn)
	shared, err := conn.QueueSubscribe(leaseSubject(tenant, "*"), leaseQueue, c.in)
	if err != nil {
		return nil, err
	}
	own, err := conn.Subscribe(leaseSubjectOf(tenant, "*", s.registry.cfg.Instance), c.in)
	if err != nil {
		shared()
		return nil, err
	}
	return c.start(func() { shared(); own() }), nil
}

func (s *leaseServer) newConn(tenant string, conn *broker.Conn) *leaseConn {
	return &leaseConn{
		server: s, conn: conn, tenant: tenant,
		in: make(chan *nats.Msg, leaseBacklog), quiet: make(chan struct{}), rates: fair.NewBuckets(time.Second/leaseRate, leaseBurst), warned: fair.NewBuckets(time.Minute, 1),
	}
}

// start begins to answer. Stop unsubscribes, answers the waiting requests, and
// returns.
func (c *leaseConn) start(unsubscribe func()) (stop func()) {
	c.running.Go(c.work)
	return func() {
		// While disconnected, unsubscribe and Flush fail, but no request can arrive.
		unsubscribe()
		_ = c.conn.Flush(leaseFlush)
		close(c.quiet)
		c.running.Wait()
	}
}

func (c *leaseConn) work() {
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

// serve answers one request, or starts a goroutine that does.
func (c *leaseConn) serve(msg *nats.Msg) {
	if c.tenant == "" {
		c.serveRelay(msg)
		return
	}
	s := c.server
	host := strings.SplitN(msg.Subject, ".", 5)[3] // the subscriptions have at least six tokens
	if !c.rates.Allow(host) {
		s.registry.mu.Lock()
		s.registry.dropped++
		s.registry.mu.Unlock()
		if c.warned.Allow(host) {
			s.log.Warn("lease requests dropped", "tenant", c.tenant, "host", host, "reason", fmt.Sprintf("more than %d a second", leaseRate), "hint", "look for a second machine with a copy of the host's credential")
		}
		return
	}
	if err := ahp.CheckName("host", host); err != nil {
		s.log.Warn("lease request ignored", "reason", "invalid subject", "subject", msg.Subject, "error", err)
		return
	}
	// A host-agent may choose any reply subject. This relay may publish to all hosts
	// of the tenant, so it checks that the reply goes to the requesting host.
	if !strings.HasPrefix(msg.Reply, link.HostPrefix(c.tenant, host)+"inbox.") {
		s.log.Warn("lease request ignored", "reason", "foreign reply subject", "tenant", c.tenant, "host", host, "reply", msg.Reply)
		return
	}
	key := hostKey(c.tenant, host)
	req, err := readLease(msg.Data)
	if err != nil {
		c.reply(msg, key, leaseAnswer{Result: leaseRefused, Error: err.Error()})
		return
	}
	if answer, done := s.registry.keeping.renew(key, req, s.registry.cfg.Instance); done {
		c.reply(msg, key, s.complete(key, answer, req))
		return
	}
	c.inBackground(func(ctx context.Context) {
		c.reply(msg, key, s.complete(key, s.decide(ctx, key, req), req))
	}, func() {
		c.reply(msg, key, s.busy())
	})
}

// inBackground runs do in a goroutine, because it may wait for the store. If too many
// requests wait already, it calls tooMany instead. The context ends when the requester
// has stopped waiting.
func (c *leaseConn) inBackground(do func(ctx context.Context), tooMany func()) {
	select {
	case c.server.writes <- struct{}{}:
	default:
		tooMany()
		return
	}
	c.running.Go(func() {
		defer func() { <-c.server.writes }()
		ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
		defer cancel()
		do(ctx)
	})
}

// busy returns an answer that asks the requester to try again later, with some
// randomness.
func (s *leaseServer) busy() leaseAnswer {
	s.registry.mu.Lock()
	s.registry.refused++
	s.registry.mu.Unlock()
	after := busyDelay/2 + rand.N(busyDelay)
	return leaseAnswer{Result: leaseRetry, Error: "relay is busy", After: after.Milliseconds()}
}

func (c *leaseConn) reply(msg *nats.Msg, key string, answer leaseAnswer) {
	if answer.Error != "" {
		c.server.log.Warn("lease request failed", "host", key, "result", string(answer.Result), "error", answer.Error)
	}
	body, err := json.Marshal(answer)
	if err == nil {
		err = c.conn.Publish(msg.Reply, body)
	}
	if err != nil {
		c.server.log.Warn("lease answer not sent", "subject", msg.Subject, "error", err)
	}
}

func readLease(body []byte) (req leaseRequest, err error) {
	if len(body) > maxLeaseBody {
		return req, fmt.Errorf("request of %d bytes; want at most %d", len(body), maxLeaseBody)
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return req, errors.New("invalid JSON request")
	}
	return req, req.check()
}

// complete adds to an answer the crashed relays, the keeper and renewal interval of a held
// lease, and an incompatibility.
func (s *leaseServer) complete(key string, answer leaseAnswer, req leaseRequest) leaseAnswer {
	answer.Gone = s.registry.relays.goneRelays()
	if answer.Result == leaseHeld {
		answer.Relay, answer.Every = s.registry.cfg.Instance, s.registry.keeping.renewEvery(key, req.Instance)
	}
	p := req.Presence
	if _, err := link.CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", s.registry.cfg.Version); err != nil && req.Op == opHold {
		answer.Upgrade = err.Error()
	}
	return answer
}

// decide handles a request. If a different instance holds the host, the relay that
// keeps its lease decides, because it knows whether that instance is alive.
func (s *leaseServer) decide(ctx context.Context, key string, req leaseRequest) leaseAnswer {
	if keeper := s.registry.keeping.keeper(key, req.Instance); keeper != "" && req.Op == opHold {
		answer, err := s.forward(ctx, keeper, key, req)
		if err == nil {
			return answer
		}
		s.log.Info("deciding a lease without its keeper", "host", key, "relay", keeper, "error", err)
	}
	return s.registry.keeping.hold(ctx, key, req, s.registry.cfg.Instance)
}

// forward lets a different relay decide. If that relay grants the lease, this relay becomes
// its keeper.
func (s *leaseServer) forward(ctx context.Context, relay, key string, req leaseRequest) (answer leaseAnswer, err error) {
	body, err := json.Marshal(forwardedRequest{key, s.registry.cfg.Instance, req})
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, leaseForward)
	defer cancel()
	reply, err := s.registry.cfg.Conn.Request(ctx, relaySubject(relay, "lease"), body)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(reply, &answer); err != nil {
		return answer, err
	}
	if answer.Result != leaseHeld {
		return answer, nil
	}
	// The store now names this relay as keeper.
	if err := s.registry.writer.refresh(ctx, key); err != nil {
		return answer, err
	}
	if again, done := s.registry.keeping.renew(key, req, s.registry.cfg.Instance); done {
		return again, nil
	}
	return answer, nil
}

func (c *leaseConn) serveRelay(msg *nats.Msg) {
	s := c.server
	var f forwardedRequest
	err := json.Unmarshal(msg.Data, &f)
	if err == nil {
		err = errors.Join((&hostState{Key: f.Key}).check(), ahp.CheckName("from", f.From), f.Request.check())
	}
	if err != nil {
		s.log.Warn("lease request from another relay invalid", "error", err)
		return
	}
	c.inBackground(func(ctx context.Context) {
		c.reply(msg, f.Key, s.registry.keeping.hold(ctx, f.Key, f.Request, f.From))
	}, func() {
		c.reply(msg, f.Key, s.busy())
	})
}
