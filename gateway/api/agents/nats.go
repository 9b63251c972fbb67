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

// serveNATS joins a host-agent's WebSocket to the NATS server. The server asks for
// NATS credentials in its own protocol. The enrolment token is checked first, so that
// unauthenticated bytes never reach the server.
func (a *API) serveNATS(w http.ResponseWriter, r *http.Request) {
	host, ok := a.Caller.Host(w, r)
	if !ok {
		return
	}
	if a.Stopped() {
		http.Error(w, "this relay is cut off from the majority of its cluster; try another", http.StatusServiceUnavailable)
		return
	}
	admitted, over := a.Caller.Limits.ConnectAgent(host, a.Caller.Address(r))
	if over != nil {
		a.Caller.TooMany(w, over, a.HostLine("", host, r, ""))
		return
	}
	if !a.spliceNATS(w, r, host, admitted.Leave) {
		admitted.Leave()
	}
}

// spliceNATS joins an authenticated WebSocket to the NATS server, and reports whether
// it did. It calls leave when the connection ends.
func (a *API) spliceNATS(w http.ResponseWriter, r *http.Request, host auth.Enrolment, leave func()) bool {
	// A different relay may have issued the credentials: make sure that the account is
	// open.
	if err := a.Registry.Enrol(host.Tenant, host.Host); err != nil {
		a.Log.Error("host-agent refused by registry", "tenant", host.Tenant, "host", host.Host, "error", err)
		http.Error(w, "the registry does not accept this host now; try again", http.StatusServiceUnavailable)
		return false
	}
	a.awaitTenant(r.Context(), host.Tenant)
	server, err := a.NATS(a.Life, host.Tenant, host.Host)
	if err != nil {
		a.Log.Error("NATS server unreachable", "error", err)
		http.Error(w, "the NATS server does not accept connections now; try again", http.StatusServiceUnavailable)
		return false
	}
	compressed := broker.Compresses(r.Header.Get(broker.CompressHeader))
	if compressed != "" {
		w.Header().Set(broker.CompressHeader, compressed)
	}
	w.Header().Set(broker.RelayHeader, a.Registry.Instance())
	sock, err := a.Accept(w, r)
	if err != nil {
		_ = server.Close()
		return false
	}
	agent := a.tunnels.join(sock, host)
	if agent == nil {
		sock.Close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
		_ = server.Close()
		return false
	}
	a.Caller.Audit.Comings(a.HostLine("host-connect", host, r, ""))
	gone := a.HostLine("host-disconnect", host, r, "")
	a.endIfRevoked(agent) // it may have been revoked before it joined
	if !a.Spawn(func() {
		defer leave()
		defer a.tunnels.leave(agent)
		defer a.attend(agent, r.Header.Get(broker.InstanceHeader))()
		gone.Reason = splice(sock, server, compressed != "").Error()
		a.Caller.Audit.Comings(gone)
	}) {
		a.tunnels.leave(agent)
		sock.Kill()
		_ = server.Close()
		return false
	}
	return true
}

// tenantWait is the maximum wait for a tenant's account. If the account opens later,
// the host-agent's first requests are lost, and the host-agent repeats them.
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

// splice copies both ways until a side ends, and returns an error that names the side.
// The host-agent's bytes may be compressed.
func splice(sock Tunnel, server net.Conn, compressed bool) error {
	agent := sock.Stream()
	from := io.NopCloser(agent)
	if compressed {
		var err error
		if from, err = broker.NewUnpacker(agent); err != nil {
			_ = server.Close()
			sock.Kill()
			return err
		}
	}
	defer from.Close()
	var once sync.Once
	var reason error
	end := func(side string, err error) {
		once.Do(func() { reason = fmt.Errorf("%s side: %w", side, err) })
		_ = server.Close()
		sock.Close(ahp.CloseCode(websocket.StatusNormalClosure), "")
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
		end("host-agent", err)
	})
	end("NATS", broker.Pump(agent, server))
	wg.Wait()
	return reason
}
