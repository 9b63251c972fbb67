package gateway

import (
	"context"
	"sync"
	"time"

	"ahprelay/ahp"
)

// A relay that stops takes these steps, each with a part of the time:
//
//  1. It accepts no new clients. One after the other, clients are drained: the
//     host gets all messages that the client has sent, the client gets all
//     messages that the host has sent by then, and then close 1001. Messages
//     that the client sends before its own close frame still go to the host.
//     The host-agent keeps the connections of clients behind ahp-connect, which
//     continue elsewhere ([routing.RelayConn.Move]).
//  2. Clients still connected, because they or their hosts accept nothing, get
//     the close frame at once, and are then cut.
//  3. Links deliver the remaining messages to host-agents.
//  4. Host-agents connected through /nats are asked to reconnect elsewhere.

// drainTail divides the time for a drain: each of the last three steps keeps one part.
const drainTail = 16

// Drain closes all clients with the advice to reconnect at once, each behind its
// queued messages. It spreads them over the given time, so they do not arrive
// elsewhere together. It refuses new clients from its start, and returns when no
// client is left and their messages have reached the hosts, or when ctx ends.
func (s *Server) Drain(ctx context.Context, spread time.Duration) {
	s.draining.Store(true)
	s.endStreams()
	tail := time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		tail = time.Until(deadline) / drainTail
	}
	drained, cancel := before(ctx, 3*tail)
	defer cancel()
	s.drainClients(drained, spread)
	cut, cancel := before(ctx, 2*tail)
	defer cancel()
	s.closeClients(cut)
	for _, c := range s.hosts.all() {
		c.giveUp("drain", "still connected when the relay stops")
	}
	settled, cancel := before(ctx, tail)
	defer cancel()
	s.hosts.settle(settled)
	s.agents.Dismiss(ctx)
}

// before returns a context that ends before the deadline of ctx, by tail.
func before(ctx context.Context, tail time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline.Add(-tail))
	}
	return context.WithCancel(ctx)
}

// drainClients drains all clients, and returns when they are gone or ctx ends.
func (s *Server) drainClients(ctx context.Context, spread time.Duration) {
	for clients := s.hosts.all(); len(clients) > 0 && ctx.Err() == nil; clients = s.hosts.all() {
		s.cfg.Log.Info("closing clients with the advice to reconnect", "clients", len(clients))
		for i, c := range clients {
			if i > 0 {
				wait(ctx, time.After(spread/time.Duration(len(clients))))
			}
			c.leave()
		}
		awaitAll(ctx, clients)
		spread = 0 // for clients that have just connected
	}
}

// closeClients closes the remaining clients without a flush at their hosts, and
// returns when they are gone or ctx ends.
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

// wait returns after an event on the channel or the end of ctx.
func wait[T any](ctx context.Context, happened <-chan T) {
	select {
	case <-ctx.Done():
	case <-happened:
	}
}

// settle returns when host-agents have confirmed all messages, or ctx ends.
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
