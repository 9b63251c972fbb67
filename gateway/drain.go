package gateway

import (
	"context"
	"sync"
	"time"

	"ahprelay/ahp"
)

// Drain closes clients in these steps, each within a part of the available time:
//
//   1. The relay refuses new clients, and waits for handshakes in progress. It then
//      drains the connected clients in turn: it delivers all messages sent by the
//      client, then all messages sent by the host until then, and closes the connection
//      with 1001. Messages that the client sends before its own close frame are
//      delivered too. A client whose network connection is lost may return to its
//      stream meanwhile. For clients behind ahp-connect, the host-agent keeps the host
//      connection for the next relay ([routing.RelayConn.Move]).
//   2. Clients that are still connected, because they or their hosts do not read, get
//      the close frame at once. Then their connections are cut.
//   3. The remaining messages are delivered to host-agents, and the links end.
//   4. Host-agents connected through /nats are asked to reconnect to a different relay.

// drainTail divides the drain time: each of the last three steps gets 1/drainTail.
const drainTail = 16

// Drain refuses new clients, and closes the connected ones after their queued messages,
// with the advice to reconnect. It spreads the closes over the given time, so that clients
// do not reconnect together. It returns when all clients are gone and their messages have
// reached the hosts, or when ctx ends.
func (s *Server) Drain(ctx context.Context, spread time.Duration) {
	s.mu.Lock()
	s.draining.Store(true)
	s.mu.Unlock()
	s.endStreams()
	if s.carried != nil {
		s.carried.relay.Leave()
	}
	tail := time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		tail = time.Until(deadline) / drainTail
	}
	drained, cancel := before(ctx, 3*tail)
	defer cancel()
	joined := make(chan struct{})
	if s.spawn(func() {
		s.joining.Wait()
		close(joined)
	}) {
		wait(drained, joined)
	}
	s.drainClients(drained, spread)
	cut, cancel := before(ctx, 2*tail)
	defer cancel()
	s.closeClients(cut)
	for _, c := range s.hosts.all() {
		c.giveUp("drain", "still connected when the relay stops")
	}
	ended, cancel := before(ctx, tail)
	defer cancel()
	s.hosts.end(ended)
	s.agents.Dismiss(ctx)
}

// before returns a context that ends tail before the deadline of ctx.
func before(ctx context.Context, tail time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline.Add(-tail))
	}
	return context.WithCancel(ctx)
}

// drainClients drains all clients, and returns when they are gone or ctx ends.
func (s *Server) drainClients(ctx context.Context, spread time.Duration) {
	for clients := s.hosts.all(); len(clients) > 0 && ctx.Err() == nil; clients = s.hosts.all() {
		s.cfg.Log.Info("asking clients to reconnect", "clients", len(clients))
		for i, c := range clients {
			if i > 0 {
				wait(ctx, time.After(spread/time.Duration(len(clients))))
			}
			c.leave()
		}
		awaitAll(ctx, clients)
		spread = 0 // clients that have connected meanwhile are closed without a delay
	}
}

// closeClients closes the remaining clients without waiting for their hosts, and returns
// when all are gone or ctx ends.
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

// end delivers the remaining messages to host-agents, ends all links, and refuses new ones. It returns
// when host-agents have confirmed the messages and the ends, or ctx ends. A host-agent that is
// connected through this relay could not be told later.
func (h *hosts) end(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, e := range h.entries {
		if l := e.link; l != nil && l.link != nil {
			link := l.link
			wg.Go(func() {
				link.End(ctx)
				l.cancel(errRelayClosed)
			})
		}
	}
}
