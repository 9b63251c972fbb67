package hostagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/contentproxy"
	"ahprelay/internal/clock"
	"ahprelay/internal/idle"
	"ahprelay/internal/lockorder"
	"ahprelay/internal/tracing"
	"ahprelay/routing"
)

// A hostConn is one client's connection to the host, and implements [routing.HostConn]. It starts
// and ends the connection; its writer carries the client's messages to the host, and its reader the
// host's messages to the client.
type hostConn struct {
	agent  *Agent
	conn   *clientLine
	open   routing.Open
	policy gate.Policy
	since  time.Time
	log    *slog.Logger
	cancel context.CancelFunc // ends the connection to the host
	ended  <-chan struct{}    // closed by cancel

	order   lockorder.Mutex[lockorder.HostConn] // held from the gates' decision on a message until the message, or the answer to it, is queued for the client
	gates   gate.Chain                          // guarded by order
	asks    asks                                // requests that the host-agent sent on this connection
	canvas  *contentproxy.Conn
	report  *reporter
	traced  *tracing.ConnTracer // traces requests; nil without tracing
	counts  counts
	kicked  atomic.Bool // the host-agent ends this connection: a kick, a removed device or a private session
	hasKeys atomic.Bool // the client has requested the keys of remembered sessions
	signIns signIns

	writer hostWriter
	reader hostReader
}

// connect accepts a client's connection and returns at once.
func (a *Agent) connect(conn *routing.AgentConn, open routing.Open) routing.HostConn {
	switch {
	case open.Ticket != "" && open.Canvas == nil && (a.seals == nil || open.Sealed):
		return a.moves.connect(a, conn, open)
	case a.seals != nil:
		return a.seals.connect(conn, open)
	case open.Canvas != nil:
		return a.live.connect(conn, open)
	}
	return serveClient(a, newClientLine(conn), open, a.policy(open))
}

// serveClient serves a client with the given authority until it leaves. It returns at
// once.
func serveClient(a *Agent, conn *clientLine, open routing.Open, policy gate.Policy) *hostConn {
	ctx, cancel := context.WithCancel(a.life)
	c := &hostConn{
		agent: a, conn: conn, open: open, policy: policy, since: time.Now(), cancel: cancel, ended: ctx.Done(),
		log:    connLog(a.cfg.Log, &open),
		traced: a.cfg.Tracer.Conn(tracing.Connection{ID: open.ID, Tenant: a.tenant, Host: a.host, Full: open.Full(), Traceparent: open.Trace}),
	}
	c.writer = hostWriter{c: c, written: make(chan struct{})}
	if conn.seal != nil {
		conn.seal.writer.Store(&c.writer)
	}
	c.reader = hostReader{c: c, reads: make(chan struct{}, maxReads), reading: make(chan struct{}, readsAtOnce)}
	if !a.clients.enter(c) {
		a.conns.Go(func() {
			defer cancel()
			defer conn.stop()
			conn.Close(ahp.CloseHostOffline, stoppedReason)
		})
		return c
	}
	c.policy.Hidden = a.private.hidden(open) // read again: the connection is now in clients, so a later change ends it
	bar, blocked := a.blocked.has(open)      // checked after enter: a later kick finds the connection in clients
	if !blocked && namesHidden(a.known, c.policy) {
		bar, blocked = privateReason, true
	}
	if blocked {
		a.conns.Go(func() {
			defer cancel()
			defer conn.stop()
			defer a.clients.leave(c)
			c.reject(bar)
		})
		return c
	}
	if conn.seal != nil && !a.ownProcess() {
		conn.seal.class = c.policy.Class()
	}
	who := a.who(open, c.policy)
	who.Refused = func(class string) { c.report.count(gate.Refusal, class, "") }
	identity := a.subjects.Enter(who) // before the host receives any message
	c.gates = a.chain(c, open, identity)
	a.conns.Go(func() {
		defer cancel()
		defer conn.stop()
		defer a.clients.leave(c)
		defer identity.Leave()
		defer a.processLeft(c.gates.View.Host())
		defer c.report.mcp.Leave()
		defer c.traced.Close()
		c.run(ctx)
	})
	return c
}

func connLog(log *slog.Logger, open *routing.Open) *slog.Logger {
	return log.With("conn", open.ID, "subject", open.Subject)
}

func (a *Agent) chain(c *hostConn, open routing.Open, identity gate.Gate) gate.Chain {
	known := a.process()
	c.canvas = a.canvases.Conn(known)
	chain := gate.Chain{View: known.Conn(open.Subject)}
	chain.Gates = []gate.Gate{identity, givenGate{chain.View, c.policy, &a.given, giver{open.Subject, open.Device}}, privateGate{chain.View, c}, signInGate{chain.View, c}, gate.Windows{}}
	if g := c.policy.Gate(chain.View); g != nil {
		chain.Gates = append(chain.Gates, g)
	}
	chain.Gates = append(chain.Gates, a.mcpGate(c, chain.View, open), canvasGate{c.canvas, a.live, c})
	return chain
}

// process returns the view of the host process behind a new connection. If the host is a command,
// each connection has a new process.
func (a *Agent) process() *view.Host {
	if a.ownProcess() {
		return view.NewHost(gate.Key)
	}
	return a.known
}

// ownProcess reports whether each connection has a host process of its own. The same channel name
// on two connections then means two different channels.
func (a *Agent) ownProcess() bool { return len(a.cfg.Upstream.Command) > 0 }

// processLeft forgets a host process's canvases if the process served only the ended connection.
func (a *Agent) processLeft(known *view.Host) {
	if known != a.known {
		a.canvases.Ended(known)
	}
}

// policy returns a client's permissions: those of its token, limited by the settings of the host's
// owner.
func (a *Agent) policy(open routing.Open) gate.Policy {
	policy := gate.NewPolicy(auth.Access(open.Access), open.Channels, open.Methods, open.Reverse)
	if open.Files {
		policy = policy.WithFolders()
	}
	if a.cfg.Allow != nil {
		policy = policy.Narrow(*a.cfg.Allow)
	}
	if len(a.cfg.ApproveOnly) > 0 && !auth.MatchesAny(a.cfg.ApproveOnly, open.Subject) {
		policy = policy.Narrow(gate.NewPolicy(auth.AccessTalk, nil, nil, true))
	}
	policy.Hidden = a.private.hidden(open)
	policy.SharedFiles = a.cfg.HostFiles.shared(a.cfg.Upstream)
	return policy
}

func (c *hostConn) Deliver(message []byte, binary bool, credit int) {
	d := delivery{message: message, binary: binary, credit: credit, from: c.conn.now.Load()}
	if c.traced != nil {
		d.arrived = time.Now()
	}
	c.writer.queueUp(d)
}

func (c *hostConn) Flush() { c.writer.request(delivery{flush: true}) }

// flushed answers a flush request of the relay; the answer follows all earlier messages to the
// client. The client first leaves its crowd, because the crowd's messages have a separate queue.
func (c *hostConn) flushed() {
	c.order.Lock()
	defer c.order.Unlock()
	c.leaveCrowd()
	_ = c.conn.Flushed() // fails if the client has left
}

// leaveTime is how long the host may take to accept the last messages of a client that has left.
const leaveTime = 30 * time.Second

func (c *hostConn) Closed(code ahp.CloseCode, reason string) {
	if c.conn.leaves(code) {
		return
	}
	c.leave(code, reason)
	if code == ahp.CloseTokenEnded && c.hasKeys.Load() {
		c.agent.last.keeper.HolderEnded()
	}
}

// leave ends the connection to the host after the client's last messages are written, or after
// leaveTime.
func (c *hostConn) leave(code ahp.CloseCode, reason string) {
	c.writer.leave(code, reason)
	time.AfterFunc(leaveTime, c.cancel)
}

// isSentAway reports whether the client's canvases end with its connection: the host-agent ends the
// connection (see kicked), or the token expired or was revoked.
func (c *hostConn) isSentAway() bool {
	bye := c.writer.left()
	return c.kicked.Load() || bye != nil && bye.code == ahp.CloseTokenEnded
}

// run connects to the host, and carries messages until either side ends.
func (c *hostConn) run(ctx context.Context) {
	var sock hostSocket
	idle.Deep(func() { sock = c.dial(ctx) })
	if sock == nil {
		return
	}
	c.agent.presence.clients(+1)
	defer c.agent.presence.clients(-1)
	if c.policy.Access.Includes(auth.AccessTalk) {
		c.agent.awake.People(+1)
		defer c.agent.awake.People(-1)
	}
	stop := context.AfterFunc(ctx, func() { sock.Close("client gone") })
	defer stop()
	c.writer.setSocket(sock)
	err := c.reader.run(ctx, sock)
	idle.Deep(func() {
		if c.hostEnded(ctx, err) {
			c.cancel()
		}
		select {
		case <-ctx.Done():
		case <-c.writer.written: // the client's last messages
		}
		c.writer.setSocket(nil)
		sock.Close("client gone")
		c.writer.writers.Wait()
		c.agent.live.left(c, c.writer.clientID) // clientID is set by writers only, which have ended
		c.canvas.End()                          // browsers that wait for canvases see the state recorded by left
		c.agent.clients.forget(c, c.writer.clientID)
		var how []any
		if bye := c.writer.left(); bye != nil {
			how = []any{"code", bye.code, "reason", bye.reason}
		}
		c.auditOften(connectsAtOnce, "disconnect", "", how...)
	})
}

// dial connects to the host, or closes the client's connection with the reason.
func (c *hostConn) dial(ctx context.Context) hostSocket {
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	sock, err := c.reach(opening)
	if err != nil {
		if ctx.Err() == nil {
			c.log.Warn("connection to the host failed", "error", err)
			c.agent.monitor.suspect()
		}
		c.conn.Close(ahp.CloseHostOffline, publicReason(err))
		return nil
	}
	if err := c.conn.Opened(); err != nil {
		sock.Close("client gone")
		return nil
	}
	c.auditOften(connectsAtOnce, "connect", "", "relay", c.conn.Relay(), "access", c.policy.Access, "token", c.open.Token, "address", c.open.Remote)
	return sock
}

// hostGone closes the clients after the host's machine was unreachable for the resume time. It
// spares a client on whose connection the host sent something during that time.
func (a *Agent) hostGone() {
	for _, c := range a.clients.every() {
		if time.Since(c.lastHeard()) < a.monitor.resume {
			continue
		}
		c.log.Warn("client closed", "reason", "host unreachable")
		c.conn.Close(ahp.CloseHostOffline, a.monitor.reason())
		c.cancel()
	}
}

// lastHeard returns the time of the host's last message on the connection, or the zero time. A member
// of a crowd receives the messages through the crowd.
func (c *hostConn) lastHeard() time.Time {
	heard := c.reader.lastHeard.Get()
	if seal := c.conn.seal; seal != nil {
		if crowd := seal.crowd.Load(); crowd != nil {
			heard = clock.Later(heard, crowd.lastHeard.Get())
		}
	}
	return heard
}

// room waits for queue space for a host message.
func (c *hostConn) room(bytes int) error { return c.conn.Reserve(c.ended, bytes) }

// hostEnded handles the end of the connection to the host. It closes the client with the reason,
// and reports whether nothing more can be written to the host.
func (c *hostConn) hostEnded(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, routing.ErrConnClosed):
		return false // the client's last messages must still be written
	case errors.Is(err, routing.ErrStalled):
		c.slow()
	case tooBig(err):
		c.conn.Close(ahp.CloseMessageTooBig, fmt.Sprintf("from the host, more than %d bytes", c.agent.cfg.MaxFrame))
	case ctx.Err() != nil, c.writer.left() != nil: // the client is gone
	case c.agent.monitor.alive(ctx):
		c.log.Info("connection closed by the host", "error", err)
		c.conn.Close(ahp.CloseResync, "the host closed this connection"+closeText(err))
	default:
		c.log.Warn("connection to the host lost", "error", err)
		c.conn.Close(ahp.CloseHostOffline, c.agent.monitor.reason())
	}
	return true
}

// slow closes a client that has not read its messages for too long.
func (c *hostConn) slow() {
	c.log.Warn("client without progress closed")
	c.conn.Abort(ahp.CloseOverloaded, "slow consumer: accepts no data")
}

func closeText(err error) string {
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
		return ""
	}
	return fmt.Sprintf(" (%d %s)", int(closed.Code), closed.Reason)
}
