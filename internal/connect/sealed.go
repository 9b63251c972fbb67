package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/clock"
	"ahprelay/internal/sealed"
)

// Times of a sealed connection.
const (
	sealWait    = 25 * time.Second          // for a handshake; a relay lets clients of an unreachable host wait for 20 s
	confirmWait = 10*time.Minute + sealWait // for a pairing, which a person at the host confirms
	sealTick    = 5 * time.Second
	sealSilence = 45 * time.Second // longest silence while the relay is reachable
	answerWait  = 30 * time.Second // for an answer from the host-agent
)

// A sealedEnd is the client's end of a sealed connection.
type sealedEnd struct {
	ws      *websocket.Conn // used for the handshake
	session *sealed.Session // only the reader calls Open
	away    func() bool

	silent  atomic.Int32 // intervals of sealTick since the last record, without the time in which nobody reads
	unread  atomic.Bool  // nobody reads records, because the local client takes a message
	opened  atomic.Uint64
	answers chan []byte // answers to requests to the host-agent
	stop    func()      // stops live

	up atomic.Pointer[upstream] // sends the records; nil: ws does

	mu   sync.Mutex // guards the order of records, and over
	over bool
}

// A sealAsk configures a sealed connection.
type sealAsk struct {
	relay, host string
	key         *sealed.Key         // nil in a first pairing
	expect      *sealed.Fingerprint // fingerprint of the key, from a link
	code        *sealed.Code        // nil: paired already
	device      *sealed.Device
	name        string
	grants      []string
	level       auth.Access
	viewer      string // secret of a link's viewer
	away        func() bool
	pending     func(host sealed.Key) // called if a person must confirm the device
}

// openSealed does the handshake, and waits until the host-agent has admitted this device.
func openSealed(ctx context.Context, ws *websocket.Conn, ask sealAsk) (*sealedEnd, sealed.Key, error) {
	wait := sealWait
	if ask.code != nil {
		wait = confirmWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	i, frame, err := sealed.NewInitiator(sealed.InitiatorConfig{
		Host: ask.host, HostKey: ask.key, Expect: ask.expect, Code: ask.code, Device: ask.device, Limit: maxMessage,
		Greeting: sealed.Greeting{Name: ask.name, Window: int(sealed.MaxWindow / time.Second), Grants: ask.grants, Level: ask.level, Viewer: ask.viewer},
	})
	if err != nil {
		return nil, sealed.Key{}, err
	}
	e := &sealedEnd{ws: ws, away: ask.away, answers: make(chan []byte, 1)}
	for {
		if err := ws.Write(ctx, websocket.MessageBinary, frame); err != nil {
			return nil, sealed.Key{}, ask.failed(ctx, err)
		}
		if e.session != nil {
			break
		}
		answer, err := readBinary(ctx, ws)
		if err != nil {
			return nil, sealed.Key{}, ask.failed(ctx, err)
		}
		if frame, e.session, err = i.Read(answer); err != nil {
			return nil, sealed.Key{}, ask.failed(ctx, err)
		}
	}
	stop := e.live()
	if err := e.awaitWelcome(ctx, &ask, i.HostKey()); err != nil {
		stop()
		return nil, sealed.Key{}, ask.failed(ctx, err)
	}
	return e, i.HostKey(), nil
}

// awaitWelcome reads until the host-agent has admitted this device.
func (e *sealedEnd) awaitWelcome(ctx context.Context, ask *sealAsk, host sealed.Key) error {
	for {
		frame, err := readBinary(ctx, e.ws)
		if err != nil {
			return err
		}
		content, body, done, err := e.open(frame)
		switch {
		case err != nil:
			return err
		case !done, content == sealed.Heartbeat:
		case content == sealed.Welcome:
			_, err := sealed.ReadAdmission(body)
			return err
		case content == sealed.Pending && ask.code != nil:
			if ask.pending != nil {
				ask.pending(host)
			}
		case content == sealed.Close:
			return closedBy(body)
		default:
			return errors.New("the host-agent speaks before its welcome")
		}
	}
}

// readBinary reads a binary message. Text messages come from the relay, and are dropped.
func readBinary(ctx context.Context, ws *websocket.Conn) ([]byte, error) {
	for {
		kind, data, err := ws.Read(ctx)
		if err != nil || kind == websocket.MessageBinary {
			return data, err
		}
	}
}

// failed explains a failed handshake. Refusals are final; after other errors, a retry may
// help.
func (a *sealAsk) failed(ctx context.Context, err error) error {
	var closed *Closed
	if frame, ok := errors.AsType[websocket.CloseError](err); ok {
		closed = &Closed{ahp.CloseCode(frame.Code), frame.Reason}
	} else {
		errors.As(err, &closed)
	}
	again := fmt.Sprintf("Compare the host's words on its screen with those that ahp-connect devices prints; if the host's key has changed, run ahp-connect unpair %s, and pair again", a.host)
	switch {
	case errors.Is(err, sealed.ErrLie):
		return &Refusal{ahp.CloseForbidden, fmt.Sprintf("%v. %s", err, again)}
	case closed == nil && ctx.Err() != nil:
		return fmt.Errorf("%s does not answer the sealed handshake", a.host)
	case closed == nil:
		return err
	case closed.Code == ahp.CloseBadMessage:
		return &Refusal{closed.Code, fmt.Sprintf("%s does not accept the sealed handshake. %s", a.host, again)}
	case closed.Code == ahp.CloseForbidden, closed.Code == ahp.CloseTokenEnded, closed.Code == ahp.CloseUnknownHost:
		return &Refusal{closed.Code, closed.Reason}
	}
	return closed
}

func closedBy(body []byte) error {
	code, reason, ok := sealed.ReadClose(body)
	if !ok {
		return errors.New("sealed close that cannot be read")
	}
	return &Closed{code, code.Reason() + ": " + reason}
}

// open decrypts a record.
func (e *sealedEnd) open(frame []byte) (content sealed.Content, body []byte, done bool, err error) {
	before := e.session.Heard()
	if content, body, done, err = e.session.Open(frame); err == nil && e.session.Heard() > before {
		e.silent.Store(0)
		e.opened.Store(e.session.Opened())
	}
	return content, body, done, err
}

// live sends heartbeats until stop, and ends the connection if it is silent. The two do not wait
// for each other, because a relay that takes nothing blocks the heartbeats.
func (e *sealedEnd) live() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.beat(ctx) })
	running.Go(func() { e.watch(ctx) })
	var once sync.Once
	e.stop = func() {
		once.Do(cancel)
		running.Wait()
	}
	return e.stop
}

// beat sends heartbeats until ctx ends. While a message is being sent, no heartbeat is needed.
func (e *sealedEnd) beat(ctx context.Context) {
	for clock.Sleep(ctx, sealed.Beat) {
		if e.mu.TryLock() {
			_ = e.sendLocked(ctx, sealed.Heartbeat, sealed.AppendHeartbeat(e.opened.Load())) // the reader notices a failure too
			e.mu.Unlock()
		}
	}
}

// watch ends the connection if it is silent, until ctx ends.
func (e *sealedEnd) watch(ctx context.Context) {
	for clock.Sleep(ctx, sealTick) {
		if !e.away() && !e.unread.Load() && time.Duration(e.silent.Add(1))*sealTick > sealSilence {
			_ = e.present().CloseNow()
			return
		}
	}
}

// send encrypts and sends a parcel.
func (e *sealedEnd) send(ctx context.Context, content sealed.Content, body []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sendLocked(ctx, content, body)
}

func (e *sealedEnd) sendLocked(ctx context.Context, content sealed.Content, body []byte) error {
	if e.over {
		return errLocalGone
	}
	e.over = content == sealed.Close
	frames, err := e.session.Seal(content, body)
	if err != nil {
		return err
	}
	for _, frame := range frames {
		if err := e.writeLocked(ctx, frame, content != sealed.Close); err != nil {
			return err
		}
	}
	return nil
}

// writeLocked writes a record. If moves is true and this relay stops, it writes the record
// to the next relay.
func (e *sealedEnd) writeLocked(ctx context.Context, frame []byte, moves bool) error {
	if up := e.up.Load(); up != nil && moves {
		return up.write(ctx, websocket.MessageBinary, frame)
	}
	return e.present().Write(ctx, websocket.MessageBinary, frame)
}

// present returns the WebSocket to the current relay.
func (e *sealedEnd) present() *websocket.Conn {
	up := e.up.Load()
	if up == nil {
		return e.ws
	}
	ws, _ := up.current()
	return ws
}

// share asks the host-agent to send shared messages. Host-agents of version 1.0.0-rc.1
// answer with an error, and do not share.
func (e *sealedEnd) share(ctx context.Context) error {
	return e.send(ctx, sealed.Ask, []byte(`{"id":0,"do":"share","parts":true}`))
}

// next returns a further message from the last record, or nil.
func (e *sealedEnd) next() []byte {
	_, message, _ := e.session.Next() // only messages come together
	return message
}

// read decrypts a record. It returns the message which the record completes, or nil. The
// caller then calls next until it returns nil.
func (e *sealedEnd) read(frame []byte) ([]byte, error) {
	content, body, done, err := e.open(frame)
	switch {
	case err != nil:
		return nil, err
	case !done, content == sealed.Heartbeat:
		return nil, nil
	case content == sealed.Message:
		return body, nil
	case content == sealed.Close:
		return nil, closedBy(body)
	case content == sealed.Answer:
		select {
		case e.answers <- bytes.Clone(body):
		default: // the client did not ask
		}
		return nil, nil
	}
	return nil, errors.New("sealed record for the other direction")
}
