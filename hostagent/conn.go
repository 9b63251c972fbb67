package hostagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/contentproxy"
	"ahprelay/internal/ablation"
	"ahprelay/internal/idle"
	"ahprelay/internal/lockorder"
	"ahprelay/internal/tracing"
	"ahprelay/routing"
)

// A hostConn is one client's connection to the host. It implements
// [routing.HostConn].
type hostConn struct {
	agent  *Agent
	conn   *routing.AgentConn
	open   routing.Open
	policy gate.Policy
	since  time.Time
	log    *slog.Logger
	cancel context.CancelFunc // ends the connection to the host
	ended  <-chan struct{}    // closed when that was called

	lastHeard atomic.Int64                        // when the host last said something here, in Unix nanoseconds; 0: never
	gates     gate.Chain                          // guarded by order
	order     lockorder.Mutex[lockorder.HostConn] // held from when a message is judged until it, or its answer, is queued for the client
	said      ahp.Envelope                        // of the message that is being passed on; owned by the reader, as the two below
	last      uint32                              // slot of the last notification that was known, or is now
	row       []*routing.Notification             // that are judged, and not passed on yet
	due       bool                                // something was passed on that is to leave at the end of what has come together; owned by the reader
	counts    counts
	kicked    atomic.Bool // by the host's owner
	canvas    *contentproxy.Conn
	reads     chan struct{} // one for each read of canvas content that is under way or waits
	reading   chan struct{} // one for each that is under way
	asks      asks          // the relay's own
	report    *reporter
	traced    *tracing.Conn // nil: nobody traces
	answers   atomic.Int32  // of gates, that are to be written to the host

	clientName string // as the client's last initialize says; owned by the writer, as the one below
	pace       pace

	writers sync.WaitGroup // the goroutine that writes to the host, while there is one
	written chan struct{}  // closed when nothing more is written

	mu       sync.Mutex   // guards the fields below
	sock     hostSocket   // nil while nothing may be written
	queue    []delivery   // bounded by the connection's credit
	writing  bool         // there is a writer, or was the last
	closed   *clientClose // nil while the client is there
	clientID string       // as the client's last initialize or reconnect says
}

// A clientClose is how a client went.
type clientClose struct {
	code   ahp.CloseCode
	reason string
}

// A delivery is a message for the host, or the wish to know when what came
// before it is written.
type delivery struct {
	message []byte
	binary  bool
	credit  int
	flush   bool
	own     bool      // the host-agent's own answer to the host
	arrived time.Time // zero: nobody traces
	about   *view.Ask // the host-agent's own request
}

// connect is called for each client. It returns at once.
func (a *Agent) connect(conn *routing.AgentConn, open routing.Open) routing.HostConn {
	if open.Canvas != nil {
		return a.live.connect(conn, open)
	}
	ctx, cancel := context.WithCancel(a.life)
	c := &hostConn{
		agent: a, conn: conn, open: open, policy: a.policy(open), since: time.Now(), cancel: cancel, ended: ctx.Done(), written: make(chan struct{}),
		log:   a.connLog(&open),
		reads: make(chan struct{}, maxReads), reading: make(chan struct{}, readsAtOnce),
		traced: a.cfg.Tracer.Conn(tracing.Connection{ID: open.ID, Tenant: a.tenant, Host: a.host, Full: open.Full(), Traceparent: open.Trace}),
	}
	if !a.clients.enter(c) {
		a.conns.Go(func() {
			defer cancel()
			conn.Close(ahp.CloseHostOffline, stoppedReason)
		})
		return c
	}
	bar, barred := a.barred.has(open) // who is kicked now is in clients already
	if barred {
		a.conns.Go(func() {
			defer cancel()
			defer a.clients.leave(c)
			c.turnAway(bar)
		})
		return c
	}
	who := a.who(open, c.policy)
	who.Refused = func(class string) { c.report.count(gate.Refusal, class, "") }
	identity := a.subjects.Enter(who) // before the host hears of it
	c.gates = a.chain(c, open, identity)
	a.conns.Go(func() {
		defer cancel()
		defer a.clients.leave(c)
		defer identity.Leave()
		defer a.processLeft(c.gates.View.Host())
		defer c.report.mcp.Leave()
		defer c.traced.Close()
		c.run(ctx)
	})
	return c
}

// connLog is the log of what concerns a connection.
func (a *Agent) connLog(open *routing.Open) *slog.Logger {
	return a.cfg.Log.With("conn", open.ID, "subject", open.Subject)
}

// chain returns the gates of a new connection.
func (a *Agent) chain(c *hostConn, open routing.Open, identity gate.Gate) gate.Chain {
	known := a.process()
	c.canvas = a.canvases.Conn(known)
	chain := gate.Chain{View: known.Conn(open.Subject), Gates: []gate.Gate{identity, gate.Windows{}}}
	if g := c.policy.Gate(chain.View); g != nil {
		chain.Gates = append(chain.Gates, g)
	}
	chain.Gates = append(chain.Gates, a.mcpGate(c, chain.View, open), canvasGate{c.canvas, a.live, c})
	return chain
}

// process returns what is known of the host process of a new connection. A command
// is a process of its own for each.
func (a *Agent) process() *view.Host {
	if len(a.cfg.Upstream.Command) > 0 {
		return view.NewHost(gate.Key)
	}
	return a.known
}

// processLeft says that the connection to a host process has ended.
func (a *Agent) processLeft(known *view.Host) {
	if known != a.known {
		a.canvases.Ended(known)
	}
}

// policy is what a client may do: what its token says, and the host's owner.
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
	policy.SharedFiles = a.cfg.HostFiles.shared(a.cfg.Upstream)
	return policy
}

// Deliver implements [routing.HostConn].
func (c *hostConn) Deliver(message []byte, binary bool, credit int) {
	d := delivery{message: message, binary: binary, credit: credit}
	if c.traced != nil {
		d.arrived = time.Now()
	}
	c.queueUp(d)
}

// Flush implements [routing.HostConn].
func (c *hostConn) Flush() { c.queueUp(delivery{flush: true}) }

func (c *hostConn) queueUp(d delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, d)
	c.startLocked()
}

// startLocked has all written that waits, once there is a connection.
func (c *hostConn) startLocked() {
	if c.sock != nil && !c.writing && (len(c.queue) > 0 || c.closed != nil) {
		c.writing = true
		sock := c.sock
		c.writers.Go(func() { c.write(sock) })
	}
}

// leaveTime is how long a host may take for what a client that is gone has
// sent.
const leaveTime = 30 * time.Second

// Closed implements [routing.HostConn].
func (c *hostConn) Closed(code ahp.CloseCode, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = &clientClose{code, reason}
	time.AfterFunc(leaveTime, c.cancel)
	c.startLocked()
}

// left returns how the client went, or nil.
func (c *hostConn) left() *clientClose {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// isSentAway reports whether the client may not come back as it is: the host's owner has kicked it, or its token has
// ended, by its time or because it was revoked.
func (c *hostConn) isSentAway() bool {
	bye := c.left()
	return c.kicked.Load() || bye != nil && bye.code == ahp.CloseTokenEnded
}

// nextBatch returns what is to be written. If there is nothing, it returns whether
// nothing follows.
func (c *hostConn) nextBatch() (queue []delivery, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue, c.queue = c.queue, nil
	end = len(queue) == 0 && c.closed != nil
	c.writing = len(queue) > 0 || end
	return queue, end
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
	stop := context.AfterFunc(ctx, func() { sock.Close("client gone") })
	defer stop()
	c.mayWrite(sock)
	err := c.readLoop(ctx, sock)
	idle.Deep(func() {
		if c.hostEnded(ctx, err) {
			c.cancel()
		}
		select {
		case <-ctx.Done():
		case <-c.written: // what the client has sent before it went
		}
		c.mayWrite(nil)
		sock.Close("client gone")
		c.writers.Wait()
		c.agent.live.left(c, c.clientID) // which only writers have set
		c.canvas.End()                   // browsers that wait for it are shown what left has noted
		c.agent.clients.forget(c, c.clientID)
		var how []any
		if bye := c.left(); bye != nil {
			how = []any{"code", bye.code, "reason", bye.reason}
		}
		c.often(comingsAtOnce, "disconnect", "", how...)
	})
}

// dial connects to the host, or tells the client why not.
func (c *hostConn) dial(ctx context.Context) hostSocket {
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	sock, err := c.agent.dialFor(opening, c.caller())
	if err != nil {
		if ctx.Err() == nil {
			c.log.Warn("host does not take a connection", "error", err)
			c.agent.monitor.suspect()
		}
		c.conn.Close(ahp.CloseHostOffline, publicReason(err))
		return nil
	}
	if err := c.conn.Opened(); err != nil {
		sock.Close("client gone")
		return nil
	}
	c.often(comingsAtOnce, "connect", "", "relay", c.conn.Relay(), "access", c.policy.Access, "token", c.open.Token, "address", c.open.Remote)
	return sock
}

// mayWrite says where to write what the client sends; nil: no more.
func (c *hostConn) mayWrite(sock hostSocket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sock = sock
	c.startLocked()
}

// hostGone tells clients that the host is gone: its machine has been out of
// reach for the resume time, so that nobody closes their connections. What is
// still heard on one of them counts for that.
func (a *Agent) hostGone() {
	for _, c := range a.clients.every() {
		if time.Since(time.Unix(0, c.lastHeard.Load())) < a.monitor.resume {
			continue
		}
		c.log.Warn("host is out of reach")
		c.conn.Close(ahp.CloseHostOffline, a.monitor.reason())
		c.cancel()
	}
}

// write writes what the client sends until there is nothing more for now. It
// ends the connection if that fails, or if the client is gone and all of it is
// written.
func (c *hostConn) write(sock hostSocket) {
	for {
		queue, end := c.nextBatch()
		for _, d := range queue {
			if d.flush {
				_ = c.conn.Flushed() // fails if the client is gone
				continue
			}
			if end = c.toHost(sock, d) != nil; end {
				break // the reader sees it too, and says why
			}
			c.conn.Written(d.credit)
		}
		if end {
			sock.Close("client gone")
			close(c.written)
			return
		}
		if len(queue) == 0 {
			return
		}
	}
}

// toHost writes a message to the host, if it may pass.
func (c *hostConn) toHost(sock hostSocket, d delivery) error {
	if d.own {
		c.answers.Add(-1)
		return sock.Write(d.message, false)
	}
	env, err := ahp.Peek(d.message)
	if err != nil || d.binary {
		// No relay that is in order sends it.
		c.conn.Close(ahp.CloseBadMessage, "the relay sent what is no message")
		c.cancel()
		return errBadMessage
	}
	if d.about == nil {
		c.counts.in.Add(1)
		c.counts.inBytes.Add(int64(len(d.message)))
		c.stateTold()
	} else if !c.subscribed(d.about.Channel) {
		c.unasked(env.ID, d.about)
		return nil
	}
	request := c.trace(&env, &d)
	decision, err := c.decide(d.message, &env)
	switch decision.Verdict {
	case gate.Answer:
		request.AnsweredHere()
		c.refused(&env)
		c.rejected(&env)
		return err
	case gate.Expel:
		request.AnsweredHere()
		return c.expel(&env, decision.Message)
	case gate.Replace:
		d.message = decision.Message
	}
	c.noteSent(&env)
	if d.about == nil {
		c.did(&env)
	}
	request.ToHost()
	return sock.Write(d.message, false)
}

// trace begins the span of a request of the client's; nil: it is none, or nobody traces.
func (c *hostConn) trace(env *ahp.Envelope, d *delivery) *tracing.Request {
	if c.traced == nil || d.arrived.IsZero() || c.asks.has(env.ID) {
		return nil
	}
	return c.traced.HostAgent(env, len(d.message), d.arrived)
}

// decide has the gates judge what the client, or the relay on its connection,
// has sent, and lets them answer: not before there is room for answers. What they know of how far the host has got is
// right as long as it says nothing meanwhile: an answer that seems to be ahead of
// it has clients take what follows for old.
func (c *hostConn) decide(message []byte, env *ahp.Envelope) (gate.Decision, error) {
	if err := c.conn.WaitToAnswer(c.ended); errors.Is(err, routing.ErrStalled) {
		c.slow()
		return gate.Decision{Verdict: gate.Answer}, err
	} // the end of the client is no error here, as in answerClient
	c.order.Lock()
	defer c.order.Unlock()
	decision := c.gates.FromClient(message, env)
	if decision.Verdict != gate.Answer {
		return decision, nil
	}
	c.answerClient(env, decision.Message)
	return decision, nil
}

// errBadMessage reports a message that cannot be read.
var errBadMessage = errors.New("no message")

// answerClient sends a gate's answer to the client, or to the host-agent's own request. The
// client's end is no error here, because its earlier messages are still written.
func (c *hostConn) answerClient(env *ahp.Envelope, answer []byte) {
	asked, ok := c.asks.pop(env.ID)
	switch ok = ok && env.Kind == ahp.Request; {
	case ok && asked.about != nil:
		c.canvas.Settle(*asked.about)
	case ok && asked.reply != nil:
		asked.reply <- answer
	case answer != nil:
		_ = c.conn.FromHost(answer, false, nil)
	}
}

// noteSent has the client's earlier connections looked at, when it says who it is
// to be let in by the host.
func (c *hostConn) noteSent(env *ahp.Envelope) {
	if env.Kind != ahp.Request || string(env.Method) != "initialize" && string(env.Method) != "reconnect" {
		return
	}
	if info, ok := ahp.MemberOf(env.Params, "clientInfo"); ok {
		c.clientName = shorten(ahp.TextOf(info.Raw, "name"))
	}
	c.order.Lock()
	greeted, clientID := c.gates.View.Greeted(), c.gates.View.ClientID()
	c.order.Unlock()
	if greeted {
		return
	}
	c.mu.Lock()
	former := c.clientID
	c.clientID = clientID
	c.mu.Unlock()
	c.agent.clients.move(c, former, clientID)
}

// readLoop passes on what the host sends, and returns why it ended. While the
// client takes less than that, it reads no more: nothing is locked meanwhile, and
// what the client sends goes on.
func (c *hostConn) readLoop(ctx context.Context, sock hostSocket) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer c.conn.Unreserve()
	for {
		if err := c.conn.Wait(c.ended); err != nil {
			return err
		}
		message, binary, err := sock.Read()
		if err != nil {
			message, err = c.inPlaceOf(err)
		}
		if errors.Is(err, errAnswered) {
			c.conn.Unreserve()
			continue
		}
		if err != nil {
			return err
		}
		c.lastHeard.Store(time.Now().UnixNano())
		if err := c.passOn(ctx, &wg, sock, message, binary); err != nil {
			return err
		}
		c.conn.Unreserve()
	}
}

// errAnswered reports a message that the host-agent has answered.
var errAnswered = errors.New("answered")

// inPlaceOf returns what takes the place of a response of the host's that is too
// long: an error response to the same request. A request it answers, with
// errAnswered. Other errors of reading it returns as they are.
func (c *hostConn) inPlaceOf(err error) ([]byte, error) {
	var skip *skippedError
	if !errors.As(err, &skip) {
		return nil, err
	}
	c.log.Warn("message of the host is too long", "kind", skip.env.Kind, "method", shorten(string(skip.env.Method)), "bytes", skip.size, "limit", skip.limit)
	answer := ahp.AppendTooLong(nil, &skip.env, skip.size, skip.limit)
	if skip.env.Kind == ahp.Response {
		return answer, nil
	}
	c.counts.out.Add(1)
	if err := c.answerHost(answer); err != nil {
		return nil, err
	}
	return nil, errAnswered
}

// room waits until there is room for a message of so many bytes of the host's.
func (c *hostConn) room(bytes int) error { return c.conn.Reserve(c.ended, bytes) }

// passOn passes on a message of the host's, and those that have come with it.
func (c *hostConn) passOn(ctx context.Context, wg *sync.WaitGroup, sock hostSocket, message []byte, binary bool) error {
	c.order.Lock()
	defer c.order.Unlock()
	bytes := 0
	defer func() {
		c.said = ahp.Envelope{} // else the message stays with an idle connection
		c.counts.outBytes.Add(int64(bytes))
		if c.due {
			c.due = false
			c.conn.Send()
		}
	}()
	for {
		bytes += len(message)
		err := c.fromHost(ctx, wg, message, binary)
		if err != nil || !sock.Whole() || c.conn.HeldBack() {
			return errors.Join(err, c.passRow())
		}
		if message, binary, err = sock.Read(); err != nil { // whole, and so not too long
			return errors.Join(err, c.passRow())
		}
	}
}

// look reads a message of the host's. It returns the one that it is the same as
// too, if it is a notification that several connections may be sent. What it
// returns is good until the next.
func (c *hostConn) look(message []byte) (known *cachedFrame, env *ahp.Envelope, err error) {
	frames := &c.agent.frames
	if ablation.FrameCache {
		c.said, err = ahp.Peek(message)
		return nil, &c.said, err
	}
	if known, c.last = frames.find(message, c.last); known != nil {
		return known, &known.env, nil
	}
	keep := len(message) <= cachedSize && c.agent.clients.several()
	if keep {
		message = bytes.Clone(message)
	}
	if c.said, err = ahp.Peek(message); err != nil {
		return nil, nil, err
	}
	if !keep || c.said.Kind != ahp.Notification {
		return nil, &c.said, nil
	}
	known, c.last = frames.add(message, &c.said, c.last)
	return known, &known.env, nil
}

// fromHost passes on a message of the host's, or notes it in the row.
func (c *hostConn) fromHost(ctx context.Context, wg *sync.WaitGroup, message []byte, binary bool) error {
	c.counts.out.Add(1)
	known, env, err := c.look(message)
	if err != nil || binary {
		if d, _ := c.gates.FromHost(message, nil); d.Verdict != gate.Pass {
			return nil
		}
		return c.passAlone(message, binary, nil) // the client decides
	}
	d, said := c.gates.FromHost(message, env)
	switch d.Verdict {
	case gate.Answer:
		return c.answerHost(d.Message)
	case gate.Replace:
		message, known = d.Message, nil
		other, err := ahp.Peek(message)
		if err != nil {
			return fmt.Errorf("replaced message: %w", err)
		}
		env = &other
	}
	if env.Kind == ahp.Response {
		if err := c.passRow(); err != nil {
			return err
		}
		c.noteAnswer(env, said)
		c.traced.Answered(env, len(message))
		return c.response(ctx, wg, message, env, said)
	}
	if known != nil {
		c.row = append(c.row, known.shared)
		return nil
	}
	var channel []byte
	if env.Kind == ahp.Notification {
		channel = env.Channel
	}
	return c.passAlone(message, false, channel)
}

// passAlone passes on a message behind the row.
func (c *hostConn) passAlone(message []byte, binary bool, channel []byte) error {
	if err := c.passRow(); err != nil {
		return err
	}
	due, err := c.conn.Take(message, binary, channel)
	c.due = c.due || due
	return err
}

// passRow passes on the notifications that have come in a row.
func (c *hostConn) passRow() error {
	if len(c.row) == 0 {
		return nil
	}
	_, due, err := c.conn.Notify(c.row)
	c.due = c.due || due
	clear(c.row)
	c.row = c.row[:0]
	return err
}

// maxAnswers bounds the answers of gates that wait to be written to the host.
const maxAnswers = 1000

// answerHost has a gate answer what the host has sent.
func (c *hostConn) answerHost(answer []byte) error {
	if answer == nil {
		return nil
	}
	if c.answers.Add(1) > maxAnswers {
		return errors.New("the host asks on and does not take the refusals")
	}
	c.queueUp(delivery{message: answer, own: true})
	return nil
}

// noteAnswer lets the client's larger messages in once the host has accepted
// that it begins.
func (c *hostConn) noteAnswer(env *ahp.Envelope, said *view.Reading) {
	if said == nil || !said.Greets {
		return
	}
	if said.Call.Method == "initialize" {
		if result, err := ahp.ReadInitializeResult(env.Result); err == nil {
			c.agent.monitor.learn(result)
		}
	}
	_ = c.conn.Ready() // fails if the client is gone
}

// hostEnded tells the client why its connection ended, and reports whether
// nothing can be written to the host any more.
func (c *hostConn) hostEnded(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, routing.ErrConnClosed):
		return false // what the client has sent before it went is still to be written
	case errors.Is(err, routing.ErrStalled):
		c.slow()
	case tooBig(err):
		c.conn.Close(ahp.CloseMessageTooBig, fmt.Sprintf("from the host, more than %d bytes", c.agent.cfg.MaxFrame))
	case ctx.Err() != nil, c.left() != nil: // nobody is left to tell
	case c.agent.monitor.alive(ctx):
		c.log.Info("host closed the connection", "error", err)
		c.conn.Close(ahp.CloseResync, "the host closed this connection"+closeText(err))
	default:
		c.log.Warn("host is gone", "error", err)
		c.conn.Close(ahp.CloseHostOffline, c.agent.monitor.reason())
	}
	return true
}

// slow ends the connection of a client that has taken nothing for too long.
func (c *hostConn) slow() {
	c.log.Warn("client takes nothing")
	c.conn.Abort(ahp.CloseOverloaded, "slow consumer: takes nothing")
}

// closeText tells with which code a host closed a connection.
func closeText(err error) string {
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
		return ""
	}
	return fmt.Sprintf(" (%d %s)", int(closed.Code), closed.Reason)
}
