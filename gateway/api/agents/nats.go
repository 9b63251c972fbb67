package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/gateway/audit"
)

// serveNATS connects a host-agent's WebSocket to the NATS server, which asks for NATS
// credentials in its own protocol. The enrolment token or credential is checked before,
// so that no unauthenticated bytes reach the server.
func (a *API) serveNATS(w http.ResponseWriter, r *http.Request) {
	idle := r.Header.Get(broker.StandbyHeader) != ""
	if after := a.full(r); after > 0 {
		a.busy(w, r, after)
		return
	}
	host, ok := a.Caller.Host(w, r)
	if !ok {
		return
	}
	if a.Stopped() || idle && a.Leaving() {
		http.Error(w, "this relay is cut off from the majority of its cluster; try another", http.StatusServiceUnavailable)
		return
	}
	admitted, over := a.Caller.Limits.ConnectAgent(host, a.Caller.Address(r))
	if over != nil {
		a.Caller.TooMany(w, over, a.HostLine("", host, r, ""))
		return
	}
	var server net.Conn
	if !idle {
		if server = a.arrive(w, r, host); server == nil {
			admitted.Leave()
			return
		}
	}
	if !a.spliceNATS(w, r, host, server, admitted.Leave) {
		admitted.Leave()
		if server != nil {
			_ = server.Close()
		}
	}
}

// idleRetry is the time after which a host-agent may request an idle connection again.
const idleRetry = 30 * time.Second

// arrive opens a connection to the NATS server when it is this login's turn. On failure
// it responds with an error and returns nil.
func (a *API) arrive(w http.ResponseWriter, r *http.Request, host auth.Enrolment) net.Conn {
	done, after := a.arrivals.Enter(r.Context(), host.Tenant, host.Host)
	if done == nil {
		a.busy(w, r, after)
		return nil
	}
	server, err := a.openNATS(r.Context(), host)
	if err != nil {
		done(false)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return nil
	}
	return newLogin(server, done)
}

// openNATS opens a connection to the NATS server. Its errors are meant for the
// host-agent.
func (a *API) openNATS(ctx context.Context, host auth.Enrolment) (net.Conn, error) {
	// A different relay may have issued the credentials, so the tenant's account may not
	// be open at this one yet.
	if err := a.Registry.Enrol(host.Tenant, host.Host); err != nil {
		a.Log.Error("host-agent refused by registry", "tenant", host.Tenant, "host", host.Host, "error", err)
		return nil, errors.New("the registry does not accept this host now; try again")
	}
	a.awaitTenant(ctx, host.Tenant)
	server, err := a.NATS(a.Life, host.Tenant, host.Host)
	if err != nil {
		a.Log.Error("NATS server unreachable", "error", err)
		return nil, errors.New("the NATS server does not accept connections now; try again")
	}
	return server, nil
}

// spliceNATS upgrades an authenticated request, and forwards bytes between the WebSocket
// and the NATS server. It returns false if the upgrade failed. It calls leave when the
// connection ends. If server is nil, the WebSocket is an idle connection: spliceNATS
// connects it to the NATS server when the host-agent begins to use it.
func (a *API) spliceNATS(w http.ResponseWriter, r *http.Request, host auth.Enrolment, server net.Conn, leave func()) bool {
	header := w.Header()
	compressed := broker.Compresses(r.Header.Get(broker.CompressHeader))
	if compressed != "" {
		header.Set(broker.CompressHeader, compressed)
	}
	if server == nil {
		header.Set(broker.StandbyHeader, "1")
	}
	header.Set(broker.RelayHeader, a.Registry.Instance())
	header.Set(broker.PlaceHeader, a.Place)
	sock, err := a.Accept(w, r)
	if err != nil {
		return false
	}
	agent := a.tunnels.join(sock, host, server == nil)
	if agent == nil {
		sock.Close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
		return false
	}
	come, gone := a.HostLine("host-connect", host, r, ""), a.HostLine("host-disconnect", host, r, "")
	instance := r.Header.Get(broker.InstanceHeader)
	a.endIfRevoked(agent) // the enrolment may have been revoked before join
	if !a.Spawn(func() {
		defer leave()
		defer a.tunnels.leave(agent)
		if server == nil {
			if server = a.awaitUse(agent); server == nil {
				return
			}
		}
		defer a.attend(agent, instance)()
		a.Caller.Audit.Comings(come)
		gone.Reason = splice(agent, server, compressed != "").Error()
		a.Caller.Audit.Comings(gone)
	}) {
		a.tunnels.leave(agent)
		sock.Kill()
		return false
	}
	return true
}

// awaitUse waits until a host-agent begins to use its idle connection, and then opens a
// connection to the NATS server. It returns nil if the idle connection ends first.
func (a *API) awaitUse(agent *tunnel) net.Conn {
	err := broker.ReadWake(agent.Stream())
	if err == nil {
		a.tunnels.use(agent)
		var server net.Conn
		if server, err = a.openNATS(a.Life, agent.host); err == nil {
			return server
		}
	}
	a.Log.Debug("idle connection of a host-agent ended", "tenant", agent.host.Tenant, "host", agent.host.Host, "error", err)
	agent.Kill()
	return nil
}

// tenantWait is how long a login waits for the tenant's account. If the account opens
// later, the host-agent's first requests are lost, and the host-agent repeats them.
const tenantWait = time.Second

func (a *API) awaitTenant(ctx context.Context, tenant string) {
	ctx, cancel := context.WithTimeout(ctx, tenantWait)
	defer cancel()
	if err := a.Registry.AwaitTenant(ctx, tenant); err != nil {
		a.Log.Debug("tenant account not open", "error", err)
	}
}

// HostLine returns an audit line about a host-agent.
func (a *API) HostLine(event string, host auth.Enrolment, r *http.Request, detail string) audit.Line {
	return audit.Line{Event: event, Tenant: host.Tenant, Host: host.Host, Token: host.ID, Address: a.Caller.Address(r), Detail: detail}
}

// errClosed is the reason if the host-agent has closed its connection itself.
var errClosed = errors.New("closed in good order")

// splice copies bytes in both directions until a side ends. The returned error names that
// side, or the relay's reason if the relay has closed sock. compressed means that the host-agent compresses what it sends.
func splice(sock *tunnel, server net.Conn, compressed bool) error {
	agent := sock.Stream()
	from := io.NopCloser(agent)
	if compressed {
		from = broker.NewUnpacker(agent)
	}
	defer from.Close()
	var once sync.Once
	var reason error
	end := func(side string, err error) {
		once.Do(func() { reason = fmt.Errorf("%s side: %w", side, err) })
		_ = server.Close()
		sock.Tunnel.Close(ahp.CloseCode(websocket.StatusNormalClosure), "")
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := broker.Pump(server, from)
		if errors.Is(err, io.ErrClosedPipe) {
			// The server has ended the connection. Its last message, such as the
			// reason for a refused login, may still be on its way to the host-agent,
			// so the other direction finishes first.
			_ = server.Close()
			return
		}
		if err == io.EOF { // the error of a loss may wrap io.EOF
			err = errClosed
		}
		end("host-agent", err)
	})
	end("NATS", broker.Pump(agent, server))
	wg.Wait()
	if why := sock.closed.Load(); why != nil {
		return fmt.Errorf("relay side: %s", *why)
	}
	return reason
}
