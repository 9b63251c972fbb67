package hostagent

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
	"ahprelay/internal/clock"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
	"ahprelay/routing/audience"
)

// A viewerCrowd is a set of a link's viewers which get the same messages from the host. The
// host-agent seals and signs each message once for all of them, and sends it once to each relay.
// The viewers' connections have equal authority, so the gates on one connection decide for all. It
// implements [audience.Crowd].
type viewerCrowd struct {
	out *routing.Crowd

	mu      sync.Mutex    // guards the fields below; may be locked while a sealing's mutex is held
	keys    *sealed.Crowd // the crowd's keys; nil without members
	until   time.Time     // at the next message after this time, all members leave and get new keys
	members map[*sealing]*viewerSocket
	left    []routing.ClientConn // members that have left by themselves since the last message
	judge   *sealing             // the member whose gates decide for all; it may have left
	seq     int64                // highest serverSeq that the members got
	beat    *time.Timer          // nil before the first keys
	ended   atomic.Bool

	lastHeard clock.Time // when the host's last message arrived
}

// newCrowd returns a crowd without members. Only viewers with equal authority and subscriptions may
// enter it.
func (s *seals) newCrowd() audience.Crowd {
	return &viewerCrowd{out: s.agent.routing.NewCrowd(), members: map[*sealing]*viewerSocket{}}
}

func (s *viewerSocket) Follow(to audience.Crowd) bool {
	s.mu.Lock()
	idle := s.idle && len(s.frames) == 0 && s.err == nil
	s.mu.Unlock()
	return idle && s.conn.conn.seal.follow(to.(*viewerCrowd), s)
}

func (s *viewerSocket) Part() {
	seal := s.conn.conn.seal
	seal.mu.Lock()
	defer seal.mu.Unlock()
	seal.leaveCrowd()
	for _, c := range seal.seats {
		c.forget(s)
	}
}

// forget removes a client from the result of the next Tell.
func (c *viewerCrowd) forget(v *viewerSocket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = slices.DeleteFunc(c.left, func(other routing.ClientConn) bool { return other == v })
}

// follow makes the client a member of the crowd, and reports success. The client must have asked for
// shared messages, its connection must not be moving, and its earlier messages must have left the
// host-agent.
func (s *sealing) follow(c *viewerCrowd, v *viewerSocket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.line.now.Load()
	if s.over || !s.shares || s.crowd.Load() != nil || s.line.moving.Load() != nil || !c.out.MayEnter(conn) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readyLocked() {
		return false
	}
	body, err := c.keys.Enter()
	if err != nil || !s.moveTo(conn, body, c.out.Enter) {
		return false
	}
	c.members[s] = v
	s.crowd.Store(c)
	s.seats = append(slices.DeleteFunc(s.seats, func(other *viewerCrowd) bool { return other == c || other.ended.Load() }), c)
	return true
}

// readyLocked makes the crowd's keys if it has none. It reports whether a client may enter: the keys
// have not ended.
func (c *viewerCrowd) readyLocked() bool {
	if c.keys == nil {
		var err error
		if c.keys, err = sealed.NewCrowd(); err != nil {
			return false
		}
		c.until = time.Now().Add(epochTime)
		if c.beat == nil {
			c.beat = time.AfterFunc(sealed.Beat, c.beats)
		}
	}
	return !c.overLocked()
}

// moveTo seals body as a Place parcel for the client, and passes it to queue, which is the crowd's
// Enter or Leave. It reports success. The sealing's mutex is held.
func (s *sealing) moveTo(conn *routing.AgentConn, body []byte, queue func(*routing.AgentConn, []byte) error) bool {
	frames, err := s.session.Seal(sealed.Place, body)
	return err == nil && queue(conn, frames[0]) == nil
}

// leaveCrowd takes the client out of its crowd: later messages are sealed for it alone. The crowd's
// next Tell reports the client as having left. The sealing's mutex is held.
func (s *sealing) leaveCrowd() {
	c := s.crowd.Load()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, c.members[s])
	s.moveTo(s.line.now.Load(), c.keys.Leave(), c.out.Leave)
	c.removeLocked(s)
}

// leaveCrowd takes the client out of its crowd before the gates judge a message from the client. It
// records in the connection's view which messages the client got in crowds. The connection's order
// is held.
func (c *hostConn) leaveCrowd() {
	seal := c.conn.seal
	if seal == nil || !seal.guest {
		return
	}
	seal.mu.Lock()
	defer seal.mu.Unlock()
	seal.leaveCrowd()
	c.gates.View.SetSeq(max(c.gates.View.Seq(), seal.told))
}

// endCrowds ends the keys of all crowds in which the client was, when its connection ends. If now is
// true, the keys end at once, so a client that the host-agent closes cannot read on. Otherwise, the
// keys end within leftTime. The sealing's mutex is held.
func (s *sealing) endCrowds(now bool) {
	for _, c := range s.seats {
		c.expire(now)
	}
	if c := s.crowd.Load(); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.removeLocked(s)
	}
}

func (c *viewerCrowd) removeLocked(s *sealing) {
	s.told = max(s.told, c.seq)
	delete(c.members, s)
	s.crowd.Store(nil)
	if len(c.members) == 0 {
		c.keys = nil
	}
}

// expire ends the crowd's keys: at once if now is true, else within leftTime.
func (c *viewerCrowd) expire(now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := time.Now()
	if !now {
		end = end.Add(leftTime)
	}
	if c.until.After(end) {
		c.until = end
	}
}

func (c *viewerCrowd) overLocked() bool {
	return c.keys != nil && (c.keys.Spent() || !time.Now().Before(c.until))
}

func (c *viewerCrowd) Judge(message []byte, env *ahp.Envelope) audience.Verdict {
	c.mu.Lock()
	v := c.members[c.judge]
	if v == nil {
		for c.judge, v = range c.members {
			break
		}
	}
	c.mu.Unlock()
	if v == nil || len(message) > sealed.MaxTold {
		return audience.ToEach
	}
	v.conn.order.Lock()
	defer v.conn.order.Unlock()
	view := v.conn.gates.View
	defer view.SetSeq(view.Seq()) // Judge only decides: the viewer gets the message later
	d, reading := v.conn.gates.FromHost(message, env)
	switch {
	case d.Verdict == gate.Pass && !gate.Teaches(reading):
		return audience.ToAll
	case d.Verdict == gate.Answer && d.Message == nil:
		return audience.ToNone
	}
	return audience.ToEach
}

func (c *viewerCrowd) Tell(messages [][]byte, seq int64) (left []routing.ClientConn) {
	c.lastHeard.Set(time.Now())
	c.dissolve()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq = max(c.seq, seq)
	left, c.left = c.left, nil
	for len(messages) > 0 && len(c.members) > 0 {
		n, size := 1, len(messages[0])
		for n < len(messages) && size+len(messages[n]) <= sealed.MaxTold {
			size += len(messages[n])
			n++
		}
		c.sendLocked(c.keys.Tell(messages[:n]...))
		messages = messages[n:]
	}
	return left
}

// sendLocked sends frames to all members, or nothing if sealing them failed with err. In that case
// the members notice the gap by the number of the next frame.
func (c *viewerCrowd) sendLocked(frames [][]byte, err error) {
	if err == nil {
		c.out.Tell(frames)
	}
}

// dissolve takes all members out of the crowd if its keys have ended.
func (c *viewerCrowd) dissolve() {
	c.mu.Lock()
	var all []*sealing
	if c.overLocked() {
		all = slices.Collect(maps.Keys(c.members))
	}
	c.mu.Unlock()
	for _, s := range all {
		s.mu.Lock()
		s.leaveCrowd()
		s.mu.Unlock()
	}
}

// beats is the timer's function: it sends a heartbeat to all members, and starts the timer again
// unless the crowd has ended.
func (c *viewerCrowd) beats() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) > 0 {
		c.sendLocked(c.keys.Beat())
	}
	if !c.ended.Load() {
		c.beat.Reset(sealed.Beat)
	}
}

func (c *viewerCrowd) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended.Store(true)
	if c.beat != nil {
		c.beat.Stop()
	}
	c.out.End()
}
