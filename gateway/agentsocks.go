package gateway

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/registry"
)

// agentSilence is how long a host-agent's WebSocket may bring nothing: it has given up by then
// what it does not hear itself, since it asks after 4 s.
const agentSilence = 10 * time.Second

// An agentSock is the WebSocket of a host-agent.
type agentSock struct {
	*socket
	host  auth.Enrolment
	since time.Time
	heard atomic.Int64 // how long after that it had brought something, at least, ns
	reads uint32       // lockedConn.reads then; owned by look
}

// lastHeard returns when it brought something, or up to a second before that.
func (s *agentSock) lastHeard() time.Time { return s.since.Add(time.Duration(s.heard.Load())) }

// agentSocks are the WebSockets of host-agents.
type agentSocks struct {
	mu        sync.Mutex // guards the fields below
	open      map[*agentSock]auth.Enrolment
	looked    time.Time // when look did
	dismissed bool
}

// join adds a WebSocket; nil if all are dismissed.
func (a *agentSocks) join(sock *socket, host auth.Enrolment) *agentSock {
	s := &agentSock{socket: sock, host: host, since: time.Now()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dismissed {
		return nil
	}
	if a.open == nil {
		a.open = map[*agentSock]auth.Enrolment{}
	}
	a.open[s] = host
	return s
}

// look notes which host-agents have said something since it last did, and returns those
// that have been silent for too long.
func (a *agentSocks) look(now time.Time) (silent []*agentSock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.open {
		if reads := s.conn.reads.Load(); reads != s.reads {
			s.reads = reads
			s.heard.Store(int64(max(a.looked.Sub(s.since), 0)))
		} else if now.Sub(s.lastHeard()) > agentSilence {
			silent = append(silent, s)
		}
	}
	a.looked = now
	return silent
}

// attendAgent has the registry look at the connection of a host-agent, if it is known which
// run of it this is, until it has ended.
func (s *Server) attendAgent(sock *agentSock, instance string) (ended func()) {
	if ahp.CheckName("instance", instance) != nil { // of a former version
		return func() {}
	}
	return s.cfg.Registry.Attend(&registry.Line{
		Tenant: sock.host.Tenant, Host: sock.host.Host, Instance: instance,
		Heard: sock.lastHeard, Cut: func() { s.spawn(sock.kill) },
	})
}

// all returns all WebSockets, and whose they are.
func (a *agentSocks) all() map[*agentSock]auth.Enrolment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.open)
}

func (a *agentSocks) leave(sock *agentSock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, sock)
}

// dismiss closes all with the advice to reconnect at once, and returns when
// they are closed or ctx ends. None is taken afterwards.
func (a *agentSocks) dismiss(ctx context.Context) {
	a.mu.Lock()
	a.dismissed = true
	var wg sync.WaitGroup
	for sock := range a.open {
		wg.Go(func() {
			defer context.AfterFunc(ctx, sock.kill)()
			sock.close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
		})
	}
	a.mu.Unlock()
	wg.Wait()
}
