package membus

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/broker/link"
)

// ErrAway is the error that Publish returns while a connection is cut.
var ErrAway = errors.New("no connection")

// A Mesh is a cluster of NATS servers in memory, with delays and faults, for tests on
// fake time. Each [Conn] has its own server. Messages from one connection to another
// keep their order, and so do subscriptions among them. Messages from different
// connections may arrive in any order.
type Mesh struct {
	mu    sync.Mutex // guards all of the mesh
	dice  *rand.Rand
	conns []*Conn
	loss  int
	twice int
	bits  int
	delay func(from, to string) time.Duration
	tap   func(from, subject string, data []byte)
}

// NewMesh returns a mesh with random faults that come from dice. delay returns how long a
// message travels. tap, if not nil, is called with each published message.
func NewMesh(dice *rand.Rand, delay func(from, to string) time.Duration, tap func(from, subject string, data []byte)) *Mesh {
	return &Mesh{dice: dice, delay: delay, tap: tap}
}

// Lose makes the mesh drop about every n-th message, at random. 0 ends this.
func (m *Mesh) Lose(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loss = n
}

// Repeat makes about every n-th message, at random, arrive a second time, after later
// messages. 0 ends this.
func (m *Mesh) Repeat(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.twice = n
}

// Damage changes a bit in about every n-th message, at random. 0 ends this.
func (m *Mesh) Damage(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bits = n
}

// A Conn is the connection of a process to its server. It is a [link.Bus].
type Conn struct {
	mesh     *Mesh
	name     string
	state    state
	subs     []*meshSub
	interest []*meshSub // other connections' subscriptions that this connection's server knows
	routes   map[*Conn]*route
	backlog  []*nats.Msg // messages that were published while the connection was frozen
}

type state int

const (
	up     state = iota
	cut          // nothing passes, and Publish returns an error
	frozen       // nothing passes, and Publish returns no error; messages are kept
	muted        // nothing passes, and Publish returns no error; messages are lost
	killed       // the process has ended
)

type meshSub struct {
	conn    *Conn
	pattern []string
	into    chan *nats.Msg
	gone    bool
}

// A route carries messages from one connection to another.
type route struct {
	from, to *Conn
	flying   []flight
	last     time.Time // time at which the last message arrives
	armed    bool
}

// A flight is something on a route: a message, or the notice that a subscription begins
// or ends.
type flight struct {
	at  time.Time
	msg *nats.Msg // nil: a notice about sub
	sub *meshSub
}

// Connect returns a new connection with its own server.
func (m *Mesh) Connect(name string) *Conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Conn{mesh: m, name: name, routes: map[*Conn]*route{}}
	for _, o := range m.conns {
		c.routes[o], o.routes[c] = &route{from: c, to: o}, &route{from: o, to: c}
		for _, s := range o.subs {
			o.routes[c].put(flight{sub: s})
		}
	}
	m.conns = append(m.conns, c)
	return c
}

// Publish implements [link.Bus].
func (c *Conn) Publish(subject string, data []byte) error {
	m := c.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	switch c.state {
	case cut:
		return ErrAway
	case killed, muted:
		return nil
	}
	if m.tap != nil {
		m.tap(c.name, subject, data)
	}
	if c.state == frozen {
		c.backlog = append(c.backlog, &nats.Msg{Subject: subject, Data: slices.Clone(data)})
		return nil
	}
	c.send(subject, data)
	return nil
}

// send sends a message to each connection with a matching subscription that this server
// knows. Each receiver gets bytes of its own.
func (c *Conn) send(subject string, data []byte) {
	m := c.mesh
	tokens := strings.Split(subject, ".")
	var msg *nats.Msg
	given := false // a receiver has msg, so the next one gets a copy
	for _, s := range c.interest {
		if !slices.EqualFunc(s.pattern, tokens, func(want, got string) bool { return want == "*" || want == got }) {
			continue
		}
		if msg == nil {
			msg = &nats.Msg{Subject: subject, Data: slices.Clone(data)}
			if m.chance(m.bits) && len(data) > 0 {
				msg.Data[m.dice.IntN(len(data))] ^= 1 << m.dice.IntN(8)
			}
		}
		r := c.routes[s.conn]
		if !m.chance(m.loss) {
			if given {
				msg = &nats.Msg{Subject: subject, Data: slices.Clone(msg.Data)}
			}
			given = true
			r.put(flight{msg: msg, sub: s})
		}
		if m.chance(m.twice) {
			again := &nats.Msg{Subject: subject, Data: slices.Clone(msg.Data)}
			time.AfterFunc(time.Duration(m.dice.IntN(int(20*time.Millisecond))), func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				r.put(flight{msg: again, sub: s})
			})
		}
	}
}

func (m *Mesh) chance(n int) bool { return n > 0 && m.dice.IntN(n) == 0 }

// Together implements [link.Bus].
func (c *Conn) Together(_ string, publish func()) { publish() }

// Subscribe implements [link.Bus].
func (c *Conn) Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error) {
	s := &meshSub{conn: c, pattern: strings.Split(subject, "."), into: into}
	m := c.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	c.subs = append(c.subs, s)
	c.announce(s)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.gone = true
		c.subs = slices.DeleteFunc(c.subs, func(o *meshSub) bool { return o == s })
		c.announce(s)
	}, nil
}

// announce tells all other connections that a subscription is new or has ended. It does
// nothing if this connection is cut or killed.
func (c *Conn) announce(s *meshSub) {
	if c.state == cut || c.state == killed {
		return // Restore sends the notice later
	}
	for _, o := range c.mesh.conns {
		if o != c {
			c.routes[o].put(flight{sub: s})
		}
	}
}

// put sends a flight. It arrives after all earlier flights on the route.
func (r *route) put(f flight) {
	f.at = time.Now().Add(r.from.mesh.delay(r.from.name, r.to.name))
	if f.at.Before(r.last) {
		f.at = r.last
	}
	r.last = f.at
	r.flying = append(r.flying, f)
	r.arm()
}

func (r *route) arm() {
	if r.armed || len(r.flying) == 0 || r.from.state == frozen || r.to.state == frozen {
		return
	}
	r.armed = true
	time.AfterFunc(time.Until(r.flying[0].at), func() {
		m := r.from.mesh
		m.mu.Lock()
		defer m.mu.Unlock()
		r.armed = false
		r.arrive()
		r.arm()
	})
}

// arrive delivers all flights that are due.
func (r *route) arrive() {
	now := time.Now()
	for len(r.flying) > 0 && !r.flying[0].at.After(now) && r.from.state != frozen && r.to.state != frozen {
		f := r.flying[0]
		r.flying = r.flying[1:]
		switch {
		case f.msg == nil:
			r.to.learn(f.sub)
		case f.sub.gone || r.to.state != up || r.from.state == muted:
		default:
			select {
			case f.sub.into <- f.msg:
			default: // NATS drops a message for a full channel, too
			}
		}
	}
}

// learn notes that another connection's subscription is new or has ended.
func (c *Conn) learn(s *meshSub) {
	known := slices.Contains(c.interest, s)
	switch {
	case s.gone:
		c.interest = slices.DeleteFunc(c.interest, func(o *meshSub) bool { return o == s })
	case !known:
		c.interest = append(c.interest, s)
	}
}

// Cut ends the connection until Restore. Messages on their way are lost in both
// directions, and Publish returns an error.
func (c *Conn) Cut() { c.leave(cut) }

// Mute makes all messages in both directions disappear, without an error, until
// Restore.
func (c *Conn) Mute() { c.leave(muted) }

// Kill ends the connection's process. Nothing that it does later reaches another
// connection.
func (c *Conn) Kill() {
	c.leave(killed)
	m := c.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = slices.DeleteFunc(m.conns, func(o *Conn) bool { return o == c })
}

func (c *Conn) leave(s state) {
	m := c.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.state == killed {
		return
	}
	c.state, c.backlog = s, nil
	for _, o := range m.conns {
		if o == c {
			continue
		}
		c.routes[o].lose()
		o.routes[c].lose()
		if s != muted {
			o.interest = slices.DeleteFunc(o.interest, func(s *meshSub) bool { return s.conn == c })
		}
	}
}

// lose drops the messages that are on a route. Notices about subscriptions stay.
func (r *route) lose() {
	r.flying = slices.DeleteFunc(r.flying, func(f flight) bool { return f.msg != nil })
}

// Freeze holds back all messages in both directions until Restore.
func (c *Conn) Freeze() {
	m := c.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.state == up {
		c.state = frozen
	}
}

// Restore ends Cut, Mute or Freeze. After Cut, the connection announces its
// subscriptions again.
func (c *Conn) Restore() {
	m := c.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.state == killed {
		return
	}
	was := c.state
	c.state = up
	for _, s := range c.subs {
		if was == cut {
			c.announce(s)
		}
	}
	for _, o := range m.conns {
		if o != c {
			c.routes[o].arm()
			o.routes[c].arm()
		}
	}
	for _, msg := range c.backlog {
		c.send(msg.Subject, msg.Data)
	}
	c.backlog = nil
}

var _ link.Bus = (*Conn)(nil)
