package broker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// A host-agent with several relays keeps a second WebSocket, to a different relay,
// preferably in a different region or zone. This connection is idle: the relay connects
// it to NATS only when its first byte arrives. The host-agent moves to it in two cases: the
// first connection is lost, or the first relay is cut off from the cluster and sends
// MoveAdvice.
// The second connection is then known to work, so the move takes less than the resume
// window, and clients at other relays notice only a pause.

const (
	// StandbyHeader is the handshake header with which a host-agent requests an idle
	// connection. A relay repeats it in the response, for host-agents of 1.0.0-rc.1.
	StandbyHeader = "Ahp-Standby"

	// PlaceHeader is the response header with the relay's region and zone. Relays in
	// different places should not fail together.
	PlaceHeader = "Ahp-Relay-Place"

	// MoveAdvice is the payload of a ping with which a relay advises a host-agent to
	// change to its second connection.
	MoveAdvice = "ahp-move"

	// StandbyPing is the interval of a host-agent's pings on its second connection.
	StandbyPing = 45 * time.Second
)

// Times of second connections.
const (
	standbyAfter   = 10 * time.Second // delay before an attempt, plus a random delay up to the same length
	standbyCeiling = time.Minute      // longest such delay after failures, without the random part
	standbyPong    = 10 * time.Second // bound for the answer to a ping
)

// standbyWake is the first byte on a second connection. It tells the relay to connect
// to NATS.
const standbyWake = '+'

// ReadWake waits for the first byte on a second connection, with which the host-agent
// starts to use it.
func ReadWake(from io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(from, b[:]); err != nil {
		return err
	}
	if b[0] != standbyWake {
		return fmt.Errorf("an idle connection began with byte %d; want %d", b[0], standbyWake)
	}
	return nil
}

type standby struct {
	url  string
	conn *wsConn
	done chan struct{} // closed when the connection has ended or is in use
	end  func()        // closes done; later calls do nothing
}

// A startedConn is a connection whose first byte is read by a separate goroutine.
type startedConn struct {
	net.Conn
	in    *bufio.Reader // from Conn
	begun chan struct{} // closed when that read has ended
}

func (c *startedConn) Read(p []byte) (int, error) {
	<-c.begun
	return c.in.Read(p)
}

// standbys keeps the second connection for a Conn.
type standbys struct {
	of     *Conn
	dial   func(ctx context.Context, url string) (*wsConn, error)
	advice chan struct{} // has a token after MoveAdvice
	told   func(url string)

	mu      sync.Mutex        // guards the fields below
	current *standby          // the open second connection; nil: none
	places  map[string]string // region and zone of relays, by URL
}

func newStandbys(of *Conn, dial func(ctx context.Context, url string) (*wsConn, error), told func(url string)) *standbys {
	if told == nil {
		told = func(string) {}
	}
	return &standbys{of: of, dial: dial, advice: make(chan struct{}, 1), told: told, places: map[string]string{}}
}

// advise handles a ping's payload. It does not block.
func (k *standbys) advise(payload []byte) {
	if string(payload) == MoveAdvice {
		signal.Send(k.advice)
	}
}

func (k *standbys) learn(url, place string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.places[url] = place
}

// set records the new second connection; nil: it has ended.
func (k *standbys) set(s *standby) {
	k.mu.Lock()
	k.current = s
	k.mu.Unlock()
	if s == nil {
		k.told("")
		return
	}
	k.told(s.url)
}

// url returns the URL of the second connection, or "".
func (k *standbys) url() string {
	if k == nil {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return ""
	}
	return k.current.url
}

// take returns the second connection if it leads to a URL, else nil. The caller then
// uses it.
func (k *standbys) take(url string) *wsConn {
	k.mu.Lock()
	s := k.current
	if s == nil || s.url != url {
		k.mu.Unlock()
		return nil
	}
	k.current = nil
	k.mu.Unlock()
	defer s.end()
	err := s.conn.SetDeadline(time.Now().Add(DialTimeout))
	if err == nil {
		_, err = s.conn.Conn.Write([]byte{standbyWake})
	}
	if err == nil {
		err = s.conn.pack()
	}
	if err != nil {
		_ = s.conn.Close()
		return nil
	}
	return s.conn
}

// run keeps a second connection until ctx ends.
func (k *standbys) run(ctx context.Context) {
	wait := standbyAfter
	for {
		if !clock.Sleep(ctx, wait+rand.N(wait)) {
			return
		}
		if !k.of.online.Load() {
			continue
		}
		s := k.open(ctx)
		if s == nil {
			wait = min(2*wait, standbyCeiling)
			continue
		}
		wait = standbyAfter
		select {
		case <-k.advice: // advice from before this connection
		default:
		}
		k.set(s)
		k.hold(ctx, s)
		k.mu.Lock()
		used := k.current != s
		k.mu.Unlock()
		if !used {
			_ = s.conn.Close()
		}
		k.set(nil)
	}
}

// hold keeps a second connection alive. It returns when the connection has ended or is
// in use, or when ctx ends.
func (k *standbys) hold(ctx context.Context, s *standby) {
	tick := time.Tick(StandbyPing)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.done:
			return
		case <-k.advice:
			k.of.Move(s.url)
		case <-tick:
			if k.of.Leads(s.url) { // the main connection leads to the same relay now
				return
			}
			ping, cancel := context.WithTimeout(ctx, standbyPong)
			err := s.conn.ws.Ping(ping)
			cancel()
			if err != nil {
				return
			}
		}
	}
}

// open opens a second connection. It prefers relays in a place other than the Conn's
// relay.
func (k *standbys) open(ctx context.Context) *standby {
	turn := int(k.of.turn.Load())
	own, rest := k.of.urls[turn], slices.Concat(k.of.urls[turn+1:], k.of.urls[:turn])
	slices.SortStableFunc(rest, func(a, b string) int { return k.rank(a, own) - k.rank(b, own) })
	var same *standby // a connection to a relay in the same place as the Conn's relay
	for _, url := range rest {
		if same != nil && k.rank(url, own) == rankSame {
			break
		}
		s, err := k.openAt(ctx, url)
		if err != nil {
			continue
		}
		if k.rank(url, own) != rankSame {
			if same != nil {
				_ = same.conn.Close()
			}
			return s
		}
		if same != nil {
			_ = s.conn.Close()
			continue
		}
		same = s
	}
	return same
}

// Ranks of relays for the second connection; lower is better.
const (
	rankOther   = iota // the relay is in a different place
	rankUnknown        // its place is unknown, because this host-agent was never connected to it
	rankSame           // the relay is in the same place
)

func (k *standbys) rank(url, own string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	place, known := k.places[url]
	switch {
	case !known:
		return rankUnknown
	case place != k.places[own]:
		return rankOther
	}
	return rankSame
}

func (k *standbys) openAt(ctx context.Context, url string) (*standby, error) {
	dialing, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	conn, err := k.dial(dialing, url)
	if err != nil {
		return nil, err
	}
	if err := conn.below.Conn.SetDeadline(time.Time{}); err != nil { // no deadlines while the connection is idle
		return nil, errors.Join(err, conn.Close())
	}
	s := &standby{url: url, conn: conn, done: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.done) })
	started := &startedConn{Conn: conn.Conn, in: bufio.NewReader(conn.Conn), begun: make(chan struct{})}
	conn.Conn = started
	k.of.running.Go(func() { // ends with the connection, or after the first byte
		_, err := started.in.Peek(1)
		close(started.begun)
		if err != nil {
			s.end()
		}
	})
	return s, nil
}
