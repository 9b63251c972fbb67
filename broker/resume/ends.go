package resume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"ahprelay/internal/clock"
)

// A Relay manages the relay's ends of streams. It is a net.Listener for the server of the
// connections inside the streams.
type Relay struct {
	cfg    RelayConfig
	arrive chan net.Conn
	over   chan struct{}

	mu      sync.Mutex // guards the fields below
	streams map[[32]byte]*personStream
	leaving bool           // no new streams are accepted
	greets  map[string]int // carriers in the handshake, by person
	closed  bool
}

// A RelayConfig configures a [Relay].
type RelayConfig struct {
	Window     int           // bytes stored for an absent client
	Time       time.Duration // how long a client may be absent
	MaxStreams int           // most streams of one person, and most of the person's carriers in the handshake
}

type personStream struct {
	*Stream
	person string
}

// NewRelay returns a Relay without streams.
func NewRelay(cfg RelayConfig) *Relay {
	return &Relay{cfg: cfg, arrive: make(chan net.Conn), over: make(chan struct{}), streams: map[[32]byte]*personStream{}, greets: map[string]int{}}
}

const handshakeTime = 10 * time.Second

// within closes a carrier unless done is called within handshakeTime.
func within(carrier Carrier) (done func()) {
	return stopped(time.AfterFunc(handshakeTime, carrier.Close))
}

func stopped(t *time.Timer) func() { return func() { t.Stop() } }

// Serve serves a person's carrier until it ends. If the client asks for a new Stream,
// Accept returns that Stream.
func (r *Relay) Serve(carrier Carrier, pool *Pool, person string, local, remote net.Addr) error {
	defer carrier.Close()
	greeted, err := r.handshake(person)
	if err != nil {
		return err
	}
	defer greeted()
	done := within(carrier)
	defer done()
	packet, err := carrier.Recv()
	if err != nil {
		return err
	}
	id, err := readHello(packet)
	if err != nil {
		return err
	}
	s, fresh, err := r.stream(id, pool, person, local, remote)
	if err != nil {
		_ = carrier.Send(refuse(err.Error())) // the carrier ends even if this fails
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err := carrier.Send(welcome(s.ID(), clientWindow, r.cfg.Time)); err != nil {
		if fresh {
			s.end(err)
		}
		return err
	}
	done()
	greeted()
	if fresh {
		select {
		case r.arrive <- s.Stream:
		case <-r.over:
			s.end(net.ErrClosed)
		}
	}
	return s.Attach(carrier)
}

// handshake counts a person's carrier until greeted is called. It fails if too many of the person's carriers
// are in the handshake.
func (r *Relay) handshake(person string) (greeted func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.greets[person] >= r.cfg.MaxStreams {
		return nil, errors.New("too many carriers of one person are in the handshake")
	}
	r.greets[person]++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.greets[person]--; r.greets[person] == 0 {
			delete(r.greets, person)
		}
	}), nil
}

// errUnknown reports that the id is unknown or belongs to a different person.
var errUnknown = errors.New("unknown stream")

// stream returns the stream with the given id, or a new stream for the id none.
func (r *Relay) stream(id [32]byte, pool *Pool, person string, local, remote net.Addr) (s *personStream, fresh bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.leaving && id == none {
		return nil, false, errors.New("the relay is shutting down")
	}
	if id != none {
		if s := r.streams[id]; s != nil && s.person == person {
			return s, false, nil
		}
		return nil, false, errUnknown
	}
	n := 0
	for _, s := range r.streams {
		if s.person == person {
			n++
		}
	}
	if n >= r.cfg.MaxStreams {
		return nil, false, fmt.Errorf("the limit of %d streams for one person is reached", r.cfg.MaxStreams)
	}
	s = &personStream{New(Config{
		ID: newID(), Window: r.cfg.Window, Inbox: clientWindow, Time: r.cfg.Time, Pool: pool, Person: person, Local: local, Address: remote,
	}), person}
	r.streams[s.ID()] = s
	return s, true, nil
}

// sweepEvery is the interval of checks for clients absent too long.
const sweepEvery = time.Second

// Run ends streams whose client has been absent for too long. When ctx ends, it ends all
// streams.
func (r *Relay) Run(ctx context.Context) {
	for clock.Sleep(ctx, sweepEvery) {
		for _, s := range r.all() {
			s.Expire(time.Now())
			if s.Err() != nil {
				r.mu.Lock()
				delete(r.streams, s.ID())
				r.mu.Unlock()
			}
		}
	}
	_ = r.Close()
}

func (r *Relay) all() []*personStream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.streams))
}

// Count returns the number of streams, and of those with an absent client.
func (r *Relay) Count() (streams, away int) {
	for _, s := range r.all() {
		if s.Err() == nil {
			streams++
			if s.Away() {
				away++
			}
		}
	}
	return streams, away
}

// Accept implements [net.Listener].
func (r *Relay) Accept() (net.Conn, error) {
	select {
	case conn := <-r.arrive:
		return conn, nil
	case <-r.over:
		return nil, net.ErrClosed
	}
}

// Leave refuses new streams, because the relay stops. Clients may still return to their
// present streams.
func (r *Relay) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
}

// Close implements [net.Listener]. It ends all streams.
func (r *Relay) Close() error {
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	if first {
		close(r.over)
	}
	for _, s := range r.all() {
		s.end(net.ErrClosed)
	}
	return nil
}

// Addr implements [net.Listener].
func (r *Relay) Addr() net.Addr { return &net.TCPAddr{} }

// A Refused error is permanent: the relay refuses all carriers of the stream, which
// therefore ends.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *Refused) Unwrap() error { return e.Err }

// Pauses between attempts to dial.
const (
	dialAgain = 100 * time.Millisecond
	dialMost  = 5 * time.Second

	// If more than maxQuick successive carriers have each ended within quick, a pause also
	// precedes the next carrier.
	quick    = time.Second
	maxQuick = 20
)

// Dial opens a stream. It calls dial for the first carrier, and again whenever a carrier
// has ended, until the stream or ctx ends. If dial returns a [Refused] error, the stream
// ends. The returned channel is closed when no more carriers follow.
func Dial(ctx context.Context, dial func(context.Context) (Carrier, error)) (*Stream, <-chan struct{}, error) {
	carrier, err := dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	w, err := greet(carrier, none)
	if err != nil {
		carrier.Close()
		return nil, nil, err
	}
	c := New(Config{ID: w.id, Window: w.window, Inbox: maxWindow, Time: w.resume, Local: &net.TCPAddr{}, Address: &net.TCPAddr{}})
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.carry(ctx, carrier, dial)
	}()
	return c, over, nil
}

// greet does the client's handshake on a carrier.
func greet(carrier Carrier, id [32]byte) (welcomed, error) {
	done := within(carrier)
	defer done()
	if err := carrier.Send(hello(id)); err != nil {
		return welcomed{}, errors.Join(errLate, err)
	}
	packet, err := carrier.Recv()
	if err != nil {
		return welcomed{}, errors.Join(errLate, err)
	}
	return readWelcome(packet)
}

// carry attaches carriers to a client's stream until the stream ends.
func (c *Stream) carry(ctx context.Context, carrier Carrier, dial func(context.Context) (Carrier, error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.end(net.ErrClosed) })
	defer stop()
	go func() { // a dial in progress ends with the stream
		select {
		case <-c.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	ended := 0 // successive quick carriers
	for pause := dialAgain; ; {
		if carrier != nil {
			began := time.Now()
			_ = c.Attach(carrier)
			if ended++; time.Since(began) > quick {
				ended = 0
			}
			if ended <= maxQuick {
				pause = dialAgain
			}
		}
		if c.finished() {
			return
		}
		if carrier != nil && ended > maxQuick && !c.rest(&pause) {
			return
		}
		var err error
		carrier, err = c.again(ctx, dial)
		var refused *Refused
		switch {
		case err == nil:
			continue
		case errors.As(err, &refused), errors.Is(err, ErrGone), errors.Is(err, ErrBroken):
			c.end(err)
			return
		}
		c.Expire(time.Now())
		if !c.rest(&pause) {
			return
		}
	}
}

// rest waits for a pause, and doubles it. It returns false if the stream has ended.
func (c *Stream) rest(pause *time.Duration) bool {
	select {
	case <-c.over:
		return false
	case <-time.After(*pause):
	}
	*pause = min(2**pause, dialMost)
	return true
}

// finished reports whether the stream needs no further carrier, because it has ended or
// one side has closed it. It ends a stream closed by this side. It ends a stream closed by
// the peer only when the inbox is empty.
func (c *Stream) finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		c.endLocked(net.ErrClosed)
	case c.bye && len(c.inbox) == 0:
		c.endLocked(ErrGone)
	}
	return c.err != nil || c.bye
}

func (c *Stream) again(ctx context.Context, dial func(context.Context) (Carrier, error)) (Carrier, error) {
	carrier, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, carrier.Close)
	defer stop()
	if _, err := greet(carrier, c.cfg.ID); err != nil {
		carrier.Close()
		return nil, err
	}
	return carrier, nil
}
