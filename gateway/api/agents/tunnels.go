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

// agentSilence is how long a WebSocket may be silent before it is closed. A live
// host-agent pings at least every 8 s, and its lease ends after 15 s of silence.
const agentSilence = 13 * time.Second

// idleSilence is how long an idle connection may be silent.
const idleSilence = 5 * broker.StandbyPing / 2

// A tunnel is a host-agent's WebSocket.
type tunnel struct {
	Tunnel
	host  auth.Enrolment
	since time.Time
	heard atomic.Int64 // time of the last message, in ns after since
	reads uint32       // Reads at the last call of checkSilence, which alone uses it
	idle  bool         // the host-agent does not use it yet; guarded by tunnels.mu

	closed atomic.Pointer[string] // the relay's reason for the end; nil: none
}

// Close closes the WebSocket, and notes the reason for the audit. The stream then ends as after a loss, perhaps within a compressed frame.
func (s *tunnel) Close(code ahp.CloseCode, reason string) {
	s.closed.CompareAndSwap(nil, &reason)
	s.Tunnel.Close(code, reason)
}

// patience returns how long the WebSocket may be silent.
func (s *tunnel) patience() time.Duration {
	if s.idle {
		return idleSilence
	}
	return agentSilence
}

// lastHeard returns the time of the last message, up to a second too early.
func (s *tunnel) lastHeard() time.Time { return s.since.Add(time.Duration(s.heard.Load())) }

// tunnels are the WebSockets of host-agents.
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

// checkSilence notes which host-agents have sent a message since the last call, and
// returns those that were silent for too long.
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

// attend makes the registry monitor the host-agent's connection until the caller calls
// ended. It does nothing if instance is not a valid name.
func (a *API) attend(sock *tunnel, instance string) (ended func()) {
	if ahp.CheckName("instance", instance) != nil { // old host-agents send none
		return func() {}
	}
	return a.Registry.Attend(&registry.Line{
		Tenant: sock.host.Tenant, Host: sock.host.Host, Instance: instance,
		Heard: sock.lastHeard, Cut: func() { a.Spawn(sock.Kill) },
	})
}

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

// EndSilent closes the WebSockets that were silent for too long. The caller calls it
// about once a second.
func (a *API) EndSilent(now time.Time) {
	for _, sock := range a.tunnels.checkSilence(now) {
		a.Spawn(sock.Kill)
	}
}

// EndRevoked closes the WebSockets whose enrolment is revoked.
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

// SendAway closes all WebSockets with the advice to reconnect at once. The host-agents
// try other relays first, and return if they reach none.
func (a *API) SendAway() {
	for sock := range a.tunnels.all() {
		a.Spawn(func() { sock.Close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason()) })
	}
}

// Advise asks all host-agents to move to their idle connections at other relays.
// Host-agents without such a connection stay. Idle connections at this relay are closed,
// because this relay is no better choice.
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

// Dismiss closes all WebSockets with the advice to reconnect at once, and refuses new
// ones. It returns when all are closed or ctx ends.
func (a *API) Dismiss(ctx context.Context) { a.tunnels.dismiss(ctx) }
