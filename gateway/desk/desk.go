// Package desk answers requests that host-agents send to any relay in their cluster.
//
// All relays in a cluster subscribe to the subject of a kind of request as a queue group, so one of
// them gets each request. A request that exceeds the limits for its host or tenant is dropped, and
// the host-agent repeats it. Because a host-agent could name any subject for the reply, only
// subjects below the host's own prefix get replies.
//
// A [Desk] answers one kind of request. An [Office] is the common part of the packages that store
// records of hosts: it has a Desk, checks that a host-agent serves its host, and removes old
// records from time to time.
//
// A Desk is safe for concurrent use. It owns two goroutines for each tenant, and one for each request in
// progress, until it is stopped.
package desk

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/internal/fair"
)

// Limits and times.
const (
	backlog   = 4096 // queued requests per tenant; host-agents repeat dropped requests
	atOnce    = 64   // requests per tenant in progress
	hostRate  = 50   // requests per host and second
	hostBurst = 512
	queue     = "relays"
	flushTime = time.Second
	openTime  = 2 * time.Second // for Publish to open a tenant's account
)

// An Answer handles a host's request, and returns the reply.
type Answer func(ctx context.Context, tenant, host string, data []byte) []byte

// A Desk answers one kind of request, for all tenants.
type Desk struct {
	tenants *broker.Tenants
	subject func(tenant, host string) string
	answer  Answer
	log     *slog.Logger

	mu    sync.Mutex
	conns map[string]*broker.Conn // by tenant
}

// New returns a Desk for requests on subject(tenant, "*").
func New(tenants *broker.Tenants, subject func(tenant, host string) string, answer Answer, log *slog.Logger) *Desk {
	return &Desk{tenants: tenants, subject: subject, answer: answer, log: log, conns: map[string]*broker.Conn{}}
}

// Start begins to answer requests until stop is called.
func (d *Desk) Start() (stop func()) { return d.tenants.Serve(d.serve) }

// Publish sends a message to a tenant's host-agents. It opens the tenant's account if necessary, because all
// host-agents may be at other relays.
func (d *Desk) Publish(ctx context.Context, tenant, subject string, data []byte) error {
	release, err := d.tenants.Use(tenant)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if err := d.tenants.Await(ctx, tenant); err != nil {
		return err
	}
	d.mu.Lock()
	conn := d.conns[tenant]
	d.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Publish(subject, data)
}

// A counter answers the requests in a tenant.
type counter struct {
	*Desk
	tenant  string
	conn    *broker.Conn
	in      *link.Inbox
	quiet   chan struct{}
	waiting chan struct{} // has a value for each request in progress
	running sync.WaitGroup
	rates   *fair.Buckets // by host
}

// serve begins to answer the requests of a tenant's host-agents until stop is called.
func (d *Desk) serve(tenant string, conn *broker.Conn) (stop func(), err error) {
	c := &counter{
		Desk: d, tenant: tenant, conn: conn, in: link.NewInbox(backlog), quiet: make(chan struct{}),
		waiting: make(chan struct{}, atOnce), rates: fair.NewBuckets(time.Second/hostRate, hostBurst),
	}
	unsubscribe, err := conn.QueueSubscribe(d.subject(tenant, "*"), queue, c.in.In)
	if err != nil {
		return nil, err
	}
	leave := d.join(tenant, conn)
	ctx, cancel := context.WithCancel(context.Background())
	c.running.Go(func() { c.in.Run(ctx) })
	c.running.Go(func() { c.work(ctx) })
	return func() {
		// While the connection to NATS is lost, these calls fail, but no request can
		// arrive either.
		unsubscribe()
		_ = conn.Flush(flushTime)
		leave()
		close(c.quiet)
		cancel()
		c.running.Wait()
	}, nil
}

// join makes Publish use a connection until leave is called, or until a newer connection joins: an account that is
// opened again may be served before its former connection has left.
func (d *Desk) join(tenant string, conn *broker.Conn) (leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns[tenant] = conn
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.conns[tenant] == conn {
			delete(d.conns, tenant)
		}
	}
}

func (c *counter) work(ctx context.Context) {
	for {
		select {
		case <-c.quiet:
			return
		case <-c.in.Ready:
			msg := c.in.Next()
			if msg == nil {
				continue
			}
			host := strings.Split(msg.Subject, ".")[3] // the subscription has six tokens
			if ahp.CheckName("host", host) != nil || !strings.HasPrefix(msg.Reply, link.HostPrefix(c.tenant, host)+"inbox.") || !c.rates.Allow(host) {
				continue
			}
			select {
			case c.waiting <- struct{}{}:
			case <-c.quiet:
				return
			}
			c.running.Go(func() {
				defer func() { <-c.waiting }()
				if err := c.conn.Publish(msg.Reply, c.answer(ctx, c.tenant, host, msg.Data)); err != nil {
					c.log.Debug("answer to a host-agent not sent", "tenant", c.tenant, "host", host, "error", err)
				}
			})
		}
	}
}
