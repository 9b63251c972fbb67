package agents

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
)

// agentSilence is the time after which a silent WebSocket is closed. By then its
// host-agent has given up, because it pings after 4 s.
const agentSilence = 10 * time.Second

// idleSilence is the same for a connection that is not in use.
const idleSilence = 5 * broker.StandbyPing / 2

// A tunnel is a host-agent's WebSocket.
type tunnel struct {
	Tunnel
	host  auth.Enrolment
	since time.Time
	heard atomic.Int64 // time of the last known message after since, in ns
	reads uint32       // value of Reads at that time; owned by checkSilence
	idle  bool         // not in use yet; guarded by tunnels.mu
}

// patience returns the silence after which the WebSocket is closed.
func (s *tunnel) patience() time.Duration {
	if s.idle {
		return idleSilence
	}
	return agentSilence
}

// lastHeard returns the time of the last message, or up to a second earlier.
func (s *tunnel) lastHeard() time.Time { return s.since.Add(time.Duration(s.heard.Load())) }

// tunnels is the set of host-agents' WebSockets.
type tunnels struct {
	mu        sync.Mutex // guards the fields below
	open      map[*tunnel]bool
	checked   time.Time // last call of checkSilence
	dismissed bool
}

// join adds a WebSocket. It returns nil after dismiss.
func (a *tunnels) join(sock Tunnel, host auth.Enrolment, idle bool) *tunnel {
	s := &tunnel{Tunnel: sock, host: host, since: time.Now(), idle: idle}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dismissed {
		return nil
	}
	if a.open == nil {
		a.open = map[*tunnel]bool{}
	}
	a.open[s] = true
	return s
}

// use marks an idle WebSocket as in use.
func (a *tunnels) use(s *tunnel) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.idle = false
	s.heard.Store(int64(time.Since(s.since)))
}

// checkSilence records the host-agents with a message since the last call, and returns
// those silent for too long.
func (a *tunnels) checkSilence(now time.Time) (silent []*tunnel) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.open {
		if reads := s.Reads(); reads != s.reads {
			s.reads = reads
			s.heard.Store(int64(max(a.checked.Sub(s.since), 0)))
		} else if now.Sub(s.lastHeard()) > s.patience() {
			silent = append(silent, s)
		}
	}
	a.checked = now
	return silent
}

// attend makes the registry monitor the host-agent's connection until ended is called,
// if the instance is known.
func (a *API) attend(sock *tunnel, instance string) (ended func()) {
	if ahp.CheckName("instance", instance) != nil { // sent by older versions only
		return func() {}
	}
	return a.Registry.Attend(&registry.Line{
		Tenant: sock.host.Tenant, Host: sock.host.Host, Instance: instance,
		Heard: sock.lastHeard, Cut: func() { a.Spawn(sock.Kill) },
	})
}

// all returns the set of WebSockets.
func (a *tunnels) all() map[*tunnel]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.open)
}

func (a *tunnels) leave(sock *tunnel) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, sock)
}

// dismiss closes all WebSockets with the advice to reconnect at once. It returns when
// they are closed or ctx ends. Later WebSockets are refused.
func (a *tunnels) dismiss(ctx context.Context) {
	a.mu.Lock()
	a.dismissed = true
	var wg sync.WaitGroup
	for sock := range a.open {
		wg.Go(func() {
			defer context.AfterFunc(ctx, sock.Kill)()
			sock.Close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
		})
	}
	a.mu.Unlock()
	wg.Wait()
}

// EndSilent closes the WebSockets that were silent for too long. It is called about
// once a second.
func (a *API) EndSilent(now time.Time) {
	for _, sock := range a.tunnels.checkSilence(now) {
		a.Spawn(sock.Kill)
	}
}

// EndRevoked closes the WebSockets with revoked enrolments.
func (a *API) EndRevoked() {
	for sock := range a.tunnels.all() {
		a.endIfRevoked(sock)
	}
}

func (a *API) endIfRevoked(sock *tunnel) {
	if a.Caller.IsEnrolmentRevoked(sock.host) {
		a.Spawn(func() { sock.Close(ahp.CloseTokenEnded, auth.ErrTokenRevoked.Error()) })
	}
}

// SendAway closes all WebSockets of host-agents with the advice to reconnect at once.
// Their host-agents try other relays first, and return if they reach none.
func (a *API) SendAway() {
	for sock := range a.tunnels.all() {
		a.Spawn(func() { sock.Close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason()) })
	}
}

// Advise advises all host-agents to move to their idle connections at other relays.
// Host-agents without one stay. Idle connections here end: they lead to no better relay.
func (a *API) Advise() {
	a.tunnels.mu.Lock()
	defer a.tunnels.mu.Unlock()
	for sock := range a.tunnels.open {
		if sock.idle {
			a.Spawn(sock.Kill)
			continue
		}
		a.Spawn(func() { sock.Ping(broker.MoveAdvice) })
	}
}

// Dismiss closes all WebSockets of host-agents with the advice to reconnect at once,
// and returns when they are closed or ctx ends. Later WebSockets are refused.
func (a *API) Dismiss(ctx context.Context) { a.tunnels.dismiss(ctx) }
