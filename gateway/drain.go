package gateway

import (
	"context"
	"sync"
	"time"

	"ahprelay/ahp"
)

// A relay that stops goes in this order, each step with its part of the time:
//
//  1. No new clients are taken. Each client, spread over time, is left: the host
//     gets what the client has sent, the client gets what the host has said by
//     then, and then close 1001; what it sends until it closes too still goes
//     to the host.
//  2. Clients that do not end, because they or their host take nothing, are
//     told anyway, and then cut.
//  3. Links carry to the host-agents what is left.
//  4. Host-agents that came through /nats are told to go elsewhere.

// drainTail is the part of the time for a drain, one of so many, that is kept
// for each of the last three steps.
const drainTail = 16

// Drain closes all clients with the advice to reconnect at once, spread over
// the given time so that they do not all arrive elsewhere together, each
// behind what it is still to be sent. It refuses new clients from its start,
// and returns when none is left, and what they sent has reached their hosts, or
// when ctx ends.
func (s *Server) Drain(ctx context.Context, spread time.Duration) {
	s.draining.Store(true)
	s.endStreams()
	tail := time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		tail = time.Until(deadline) / drainTail
	}
	told, cancel := before(ctx, 3*tail)
	defer cancel()
	s.drainClients(told, spread)
	cut, cancel := before(ctx, 2*tail)
	defer cancel()
	s.closeClients(cut)
	for _, c := range s.hosts.all() {
		c.giveUp("drain", "still there when the relay stops")
	}
	settled, cancel := before(ctx, tail)
	defer cancel()
	s.hosts.settle(settled)
	s.agents.Dismiss(ctx)
}

// before returns a context that ends so long before the deadline of ctx.
func before(ctx context.Context, tail time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline.Add(-tail))
	}
	return context.WithCancel(ctx)
}

// drainClients leaves all clients, and returns when they are gone or ctx ends.
func (s *Server) drainClients(ctx context.Context, spread time.Duration) {
	for clients := s.hosts.all(); len(clients) > 0 && ctx.Err() == nil; clients = s.hosts.all() {
		s.cfg.Log.Info("clients are told to reconnect", "clients", len(clients))
		for i, c := range clients {
			if i > 0 {
				wait(ctx, time.After(spread/time.Duration(len(clients))))
			}
			c.leave()
		}
		awaitAll(ctx, clients)
		spread = 0 // for those that had just come
	}
}

// closeClients closes the clients that are left without asking their hosts,
// and returns when they are gone or ctx ends.
func (s *Server) closeClients(ctx context.Context) {
	clients := s.hosts.all()
	for _, c := range clients {
		c.out.close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
	}
	awaitAll(ctx, clients)
}

func awaitAll(ctx context.Context, clients []*client) {
	for _, c := range clients {
		wait(ctx, c.ctx.Done())
	}
}

// wait returns when something has happened or ctx ends.
func wait[T any](ctx context.Context, happened <-chan T) {
	select {
	case <-ctx.Done():
	case <-happened:
	}
}

// settle returns when host-agents have got all that there is for them, or ctx
// ends.
func (h *hosts) settle(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		if e.link != nil && e.link.link != nil {
			link := e.link.link
			wg.Go(func() { link.Settle(ctx) })
		}
	}
}
