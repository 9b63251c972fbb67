package hostagent

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/internal/tracing"
	"ahprelay/routing"
)

// A hostWriter carries a client's messages to the host. Its goroutine runs only while messages are
// queued.
type hostWriter struct {
	c *hostConn

	answers atomic.Int32 // how many answers from gates are queued for the host

	clientName string // from the client's last initialize or reconnect with clientInfo; owned by the goroutine, like pace
	pace       pace

	writers sync.WaitGroup // the goroutine that writes to the host, while it runs
	written chan struct{}  // closed after the last write

	mu       sync.Mutex   // guards the fields below
	sock     hostSocket   // nil while writing is not possible
	queue    []delivery   // bounded by the connection's credit
	writing  bool         // a writer runs, or has ended for good
	busy     bool         // the writer's deliveries include a message
	closed   *clientClose // nil while the client is connected
	clientID string       // from the client's initialize or reconnect
}

// A clientClose is the code and reason of a client's close.
type clientClose struct {
	code   ahp.CloseCode
	reason string
}

// A delivery is a message for the host, or a request to report that all earlier messages are
// written.
type delivery struct {
	message []byte
	binary  bool
	credit  int
	from    *routing.AgentConn // the relay's connection that gets the credit
	flush   bool
	move    *routing.Move // request to keep the connection for a client on the move, once all earlier messages are written
	own     bool          // a gate's answer to the host
	arrived time.Time     // when the message arrived; zero without tracing
	about   *view.Ask     // the channel in a request of the host-agent itself; nil for other messages
	ours    bool          // the host-agent's own request on the client's behalf
}

func (d delivery) isMessage() bool { return !d.flush && d.move == nil }

func (w *hostWriter) queueUp(d delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, d)
	w.startLocked()
}

// request queues a flush or a move. It drops the request if the last queued delivery is a flush or
// a move too, because both would get the same answer. Relays can therefore not fill the queue with
// such requests.
func (w *hostWriter) request(d delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.queue); n > 0 && (w.queue[n-1].flush || w.queue[n-1].move != nil) {
		return
	}
	w.queue = append(w.queue, d)
	w.startLocked()
}

// startLocked starts a writer for the queue, once the host is connected.
func (w *hostWriter) startLocked() {
	if w.sock != nil && !w.writing && (len(w.queue) > 0 || w.closed != nil) {
		w.writing = true
		sock := w.sock
		w.writers.Go(func() { w.write(sock) })
	}
}

func (w *hostWriter) leave(code ahp.CloseCode, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = &clientClose{code, reason}
	w.startLocked()
}

// left returns the client's close, or nil while the client is connected.
func (w *hostWriter) left() *clientClose {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// nextBatch returns the queued deliveries. If the queue is empty, it reports whether
// the client has left.
func (w *hostWriter) nextBatch() (queue []delivery, end bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue, w.queue = w.queue, nil
	end = len(queue) == 0 && w.closed != nil
	w.writing = len(queue) > 0 || end
	w.busy = slices.ContainsFunc(queue, delivery.isMessage)
	return queue, end
}

// setSocket sets the socket for the client's messages. With nil, no further writer starts.
func (w *hostWriter) setSocket(sock hostSocket) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sock = sock
	w.startLocked()
}

// write writes deliveries until the queue is empty. It ends the connection after an error, and
// after the last delivery of a client that has left.
func (w *hostWriter) write(sock hostSocket) {
	for {
		queue, end := w.nextBatch()
		for _, d := range queue {
			if d.flush {
				w.c.flushed()
				continue
			}
			if d.move != nil {
				w.c.move(d.move)
				continue
			}
			if end = w.writeOne(sock, d) != nil; end {
				break // the reader gets the error too, and reports it
			}
			cmp.Or(d.from, w.c.conn.now.Load()).Written(d.credit)
		}
		if end {
			sock.Close("client gone")
			close(w.written)
			return
		}
		if len(queue) == 0 {
			return
		}
	}
}

// waits reports whether a message waits for the host. Requests of the relay do not count, so a relay cannot
// use them to hide that it delivers nothing from the client.
func (w *hostWriter) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy || slices.ContainsFunc(w.queue, delivery.isMessage)
}

// writeOne unseals a message if necessary, and writes it to the host if the gates permit it. It
// answers requests for the host-agent itself. Each origin and each verdict has its branch.
func (w *hostWriter) writeOne(sock hostSocket, d delivery) error {
	if d.own {
		w.answers.Add(-1)
		return sock.Write(d.message, false)
	}
	if seal := w.c.conn.seal; seal != nil && d.about == nil && !d.ours {
		message, err := seal.open(&d)
		if err != nil {
			return w.c.broken(err)
		}
		if message == nil {
			return nil
		}
		d.message, d.binary = message, false
	}
	env, err := ahp.Peek(d.message)
	if err != nil || d.binary {
		// A correct relay never sends a binary message, but the client of a sealed host can.
		from := "relay"
		if w.c.conn.seal != nil {
			from = "client"
		}
		w.c.conn.Close(ahp.CloseBadMessage, "the "+from+" sent an invalid message")
		w.c.cancel()
		return errBadMessage
	}
	if d.about == nil {
		w.c.counts.in.Add(1)
		w.c.counts.inBytes.Add(int64(len(d.message)))
		w.awaitState()
	} else if !w.c.subscribed(d.about.Channel) {
		w.c.dropAsk(env.ID, d.about)
		return nil
	}
	if isRequest, err := w.answersKeys(&env); isRequest {
		return err
	}
	if isRequest, err := w.refusesURL(&env); isRequest {
		return err
	}
	if isRequest, err := w.answersWaiting(&env); isRequest {
		return err
	}
	request := w.trace(&env, &d)
	decision, err := w.decide(d.message, &env)
	switch decision.Verdict {
	case gate.Answer:
		request.AnsweredHere()
		w.c.refused(&env)
		w.rejected(&env)
		return err
	case gate.Settle:
		request.AnsweredHere()
		w.c.refused(&env)
		return err
	case gate.Serve:
		request.AnsweredHere()
		return err
	case gate.Expel:
		request.AnsweredHere()
		return w.c.expel(&env, decision.Message)
	case gate.Replace:
		d.message = decision.Message
	}
	w.noteSent(&env)
	if seal := w.c.conn.seal; seal != nil && string(env.Method) == "unsubscribe" {
		seal.agent.seals.shared.unsubscribed(seal, env.Channel)
	}
	if d.about == nil {
		w.c.auditSent(&env)
	}
	request.ToHost()
	return sock.Write(d.message, false)
}

// trace begins a span for a client request. It returns nil for other messages and
// without tracing.
func (w *hostWriter) trace(env *ahp.Envelope, d *delivery) *tracing.Request {
	if w.c.traced == nil || d.arrived.IsZero() || w.c.asks.has(env.ID) {
		return nil
	}
	return w.c.traced.HostAgent(env, len(d.message), d.arrived)
}

// decide lets the gates judge a message for the host, and queues their answer, if any, for the
// client. It first waits for queue space for an answer. It holds order, so the answer follows
// earlier host messages: the client would drop a host message with a lower serverSeq as old.
func (w *hostWriter) decide(message []byte, env *ahp.Envelope) (gate.Decision, error) {
	if err := w.c.conn.WaitToAnswer(w.c.ended); errors.Is(err, routing.ErrStalled) {
		w.c.slow()
		return gate.Decision{Verdict: gate.Answer}, err
	} // a client that has left is no error here, as in answerClient
	w.c.order.Lock()
	defer w.c.order.Unlock()
	w.c.leaveCrowd()
	decision := w.c.gates.FromClient(message, env)
	switch decision.Verdict {
	case gate.Answer, gate.Settle, gate.Serve:
		w.answerClient(env, decision.Message)
	}
	return decision, nil
}

var errBadMessage = errors.New("not a JSON-RPC message")

// answerClient queues a gate's answer for the client, or gives it to the host-agent's own request.
// It ignores that the client may have left, because the client's earlier messages must still be
// written.
func (w *hostWriter) answerClient(env *ahp.Envelope, answer []byte) {
	asked, ok := w.c.asks.pop(env.ID)
	switch ok = ok && env.Kind == ahp.Request; {
	case ok && asked.about != nil:
		w.c.canvas.Settle(*asked.about)
	case ok && asked.reply != nil:
		asked.reply <- answer
	case answer != nil:
		_ = w.c.conn.FromHost(answer, false, nil)
	}
}

// noteSent records the clientId in an initialize or reconnect that is about to be written to the
// host, and probes the client's earlier connections. Once the host has accepted one such request,
// the clientId stays.
func (w *hostWriter) noteSent(env *ahp.Envelope) {
	if env.Kind != ahp.Request || string(env.Method) != "initialize" && string(env.Method) != "reconnect" {
		return
	}
	if info, ok := ahp.MemberOf(env.Params, "clientInfo"); ok {
		w.clientName = shorten(ahp.TextOf(info.Raw, "name"))
	}
	w.c.order.Lock()
	greeted, clientID := w.c.gates.View.Greeted(), w.c.gates.View.ClientID()
	w.c.order.Unlock()
	if greeted {
		return
	}
	w.mu.Lock()
	previous := w.clientID
	w.clientID = clientID
	w.mu.Unlock()
	w.c.agent.clients.move(w.c, previous, clientID)
}

// maxAnswers bounds the gate answers queued for the host.
const maxAnswers = 1000

// answerHost queues a gate's answer to a host message.
func (w *hostWriter) answerHost(answer []byte) error {
	if answer == nil {
		return nil
	}
	if w.answers.Add(1) > maxAnswers {
		return errors.New("the host sends requests without reading the answers")
	}
	w.queueUp(delivery{message: answer, own: true})
	return nil
}
