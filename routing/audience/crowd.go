package audience

import (
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// maxCrowds bounds an audience's crowds. Further viewers get their messages alone.
const maxCrowds = 16

// A Crowd is clients that get each message together. Package audience calls its methods
// under the pool's lock.
type Crowd interface {
	// Tell sends messages to all clients, and returns those that have left before, by
	// themselves.
	Tell(messages [][]byte) (left []routing.ClientConn)

	// Judge says how a notification goes to the clients. It is called without the lock.
	Judge(message []byte, env *ahp.Envelope) Verdict

	// End ends a crowd without clients.
	End()
}

// A Follower is a client that can get messages together with others.
type Follower interface {
	routing.ClientConn

	// Follow adds the client to a crowd, if it has handled everything so far.
	Follow(Crowd) bool

	// Part removes it: it gets nothing that the crowd is told from now on.
	Part()
}

// A Verdict says how a notification goes to a crowd.
type Verdict int

// The verdicts.
const (
	ToAll Verdict = iota // as it is
	ToNone
	ToEach // to each client alone, because it may differ
)

// A crowd is viewers with the same subscriptions, all of which are settled.
type crowd struct {
	key     string
	out     Crowd
	feeds   []*feed
	viewers map[routing.ClientConn]*Viewer
	items   []item // not told yet
}

// gather puts viewers that have settled into crowds.
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

// settled reports whether a viewer gets all later messages of its channels.
func (v *Viewer) settled() bool {
	if v.phase != live || v.flying > 0 || v.asked > 0 || len(v.held) > 0 || len(v.out) > 0 || len(v.subscriptions) == 0 {
		return false
	}
	for _, s := range v.subscriptions {
		if !s.taken || s.asks > 0 || s.floor > v.in.seq {
			return false
		}
	}
	return true
}

// follow puts a viewer into the crowd for its subscriptions.
func (a *audience) follow(v *Viewer, f Follower) {
	key := strings.Join(slices.Sorted(maps.Keys(v.subscriptions)), "\n")
	c := a.crowds[key]
	if c == nil {
		if len(a.crowds) >= maxCrowds {
			return
		}
		c = &crowd{key: key, out: a.pool.cfg.Crowd(), viewers: map[routing.ClientConn]*Viewer{}}
	}
	if c.out == nil || !f.Follow(c.out) {
		if c.out != nil && len(c.viewers) == 0 {
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

// part makes a viewer get its messages alone again, behind those of its crowd so far.
func (a *audience) part(v *Viewer) {
	if v.crowd != nil {
		a.tell(v.crowd)
	}
	if v.crowd != nil {
		v.client.(Follower).Part()
		a.parted(v)
	}
}

// parted records that a viewer is in no crowd any more.
func (a *audience) parted(v *Viewer) {
	c := v.crowd
	delete(c.viewers, v.client)
	v.crowd = nil
	a.following--
	for _, s := range v.subscriptions {
		s.attach()
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

// tell sends what waits for a crowd. Viewers that have left it by themselves get that alone.
func (a *audience) tell(c *crowd) {
	if len(c.items) == 0 {
		return
	}
	items := c.items
	c.items = nil
	messages := make([][]byte, len(items))
	for i := range items {
		messages[i] = items[i].text.raw
	}
	for _, client := range c.out.Tell(messages) {
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

// toCrowd passes a notification to a crowd.
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

// judge returns a crowd that judges for all of them, or nil: viewers of an audience have equal
// authority.
func (a *audience) judge() Crowd {
	for _, c := range a.crowds {
		return c.out
	}
	return nil
}

// detach takes a subscription out of its feed: a crowd gets the messages.
func (s *subscription) detach() {
	f := s.feed
	last := len(f.subscriptions) - 1
	f.subscriptions[s.index] = f.subscriptions[last]
	f.subscriptions[s.index].index = s.index
	f.subscriptions[last] = nil
	f.subscriptions = f.subscriptions[:last]
	s.index = -1
}

// attach puts it back.
func (s *subscription) attach() {
	s.index = len(s.feed.subscriptions)
	s.feed.subscriptions = append(s.feed.subscriptions, s)
}
