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
	// leaseQueue is the queue group in which relays share the requests of host-agents
	// without a known relay. NATS gives each request to a single relay.
	leaseQueue = "relays"

	leaseBacklog = 1024        // waiting requests, from relays and from each tenant; more are dropped and repeated by their senders
	leaseFlush   = time.Second // bound for the NATS server to stop sending requests

	// leaseWrites bounds the requests waiting for the store. Renewals do not wait.
	// Beyond the bound, the answer is to ask again later.
	leaseWrites = 256
	busyDelay   = 2 * time.Second

	// leaseRate and leaseBurst bound the requests read for a host: far more than its
	// host-agents send. The rest is dropped unread and repeated, because a request
	// costs the relay more than its sender.
	leaseRate  = 50
	leaseBurst = 256

	// leaseForward bounds the wait for another relay's answer.
	leaseForward = time.Second
)

// A leaseServer answers the lease requests of host-agents: at once if this relay keeps
// the lease and it continues, otherwise after the store has decided.
type leaseServer struct {
	registry *Registry
	log      *slog.Logger
	writes   chan struct{} // a token for each request waiting for the store
}

func newLeaseServer(r *Registry) *leaseServer {
	return &leaseServer{registry: r, log: r.cfg.Log, writes: make(chan struct{}, leaseWrites)}
}

// A leaseConn receives a connection's requests.
type leaseConn struct {
	server  *leaseServer
	conn    *broker.Conn
	tenant  string // of the host-agents; "": requests come from relays
	in      chan *nats.Msg
	quiet   chan struct{} // closed when no more requests arrive
	running sync.WaitGroup

	rates *fair.Buckets // by host
}

// A forwardedRequest is a host-agent's request, on its way to the lease's keeper.
type forwardedRequest struct {
	Key     string       `json:"host"`
	From    string       `json:"from"` // the first recipient
	Request leaseRequest `json:"request"`
}

// serveRelays answers other relays, until stop.
func (s *leaseServer) serveRelays(conn *broker.Conn) (stop func(), err error) {
	c := s.newConn("", conn)
	unsubscribe, err := conn.Subscribe(relaySubject(s.registry.cfg.Instance, "lease"), c.in)
	if err != nil {
		return nil, err
	}
	return c.start(unsubscribe), nil
}

// serveTenant answers a tenant's host-agents, until stop.
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
		in: make(chan *nats.Msg, leaseBacklog), quiet: make(chan struct{}), rates: fair.NewBuckets(time.Second/leaseRate, leaseBurst),
	}
}

// start begins to answer. Stop answers the waiting requests, and returns.
func (c *leaseConn) start(unsubscribe func()) (stop func()) {
	c.running.Go(c.work)
	return func() {
		// Without a connection, unsubscribe and Flush fail, and no request arrives.
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

// serve answers one message, or starts a goroutine that does.
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
		return
	}
	if err := ahp.CheckName("host", host); err != nil {
		s.log.Warn("lease request on an invalid subject", "subject", msg.Subject, "error", err)
		return
	}
	// NATS lets a host-agent choose any reply subject. The relay may publish to all
	// hosts of the tenant, and must not do so on behalf of a single host.
	if !strings.HasPrefix(msg.Reply, link.HostPrefix(c.tenant, host)+"inbox.") {
		s.log.Warn("lease request with a foreign reply subject", "tenant", c.tenant, "host", host, "reply", msg.Reply)
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

// inBackground runs do, which may wait for the store, unless too many requests wait
// already. The context ends when the requester has given up.
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

// busy returns the answer to ask again later, with jitter.
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

// readLease parses a request.
func readLease(body []byte) (req leaseRequest, err error) {
	if len(body) > maxLeaseBody {
		return req, fmt.Errorf("request of %d bytes; want at most %d", len(body), maxLeaseBody)
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return req, errors.New("invalid JSON request")
	}
	return req, req.check()
}

// complete adds the fields for every holder to an answer.
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

// decide executes a request. If another instance holds the host, the lease's keeper
// decides, because it knows about renewals.
func (s *leaseServer) decide(ctx context.Context, key string, req leaseRequest) leaseAnswer {
	if keeper := s.registry.keeping.keeper(key, req.Instance); keeper != "" && req.Op == opHold {
		answer, err := s.forward(ctx, keeper, key, req)
		if err == nil {
			return answer
		}
		s.log.Info("the relay that keeps the lease has not decided; this relay decides", "host", key, "relay", keeper, "error", err)
	}
	return s.registry.keeping.hold(ctx, key, req, s.registry.cfg.Instance)
}

// forward lets another relay decide, and keeps the lease if it is granted.
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
	// The store now assigns the lease to this relay.
	if err := s.registry.writer.refresh(ctx, key); err != nil {
		return answer, err
	}
	if again, done := s.registry.keeping.renew(key, req, s.registry.cfg.Instance); done {
		return again, nil
	}
	return answer, nil
}

// serveRelay decides on behalf of another relay.
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
