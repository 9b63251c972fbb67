package resume

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"ahprelay/broker/link"
	"ahprelay/internal/signal"
)

// Times and bounds for streams.
const (
	// DefaultTime is how long a client may be absent without losing its connections.
	DefaultTime = 10 * time.Minute

	// DefaultWindow is how many bytes a relay stores for an absent client.
	DefaultWindow = 8 << 20

	// clientWindow bounds the bytes which a relay has received but not read.
	clientWindow = 1 << 20

	// A peer that was not heard for awayAfter is away. Before that, it is probed.
	heartbeat = 5 * time.Second
	probe     = 2 * time.Second
	awayAfter = 10 * time.Second

	flushTime = 5 * time.Second // how long a closed Stream may take to send its last bytes
	maxPacket = 64<<10 + 64     // most bytes in a packet
	cost      = 256             // added to the size of each packet which waits to be read
	payload   = 64<<10 - link.HeaderRoom

	writeCheck = time.Second // a waiting Write checks this often whether the peer is away

	// Write sends a packet itself while fewer bytes than these are on their way to the
	// peer: a network connection takes them at once.
	direct = 8 << 10
)

// Reasons why a stream has ended.
var (
	// ErrMissed reports that the peer was away for longer than the resume time, or that
	// the bytes for it have exceeded the window or a bound of the Pool.
	ErrMissed = errors.New("the peer was away for too long, or has missed too much")
	// ErrGone reports that the relay has refused or closed the stream.
	ErrGone = errors.New("the relay has refused or ended this stream")
	// ErrBroken reports that the peer has violated the protocol.
	ErrBroken = errors.New("the peer broke the rules of the stream")
	// ErrDiscarded reports that Discard was called.
	ErrDiscarded = errors.New("stream discarded")
)

// A Carrier is one network connection. One goroutine may call Recv while others call
// Send.
type Carrier interface {
	// Send sends one packet and does not keep it.
	Send(packet []byte) error
	// Recv returns the next packet, which the caller owns.
	Recv() ([]byte, error)
	// Close ends Send and Recv. It may be called more than once.
	Close()
}

// A Config configures a [Stream]. All fields are required unless noted.
type Config struct {
	ID      [32]byte
	Window  int           // bound for the bytes stored for the peer
	Inbox   int           // bound for the bytes the peer may send before they are read
	Time    time.Duration // how long the peer may be away
	Pool    *Pool         // at a relay; nil: at a client, where Write waits while the relay is away
	Person  string        // the person whose bytes the Pool counts
	Address net.Addr      // address of the peer
	Local   net.Addr
}

// A Stream is an end of a stream between two processes.
type Stream struct {
	cfg Config

	away time.Duration // awayAfter; less in tests

	wake chan struct{} // wakes send
	over chan struct{} // closed when the stream has ended

	mu       sync.Mutex // guards the fields below
	changed  chan struct{}
	link     *link.Link
	queue    [][]byte    // packets not given to a carrier yet
	held     int         // bytes counted in the Pool
	carrier  Carrier     // the current carrier; nil: none
	sending  Carrier     // the carrier whose Send is being called; nil: none
	timer    *time.Timer // wakes the carrier's sender; nil: there is none
	wakeAt   time.Time   // when the timer fires
	attached bool        // a carrier was attached before
	heard    time.Time
	awayFrom time.Time // when the last carrier has ended
	inbox    []arrived
	unread   int  // bytes in inbox, and cost for each packet
	closed   bool // Close was called
	bye      bool // the peer has closed the stream; the inbox can still be read
	err      error
	readBy   time.Time // deadlines; zero: none
	writeBy  time.Time
}

// An arrived packet waits to be read.
type arrived struct {
	number uint64
	rest   []byte
}

// New returns one end of a stream. It has no carrier yet.
func New(cfg Config) *Stream {
	now := time.Now()
	epoch := uint64(0)
	for _, b := range cfg.ID[:8] {
		epoch = epoch<<8 | uint64(b)
	}
	c := &Stream{cfg: cfg, away: awayAfter, wake: make(chan struct{}, 1), over: make(chan struct{}), changed: make(chan struct{}), heard: now, awayFrom: now}
	c.link = link.New(link.Config{Window: cfg.Window, Heartbeat: heartbeat, Resume: cfg.Time, Probe: probe, AckDelay: 20 * time.Millisecond}, wireVersion, epoch, now)
	return c
}

// ID returns the stream's id, which must be kept secret.
func (c *Stream) ID() [32]byte { return c.cfg.ID }

// Done returns a channel which is closed when the stream has ended.
func (c *Stream) Done() <-chan struct{} { return c.over }

// AwaitEnd returns when the stream has ended, or after the given time.
func (c *Stream) AwaitEnd(most time.Duration) {
	select {
	case <-c.over:
	case <-time.After(most):
	}
}

// Err returns the reason why the stream has ended, or nil.
func (c *Stream) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Away reports whether the peer is away.
func (c *Stream) Away() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.carrier == nil && c.attached || c.silentLocked(time.Now())
}

// silentLocked reports whether the peer was not heard for awayAfter. If a new carrier
// replaces an ended one quickly, the peer is not silent.
func (c *Stream) silentLocked(now time.Time) bool { return now.Sub(c.heard) > c.away }

// Queued returns the number of bytes written but not yet confirmed by the peer, and of
// bytes received but not yet read.
func (c *Stream) Queued() (written, unread int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held, c.unread
}

// changeLocked wakes all callers of waitLocked.
func (c *Stream) changeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// waitLocked unlocks the mutex and waits for a change. It fails at the deadline.
func (c *Stream) waitLocked(by time.Time) error {
	changed := c.changed
	var late <-chan time.Time
	if !by.IsZero() {
		left := time.Until(by)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		late = time.After(left)
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-changed:
	case <-late:
	}
	return nil
}

func (c *Stream) wakeSender() { signal.Send(c.wake) }

// Write implements [net.Conn]. Each reason to fail or to wait has its branch.
func (c *Stream) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.planLocked(time.Now()) }()
	for n < len(p) {
		now := time.Now()
		switch {
		case c.err != nil:
			return n, c.err
		case c.closed:
			return n, net.ErrClosed
		case c.bye:
			return n, io.ErrClosedPipe
		case c.silentLocked(now) && c.cfg.Pool != nil && (!c.link.CanSend() || c.cfg.Pool.Full(c.cfg.Person)):
			c.endLocked(ErrMissed)
			continue
		case !c.link.CanSend():
			by := c.writeBy
			if c.cfg.Pool != nil { // a silent peer counts as away after some time
				if soon := now.Add(writeCheck); by.IsZero() || soon.Before(by) {
					by = soon
				}
			}
			c.planLocked(now)
			if err := c.waitLocked(by); err != nil {
				return n, err
			}
			if late := time.Since(by); late > 0 && !by.IsZero() { // this process stood still, and packets may wait to be received
				c.heard = c.heard.Add(min(late, time.Since(c.heard))) // no later than now
			}
			if !c.writeBy.IsZero() && !time.Now().Before(c.writeBy) {
				return n, os.ErrDeadlineExceeded
			}
			continue
		}
		part := p[n:min(len(p), n+payload)]
		packet := make([]byte, link.HeaderRoom+len(part))
		copy(packet[link.HeaderRoom:], part)
		alone := c.directLocked(len(packet))
		sealed := c.link.Seal(packet, now)
		c.countLocked()
		n += len(part)
		if alone {
			c.sendLocked(sealed)
		} else {
			c.queue = append(c.queue, sealed)
		}
	}
	return n, nil
}

// directLocked reports whether Write may send a packet itself: all earlier packets have
// been sent, and the peer has confirmed nearly all of them.
func (c *Stream) directLocked(bytes int) bool {
	return c.carrier != nil && c.sending == nil && len(c.queue) == 0 && c.link.Held()+bytes < direct && !c.link.Due().IsZero()
}

// sendLocked sends a packet, and releases the lock meanwhile. If the carrier fails, the
// link repeats the packet on the next carrier.
func (c *Stream) sendLocked(packet []byte) {
	carrier := c.carrier
	c.sending = carrier
	c.mu.Unlock()
	err := carrier.Send(packet)
	if err != nil {
		carrier.Close()
	}
	c.mu.Lock()
	if c.sending == carrier {
		c.sending = nil
	}
}

// planLocked wakes the sender, or sets its timer, if the link needs it earlier than planned.
func (c *Stream) planLocked(now time.Time) {
	due := c.link.Due()
	switch {
	case len(c.queue) > 0, c.closed, c.timer == nil, !now.Before(due):
		c.wakeSender()
	case due.Before(c.wakeAt):
		c.wakeAt = due
		c.timer.Reset(due.Sub(now))
	}
}

// countLocked updates the bytes counted in the Pool.
func (c *Stream) countLocked() {
	held := c.link.Held()
	if c.err != nil {
		held = 0
	}
	c.cfg.Pool.Add(c.cfg.Person, held-c.held)
	c.held = held
}

// Read implements [net.Conn].
func (c *Stream) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.inbox) == 0 {
		switch {
		case c.err != nil:
			return 0, c.err
		case c.bye:
			return 0, io.EOF
		case c.closed:
			return 0, net.ErrClosed
		}
		if err := c.waitLocked(c.readBy); err != nil {
			return 0, err
		}
	}
	now := time.Now()
	for n < len(p) && len(c.inbox) > 0 {
		first := &c.inbox[0]
		m := copy(p[n:], first.rest)
		n += m
		c.unread -= m
		if first.rest = first.rest[m:]; len(first.rest) == 0 {
			c.link.Done(first.number, now)
			c.unread -= cost
			c.inbox[0] = arrived{}
			if c.inbox = c.inbox[1:]; len(c.inbox) == 0 {
				c.inbox = nil
			}
		}
	}
	c.planLocked(now) // an ack may be due
	return n, nil
}

// Close implements [net.Conn]. Bytes written before are still sent, for at most
// flushTime, unless the peer is away.
func (c *Stream) Close() error {
	c.mu.Lock()
	if c.closed || c.err != nil {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	settled := c.carrier == nil && c.attached || c.link.Settled()
	c.changeLocked()
	c.mu.Unlock()
	if settled {
		c.end(net.ErrClosed)
		return nil
	}
	time.AfterFunc(flushTime, func() { c.end(net.ErrClosed) })
	c.wakeSender()
	return nil
}

// Discard ends the stream at once, and drops all bytes for the peer.
func (c *Stream) Discard() { c.end(ErrDiscarded) }

// end ends the stream. Only the first call sets the reason.
func (c *Stream) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err)
}

func (c *Stream) endLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.inbox, c.unread, c.queue = nil, 0, nil
	c.countLocked()
	close(c.over)
	c.changeLocked()
}

// expireLocked ends the stream if the peer has been away for too long, if Close was called
// and the peer has all bytes, or if the peer has closed and the inbox is empty.
func (c *Stream) expireLocked(now time.Time) {
	if c.closed && c.link.Settled() {
		c.endLocked(net.ErrClosed)
	}
	switch {
	case c.carrier == nil && !now.Before(c.awayFrom.Add(c.cfg.Time)):
		c.endLocked(ErrMissed)
	case c.bye && len(c.inbox) == 0:
		c.endLocked(io.EOF)
	}
}

// Expire ends the stream if the peer has been away for too long. The owner calls it
// regularly.
func (c *Stream) Expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expireLocked(now)
}

// LocalAddr implements [net.Conn].
func (c *Stream) LocalAddr() net.Addr { return c.cfg.Local }

// RemoteAddr implements [net.Conn]. It is the peer's address on the first carrier.
func (c *Stream) RemoteAddr() net.Addr { return c.cfg.Address }

// SetDeadline implements [net.Conn].
func (c *Stream) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *Stream) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readBy, t) }

// SetWriteDeadline implements [net.Conn].
func (c *Stream) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeBy, t) }

func (c *Stream) setDeadline(which *time.Time, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	*which = t
	c.changeLocked()
	return nil
}

// Attach sends and receives the stream's packets over a carrier, until the carrier or the
// stream ends, and then closes the carrier. A later Attach replaces the carrier. Attach
// returns the carrier's error.
func (c *Stream) Attach(carrier Carrier) error {
	now := time.Now()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		carrier.Close()
		return c.err
	}
	former := c.carrier
	c.carrier, c.sending, c.attached, c.heard = carrier, nil, true, now
	c.queue = nil // the link resends these packets
	c.link.Probe()
	c.changeLocked()
	c.mu.Unlock()
	var wg sync.WaitGroup
	if former != nil {
		wg.Go(former.Close) // may take seconds with TLS
	}
	ended := make(chan struct{})
	var sendErr error
	wg.Go(func() {
		defer carrier.Close()
		sendErr = c.send(carrier, ended)
	})
	err := c.receive(carrier)
	carrier.Close()
	close(ended)
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.carrier == carrier {
		c.carrier, c.sending, c.timer, c.awayFrom, c.queue = nil, nil, nil, time.Now(), nil
		c.changeLocked()
		if errors.Is(err, ErrBroken) {
			c.endLocked(err)
		}
	}
	return errors.Join(sendErr, err)
}

func (c *Stream) receive(carrier Carrier) error {
	for {
		packet, err := carrier.Recv()
		if err != nil {
			return err
		}
		if len(packet) > maxPacket {
			return fmt.Errorf("%w: packet of %d bytes", ErrBroken, len(packet))
		}
		if err := c.received(carrier, packet); err != nil {
			return err
		}
	}
}

var errReplaced = errors.New("a newer carrier has replaced this one")

func (c *Stream) received(carrier Carrier, packet []byte) error {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.planLocked(now)
	switch {
	case c.err != nil:
		return c.err
	case c.carrier != carrier:
		return errReplaced
	}
	full := !c.link.CanSend()
	got, err := c.link.Receive(packet, now)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	c.heard = now
	c.countLocked()
	switch {
	case got.Bye != "":
		c.bye = true
		c.changeLocked()
		return io.EOF
	case got.Number != 0 && (c.closed || len(got.Payload) == 0):
		c.link.Done(got.Number, now)
	case got.Number != 0:
		if c.unread += len(got.Payload) + cost; c.unread > c.cfg.Inbox+maxPacket+cost {
			return fmt.Errorf("%w: more than its window", ErrBroken)
		}
		c.inbox = append(c.inbox, arrived{got.Number, got.Payload})
		c.changeLocked()
	}
	if full && c.link.CanSend() {
		c.changeLocked()
	}
	return nil
}

// send sends packets until the carrier or the stream has ended. At the stream's end it
// sends a bye.
func (c *Stream) send(carrier Carrier, ended <-chan struct{}) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for sent := false; ; {
		packet, err := c.next(carrier, timer, sent)
		if sent = packet != nil; err == nil && sent {
			err = carrier.Send(packet)
		}
		switch {
		case err != nil:
			return err
		case sent:
			continue
		}
		select {
		case <-ended:
			return nil
		case <-c.over:
			return carrier.Send(link.Bye(wireVersion, c.link.Epoch(), "stream ended"))
		case <-c.wake:
		case <-timer.C:
		}
	}
}

var errSilent = errors.New("the peer does not answer on this carrier")

// next returns the next packet for a carrier, or nil after it has set the timer for the next
// call. Sent reports that the caller has sent the previous packet.
func (c *Stream) next(carrier Carrier, timer *time.Timer, sent bool) (packet []byte, err error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.carrier != carrier {
		return nil, errReplaced
	}
	if sent {
		c.sending = nil
	}
	if c.expireLocked(now); c.err != nil {
		return nil, nil // send sees that over is closed
	}
	due := now.Add(time.Hour) // while Write sends a packet itself; it calls planLocked when it returns
	if c.sending == nil {
		packet, due, err = c.packetLocked(now)
	}
	if packet != nil {
		c.sending = carrier
	}
	c.timer, c.wakeAt = timer, due
	timer.Reset(max(due.Sub(now), 0))
	return packet, err
}

// packetLocked returns the next packet, or nil and the time to ask again.
func (c *Stream) packetLocked(now time.Time) (packet []byte, due time.Time, err error) {
	if packet := c.link.Resend(now); packet != nil {
		return packet, now, nil
	}
	if len(c.queue) > 0 {
		packet := c.queue[0]
		c.queue[0] = nil
		if c.queue = c.queue[1:]; len(c.queue) == 0 {
			c.queue = nil
		}
		return packet, now, nil
	}
	ack, due, lost := c.link.Tick(now)
	switch {
	case lost:
		c.endLocked(ErrMissed)
	case c.silentLocked(now) && c.cfg.Pool == nil:
		return nil, due, errSilent // the client dials a new carrier
	}
	return ack, due, nil
}
