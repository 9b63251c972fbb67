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

// ErrAway is Publish's error while a connection is cut.
var ErrAway = errors.New("no connection")

// A Mesh is a cluster of NATS servers in memory, with delays and faults: each [Conn]
// has its own server. Messages and subscriptions from one connection to a second take
// the same route and keep their order; messages from two connections to a third take
// different routes. It is for fake time.
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

// NewMesh returns a mesh with random faults from dice. Delay returns a message's
// travel time; tap, which may be nil, sees every published message.
func NewMesh(dice *rand.Rand, delay func(from, to string) time.Duration, tap func(from, subject string, data []byte)) *Mesh {
	return &Mesh{dice: dice, delay: delay, tap: tap}
}

// Lose drops about every n-th message at random from now on; 0 stops it.
func (m *Mesh) Lose(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loss = n
}

// Repeat makes about every n-th message arrive twice, at random, the second time after
// later messages; 0 stops it.
func (m *Mesh) Repeat(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.twice = n
}

// Damage changes a bit of about every n-th message, at random; 0 stops it.
func (m *Mesh) Damage(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bits = n
}

// A Conn is a process's connection. It is a [link.Bus].
type Conn struct {
	mesh     *Mesh
	name     string
	state    state
	subs     []*meshSub
	interest []*meshSub // subscriptions elsewhere, as known to this connection's server
	routes   map[*Conn]*route
	backlog  []*nats.Msg // published while frozen
}

type state int

const (
	up     state = iota
	cut          // nothing passes, and the process gets an error
	frozen       // nothing passes, and the process cannot know; messages are kept
	muted        // nothing passes, and the process cannot know; messages are lost
	killed       // the process is no more
)

type meshSub struct {
	conn    *Conn
	pattern []string
	into    chan *nats.Msg
	gone    bool
}

// A route leads from one connection to a second.
type route struct {
	from, to *Conn
	flying   []flight
	last     time.Time // the latest arrival
	armed    bool
}

// A flight is a message on its way, or the news that a subscription begins or ends.
type flight struct {
	at  time.Time
	msg *nats.Msg // nil: news about sub
	sub *meshSub
}

// Connect returns a new connection.
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

// send sends a message to all connections with a known interest.
func (c *Conn) send(subject string, data []byte) {
	m := c.mesh
	tokens := strings.Split(subject, ".")
	var msg *nats.Msg
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
			r.put(flight{msg: msg, sub: s})
		}
		if m.chance(m.twice) {
			time.AfterFunc(time.Duration(m.dice.IntN(int(20*time.Millisecond))), func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				r.put(flight{msg: msg, sub: s})
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
		return // Restore does it
	}
	for _, o := range c.mesh.conns {
		if o != c {
			c.routes[o].put(flight{sub: s})
		}
	}
}

// put sends a flight, which arrives after all earlier ones on its route.
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

// arrive delivers the messages that are due.
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
			case f.sub.into <- &nats.Msg{Subject: f.msg.Subject, Data: slices.Clone(f.msg.Data)}:
			default: // as NATS does
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

// Cut ends the connection: messages in flight are lost in both directions, and Publish
// fails until Restore.
func (c *Conn) Cut() { c.leave(cut) }

// Mute silently loses all messages in both directions until Restore.
func (c *Conn) Mute() { c.leave(muted) }

// Kill ends the process: no other connection sees its further actions.
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

// lose drops the messages on a route, and continues with later ones.
func (r *route) lose() {
	r.flying = slices.DeleteFunc(r.flying, func(f flight) bool { return f.msg != nil })
}

// Freeze delays all messages in both directions until Restore.
func (c *Conn) Freeze() {
	m := c.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.state == up {
		c.state = frozen
	}
}

// Restore ends a fault. After a cut, subscriptions are announced again.
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
