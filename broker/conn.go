package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Settings of NATS connections.
const (
	// PingInterval is how often NATS servers ask those whom they do not hear otherwise.
	PingInterval = 2 * time.Second

	// DialTimeout bounds each step of an attempt: connection, TLS and
	// WebSocket handshake together, then the login.
	DialTimeout = 5 * time.Second

	// closeTimeout is how long Close tries to get out what was published.
	closeTimeout = 2 * time.Second

	// retryFloor and retryCeiling bound the wait before another attempt.
	retryFloor   = 100 * time.Millisecond
	retryFirst   = 500 * time.Millisecond
	retryCeiling = 5 * time.Second

	// quickTime is for how long after the loss of a connection quickCeiling
	// holds instead: links wait for it to come back, and what is gone for just
	// less than their resume window must not be late for that.
	quickTime    = 20 * time.Second
	quickCeiling = 800 * time.Millisecond
)

// Events tells what happens to a [Conn]. Each function may be nil. They are
// called one at a time, in order, and must neither block nor close the Conn.
type Events struct {
	// Connected: the first login succeeded, at the server with that URL.
	Connected func(url string)
	// Disconnected: the connection is gone and will be made anew. A nil error
	// means that it was given up on purpose, for new credentials.
	Disconnected func(err error)
	// Reconnected: it is back. Messages may have been lost meanwhile.
	Reconnected func(url string)
	// Dropped: a receiver was too slow, and messages of that subject were lost.
	Dropped func(subject string)
	// Error: anything else that the server or the library complains about.
	Error func(err error)
	// Retrying: there will be another attempt after wait. It may be called at
	// the same time as the others.
	Retrying func(attempt int, err error, wait time.Duration)
	// Woke: the machine has slept that long, or its clock was set forward. A new
	// connection is made. It may be called at the same time as the others.
	Woke func(slept time.Duration)
}

// A Conn is a connection to NATS, which comes back by itself for ever. It is a
// [link.Bus], and safe for concurrent use.
//
// Nothing is kept for later while the connection is away: Publish fails then,
// at once. Else it may take as long as the other side accepts bytes slowly.
type Conn struct {
	// Set by start, then read-only.
	nc     *nats.Conn
	events Events
	cancel context.CancelFunc // ends attempts and network connections
	made   chan struct{}      // closed when nc is set
	gone   chan struct{}      // closed after the last event

	urls      []string     // to go through one after the other; empty if the library does that
	turn      atomic.Int32 // of urls: that of the connection, or of the next attempt
	wanted    atomic.Int32 // of urls, counted from 1: that of the next attempt; 0: the one behind turn
	creds     *credentials // nil if there is nothing to renew
	running   sync.WaitGroup
	closing   atomic.Bool
	lostAt    atomic.Int64          // when the connection was lost, Unix nanoseconds; 0: never
	online    atomic.Bool           // between the events
	lost      atomic.Bool           // after the first Disconnected, while not online
	lastError atomic.Pointer[error] // why the server could not be reached

	through atomic.Pointer[string] // URL of the WebSocket in use or being made; nil: none

	outlet   atomic.Pointer[outlet] // of the network connection, or the last; nil: there was none
	together atomic.Int32           // how many are in Together
	line     atomic.Pointer[line]   // the network connection in use or being made; nil: none

	mu sync.Mutex
	up chan struct{} // closed and replaced at each login
}

func newConn(events Events) *Conn {
	return &Conn{events: events, made: make(chan struct{}), gone: make(chan struct{}), up: make(chan struct{})}
}

// start connects with the given options, and lets the library go on trying if
// the first attempt fails.
func (c *Conn) start(url string, opts ...nats.Option) error {
	opts = append(opts,
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(c.beforeRetry),
		nats.IgnoreAuthErrorAbort(), // else two refusals in a row end it for good
		nats.ReconnectBufSize(-1),   // keep nothing: links know better what to send again
		nats.Timeout(DialTimeout),
		nats.NoEcho(),
		c.writeAtOnce,
		nats.ConnectHandler(func(nc *nats.Conn) { c.connected(nc, c.events.Connected) }),
		nats.ReconnectHandler(func(nc *nats.Conn) { c.connected(nc, c.events.Reconnected) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.disconnected(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { c.complained(sub, err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.attemptFailed(err) }),
		nats.ClosedHandler(func(*nats.Conn) { close(c.gone) }),
	)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return err
	}
	c.nc = nc
	close(c.made)
	return nil
}

func (c *Conn) connected(nc *nats.Conn, tell func(url string)) {
	if c.creds != nil {
		c.creds.accepted()
	}
	c.online.Store(true)
	c.lost.Store(false)
	c.lastError.Store(nil)
	c.mu.Lock()
	close(c.up)
	c.up = make(chan struct{})
	c.mu.Unlock()
	if tell != nil {
		tell(c.connectedURL(nc))
	}
}

// connectedURL returns where the connection leads.
func (c *Conn) connectedURL(nc *nats.Conn) string {
	if through := c.through.Load(); through != nil {
		return *through
	}
	return nc.ConnectedUrl()
}

func (c *Conn) disconnected(err error) {
	c.lostAt.Store(time.Now().UnixNano())
	c.online.Store(false)
	c.lost.Store(true)
	if c.events.Disconnected != nil && !c.closing.Load() {
		c.events.Disconnected(err)
	}
}

func (c *Conn) complained(sub *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
		if c.events.Dropped != nil {
			c.events.Dropped(sub.Subject)
		}
	case c.events.Error != nil:
		c.events.Error(err)
	}
}

// beforeRetry is called by the library before each attempt but the first,
// without its locks: the time to choose a server and to see to credentials. It
// returns how long to wait.
func (c *Conn) beforeRetry(attempt int) time.Duration {
	<-c.made // it is about to be
	if len(c.urls) > 1 {
		c.turnToNext()
		attempt = (attempt-1)/len(c.urls) + 1 // each is tried once before the waits grow
	}
	if c.creds != nil {
		c.creds.ready(refuses(c.nc.LastError()))
	}
	wait := RetryDelay(attempt)
	if time.Since(time.Unix(0, c.lostAt.Load())) < quickTime {
		wait = delayUpTo(attempt, quickCeiling)
	}
	if c.events.Retrying != nil && !c.closing.Load() {
		c.events.Retrying(attempt, c.lastFailure(), wait)
	}
	return wait
}

// turnToNext makes the next URL that of the next attempt. The library never
// hears of more than one: it would try the others without any wait, and all
// that have lost the same server would come to the next one at the same time.
func (c *Conn) turnToNext() {
	if i := c.wanted.Swap(0); i > 0 {
		c.turnTo(int(i) - 1)
		return
	}
	c.turnTo((int(c.turn.Load()) + 1) % len(c.urls))
}

func (c *Conn) turnTo(i int) {
	c.turn.Store(int32(i))
	_ = c.nc.SetServerPool([]string{libraryURL(c.urls[i])}) // fails if closed, and needs nothing then
}

// lastFailure returns why there is no connection, as far as known.
func (c *Conn) lastFailure() error {
	if c.creds != nil {
		if err := c.creds.failure(); err != nil {
			return err
		}
	}
	if err := c.nc.LastError(); err != nil {
		return err // of a login; the library forgets it at the next failure to get that far
	}
	if p := c.lastError.Load(); p != nil {
		return *p
	}
	return errors.New("refused or cut off")
}

// attemptFailed takes the library's account of an attempt.
func (c *Conn) attemptFailed(err error) {
	if !errors.Is(err, nats.ErrNoServers) { // its word for a refusal that the dialer has told of
		c.failed(err)
	}
}

// failed remembers why the server could not be reached.
func (c *Conn) failed(err error) { c.lastError.Store(&err) }

// RetryDelay returns how long to wait before an attempt, counted from 1: 125
// to 500 ms, then up to twice as long each time, and 1.25 to 5 s in the end.
// Three quarters of it are random, so that of a thousand host-agents that lost the
// same relay about 300 come back in the busiest 100 ms, however short it was away.
func RetryDelay(attempt int) time.Duration { return delayUpTo(attempt, retryCeiling) }

// delayUpTo is RetryDelay with another limit.
func delayUpTo(attempt int, most time.Duration) time.Duration {
	ceiling := min(retryFirst<<min(attempt-1, 10), most)
	floor := max(retryFloor, ceiling/4)
	return floor + rand.N(ceiling-floor)
}

// NextLogin returns a channel that is closed at the next login.
func (c *Conn) NextLogin() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// Connected reports whether the connection is there, as far as is known.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Traffic returns how many bytes of messages have come and gone so far.
func (c *Conn) Traffic() (in, out uint64) {
	s := c.nc.Stats()
	return s.InBytes, s.OutBytes
}

// AwaitConnected returns when the connection is there, or says why it is not
// when ctx ends.
func (c *Conn) AwaitConnected(ctx context.Context) error {
	for {
		up := c.NextLogin()
		if c.Connected() {
			return nil
		}
		select {
		case <-up:
		case <-c.gone:
			return errors.New("connection to NATS: closed")
		case <-ctx.Done():
			return fmt.Errorf("connection to NATS: %w: %w", context.Cause(ctx), c.lastFailure())
		}
	}
}

// Publish implements Bus. It fails while there is no connection.
func (c *Conn) Publish(subject string, data []byte) error {
	if c.lost.Load() { // the library would wait for an attempt to connect that is under way
		return fmt.Errorf("publish on %s: %w", subject, nats.ErrDisconnected)
	}
	if err := c.nc.Publish(subject, data); err != nil {
		return fmt.Errorf("publish on %s: %w", subject, err)
	}
	return nil
}

// Subscribe implements Bus. It may be called while there is no connection, and
// outlives reconnects.
func (c *Conn) Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error) {
	sub, err := c.nc.ChanSubscribe(subject, into)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails if the Conn is closed, and needs nothing then
}

// Hear has take called with what is said on a subject, by one goroutine, until end, which
// waits for it. Of more than room messages that wait, the later ones are lost.
func (c *Conn) Hear(subject string, room int, take func(data []byte)) (end func(), err error) {
	into, over := make(chan *nats.Msg, room), make(chan struct{})
	cancel, err := c.Subscribe(subject, into)
	if err != nil {
		return nil, err
	}
	var hearing sync.WaitGroup
	hearing.Go(func() {
		for {
			select {
			case <-over:
				return
			case msg := <-into:
				take(msg.Data)
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); close(over); hearing.Wait() }), nil
}

// QueueSubscribe is Subscribe for one of a group, of which one gets each message:
// one that is connected to the server where it comes in, if there is one.
func (c *Conn) QueueSubscribe(subject, group string, into chan *nats.Msg) (cancel func(), err error) {
	sub, err := c.nc.ChanQueueSubscribe(subject, group, into)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// Flush returns when the server has taken what was said to it so far, or after a
// time.
func (c *Conn) Flush(limit time.Duration) error { return c.nc.FlushTimeout(limit) }

// PublishRequest is Publish of a message that wants its answers on reply.
func (c *Conn) PublishRequest(subject, reply string, data []byte) error {
	return c.nc.PublishRequest(subject, reply, data)
}

// Request publishes and returns the first answer.
func (c *Conn) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	msg, err := c.nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return nil, fmt.Errorf("request on %s: %w", subject, err)
	}
	return msg.Data, nil
}

// Redial gives the present connection up and makes a new one at once, or makes
// the next attempt now if there is none: for when the network is known to have
// changed. What was published so far is sent first.
func (c *Conn) Redial() {
	_ = c.nc.ForceReconnect() // fails if closed, and needs nothing then
}

// Leads reports whether the connection is there, and leads to one of the URLs.
func (c *Conn) Leads(url string) bool {
	return c.Connected() && int(c.turn.Load()) < len(c.urls) && c.urls[c.turn.Load()] == url
}

// Move gives the present connection up for one to another of the URLs. If that
// cannot be made, the next one is tried, as ever.
func (c *Conn) Move(url string) {
	if i := slices.Index(c.urls, url); i >= 0 {
		c.wanted.Store(int32(i) + 1) // if the library asks first
		c.turnTo(i)
		c.Redial()
	}
}

// Done returns a channel that is closed when the connection is gone for good:
// after Close, or because the server said something from which the library
// does not recover, which no correct program makes it say.
func (c *Conn) Done() <-chan struct{} { return c.gone }

// Close sends what was published, for two seconds at most, ends the connection
// and all subscriptions, and returns after the last event. Channels that were
// subscribed stay open.
func (c *Conn) Close() {
	c.closing.Store(true)
	if !c.online.Load() {
		c.cancel() // ends the attempt that is being made
	}
	stop := time.AfterFunc(closeTimeout, c.cancel)
	c.nc.Close()
	stop.Stop()
	c.cancel()
	<-c.gone
	c.running.Wait()
}

// JetStream returns the way to what the servers keep for this account.
func (c *Conn) JetStream(opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	js, err := jetstream.New(c.nc, opts...)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	return js, nil
}
