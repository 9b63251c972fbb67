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

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"
)

// Settings of a leaseServer.
const (
	// leaseQueue is the group of relays that share the requests of host-agents which do not
	// know where they are connected. NATS gives each to any of them.
	leaseQueue = "relays"

	leaseBacklog = 1024        // requests that wait, of other relays and of each tenant; more are dropped, and come again
	leaseFlush   = time.Second // for the NATS server to stop sending requests

	// leaseWrites is how many requests may wait for the store at a time. Renewals do
	// not; who asks for more is told to come again in a while.
	leaseWrites = 256
	comeAgain   = 2 * time.Second

	// leaseRate is how many requests of one host are read in a second, and leaseBurst how
	// many at once: far more than its host-agents send. More are dropped unread, and come
	// again: each costs the relay more than it costs the sender.
	leaseRate  = 50
	leaseBurst = 256

	// leasePaces is how many hosts' rates a connection remembers.
	leasePaces = 16384

	// leaseForward is how long another relay has to answer.
	leaseForward = time.Second
)

// A leaseServer answers the lease requests of host-agents: at once, if this relay keeps
// the lease and it goes on; else when the store knows.
type leaseServer struct {
	registry *Registry
	log      *slog.Logger
	writes   chan struct{} // a token for each request that waits for the store
}

func newLeaseServer(r *Registry) *leaseServer {
	return &leaseServer{registry: r, log: r.cfg.Log, writes: make(chan struct{}, leaseWrites)}
}

// A leaseConn takes the requests that come through one connection.
type leaseConn struct {
	server  *leaseServer
	conn    *broker.Conn
	tenant  string // whose host-agents ask; "": other relays do
	in      chan *nats.Msg
	quiet   chan struct{} // closed when no more requests come
	running sync.WaitGroup

	paces map[string]*rate.Limiter // of hosts; owned by work
}

// A forwardedRequest is a host-agent's request, on its way to the relay that keeps
// the lease which it is about.
type forwardedRequest struct {
	Key     string       `json:"host"`
	From    string       `json:"from"` // the relay that was asked
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

// serveTenant answers the host-agents of a tenant, until stop.
func (s *leaseServer) serveTenant(tenant string, conn *broker.Conn) (stop func(), err error) {
	c := s.newConn(tenant, conn)
	any, err := conn.QueueSubscribe(leaseSubject(tenant, "*"), leaseQueue, c.in)
	if err != nil {
		return nil, err
	}
	one, err := conn.Subscribe(leaseSubjectOf(tenant, "*", s.registry.cfg.Instance), c.in)
	if err != nil {
		any()
		return nil, err
	}
	return c.start(func() { any(); one() }), nil
}

func (s *leaseServer) newConn(tenant string, conn *broker.Conn) *leaseConn {
	return &leaseConn{
		server: s, conn: conn, tenant: tenant,
		in: make(chan *nats.Msg, leaseBacklog), quiet: make(chan struct{}), paces: map[string]*rate.Limiter{},
	}
}

// start begins to answer. Stop answers what has come in, and then ends.
func (c *leaseConn) start(unsubscribe func()) (stop func()) {
	c.running.Go(c.work)
	return func() {
		// These fail if the connection is away, and then nothing comes in.
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

// serve answers one message, or has a goroutine do that.
func (c *leaseConn) serve(msg *nats.Msg) {
	if c.tenant == "" {
		c.serveRelay(msg)
		return
	}
	s := c.server
	host := strings.SplitN(msg.Subject, ".", 5)[3] // the subscriptions have six tokens or more
	if !c.isInPace(host) {
		s.registry.mu.Lock()
		s.registry.dropped++
		s.registry.mu.Unlock()
		return
	}
	if err := ahp.CheckName("host", host); err != nil {
		s.log.Warn("lease request on a strange subject", "subject", msg.Subject, "error", err)
		return
	}
	// NATS lets a host-agent name any subject for the answer. The relay may
	// publish for all hosts of the tenant, and must not do so on its behalf.
	if !strings.HasPrefix(msg.Reply, link.HostPrefix(c.tenant, host)+"inbox.") {
		s.log.Warn("lease request with a reply subject of somebody else", "tenant", c.tenant, "host", host, "reply", msg.Reply)
		return
	}
	key := hostKey(c.tenant, host)
	req, err := readLease(msg.Data)
	if err != nil {
		c.reply(msg, key, leaseAnswer{Result: leaseRefused, Error: err.Error()})
		return
	}
	if answer, done := s.registry.renew(key, req, s.registry.cfg.Instance); done {
		c.reply(msg, key, s.complete(key, answer, req))
		return
	}
	c.inBackground(func(ctx context.Context) {
		c.reply(msg, key, s.complete(key, s.decide(ctx, key, req), req))
	}, func() {
		c.reply(msg, key, s.busy())
	})
}

// isInPace counts a request of a host, and reports whether it is one that is read.
func (c *leaseConn) isInPace(host string) bool {
	pace := c.paces[host]
	if pace == nil {
		if len(c.paces) >= leasePaces {
			clear(c.paces)
		}
		pace = rate.NewLimiter(leaseRate, leaseBurst)
		c.paces[host] = pace
	}
	return pace.Allow()
}

// inBackground has something done that may wait for the store, unless too much does already.
// It is given up when whoever asked has given up.
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

// busy has somebody come again, not together with others.
func (s *leaseServer) busy() leaseAnswer {
	s.registry.mu.Lock()
	s.registry.refused++
	s.registry.mu.Unlock()
	after := comeAgain/2 + rand.N(comeAgain)
	return leaseAnswer{Result: leaseRetry, Error: "relay is busy", After: after.Milliseconds()}
}

func (c *leaseConn) reply(msg *nats.Msg, key string, answer leaseAnswer) {
	if answer.Error != "" {
		c.server.log.Warn("lease request", "host", key, "result", string(answer.Result), "error", answer.Error)
	}
	body, err := json.Marshal(answer)
	if err == nil {
		err = c.conn.Publish(msg.Reply, body)
	}
	if err != nil {
		c.server.log.Warn("lease answer", "subject", msg.Subject, "error", err)
	}
}

// readLease reads a request.
func readLease(body []byte) (req leaseRequest, err error) {
	if len(body) > maxLeaseBody {
		return req, fmt.Errorf("request of %d bytes; want at most %d", len(body), maxLeaseBody)
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return req, errors.New("request is no JSON of the right form")
	}
	return req, req.check()
}

// complete adds to an answer what every holder of a lease is told.
func (s *leaseServer) complete(key string, answer leaseAnswer, req leaseRequest) leaseAnswer {
	answer.Gone = s.registry.goneRelays()
	if answer.Result == leaseHeld {
		answer.Relay, answer.Every = s.registry.cfg.Instance, s.registry.renewEvery(key, req.Instance)
	}
	p := req.Presence
	if _, err := link.CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", s.registry.cfg.Version); err != nil && req.Op == opHold {
		answer.Upgrade = err.Error()
	}
	return answer
}

// decide carries a request out. About a host that another instance holds, the relay
// is asked that keeps its lease: it knows whether that is renewed.
func (s *leaseServer) decide(ctx context.Context, key string, req leaseRequest) leaseAnswer {
	if keeper := s.registry.keeper(key, req.Instance); keeper != "" && req.Op == opHold {
		answer, err := s.forward(ctx, keeper, key, req)
		if err == nil {
			return answer
		}
		s.log.Info("the relay that keeps a lease does not answer", "host", key, "relay", keeper, "error", err)
	}
	return s.registry.hold(ctx, key, req, s.registry.cfg.Instance)
}

// keeper returns the other relay that keeps the lease of another instance, "" if
// there is none.
func (r *Registry) keeper(key, instance string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.hosts[key]
	if k == nil || k.kept != nil || !r.aliveLocked(k) {
		return ""
	}
	l := k.lease()
	p := r.peers[l.Keeper]
	if l.Instance == instance || l.Keeper == r.cfg.Instance || p == nil || p.rev == 0 || p.Bye {
		return ""
	}
	return l.Keeper
}

// forward has another relay decide, and keeps the lease if it is granted.
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
	// By what the store says it is this relay's now.
	if err := s.registry.refresh(ctx, key); err != nil {
		return answer, err
	}
	if again, done := s.registry.renew(key, req, s.registry.cfg.Instance); done {
		return again, nil
	}
	return answer, nil
}

// serveRelay decides for another relay.
func (c *leaseConn) serveRelay(msg *nats.Msg) {
	s := c.server
	var f forwardedRequest
	err := json.Unmarshal(msg.Data, &f)
	if err == nil {
		err = errors.Join((&hostState{Key: f.Key}).check(), ahp.CheckName("from", f.From), f.Request.check())
	}
	if err != nil {
		s.log.Warn("lease request of another relay", "error", err)
		return
	}
	c.inBackground(func(ctx context.Context) {
		c.reply(msg, f.Key, s.registry.hold(ctx, f.Key, f.Request, f.From))
	}, func() {
		c.reply(msg, f.Key, s.busy())
	})
}
