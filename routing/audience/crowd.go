package audience

import (
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// maxCrowds bounds the number of an audience's crowds. Beyond it, the pool sends messages to each
// further viewer alone.
const maxCrowds = 16

// A Crowd is a set of clients to which the pool passes each message in a single call. Package
// audience calls Tell and End under the pool's lock.
type Crowd interface {
	// Tell sends messages to all clients in the crowd; seq is the highest serverSeq in them,
	// or 0. It returns the clients that left by themselves since the previous call, which
	// have not received the messages.
	Tell(messages [][]byte, seq int64) (left []routing.ClientConn)

	// Judge returns how to send a notification to the crowd. It is called without the pool's
	// lock.
	Judge(message []byte, env *ahp.Envelope) Verdict

	// End ends the crowd. All clients have left it before.
	End()
}

// A Follower is a client that can be in a Crowd.
type Follower interface {
	routing.ClientConn

	// Follow adds the client to a crowd and returns true. If the client has not handled all earlier
	// output, it returns false.
	Follow(Crowd) bool

	// Part removes the client from its crowd: it gets nothing from later calls of Tell.
	Part()
}

// A Verdict is the way to send a notification to a crowd.
type Verdict int

const (
	ToAll  Verdict = iota // the host's message, unchanged, to all clients
	ToNone                // not at all
	ToEach                // to each client alone, because the gates may change it
)

// A crowd is a set of viewers with the same subscriptions, all of them answered by the host.
type crowd struct {
	key     string
	out     Crowd
	feeds   []*feed
	viewers map[routing.ClientConn]*Viewer
	items   []item // notifications that the next tell sends
}

// gather puts each settled viewer into the crowd for its subscriptions.
func (a *audience) gather() {
	if a.pool.cfg.Crowd == nil || a.following == len(a.viewers) || a.ended {
		return
	}
	for _, v := range a.viewers {
		if f, ok := v.client.(Follower); ok && v.crowd == nil && v.settled() {
			a.follow(v, f)
		}
	}
}

// settled reports whether a viewer will get every later message on its channels: it waits for no
// answer and no snapshot, and the host sends no more actions that its snapshots contain.
func (v *Viewer) settled() bool {
	if v.phase != live || v.flying > 0 || v.asked > 0 || len(v.held) > 0 || len(v.out) > 0 || len(v.subscriptions) == 0 {
		return false
	}
	for _, s := range v.subscriptions {
		if !s.taken || s.asks > 0 || s.floor > v.in.acted {
			return false
		}
	}
	return true
}

// follow puts a viewer into the crowd for its subscriptions, and creates the crowd if necessary.
// Nothing changes if there are too many crowds, or if the client cannot follow yet.
func (a *audience) follow(v *Viewer, f Follower) {
	key := strings.Join(slices.Sorted(maps.Keys(v.subscriptions)), "\n")
	c := a.crowds[key]
	if c == nil {
		if len(a.crowds) >= maxCrowds {
			return
		}
		c = &crowd{key: key, out: a.pool.cfg.Crowd(), viewers: map[routing.ClientConn]*Viewer{}}
	}
	if !f.Follow(c.out) {
		if len(c.viewers) == 0 {
			c.out.End()
		}
		return
	}
	if len(c.viewers) == 0 {
		a.crowds[key] = c
		for _, s := range v.subscriptions {
			c.feeds = append(c.feeds, s.feed)
			s.feed.crowds = append(s.feed.crowds, c)
		}
	}
	c.viewers[v.client] = v
	v.crowd = c
	a.following++
	for _, s := range v.subscriptions {
		s.detach()
	}
}

// part takes a viewer out of its crowd, if it is in one. The crowd first gets the notifications
// that wait for it; later messages go to the viewer alone.
func (a *audience) part(v *Viewer) {
	if v.crowd != nil {
		a.tell(v.crowd)
	}
	if v.crowd != nil {
		v.client.(Follower).Part()
		a.parted(v)
	}
}

// parted records that a viewer has left its crowd. A crowd without viewers is deleted.
func (a *audience) parted(v *Viewer) {
	c := v.crowd
	delete(c.viewers, v.client)
	v.crowd = nil
	a.following--
	for _, s := range v.subscriptions {
		s.index = len(s.feed.subscriptions)
		s.feed.subscriptions = append(s.feed.subscriptions, s)
	}
	if len(c.viewers) > 0 {
		return
	}
	for _, f := range c.feeds {
		f.crowds = slices.DeleteFunc(f.crowds, func(other *crowd) bool { return other == c })
	}
	delete(a.crowds, c.key)
	c.out.End()
}

// tell passes the waiting notifications to a crowd. Viewers that have left the crowd by themselves
// get these notifications alone.
func (a *audience) tell(c *crowd) {
	if len(c.items) == 0 {
		return
	}
	items := c.items
	c.items = nil
	messages, seq := make([][]byte, len(items)), int64(0)
	for i := range items {
		messages[i], seq = items[i].text.raw, max(seq, items[i].seq)
	}
	for _, client := range c.out.Tell(messages, seq) {
		v := c.viewers[client]
		if v == nil {
			continue
		}
		a.parted(v)
		for i := range items {
			v.deliver(&items[i])
		}
	}
}

// toCrowd handles a notification for a crowd according to the verdict: it queues the notification,
// drops it, or takes all viewers out of the crowd, so that each gets it alone.
func (a *audience) toCrowd(c *crowd, i *item, verdict Verdict) {
	switch verdict {
	case ToAll:
		c.items = append(c.items, *i)
	case ToEach:
		for _, v := range slices.Collect(maps.Values(c.viewers)) {
			a.part(v)
		}
	}
}

// judge returns any crowd, or nil if there is none. Its verdict holds for all crowds, because an
// audience's viewers have equal authority.
func (a *audience) judge() Crowd {
	for _, c := range a.crowds {
		return c.out
	}
	return nil
}

// detach removes a subscription from its feed, so that the feed's messages no longer go to the
// viewer itself.
func (s *subscription) detach() {
	f := s.feed
	last := len(f.subscriptions) - 1
	f.subscriptions[s.index] = f.subscriptions[last]
	f.subscriptions[s.index].index = s.index
	f.subscriptions[last] = nil
	f.subscriptions = f.subscriptions[:last]
	s.index = -1
}
