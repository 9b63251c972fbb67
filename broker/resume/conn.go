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
)

// Times and bounds of streams.
const (
	// DefaultTime is the longest absence that a client's connections survive.
	DefaultTime = 10 * time.Minute

	// DefaultWindow is the most that a relay holds for an absent client, in bytes.
	DefaultWindow = 8 << 20

	// clientWindow bounds the bytes that a relay has received and not read.
	clientWindow = 1 << 20

	// A peer that has not been heard for awayAfter is away. It is probed before.
	heartbeat = 5 * time.Second
	probe     = 2 * time.Second
	awayAfter = 10 * time.Second

	flushTime = 5 * time.Second // for the last bytes of a closed Conn
	maxPacket = 64<<10 + 64     // bytes in a packet
	cost      = 256             // of a packet that waits to be read, beside its bytes
	payload   = 64<<10 - link.HeaderRoom
)

// Reasons for a stream's end.
var (
	// ErrMissed reports a peer that has missed more than the window, or was away for
	// longer than the resume time.
	ErrMissed = errors.New("the peer was away for too long, or has missed too much")
	// ErrGone reports a stream that the relay does not know, or no longer.
	ErrGone = errors.New("the relay does not know this stream")
	// ErrBroken reports a peer that violates the protocol.
	ErrBroken = errors.New("the peer broke the rules of the stream")
	// ErrDiscarded reports a stream ended by Discard.
	ErrDiscarded = errors.New("stream discarded")
)

// A Carrier is one network connection. One goroutine may Send while another Recvs.
type Carrier interface {
	// Send sends one packet and does not keep it.
	Send(packet []byte) error
	// Recv returns the next packet, which the caller owns.
	Recv() ([]byte, error)
	// Close ends Send and Recv. It may be called more than once.
	Close()
}

// A Config configures a [Conn]. All fields are required unless noted.
type Config struct {
	ID      [32]byte
	Window  int           // most bytes held for the peer
	Inbox   int           // most bytes that the peer may send ahead
	Time    time.Duration // longest absence
	Pool    *Pool         // of the relay; nil: at a client, whose Writes wait while the relay is away
	Person  string        // whose bytes the Pool counts
	Address net.Addr      // of the peer
	Local   net.Addr
}

// A Conn is one end of a stream.
type Conn struct {
	cfg Config

	wake chan struct{} // wakes the sender; holds one
	over chan struct{} // closed at the end

	mu       sync.Mutex // guards the fields below
	changed  chan struct{}
	link     *link.Link
	queue    [][]byte // sealed packets that no carrier has taken
	held     int      // bytes that the Pool counts
	carrier  Carrier  // nil: none
	attached bool     // there has been a carrier
	heard    time.Time
	awayFrom time.Time // when the last carrier ended
	inbox    []arrived
	unread   int  // bytes in inbox
	closed   bool // by Close: no more Writes
	bye      bool // the peer has ended the stream; the inbox can still be read
	err      error
	readBy   time.Time // deadlines; zero: none
	writeBy  time.Time
}

// An arrived packet waits to be read.
type arrived struct {
	number uint64
	rest   []byte
}

// New returns one end of a stream without a carrier.
func New(cfg Config) *Conn {
	now := time.Now()
	epoch := uint64(0)
	for _, b := range cfg.ID[:8] {
		epoch = epoch<<8 | uint64(b)
	}
	c := &Conn{cfg: cfg, wake: make(chan struct{}, 1), over: make(chan struct{}), changed: make(chan struct{}), heard: now, awayFrom: now}
	c.link = link.New(link.Config{Window: cfg.Window, Heartbeat: heartbeat, Resume: cfg.Time, Probe: probe, AckDelay: 20 * time.Millisecond}, wireVersion, epoch, now)
	return c
}

// ID returns the stream's id, which is a secret.
func (c *Conn) ID() [32]byte { return c.cfg.ID }

// Done returns a channel that is closed at the stream's end.
func (c *Conn) Done() <-chan struct{} { return c.over }

// AwaitEnd waits for the stream's end, for at most the given time.
func (c *Conn) AwaitEnd(most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-c.over:
	case <-timer.C:
	}
}

// Err returns the reason for the end, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Away reports whether the peer is unreachable.
func (c *Conn) Away() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.awayLocked(time.Now())
}

func (c *Conn) awayLocked(now time.Time) bool {
	return c.carrier == nil && c.attached || c.silentLocked(now)
}

// silentLocked reports whether the peer has not been heard for a while. A carrier that
// is replaced at once makes no peer silent.
func (c *Conn) silentLocked(now time.Time) bool { return now.Sub(c.heard) > awayAfter }

// Queued returns two counts of bytes: written and not confirmed by the peer, and received
// and not read here.
func (c *Conn) Queued() (written, unread int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held, c.unread
}

// changeLocked wakes all waiting calls.
func (c *Conn) changeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// waitLocked waits for a change, without the lock. It fails at the deadline.
func (c *Conn) waitLocked(by time.Time) error {
	changed := c.changed
	var late <-chan time.Time
	if !by.IsZero() {
		left := time.Until(by)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		late = timer.C
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-changed:
	case <-late:
	}
	return nil
}

func (c *Conn) wakeSender() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Write implements [net.Conn]. Each reason to end or to wait has its branch.
func (c *Conn) Write(p []byte) (n int, err error) {
	defer c.wakeSender()
	c.mu.Lock()
	defer c.mu.Unlock()
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
			if c.cfg.Pool != nil { // a silent peer counts as away after a while
				if soon := now.Add(time.Second); by.IsZero() || soon.Before(by) {
					by = soon
				}
			}
			c.wakeSender()
			if err := c.waitLocked(by); err != nil {
				return n, err
			}
			if !c.writeBy.IsZero() && !time.Now().Before(c.writeBy) {
				return n, os.ErrDeadlineExceeded
			}
			continue
		}
		part := p[n:min(len(p), n+payload)]
		packet := make([]byte, link.HeaderRoom+len(part))
		copy(packet[link.HeaderRoom:], part)
		c.queue = append(c.queue, c.link.Seal(packet, now))
		c.countLocked()
		n += len(part)
	}
	return n, nil
}

// countLocked tells the Pool the bytes held.
func (c *Conn) countLocked() {
	held := c.link.Held()
	if c.err != nil {
		held = 0
	}
	c.cfg.Pool.Add(c.cfg.Person, held-c.held)
	c.held = held
}

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (n int, err error) {
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
	c.wakeSender() // an ack may be due
	return n, nil
}

// Close implements [net.Conn]. Bytes written before are still sent, for a while.
func (c *Conn) Close() error {
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

// Discard ends the stream and drops everything that is on its way to the peer.
func (c *Conn) Discard() { c.end(ErrDiscarded) }

// end ends the stream. The first reason counts.
func (c *Conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err)
}

func (c *Conn) endLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.inbox, c.unread, c.queue = nil, 0, nil
	c.countLocked()
	close(c.over)
	c.changeLocked()
}

// expireLocked ends the stream if the peer is away for too long, or if the Conn is
// closed and all its bytes have arrived. It returns the time of the next check.
func (c *Conn) expireLocked(now time.Time) time.Time {
	if c.closed && c.link.Settled() {
		c.endLocked(net.ErrClosed)
	}
	limit := c.awayFrom.Add(c.cfg.Time)
	switch {
	case c.carrier == nil && !now.Before(limit):
		c.endLocked(ErrMissed)
	case c.bye && len(c.inbox) == 0:
		c.endLocked(io.EOF)
	}
	return limit
}

// Expire ends the stream if the peer is away for too long. The owner of streams calls
// it from time to time.
func (c *Conn) Expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expireLocked(now)
}

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return c.cfg.Local }

// RemoteAddr implements [net.Conn]. It is the address of the first carrier.
func (c *Conn) RemoteAddr() net.Addr { return c.cfg.Address }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readBy, t) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeBy, t) }

func (c *Conn) setDeadline(which *time.Time, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	*which = t
	c.changeLocked()
	return nil
}

// Attach carries the stream over a carrier until the carrier or the stream ends, and
// closes the carrier. A later Attach replaces it. It returns the carrier's error.
func (c *Conn) Attach(carrier Carrier) error {
	now := time.Now()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		carrier.Close()
		return c.err
	}
	if c.carrier != nil {
		c.carrier.Close()
	}
	c.carrier, c.attached, c.heard = carrier, true, now
	c.queue = nil // the link still has these packets
	c.link.Probe()
	c.changeLocked()
	c.mu.Unlock()
	var wg sync.WaitGroup
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
		c.carrier, c.awayFrom, c.queue = nil, time.Now(), nil
		c.changeLocked()
		if errors.Is(err, ErrBroken) {
			c.endLocked(err)
		}
	}
	return errors.Join(sendErr, err)
}

// receive handles the peer's packets until the carrier ends.
func (c *Conn) receive(carrier Carrier) error {
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

// errReplaced reports a packet of a previous carrier.
var errReplaced = errors.New("a newer carrier has replaced this one")

func (c *Conn) received(carrier Carrier, packet []byte) error {
	now := time.Now()
	defer c.wakeSender()
	c.mu.Lock()
	defer c.mu.Unlock()
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

// send sends packets until the carrier has ended, or the stream. Then it sends the bye.
func (c *Conn) send(carrier Carrier, ended <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		packet, wait, err := c.next(carrier)
		switch {
		case err != nil:
			return err
		case packet != nil:
			if err := carrier.Send(packet); err != nil {
				return err
			}
			continue
		}
		timer.Reset(wait)
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

// errSilent reports that the peer does not answer on a carrier.
var errSilent = errors.New("the peer does not answer on this carrier")

// next returns the next packet for a carrier, or nil and the time to ask again.
func (c *Conn) next(carrier Carrier) ([]byte, time.Duration, error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.carrier != carrier {
		return nil, 0, errReplaced
	}
	if c.expireLocked(now); c.err != nil {
		return nil, time.Hour, nil // over is closed
	}
	if packet := c.link.Resend(now); packet != nil {
		return packet, 0, nil
	}
	if len(c.queue) > 0 {
		packet := c.queue[0]
		c.queue[0] = nil
		if c.queue = c.queue[1:]; len(c.queue) == 0 {
			c.queue = nil
		}
		return packet, 0, nil
	}
	ack, due, lost := c.link.Tick(now)
	switch {
	case lost:
		c.endLocked(ErrMissed)
		return nil, time.Hour, nil
	case c.silentLocked(now) && c.cfg.Pool == nil:
		return nil, 0, errSilent // the client dials again
	}
	return ack, max(time.Until(due), 0), nil
}
