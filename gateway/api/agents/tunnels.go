package agents

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
)

// agentSilence is how long a host-agent's WebSocket may bring nothing: it has given up by then
// what it does not hear itself, since it asks after 4 s.
const agentSilence = 10 * time.Second

// A tunnel is the WebSocket of a host-agent.
type tunnel struct {
	Tunnel
	host  auth.Enrolment
	since time.Time
	heard atomic.Int64 // how long after that it had brought something, at least, ns
	reads uint32       // Reads then; owned by look
}

// lastHeard returns when it brought something, or up to a second before that.
func (s *tunnel) lastHeard() time.Time { return s.since.Add(time.Duration(s.heard.Load())) }

// tunnels are the WebSockets of host-agents.
type tunnels struct {
	mu        sync.Mutex // guards the fields below
	open      map[*tunnel]bool
	looked    time.Time // when look did
	dismissed bool
}

// join adds a WebSocket; nil if all are dismissed.
func (a *tunnels) join(sock Tunnel, host auth.Enrolment) *tunnel {
	s := &tunnel{Tunnel: sock, host: host, since: time.Now()}
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

// look notes which host-agents have said something since it last did, and returns those
// that have been silent for too long.
func (a *tunnels) look(now time.Time) (silent []*tunnel) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.open {
		if reads := s.Reads(); reads != s.reads {
			s.reads = reads
			s.heard.Store(int64(max(a.looked.Sub(s.since), 0)))
		} else if now.Sub(s.lastHeard()) > agentSilence {
			silent = append(silent, s)
		}
	}
	a.looked = now
	return silent
}

// attend has the registry look at the connection of a host-agent, if it is known which
// run of it this is, until it has ended.
func (a *API) attend(sock *tunnel, instance string) (ended func()) {
	if ahp.CheckName("instance", instance) != nil { // of a former version
		return func() {}
	}
	return a.Registry.Attend(&registry.Line{
		Tenant: sock.host.Tenant, Host: sock.host.Host, Instance: instance,
		Heard: sock.lastHeard, Cut: func() { a.Spawn(sock.Kill) },
	})
}

// all returns all WebSockets.
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

// dismiss closes all with the advice to reconnect at once, and returns when
// they are closed or ctx ends. None is taken afterwards.
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

// EndSilent ends the WebSockets that have brought nothing for too long. It is called about once a
// second.
func (a *API) EndSilent(now time.Time) {
	for _, sock := range a.tunnels.look(now) {
		a.Spawn(sock.Kill)
	}
}

// EndRevoked closes the WebSockets of those whose tokens are revoked.
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

// Dismiss closes all WebSockets of host-agents with the advice to reconnect at once, and returns
// when they are closed or ctx ends. None is taken afterwards.
func (a *API) Dismiss(ctx context.Context) { a.tunnels.dismiss(ctx) }
