package hostagent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/signal"
	"ahprelay/routing"
	"ahprelay/routing/audience"
)

// Bounds of audiences at a sealed host.
const (
	audienceAhead = 1 << 20 // most bytes of host messages that the audience has not handled yet
	viewerQueue   = 8 << 20 // most bytes in the queue of a viewer; a single message may be larger
)

// viewers returns the pool in which the viewers of a link share a connection to the host. Each
// viewer still has its own connection to the host-agent with its own gates. For these gates, the
// shared connection takes the place of the host.
func (s *seals) viewers() *audience.Pool {
	s.pooled.Do(func() {
		a := s.agent
		s.pool = audience.New(audience.Config{
			Open: func(open routing.Open, client routing.ClientConn) (audience.Upstream, error) {
				return watchFor(a, open, client), nil
			},
			Crowd:  s.newCrowd,
			Encode: encodePiece, Decode: decodePieces, Life: a.life,
			Spawn: func(f func()) bool {
				a.conns.Go(f)
				return true
			},
		})
	})
	return s.pool
}

// encodePiece returns a piece in the form in which an audience passes it to viewers: a byte with
// the flags for the first and the last piece, the length, the piece. decodePieces reads that form.
func encodePiece(piece []byte, first, last, _ bool) []byte {
	var flags byte
	if first {
		flags |= 1
	}
	if last {
		flags |= 2
	}
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(piece))), piece...)
}

func decodePieces(encoded []byte, each func(payload, whole []byte, first, last, binary bool)) {
	for len(encoded) > 0 {
		n := 5 + int(binary.BigEndian.Uint32(encoded[1:]))
		each(encoded[5:n:n], encoded[:n:n], encoded[0]&1 != 0, encoded[0]&2 != 0, false)
		encoded = encoded[n:]
	}
}

// sharesHost reports whether a client shares its connection to the host with others: the client came
// by a link, and has level look. A host process of the client's own (a command) is not shared. A
// client that a viewer has admitted with a grant may have less authority than the viewers.
func (c *hostConn) sharesHost() bool {
	seal := c.conn.seal
	return seal != nil && seal.guest && len(seal.device.Chain) == 1 && !c.agent.ownProcess() && !c.policy.Access.Includes(auth.AccessTalk)
}

// reach returns the client's connection to the host: its own, or, for a link's viewer, a place on
// the connection that the link's viewers share.
func (c *hostConn) reach(ctx context.Context) (hostSocket, error) {
	if !c.sharesHost() {
		return c.agent.dialFor(ctx, c.caller())
	}
	s := &viewerSocket{conn: c, came: make(chan struct{}, 1), life: c.agent.life}
	c.conn.seal.mu.Lock()
	c.conn.seal.viewer = true
	c.conn.seal.mu.Unlock()
	name := linkSubject(c.conn.seal.device.Chain[0])
	s.viewer = c.agent.seals.viewers().Enter(name, routing.Open{Access: c.open.Access, Sealed: true}, s, false)
	return s, nil
}

// A viewerSocket connects a viewer to its audience. The rest of the host-agent uses it as the
// viewer's socket to the host. It implements [audience.Follower].
type viewerSocket struct {
	conn   *hostConn
	viewer *audience.Viewer
	came   chan struct{} // signals new frames, or err; capacity 1
	life   context.Context

	mu     sync.Mutex // guards the fields below
	frames []routing.Frame
	bytes  int  // length of all frames
	whole  int  // how many messages in frames are complete
	idle   bool // Read waits, because it has handled all frames
	err    error

	pieces []byte // pieces of a message whose last piece has not arrived; owned by Read
}

func (s *viewerSocket) Event(routing.Event) {}

func (s *viewerSocket) Deliver(frames []routing.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	for _, f := range frames {
		s.bytes += len(f.Data)
		s.whole += f.Messages
	}
	s.frames = append(s.frames, frames...)
	if s.whole > 1 && s.bytes-s.firstLocked() > viewerQueue {
		s.frames, s.err = nil, routing.ErrStalled
	}
	signal.Send(s.came)
}

// firstLocked returns the length of the frames with the first message, which is complete.
func (s *viewerSocket) firstLocked() (bytes int) {
	for _, f := range s.frames {
		bytes += len(f.Data)
		if f.Messages > 0 {
			break
		}
	}
	return bytes
}

func (s *viewerSocket) Closed(code ahp.CloseCode, reason string) {
	s.fail(errors.New(code.Reason() + ": " + reason))
}

func (s *viewerSocket) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	signal.Send(s.came)
}

func (s *viewerSocket) Read() (message []byte, binary bool, err error) {
	for {
		f, err := s.take()
		if err != nil {
			return nil, false, err
		}
		if message = s.piece(f); message != nil {
			return message, false, nil
		}
	}
}

// piece adds a frame's pieces to the incomplete message. It returns the message if complete, else
// nil. A message longer than routing.MaxLent is a copy, because the caller may keep the message and
// other viewers have the same frame.
func (s *viewerSocket) piece(f routing.Frame) (message []byte) {
	decodePieces(f.Data, func(payload, _ []byte, first, last, _ bool) {
		switch {
		case first && last && len(payload) <= routing.MaxLent:
			message = payload
		default:
			if s.pieces = append(s.pieces, payload...); last {
				message, s.pieces = s.pieces, nil
			}
		}
	})
	return message
}

// take waits for the next frame. If the viewer's queue has exceeded viewerQueue, it returns
// ErrStalled.
func (s *viewerSocket) take() (routing.Frame, error) {
	for {
		f, ok, err := s.next()
		if ok || err != nil {
			return f, err
		}
		select {
		case <-s.came:
		case <-s.life.Done():
			return routing.Frame{}, s.life.Err()
		}
	}
}

// next takes the next frame out of the queue. ok is false if there is none.
func (s *viewerSocket) next() (f routing.Frame, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle = len(s.frames) == 0 && s.err == nil; len(s.frames) == 0 {
		s.frames = nil
		return f, false, s.err
	}
	f = s.frames[0]
	s.frames[0] = routing.Frame{}
	s.frames = s.frames[1:]
	s.bytes -= len(f.Data)
	s.whole -= f.Messages
	return f, true, nil
}

func (s *viewerSocket) Whole() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole > 0
}

func (s *viewerSocket) Write(message []byte, _ bool) error {
	return s.viewer.Send(s.life, bytes.Clone(message))
}

func (s *viewerSocket) Close(reason string) {
	s.viewer.Close(ahp.CloseShuttingDown, reason)
	s.fail(routing.ErrConnClosed)
}

// A crowdLine is the connection to the host that an audience shares. It implements
// [audience.Upstream].
type crowdLine struct {
	agent  *Agent
	client routing.ClientConn
	life   context.Context
	end    context.CancelFunc
	open   chan struct{} // closed when sock is set, or connecting has failed
	sock   hostSocket    // the connection to the host; nil if connecting failed
	took   chan struct{} // signals that ahead has become smaller; capacity 1

	mu    sync.Mutex // guards ahead
	ahead int        // bytes in host messages that the audience has not handled yet
}

// watchFor returns at once, and connects an audience to the host in a new goroutine. If that fails,
// it closes the audience.
func watchFor(a *Agent, open routing.Open, client routing.ClientConn) *crowdLine {
	life, end := context.WithCancel(a.life)
	u := &crowdLine{agent: a, client: client, life: life, end: end, open: make(chan struct{}), took: make(chan struct{}, 1)}
	who := &caller{tenant: a.tenant, subject: open.Subject, access: open.Access, conn: open.ID}
	a.conns.Go(func() {
		defer end()
		opening, cancel := context.WithTimeout(life, openTime)
		sock, err := a.dialFor(opening, who)
		cancel()
		u.sock = sock
		close(u.open)
		if err != nil {
			a.monitor.suspect()
			client.Closed(ahp.CloseHostOffline, publicReason(err))
			return
		}
		stop := context.AfterFunc(life, func() { sock.Close("no viewers") })
		defer stop()
		client.Event(routing.Opened)
		err = u.carry()
		sock.Close("no viewers")
		client.Closed(ahp.CloseResync, publicReason(err))
	})
	return u
}

// carry passes the host's messages to the audience until the connection ends, and returns why it
// ended.
func (u *crowdLine) carry() error {
	for {
		message, isBinary, err := u.sock.Read()
		var skip *skippedError
		switch {
		case errors.As(err, &skip) && skip.env.Kind == ahp.Response:
			message = ahp.AppendTooLong(nil, &skip.env, skip.size, skip.limit)
		case errors.As(err, &skip), err == nil && isBinary:
			continue // dropped: no viewer gets binary messages, or long messages other than answers
		case err != nil:
			return err
		}
		if err := u.room(len(message)); err != nil {
			return err
		}
		u.client.Deliver([]routing.Frame{{Data: encodePiece(message, true, true, false), Messages: 1, Credit: len(message)}})
	}
}

// room adds n bytes to ahead. It first waits while ahead would exceed audienceAhead; a single
// message may be larger.
func (u *crowdLine) room(n int) error {
	for {
		u.mu.Lock()
		free := u.ahead == 0 || u.ahead+n <= audienceAhead
		if free {
			u.ahead += n
		}
		u.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-u.took:
		case <-u.life.Done():
			return u.life.Err()
		}
	}
}

func (u *crowdLine) Written(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ahead -= n
	signal.Send(u.took)
}

func (u *crowdLine) Send(ctx context.Context, message []byte) error {
	select {
	case <-u.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	if u.sock == nil {
		return routing.ErrConnClosed
	}
	return u.sock.Write(message, false)
}

func (u *crowdLine) Close(ahp.CloseCode, string) { u.end() }
