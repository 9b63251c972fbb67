package agenthost

import (
	"errors"
	"io"
	"sync"
)

// A link carries whole messages to and from one client. One goroutine may Send while
// another Recvs.
type link interface {
	// Send writes one message, and does not keep it.
	Send(msg []byte) error

	// Recv returns the next message, which the caller owns, or io.EOF after a clean
	// close.
	Recv() ([]byte, error)

	// Close sends the reason to the client if possible, and ends Send and Recv.
	Close(cause error) error
}

// A conn is a client connection.
type conn struct {
	// Set by newConn, then read-only.
	host *Host
	link link
	out  *outbox
	done chan struct{} // closed when end is called

	endOnce sync.Once
	cause   error // why the connection has ended; valid after done is closed

	// Guarded by host.mu.
	number   int64
	client   *client // nil until initialize or reconnect
	offer    offer   // offer from this connection's initialize or reconnect
	subs     map[string]*subscription
	held     *heldDelta          // delta that waits to be merged; nil: none
	opening  []*window           // windows whose delivery begins after the present answer
	inFlight int                 // number of requests that run in goroutines
	mcpCalls map[string]*mcpCall // calls on mcp:// channels, by the id that the client has given
}

// errSlow ends the connection of a client that reads too slowly.
var errSlow = errors.New("send queue full")

// serve handles a connection until either side closes it, and returns when all its
// goroutines have ended. It returns the reason, or nil if the client closed the
// connection.
func (h *Host) serve(l link) error {
	c := &conn{
		host: h,
		link: l,
		out:  newOutbox(h.cfg.SendQueue),
		done: make(chan struct{}),
		subs: make(map[string]*subscription),
	}
	if err := h.attach(c); err != nil {
		return errors.Join(err, l.Close(err))
	}
	defer h.wg.Done()
	var loops sync.WaitGroup
	loops.Go(c.readLoop)
	loops.Go(func() { c.end(c.writeLoop()) })
	<-c.done
	h.detach(c)
	l.Close(c.cause) // ends both loops
	loops.Wait()
	h.log.Debug("connection ended", "conn", c.number, "reason", c.cause)
	if errors.Is(c.cause, io.EOF) {
		return nil
	}
	return c.cause
}

// attach registers a connection. The caller must call wg.Done after the
// connection's end.
func (h *Host) attach(c *conn) error {
	h.start.Do(h.sessions.startAgents)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errHostClosed
	}
	h.wg.Add(1)
	h.connCount++
	c.number = h.connCount
	h.conns[c] = true
	h.mcp.startMCPLocked()
	h.sessions.startListsLocked()
	return nil
}

// detach removes a connection. The client's previous connection becomes its newest.
func (h *Host) detach(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
	c.dropHeldLocked()
	h.reverse.dropLocked(c)
	if c.client != nil {
		h.leaveLocked(c)
	}
	for channel := range c.subs {
		if isLogChannel(channel) {
			h.logSubs--
		}
		if ch := h.chats[channel]; ch != nil {
			ch.unloadLocked()
		}
	}
}

// end ends the connection. The first cause counts.
func (c *conn) end(cause error) {
	c.endOnce.Do(func() {
		c.cause = cause
		c.out.close()
		close(c.done)
	})
}

// readLoop handles frames in order. When the client's stream ends, queued frames are
// still written.
func (c *conn) readLoop() {
	for {
		frame, err := c.link.Recv()
		if err != nil {
			c.out.finish(err)
			return
		}
		c.record(true, frame)
		c.host.handle(c, frame)
	}
}

func (c *conn) writeLoop() error {
	for {
		frame, err := c.out.next()
		if err != nil {
			return err
		}
		c.record(false, frame)
		if err := c.link.Send(frame); err != nil {
			return err
		}
	}
}

func (c *conn) record(received bool, frame []byte) {
	if record := c.host.cfg.Recorder; record != nil {
		record(Frame{Conn: c.number, Received: received, Data: frame})
	}
}

// queueLocked queues a frame behind all waiting frames. The frame must not change
// afterwards.
func (c *conn) queueLocked(frame []byte) {
	c.flushHeldLocked()
	if !c.out.push(frame) {
		c.end(errSlow)
	}
}

// An outbox is a queue of frames. Its bound does not count the frame that is being
// written.
type outbox struct {
	limit int
	ready chan struct{} // capacity 1: signals a change

	mu      sync.Mutex // guards the fields below
	frames  [][]byte
	waiting int   // bytes in frames
	ended   error // reason to accept no more frames; nil: none
	closed  bool  // next returns no more frames
}

func newOutbox(limit int) *outbox {
	return &outbox{limit: limit, ready: make(chan struct{}, 1)}
}

// push queues a frame. It returns false if the queue is full. If no frame waits, any
// frame fits.
func (o *outbox) push(frame []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended != nil {
		return true // the connection is ending
	}
	if o.waiting > 0 && o.waiting+len(frame) > o.limit {
		return false
	}
	o.frames = append(o.frames, frame)
	o.waiting += len(frame)
	o.wake()
	return true
}

// next waits for a frame. After finish it returns the remaining frames and then the
// reason; after close it returns the reason at once.
func (o *outbox) next() ([]byte, error) {
	for {
		o.mu.Lock()
		if len(o.frames) > 0 && !o.closed {
			frame := o.frames[0]
			o.frames[0] = nil
			o.frames = o.frames[1:]
			o.waiting -= len(frame)
			o.mu.Unlock()
			return frame, nil
		}
		ended := o.ended
		o.mu.Unlock()
		if ended != nil {
			return nil, ended
		}
		<-o.ready
	}
}

// finish makes the outbox drop further frames. The first reason is kept.
func (o *outbox) finish(reason error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended == nil {
		o.ended = reason
	}
	o.wake()
}

// mute drops all waiting and all later frames.
func (o *outbox) mute() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.frames = nil
}

// close drops all waiting and later frames, and ends next.
func (o *outbox) close() {
	o.finish(io.EOF)
	o.mute()
}

// wake signals next. The caller holds o.mu.
func (o *outbox) wake() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}
