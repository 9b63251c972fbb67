package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/broker/resume"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/wire"
	"ahprelay/internal/fair"
	"ahprelay/internal/idle"
	"ahprelay/internal/lockorder"
	"ahprelay/routing"
	"ahprelay/routing/audience"
)

// A phase is the state of a client's connection.
type phase int

const (
	phaseNew     phase = iota // the host is offline, and the client has sent nothing but pings
	phaseWaiting              // the host is online, and the connection to it is not requested yet
	phaseHeld                 // the client's messages wait for an offline host, or for the link to it after its return
	phaseOpening              // the host-agent is connecting to the host
	phaseOpen                 // messages pass
	phaseClosed
)

// String returns the phase's name on the admin pages.
func (p phase) String() string {
	return [...]string{"new", "waiting", "held", "opening", "open", "closed"}[p]
}

// A client is a client's connection to a host.
type client struct {
	// Set by newClient, then read-only.
	id       string
	host     hostKey
	remote   string
	since    time.Time
	sock     *wire.Socket
	admitted *admission.Admission // the connection's share of the limits
	out      *outbox
	shares   *fair.Shares // divides the processors among tenants
	hosts    *hosts
	cfg      *Config
	metrics  *metrics
	budget   *budget
	tickets  tickets
	audit    *audit.Log
	revoked  func(auth.Client) bool
	arrived  func()            // called when the host has answered initialize or reconnect; may be called again
	spawn    func(func()) bool // starts a goroutine that the server waits for
	cutOff   *atomic.Bool      // Server.cutOff

	page string // origin of the web page that opened the connection; "" for other clients

	beginning beginning     // used only by readLoop
	worked    time.Duration // processing time of the last message
	token     credential    // the client's authority and its expiry

	begun  chan struct{} // closed when the connection is open or ends; see awaitBegun
	begin  func()        // closes begun
	moved  atomic.Bool   // the host-agent keeps the connection for the client's next relay
	parted atomic.Bool   // the client has closed its connection because of moved

	accepted                               atomic.Bool  // the host, or an audience, has accepted the connection
	ready                                  atomic.Bool  // the host has answered initialize or reconnect
	maxFrame                               int          // longest message in bytes from then on; set before ready
	framesIn, framesOut, bytesIn, bytesOut atomic.Int64 // messages and bytes from and to the client

	readEnd atomic.Bool // the reader has ended
	probing atomic.Bool // a probe is running
	load    load
	alive   liveness

	reported   atomic.Pointer[json.RawMessage] // connection state reported by the host-agent; nil: none yet
	introduced atomic.Pointer[string]          // a moved client's clientId, from the host-agent
	warnings   []string                        // reported warning classes; guarded by the mutex of reports

	counted bool // included in metrics.ended; guarded by the mutex of metrics

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	mu      lockorder.Mutex[lockorder.Client] // guards the fields below
	phase   phase
	conn    upstream        // from phaseOpening on
	pending pendingMessages // waiting for phaseOpen
	away    string          // why the host is offline
	silent  bool            // the host does not respond to its host-agent
	hold    *time.Timer     // closes the client if the host does not accept it in time; nil: not started
	holdFor time.Duration   // duration of hold
	leaving bool            // close as soon as the connection is open
	moves   bool            // the host-agent can keep the connection for a different relay
	handed  chan struct{}   // handOver waits for it; closed when no pending message remains or the host is offline; nil until handOver
	parting *time.Timer     // set by awaitParting; nil before
}

// An upstream is a client's connection to its host: a [routing.RelayConn] of its own, or
// an [audience.Viewer], which shares a connection with other clients.
type upstream interface {
	Send(ctx context.Context, message []byte) error
	SendCounted(ctx context.Context, message []byte, counted int) error
	Written(credit int)
	Progress()
	Flush()
	Queued() int
	Close(code ahp.CloseCode, reason string)
	Abort(code ahp.CloseCode, reason string)
}

func (c *client) phaseNow() phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase
}

// log returns a logger with the connection's ids. It builds a new one for each call,
// because calls are rare.
func (c *client) log() *slog.Logger {
	return c.cfg.Log.With("conn", c.id, "tenant", c.host.tenant, "host", c.host.name, "subject", c.token.first.Subject, "address", c.remote)
}

// readBuffers holds buffers for reading messages. Buffers larger than wire.KeepBuffer are
// not reused.
var readBuffers = sync.Pool{New: func() any { b := make([]byte, 0, wire.FirstBuffer); return &b }}

// serve runs a client's connection until it ends. It calls joined once the client is in
// hosts. Because serve then checks draining and cutOff, a concurrent Drain or cut either
// finds the client or is seen here.
func (c *client) serve(draining func() bool, joined func()) {
	defer c.cancel()
	defer c.budget.reserve(c.sock.Conn.IsTLS())()
	defer c.token.expireLater(func() { c.end(ahp.CloseTokenEnded, ahp.CloseTokenEnded.Reason()) }).Stop()
	idle.Deep(func() { c.enter(draining, joined) })
	err := c.readLoop()
	idle.Deep(func() { c.exit(err) })
}

func (c *client) enter(draining func() bool, joined func()) {
	if c.hasMoved() {
		c.mu.Lock()
		c.holdFor = min(c.cfg.HoldTime, resume.DefaultTime) // host-agents keep the connection for DefaultTime
		c.hold = time.AfterFunc(c.holdFor, c.holdEnded)
		c.mu.Unlock()
	}
	c.hosts.join(c)
	joined()
	c.endIfRevoked() // later revocations find the client in hosts
	switch {
	case c.cfg.Minority == MinorityStop && c.cutOff.Load():
		c.end(ahp.CloseHostOffline, closeReason(ahp.CloseHostOffline, cutReason))
	case draining() && c.hasMoved():
		c.leave() // the client may move on to a different relay
	case draining():
		c.end(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
	}
}

// exit cleans up after the reader has ended with err.
func (c *client) exit(err error) {
	defer c.hosts.leave(c)
	c.readEnd.Store(true)
	if code, _ := wire.CloseStatus(err); code == ahp.CloseShuttingDown && c.moved.Load() {
		c.parted.Store(true)
	}
	end := c.readFailed(err)
	if c.sock.Conn.ClosedForWriting() {
		c.sock.Close(end.code, end.reason) // waits for the client's close frame
	}
	c.handOver()
	c.disconnect(end)
	c.mu.Lock()
	if c.parting != nil {
		c.parting.Stop()
	}
	c.mu.Unlock()
	c.load.setKernel(0, 0)
	c.metrics.count(c, end.code)
	c.audit.Comings(lineOf(c, "disconnect", end))
}

// handOverTime limits handOver.
const handOverTime = 30 * time.Second

// handOver delivers the last messages of a client that disconnected while the connection
// to its host was being opened. It waits until they are sent.
func (c *client) handOver() {
	handed := make(chan struct{})
	c.mu.Lock()
	c.handed = handed
	c.mu.Unlock()
	c.reconsider()
	select {
	case <-handed:
	case <-time.After(handOverTime):
		c.log().Info("messages of a disconnected client lost", "reason", "no connection to the host", "after", handOverTime)
	case <-c.ctx.Done():
	}
}

// handedLocked unblocks handOver when no pending message remains, or when the host turns
// out to be offline: messages of a disconnected client do not wait for the host's return.
func (c *client) handedLocked() {
	coming := c.phase == phaseWaiting || c.phase == phaseOpening
	if c.handed == nil || coming && len(c.pending.list) > 0 {
		return
	}
	select {
	case <-c.handed:
	default:
		close(c.handed)
	}
}

// hasMoved reports whether the connection continues a connection at a different relay.
func (c *client) hasMoved() bool { return c.sock.Moved != "" }

// awaitBegun blocks until a moved client is connected to its host, or its connection
// or the server ends. It reports whether a link to the host has set maxFrame.
func awaitBegun(c *client) (linked bool) {
	c.load.stuck.Store(true)
	wait(c.ctx, c.begun)
	c.load.stuck.Store(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.maxFrame > 0
}

func (c *client) readLoop() error {
	for {
		r, binary, err := c.sock.Next()
		if err != nil {
			return err
		}
		if err := c.read(r, binary); err != nil {
			return err
		}
		c.load.rest(c.shares, c.host.tenant, c.worked)
	}
}

// read reads one message and passes it to the host.
func (c *client) read(r io.Reader, binary bool) error {
	buf := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buf)
	defer c.load.doneReading()
	ready, limit := c.ready.Load(), c.cfg.MaxFirstFrame
	if ready {
		limit = c.maxFrame
	}
	message, err := wire.ReadAll(r, (*buf)[:0], limit, c.load.readMore)
	if errors.Is(err, wire.ErrTooBig) && !ready && c.hasMoved() && awaitBegun(c) { // the host has accepted the client's former connection
		ready, limit = true, c.maxFrame
		message, err = wire.ReadAll(r, message, limit, c.load.readMore)
	}
	if err == nil {
		c.load.hasCome()
	}
	if cap(message) <= wire.KeepBuffer {
		*buf = message[:0]
	}
	switch {
	case errors.Is(err, wire.ErrTooBig) && ready && !c.sock.Sealed:
		idle.Deep(func() { err = c.skip(r, message, limit) })
	case err == nil:
		c.framesIn.Add(1)
		c.bytesIn.Add(int64(len(message)))
		take := (*client).fromClient
		switch {
		case binary:
			take = fromSealed
		case c.sock.Sealed:
			take = forRelay
		}
		idle.Deep(func() { err = take(c, message) }) // parsing and sending would double this stack for good
	}
	return err
}

// fromClient handles one message. On an open connection, it does not copy a large
// message, but takes over its buffer.
func (c *client) fromClient(message []byte) error {
	env, err := ahp.Peek(message)
	if err != nil {
		return err
	}
	if err := c.await(&env, len(message)); err != nil {
		return err
	}
	began := time.Now()
	defer func() { c.worked = time.Since(began) }()
	if c.tickets.answer(c, &env) || c.answerRefresh(&env) {
		return nil
	}
	if c.cutOff.Load() && changes(&env) {
		return errCutOff
	}
	return c.pass(&env, message)
}

// await delays a message that exceeds the rate limits. Because it blocks the reader, later
// messages wait too. If the delay would be too long, await answers a request with an error,
// and returns the limit, which ends the connection.
func (c *client) await(env *ahp.Envelope, bytes int) error {
	c.load.stuck.Store(true)
	c.load.slowed.Store(true)
	over := c.admitted.AwaitRate(c.ctx, bytes, c.beginning.anew(env))
	c.load.progressed(time.Now())
	c.load.slowed.Store(false)
	c.load.stuck.Store(false)
	if over == nil {
		return nil
	}
	if env.Kind == ahp.Request {
		c.answer(appendOverRate(nil, env.ID, over))
	}
	return over
}

// appendOverRate appends an error response for a request that exceeds the rate limit.
func appendOverRate(b, id []byte, over *admission.OverLimit) []byte {
	data, err := json.Marshal(map[string]any{"limit": over.Limit, "retryAfterMs": over.Retry.Milliseconds()})
	if err != nil {
		data = nil // cannot happen: all fields can be encoded
	}
	return ahp.AppendError(b, id, ahp.CodeRateLimited, over.Error(), data)
}

// A beginning records whether the client has sent initialize or reconnect.
type beginning struct {
	begun    bool
	clientID string // from the latest initialize or reconnect
}

// anew reports whether a message is a repeated initialize or reconnect.
func (b *beginning) anew(env *ahp.Envelope) bool {
	if method := string(env.Method); env.Kind != ahp.Request || method != "initialize" && method != "reconnect" {
		return false
	}
	again := b.begun
	b.begun, b.clientID = true, ahp.TextOf(env.Params, "clientId")
	return again
}

// pass sends a message to the host, or queues it until the connection is open.
func (c *client) pass(env *ahp.Envelope, message []byte) error {
	c.mu.Lock()
	if c.hasMoved() && c.phase < phaseOpen && c.pending.bytes+len(message) > c.cfg.MaxFirstFrame {
		c.mu.Unlock()
		awaitBegun(c)
		c.mu.Lock()
	}
	if c.phase == phaseOpen {
		conn := c.conn
		if _, shares := conn.(*audience.Viewer); shares && c.hold == nil {
			c.holdLocked(env)
		}
		c.mu.Unlock()
		if cap(message) <= wire.KeepBuffer {
			message = slices.Clone(message) // the buffer will be reused
		}
		counted := int(c.load.whole.Swap(0))
		c.load.stuck.Store(true)
		c.load.sending.Store(int64(counted))
		err := conn.SendCounted(c.ctx, message, counted)
		c.load.sending.Store(0)
		c.load.stuck.Store(false)
		if err != nil {
			c.budget.add(-counted)
		}
		if errors.Is(err, routing.ErrConnClosed) {
			return nil // clientEvents.Closed has reported the reason
		}
		return err
	}
	defer c.mu.Unlock()
	return c.beforeOpen(env, message)
}

// beforeOpen handles a message that arrives before the connection to the host is open.
func (c *client) beforeOpen(env *ahp.Envelope, message []byte) error {
	away := c.phase == phaseNew || c.phase == phaseHeld || c.silent
	switch {
	case c.phase == phaseClosed:
		return nil
	case away && isPing(env):
		c.answer(ahp.AppendResult(nil, env.ID, nil))
		return nil
	case c.pending.bytes+len(message) > c.cfg.MaxFirstFrame:
		return fmt.Errorf("%w: more than %d bytes before the host has accepted the connection", wire.ErrTooBig, c.cfg.MaxFirstFrame)
	}
	c.pending.add(message)
	c.holdLocked(env)
	if c.phase == phaseNew {
		c.hostAwayLocked(c.away)
	}
	return nil
}

func isPing(env *ahp.Envelope) bool {
	return env.Kind == ahp.Request && string(env.Method) == "ping"
}

// answer sends a message from the relay itself to the client.
func (c *client) answer(message []byte) {
	c.out.pushOwn(wire.EncodePiece(message, true, true, false))
}

func (c *client) pong(payload []byte) {
	c.out.push(routing.Frame{Data: wire.AppendFrame(nil, wire.FinBit|wire.OpPong, payload)})
}

// greetingHold is the longest wait for the host by a client with a new session. If the
// relay answered initialize with an error, VS Code would not try again. If the relay
// closed the connection quickly, VS Code would give up after ten attempts.
const greetingHold = 20 * time.Second

// holdLocked starts the timer that closes the client unless the host accepts it in time.
// The time begins with the first message other than a ping. It is longer for reconnect,
// because stock clients give up after a few failed attempts to resume.
func (c *client) holdLocked(env *ahp.Envelope) {
	limit := min(greetingHold, c.cfg.HoldTime)
	if env.Kind == ahp.Request && string(env.Method) == "reconnect" {
		limit = c.cfg.HoldTime
	}
	switch {
	case isPing(env):
		return
	case c.hold == nil:
		c.hold = time.AfterFunc(limit, c.holdEnded)
	case limit > c.holdFor:
		c.hold.Reset(limit)
	}
	c.holdFor = max(c.holdFor, limit)
}

// holdEnded closes a client whose host has not accepted it in time. It does not answer
// pending requests with errors, because clients retry after a closed connection but not
// after an error response.
func (c *client) holdEnded() {
	c.mu.Lock()
	viewer, shares := c.conn.(*audience.Viewer) // a viewer has a connection before the host has accepted it
	if c.phase == phaseClosed || c.phase == phaseOpen && !(shares && viewer.Waits()) {
		c.mu.Unlock()
		return
	}
	c.phase = phaseClosed
	detail := cmp.Or(c.away, "no answer for "+c.holdFor.String())
	c.mu.Unlock()
	code := ahp.CloseHostOffline
	if c.hasMoved() {
		code = ahp.CloseResync // the host-agent no longer keeps the client's connection
	}
	c.end(code, closeReason(code, detail))
}

// hostAwayLocked makes a client wait for its offline host. Until the host returns, the
// relay answers the client's pings.
func (c *client) hostAwayLocked(detail string) {
	c.away = detail
	c.pending.answerPings(c.answer)
	switch {
	case len(c.pending.list) == 0:
		c.phase = phaseNew
	default:
		if c.phase == phaseNew {
			c.log().Info("client of an absent host held", "for", c.holdFor)
		}
		c.phase = phaseHeld
	}
}

// reconsider updates the phase of a client that has no connection to its host. It looks
// up the host while it holds the client's lock, so of two concurrent calls the later has
// the newer state.
func (c *client) reconsider() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.handedLocked()
	host, link := c.hosts.find(c.host)
	if c.silent = !host.Silent.IsZero(); c.silent && c.phase < phaseOpen {
		c.pending.answerPings(c.answer)
	}
	switch {
	case c.phase >= phaseOpening:
	case host.State != registry.Online:
		c.hostAwayLocked(host.Reason)
	default:
		if c.phase == phaseNew || c.handed != nil {
			c.phase = phaseWaiting // a held client stays so: the relay answers its pings until the link is made
		}
		if link.relay != nil {
			c.openLocked(link)
		}
	}
}

// unreachable makes a client wait as for an offline host, because no link to the host-agent
// could be opened although its lease is valid. It does nothing if the client is already
// opening or has a connection.
func (c *client) unreachable(detail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.handedLocked()
	if c.phase < phaseOpening {
		c.hostAwayLocked(detail)
	}
}

// openLocked asks the host-agent to open the client's connection to the host. If the
// host-agent lacks a feature that the client needs, openLocked closes the client.
func (c *client) openLocked(link linkUse) {
	who := c.token.now()
	if c.sock.Sealed && !link.seals {
		c.phase = phaseClosed
		c.out.close(ahp.CloseForbidden, closeReason(ahp.CloseForbidden, "this host is not sealed; its owner can start the host-agent with --sealed"))
		return
	}
	if c.hasMoved() && !link.moves {
		c.phase = phaseClosed
		c.out.close(ahp.CloseResync, closeReason(ahp.CloseResync, "the host-agent cannot keep connections for clients that change relays"))
		return
	}
	c.moves = link.moves
	if who.Audience != "" && !c.sock.Sealed && !survivesRestarts(c) {
		c.maxFrame = link.maxFrame
		c.phase = phaseOpening
		c.conn = link.audiences.Enter(who.Audience, c.openAs(who), clientEvents{c}, c.out.packing.On)
		return
	}
	conn, err := openTraced(c.cfg.Tracer, c.host, link.relay, c.openAs(who), clientEvents{c})
	switch {
	case errors.Is(err, routing.ErrTooManyConns):
		c.phase = phaseClosed
		c.out.close(ahp.CloseOverloaded, closeReason(ahp.CloseOverloaded, err.Error()))
	case err == nil:
		c.conn = conn
		c.maxFrame = link.maxFrame
		c.phase = phaseOpening
	}
	// Any other error means that the link has ended. Then hosts calls reconsider again.
}

func (c *client) openAs(who auth.Client) routing.Open {
	open := routing.Open{
		ID: c.id, Subject: who.Subject, Token: who.ID, DeviceID: who.Device, Access: string(who.Access),
		Expires: &who.Expires, Origins: who.Origins, Remote: c.remote, Device: who.DeviceName, Strict: c.cfg.strict(c.host),
		Channels: who.Channels, Methods: who.Methods, Files: who.Files, Reverse: who.Reverse,
		Sealed: c.sock.Sealed, Ticket: c.sock.Moved,
	}
	if c.cfg.Tracer != nil && open.Full() && !open.Sealed {
		open.Trace = c.sock.Trace
	}
	return open
}

// survivesRestarts reports whether a different relay can continue the client's connection.
// Such a client does not join an audience, because a shared connection cannot move.
// maxStreams limits the number of these clients.
func survivesRestarts(c *client) bool {
	return c.hasMoved() || c.moves && c.sock.Move != "" && wire.ResumableOf(c.sock.Conn.Conn) != nil
}

// opened sends the pending messages when the host has accepted the connection.
func (c *client) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.handedLocked()
	if c.phase != phaseOpening {
		return
	}
	if c.cutOff.Load() && slices.ContainsFunc(c.pending.list, mayChange) {
		c.phase = phaseClosed
		c.out.close(ahp.CloseHostOffline, closeReason(ahp.CloseHostOffline, errCutOff.Error()))
		return
	}
	for _, message := range c.pending.list {
		// Send does not block here, because it accepts more at once than can be pending.
		if err := c.conn.Send(c.ctx, message); err != nil {
			return
		}
	}
	c.pending.clear()
	c.phase = phaseOpen
	c.begin()
	c.admitted.Opened()
	if _, shares := c.conn.(*audience.Viewer); c.hold != nil && !shares {
		c.hold.Stop()
	}
	if c.leaving {
		partLocked(c)
	}
}

// partLocked begins to end a client's open connection because the relay stops. The event
// Moved or Flushed reports the end. The caller holds the client's lock.
func partLocked(c *client) {
	conn, movable := c.conn.(interface {
		Move(m routing.Move)
	})
	if movable && c.moves && c.sock.Move != "" {
		who := c.token.now()
		conn.Move(routing.Move{Ticket: c.sock.Move, Until: who.Expires, Holder: who.Holder()})
		return
	}
	c.conn.Flush()
}

// rejected handles a refusal by the host-agent, or a link that ended before the
// connection was open.
func (c *client) rejected(code ahp.CloseCode, detail string) {
	c.mu.Lock()
	if c.phase != phaseOpening {
		c.mu.Unlock()
		return
	}
	c.conn = nil
	if code != ahp.CloseHostOffline && code != ahp.CloseResync || c.hasMoved() {
		c.phase = phaseClosed
		c.out.close(code, closeReason(code, detail))
		c.handedLocked()
		c.mu.Unlock()
		return
	}
	c.phase = phaseWaiting
	if code == ahp.CloseHostOffline {
		c.hostAwayLocked(detail)
	}
	c.handedLocked()
	c.mu.Unlock()
	c.hosts.retry(c)
}

// readFailed closes the connection for the given read error, unless it is already
// closing, and returns the reason for the end.
func (c *client) readFailed(err error) closing {
	var bad *ahp.FrameError
	var over *admission.OverLimit
	switch {
	case errors.As(err, &over):
		return c.out.close(ahp.CloseOverloaded, closeReason(ahp.CloseOverloaded, over.Error()))
	case errors.Is(err, errCutOff):
		return c.out.close(ahp.CloseHostOffline, closeReason(ahp.CloseHostOffline, err.Error()))
	case errors.As(err, &bad):
		return c.out.close(ahp.CloseBadMessage, closeReason(ahp.CloseBadMessage, bad.Error()))
	case errors.Is(err, wire.ErrBinary), errors.Is(err, wire.ErrText):
		return c.out.close(ahp.CloseBadMessage, closeReason(ahp.CloseBadMessage, err.Error()))
	case errors.Is(err, errCut):
		return c.out.close(ahp.CloseOverloaded, "")
	case errors.Is(err, wire.ErrTooBig):
		return c.out.close(ahp.CloseMessageTooBig, err.Error())
	}
	end := c.out.close(wire.CloseStatus(err))
	c.sock.Kill()
	return end
}

// end disconnects from the host at once, and closes the client's connection after the
// queued frames.
func (c *client) end(code ahp.CloseCode, reason string) {
	c.disconnect(c.out.close(code, reason))
}

// disconnect ends the connection to the host, and unblocks senders.
func (c *client) disconnect(end closing) {
	c.mu.Lock()
	conn := c.conn
	c.conn = nil
	c.phase = phaseClosed
	c.pending.clear()
	c.handedLocked()
	if c.hold != nil {
		c.hold.Stop()
	}
	c.mu.Unlock()
	c.budget.uploads.stop(&c.load.upload)
	if conn == nil {
		return
	}
	if c.sock.Move != "" && end.code == ahp.CloseShuttingDown && !c.parted.Load() {
		end.code = ahp.CloseResync // the client or the host may have missed messages
	}
	conn.Close(end.code, end.reason)
}

// ended sends the close frame when the outbox has ended. Until awaitParting gives up, the
// relay still reads messages that the client sent earlier, even if a write failed because
// the connection was lost. If a write timed out, or failed while the connection was
// already closing, the socket is closed at once.
func (c *client) ended(end closing) {
	c.begin()
	gone := end.code == wire.CloseLost
	switch {
	case c.readEnd.Load() && end.lost:
		c.sock.Kill()
	case c.readEnd.Load(): // exit does the rest
		c.sock.Close(end.code, end.reason)
	case end.lost && !gone:
		c.sock.Kill()
		c.disconnect(end)
	default:
		if !gone {
			c.sock.SendClose(end.code, end.reason)
		}
		awaitParting(c)
	}
}

// partingLooks is how often awaitParting looks at a client, in equal parts of
// [wire.CloseTime].
const partingLooks = 5

// awaitParting kills the client's socket if the client has not closed its connection after
// wire.CloseTime. The time of a client that moves to a different relay begins anew with
// each look that finds progress: its next connection needs all that it has sent. Drain
// bounds this. If the process stands still, this counts as one look.
func awaitParting(c *client) {
	looks, taken := 0, c.sock.Conn.Taken.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parting = time.AfterFunc(wire.CloseTime/partingLooks, func() {
		now := c.sock.Conn.Taken.Load()
		if looks++; c.moved.Load() && (now != taken || c.load.stuck.Load()) {
			looks, taken = 0, now
		}
		switch {
		case looks == partingLooks:
			c.sock.Kill()
		case c.ctx.Err() == nil:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.parting.Reset(wire.CloseTime / partingLooks)
		}
	})
}

// written returns credit for written frames to the host-agent.
func (c *client) written(credit int) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		conn.Written(credit)
	}
}

// toHost returns the client's connection to its host, or nil.
func (c *client) toHost() upstream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// overload closes a client that uses too much memory, and discards its queue. For a client
// that does not read, it also drops the socket: the client has received only part of a
// frame, so a close frame cannot follow, and only the end frees the frame's memory.
func (c *client) overload(standing time.Duration, unread bool) {
	c.load.cut.Store(true)
	const reason = "the relay is out of memory for queued messages"
	end := c.out.abort(closing{code: ahp.CloseOverloaded, reason: closeReason(ahp.CloseOverloaded, reason)})
	c.log().Warn("client closed", "reason", "memory is short", "stalled", standing.Round(time.Millisecond))
	c.abort(end)
	c.load.doneReading()
	if unread || standing >= wire.WriteLook {
		c.sock.Drop()
	}
}

// abort disconnects from the host, and drops messages that have not reached it.
func (c *client) abort(end closing) {
	if conn := c.toHost(); conn != nil {
		conn.Abort(end.code, end.reason)
	}
	c.disconnect(end)
}

// clientEvents implements [routing.ClientConn]. Package routing calls its methods while
// it holds locks, so they must not block: they use the outbox or start a goroutine.
type clientEvents struct{ *client }

func (c clientEvents) Event(e routing.Event) {
	switch e {
	case routing.Opened:
		c.accepted.Store(true)
		c.spawn(c.opened)
	case routing.Ready:
		c.ready.Store(true)
		c.spawn(c.arrived)
	case routing.Probe:
		c.spawn(c.probe)
	case routing.Flushed:
		c.out.close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
	case routing.Moved:
		c.moved.Store(true) // before the client can answer
		if end := c.out.close(ahp.CloseShuttingDown, resume.MoveReason); end.reason != resume.MoveReason {
			c.moved.Store(false) // the client was being closed already, so it may miss messages
		}
	}
}

func (c clientEvents) Deliver(frames []routing.Frame) {
	messages, n := 0, 0
	for _, f := range frames {
		n += len(f.Data)
		messages += f.Messages
	}
	c.framesOut.Add(int64(messages))
	c.bytesOut.Add(int64(n))
	c.out.push(frames...)
}

func (c clientEvents) Closed(code ahp.CloseCode, detail string) {
	if code.Reason() == "" { // not a code for clients
		code = ahp.CloseResync
	}
	if c.accepted.Load() {
		c.out.close(code, closeReason(code, detail))
		return
	}
	c.spawn(func() { c.rejected(code, detail) })
}

// closeReason returns the reason in a close frame: the code's text, with the detail if
// there is any.
func closeReason(code ahp.CloseCode, detail string) string {
	reason := code.Reason()
	switch {
	case detail == "":
		return reason
	case reason == "":
		return detail
	}
	return reason + ": " + detail
}

// lineOf returns an audit log line about a client's connection.
func lineOf(c *client, event string, end closing) audit.Line {
	line := audit.Line{Event: event, Host: c.host.name, Conn: c.id, Address: c.remote, Code: end.code, Reason: end.reason}.Of(c.token.now())
	if event == "disconnect" {
		line.Detail = fmt.Sprintf("%d frames in, %d out, %v", c.framesIn.Load(), c.framesOut.Load(), time.Since(c.since).Round(time.Millisecond))
	}
	return line
}
