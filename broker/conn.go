package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/internal/clock"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Times of NATS connections.
const (
	// PingInterval is how often embedded servers ping on routes and listeners.
	PingInterval = 2 * time.Second

	// DialTimeout bounds the connection with its TLS and WebSocket handshakes, and
	// separately the login.
	DialTimeout = 5 * time.Second

	// closeTimeout bounds how long Close flushes.
	closeTimeout = 2 * time.Second

	// retryFloor and retryCeiling bound the delay before an attempt; retryFirst is the
	// longest first delay.
	retryFloor   = 100 * time.Millisecond
	retryFirst   = 500 * time.Millisecond
	retryCeiling = 5 * time.Second

	// For quickTime after a loss, quickCeiling applies instead of retryCeiling. Links
	// survive an interruption that is shorter than the resume window, so long delays must
	// not prolong a short interruption.
	quickTime    = 20 * time.Second
	quickCeiling = 800 * time.Millisecond
)

// Events are the callbacks of a [Conn]. Each may be nil. Calls are sequential and in
// order, except where noted. A callback must neither block nor close the Conn.
type Events struct {
	// Connected reports the first login, and the server's URL.
	Connected func(url string)
	// Disconnected reports a lost connection; the Conn reconnects. A nil error means that
	// the Conn reconnects on purpose, for example with new credentials.
	Disconnected func(err error)
	// Reconnected reports a new login. Messages may have been lost in between.
	Reconnected func(url string)
	// Dropped reports that messages on a subject were lost because their receiver was
	// slow.
	Dropped func(subject string)
	// Error reports other errors from the server or the library.
	Error func(err error)
	// Retrying announces the next attempt, after wait. It may be called concurrently with
	// other callbacks.
	Retrying func(attempt int, err error, wait time.Duration)
	// Standby reports the URL of a new second connection, or "" when that connection has
	// ended or is in use. It may be called concurrently with other callbacks.
	Standby func(url string)
	// Woke reports that the machine slept or its clock jumped forward. The Conn
	// reconnects then. It may be called concurrently with other callbacks.
	Woke func(slept time.Duration)
}

// A Conn is a connection to NATS that reconnects until Close. It is a [link.Bus], and
// safe for concurrent use.
//
// While disconnected, Publish fails at once; nothing is buffered. While connected,
// Publish may block until the peer accepts the bytes.
type Conn struct {
	// Set by start, then read-only.
	nc     *nats.Conn
	events Events
	cancel context.CancelFunc // ends dialling and all network connections
	made   chan struct{}      // closed when nc is set
	gone   chan struct{}      // closed after the last event

	urls      []string     // tried in turn; empty if the NATS library chooses
	turn      atomic.Int32 // index in urls of the current connection or of the next attempt
	wanted    atomic.Int32 // index in urls for the next attempt, plus 1; 0: turnToNext chooses
	creds     *credentials // nil if the credentials never expire
	standbys  *standbys    // keeps the second connection; nil: there is none
	running   sync.WaitGroup
	closing   atomic.Bool
	lostAt    clock.Time            // when the connection was lost
	online    atomic.Bool           // between Connected or Reconnected and Disconnected
	lost      atomic.Bool           // after the first Disconnected, while not online
	lastError atomic.Pointer[error] // why the last attempt failed

	after []clock.Time // for each URL, the earliest time of the next attempt that its relay permits

	through atomic.Pointer[string] // URL of the WebSocket in use or being dialled; nil: none

	outlet   atomic.Pointer[outlet] // of the current or last network connection; nil: none yet
	together atomic.Int32           // number of calls of Together in progress
	line     atomic.Pointer[line]   // the current or last network connection; nil: none yet

	mu sync.Mutex
	up chan struct{} // closed at each login, and replaced by a new channel
}

func newConn(events Events) *Conn {
	return &Conn{events: events, made: make(chan struct{}), gone: make(chan struct{}), up: make(chan struct{})}
}

// start connects with the given options. If the first attempt fails, the library goes on
// trying.
func (c *Conn) start(url string, opts ...nats.Option) error {
	opts = append(opts,
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(c.beforeRetry),
		nats.IgnoreAuthErrorAbort(), // otherwise two refusals in a row would close the connection finally
		nats.ReconnectBufSize(-1),   // buffer nothing: links decide what to repeat
		nats.Timeout(DialTimeout),
		nats.NoEcho(),
		c.writeAtOnce,
		nats.ConnectHandler(func(nc *nats.Conn) { c.connected(nc, c.events.Connected) }),
		nats.ReconnectHandler(func(nc *nats.Conn) { c.connected(nc, c.events.Reconnected) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.disconnected(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { c.complained(sub, err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if !errors.Is(err, nats.ErrNoServers) { // with this error, the library reports a refusal that the dialer has recorded already
				c.failed(err)
			}
		}),
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
	c.lost.Store(false)
	c.lastError.Store(nil)
	c.mu.Lock()
	c.online.Store(true)
	close(c.up)
	c.up = make(chan struct{})
	c.mu.Unlock()
	if tell != nil {
		tell(c.connectedURL(nc))
	}
}

func (c *Conn) connectedURL(nc *nats.Conn) string {
	if through := c.through.Load(); through != nil {
		return *through
	}
	return nc.ConnectedUrl()
}

func (c *Conn) disconnected(err error) {
	c.lostAt.Set(time.Now())
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

// beforeRetry runs before each attempt except the first, outside the library's locks. It
// selects a URL, renews credentials if necessary, and returns the delay. When the Conn has
// just received its first credentials, the delay is 0, because the relay expects the login.
func (c *Conn) beforeRetry(attempt int) time.Duration {
	<-c.made // closed soon, when nc is set
	lacked := c.mayLogIn() != nil
	if len(c.urls) > 1 && !lacked { // without credentials, there was no attempt at the current URL
		c.turnToNext()
		attempt = (attempt-1)/len(c.urls) + 1 // every URL is tried once before delays grow
	}
	if c.creds != nil {
		if last := c.lastError.Load(); last != nil && errors.Is(*last, errUnauthorized) {
			_ = c.creds.update() // the relay's answer to this request contains the reason
		} else {
			c.creds.ready(refuses(c.nc.LastError()))
		}
	}
	wait := RetryDelay(attempt)
	if time.Since(c.lostAt.Get()) < quickTime {
		wait = delayUpTo(attempt, quickCeiling)
	}
	var pause *PauseError
	switch why := c.mayLogIn(); {
	case lacked && why == nil:
		wait = 0
	case errors.As(why, &pause):
		wait = max(0, time.Until(pause.Until))
	}
	wait = max(wait, c.turnToReady(time.Now()))
	if c.events.Retrying != nil && !c.closing.Load() {
		c.events.Retrying(attempt, c.lastFailure(), wait)
	}
	return wait
}

// turnToNext selects the next URL. The library is given only one URL at a time. With
// several, it would try them without delay, and all clients of a lost server would reach
// the next server at the same moment.
func (c *Conn) turnToNext() {
	if i := c.wanted.Swap(0); i > 0 {
		c.turnTo(int(i) - 1)
		return
	}
	if i := slices.Index(c.urls, c.standbys.url()); i >= 0 {
		c.turnTo(i)
		return
	}
	c.turnTo((int(c.turn.Load()) + 1) % len(c.urls))
}

// obey records when the current relay permits the next attempt. It subtracts a random
// part of a second, because relays give whole seconds.
func (c *Conn) obey(err error) {
	var busy *busyError
	if i := int(c.turn.Load()); errors.As(err, &busy) && i < len(c.after) {
		c.after[i].Set(time.Now().Add(busy.after - rand.N(time.Second)))
	}
}

// turnToReady keeps the selected URL if its relay permits an attempt now. Otherwise it
// selects the URL that permits one first. It returns the time to wait.
func (c *Conn) turnToReady(now time.Time) (wait time.Duration) {
	if len(c.after) == 0 {
		return 0
	}
	turn := int(c.turn.Load())
	best, wait := turn, time.Duration(math.MaxInt64)
	for n := range c.after {
		i := (turn + n) % len(c.after)
		if left := max(c.after[i].Get().Sub(now), 0); left < wait {
			best, wait = i, left
		}
	}
	if best != turn {
		c.turnTo(best)
	}
	return wait
}

func (c *Conn) turnTo(i int) {
	c.turn.Store(int32(i))
	_ = c.nc.SetServerPool([]string{libraryURL(c.urls[i])}) // fails only when closed
}

// lastFailure returns the reason why there is no connection.
func (c *Conn) lastFailure() error {
	if c.creds != nil {
		if err := c.creds.failure(); err != nil {
			return err
		}
	}
	if err := c.nc.LastError(); err != nil {
		return err // a login's error, which the library forgets when it later cannot connect
	}
	if p := c.lastError.Load(); p != nil {
		return *p
	}
	return errors.New("refused or disconnected")
}

func (c *Conn) failed(err error) {
	c.obey(err)
	c.lastError.Store(&err)
}

// RetryDelay returns a random delay before an attempt, counted from 1. It is 125 to 500
// ms at first, doubles with each attempt, and is at most 1.25 to 5 s. Randomness spreads
// reconnects: if a thousand host-agents lose a relay, about 300 return in the busiest 100
// ms.
func RetryDelay(attempt int) time.Duration { return delayUpTo(attempt, retryCeiling) }

// delayUpTo is RetryDelay with a different longest delay.
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

// Connected reports whether the Conn is connected, as far as is known.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Traffic returns the bytes of messages received and sent so far.
func (c *Conn) Traffic() (in, out uint64) {
	s := c.nc.Stats()
	return s.InBytes, s.OutBytes
}

// AwaitConnected returns nil when the Conn is connected, and has reported its login to
// NextLogin. When ctx ends, it returns the last failure.
func (c *Conn) AwaitConnected(ctx context.Context) error {
	for {
		up := c.NextLogin()
		if c.online.Load() && c.Connected() {
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

// Publish implements [link.Bus]. It fails while disconnected.
func (c *Conn) Publish(subject string, data []byte) error {
	if c.lost.Load() { // the library would wait for the current attempt
		return fmt.Errorf("publish on %s: %w", subject, nats.ErrDisconnected)
	}
	if err := c.nc.Publish(subject, data); err != nil {
		return fmt.Errorf("publish on %s: %w", subject, err)
	}
	return nil
}

// Subscribe implements [link.Bus]. It also works while disconnected, and survives
// reconnects.
func (c *Conn) Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error) {
	sub, err := c.nc.ChanSubscribe(subject, into)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when closed
}

// Hear calls take with each message on a subject, from one goroutine. While room messages
// wait, further messages are lost. end unsubscribes and waits for the goroutine.
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

// QueueSubscribe is Subscribe in a queue group. Each message goes to one member,
// preferably to a member at the server where the message arrives.
func (c *Conn) QueueSubscribe(subject, group string, into chan *nats.Msg) (cancel func(), err error) {
	sub, err := c.nc.ChanQueueSubscribe(subject, group, into)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// Flush returns when the server has received everything sent before, or after limit.
func (c *Conn) Flush(limit time.Duration) error { return c.nc.FlushTimeout(limit) }

// PublishRequest publishes a message with a reply subject.
func (c *Conn) PublishRequest(subject, reply string, data []byte) error {
	return c.nc.PublishRequest(subject, reply, data)
}

// Request publishes a message and returns the first answer.
func (c *Conn) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	msg, err := c.nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return nil, fmt.Errorf("request on %s: %w", subject, err)
	}
	return msg.Data, nil
}

// Redial replaces the connection, or starts the next attempt, at once. It is for a known
// change of network or credentials. Messages published before are flushed first.
func (c *Conn) Redial() {
	_ = c.nc.ForceReconnect() // fails only when closed
}

// Leads reports whether the Conn is connected to a URL.
func (c *Conn) Leads(url string) bool {
	return c.Connected() && int(c.turn.Load()) < len(c.urls) && c.urls[c.turn.Load()] == url
}

// Move reconnects to a different URL. If that fails, the next URL is tried as usual.
func (c *Conn) Move(url string) {
	if i := slices.Index(c.urls, url); i >= 0 {
		c.wanted.Store(int32(i) + 1) // beforeRetry uses it
		c.turnTo(i)
		c.Redial()
	}
}

// Done returns a channel that is closed when the connection has ended finally: after
// Close, or after a protocol error that only a faulty program causes.
func (c *Conn) Done() <-chan struct{} { return c.gone }

// Close flushes for at most two seconds, then ends the connection and all subscriptions.
// It returns after the last event. It does not close the channels given to Subscribe.
func (c *Conn) Close() {
	c.closing.Store(true)
	if !c.online.Load() {
		c.cancel() // ends the current attempt
	}
	stop := time.AfterFunc(closeTimeout, c.cancel)
	c.nc.Close()
	stop.Stop()
	c.cancel()
	<-c.gone
	c.running.Wait()
}

// JetStream returns access to JetStream for this account.
func (c *Conn) JetStream(opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	js, err := jetstream.New(c.nc, opts...)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	return js, nil
}
