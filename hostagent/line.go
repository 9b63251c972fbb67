package hostagent

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"

	"ahprelay/ahp"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// A clientLine carries a hostConn's messages to its client. On a sealed connection, it seals them.
// A client may move to a different relay; its hostConn then keeps its clientLine, whose field now
// points to the new connection (see move). Methods with the name of a method of
// [routing.AgentConn] do the same on the present connection.
type clientLine struct {
	seal *sealing // seals and opens messages; nil if the host is not sealed

	now    atomic.Pointer[routing.AgentConn]
	moving atomic.Pointer[move] // the client's move to another relay, or nil. Set under order and sending

	sending  sync.RWMutex       // held to send without the connection's order
	reserved *routing.AgentConn // the connection that has a reservation; nil: none. Owned by the reader
	ready    bool               // the host has accepted initialize or reconnect; guarded by the connection's order

	mu   sync.Mutex // guards changes of now and moving, and gone; may be locked while routing's lock is held
	gone bool       // the client cannot move any more, because its last line has ended
}

func newClientLine(conn *routing.AgentConn) *clientLine {
	l := &clientLine{}
	l.now.Store(conn)
	return l
}

// Opened tells the relay that the host accepts messages. A sealed connection is open from
// its handshake on.
func (l *clientLine) Opened() error {
	if l.seal != nil {
		return nil
	}
	return l.now.Load().Opened()
}

// The caller of Ready holds the connection's order.
func (l *clientLine) Ready() {
	l.ready = true
	if l.moving.Load() == nil {
		_ = l.now.Load().Ready() // fails if the client has left
	}
}

// The caller of FromHost holds the connection's order.
func (l *clientLine) FromHost(message []byte, binary bool, channel []byte) error {
	due, err := l.Take(message, binary, channel)
	if due {
		l.Send()
	}
	return err
}

func (l *clientLine) FromHostWith(message []byte, from, to int) error {
	if l.seal != nil {
		return l.FromHost(message, false, nil)
	}
	l.sending.RLock()
	defer l.sending.RUnlock()
	if m := l.moving.Load(); m != nil {
		return m.keep(message, false, nil)
	}
	return l.now.Load().FromHostWith(message, from, to)
}

// The caller of Take holds the connection's order.
func (l *clientLine) Take(message []byte, binary bool, channel []byte) (due bool, err error) {
	m := l.moving.Load()
	if l.seal != nil && (binary || len(channel) == 0 || m != nil) {
		return l.seal.take(sealed.Message, message)
	}
	if l.seal != nil {
		_, due, err = l.seal.notify([]*routing.Notification{routing.NewNotification(bytes.Clone(message), bytes.Clone(channel))})
		return due, err
	}
	if m != nil {
		return false, m.keep(message, binary, channel)
	}
	return l.now.Load().Take(message, binary, channel)
}

// The caller of Notify holds the connection's order.
func (l *clientLine) Notify(row []*routing.Notification) (taken int, due bool, err error) {
	switch {
	case l.moving.Load() != nil:
	case l.seal != nil:
		return l.seal.notify(row)
	default:
		return l.now.Load().Notify(row)
	}
	for i, n := range row {
		if _, err := l.Take(n.Message(), false, n.Channel()); err != nil {
			return i, false, err
		}
	}
	return len(row), false, nil
}

func (l *clientLine) Send() { l.now.Load().Send() }

func (l *clientLine) HeldBack() bool {
	if m := l.moving.Load(); m != nil {
		return m.full()
	}
	return l.now.Load().HeldBack()
}

func (l *clientLine) Wait(done <-chan struct{}) error {
	return l.follow(done, false, func(conn *routing.AgentConn) error { return conn.Wait(done) })
}

func (l *clientLine) WaitToAnswer(done <-chan struct{}) error {
	return l.follow(done, false, func(conn *routing.AgentConn) error { return conn.WaitToAnswer(done) })
}

func (l *clientLine) Reserve(done <-chan struct{}, bytes int) error {
	return l.follow(done, true, func(conn *routing.AgentConn) error {
		l.reserved = conn
		return conn.Reserve(done, bytes)
	})
}

func (l *clientLine) Unreserve() {
	if l.reserved != nil {
		l.reserved.Unreserve()
		l.reserved = nil
	}
}

// follow runs the function wait with the present connection to the relay, and again with the next
// connection if the client has moved meanwhile. During the move, messages are kept
// for the client, so follow returns at once. If line is true or the kept messages exceed their
// bound, follow waits for the end of the move.
func (l *clientLine) follow(done <-chan struct{}, line bool, wait func(*routing.AgentConn) error) error {
	for {
		conn, m := l.now.Load(), l.moving.Load()
		switch {
		case m == nil:
			err := wait(conn)
			if !errors.Is(err, routing.ErrConnClosed) || l.moving.Load() == nil && l.now.Load() == conn {
				return err
			}
		case m.isOver():
			if l.moving.Load() == m { // the move ended, and the client did not arrive
				return routing.ErrConnClosed
			}
		case !line && !m.full():
			return nil
		default:
			select {
			case <-m.over:
			case <-done:
				return routing.ErrConnClosed
			}
		}
	}
}

func (l *clientLine) Flushed() error { return l.now.Load().Flushed(false) }

func (l *clientLine) Close(code ahp.CloseCode, reason string) {
	if l.seal != nil {
		l.seal.close(code, reason)
		return
	}
	l.endMove()
	l.now.Load().Close(code, reason)
}

// The relay does not learn the reason for a sealed connection.
func (l *clientLine) Abort(code ahp.CloseCode, reason string) {
	if l.seal != nil {
		l.seal.silence()
		reason = ""
	}
	l.endMove()
	l.now.Load().Abort(code, reason)
}

func (l *clientLine) Relay() string { return l.now.Load().Relay() }

// A client on the move gets hurryTime to arrive instead.
func (l *clientLine) Probe() {
	if m := l.moving.Load(); m != nil {
		m.hurry()
		return
	}
	l.now.Load().Probe()
}

// stop releases a sealed stream's timers and ends the client's move, at the end of the connection.
func (l *clientLine) stop() {
	if l.seal != nil {
		l.seal.stop()
	}
	l.endMove()
}

// Relays receive no report about a sealed connection.
func (l *clientLine) Report(report func() routing.Report) {
	if l.seal == nil {
		l.now.Load().Report(report)
	}
}
