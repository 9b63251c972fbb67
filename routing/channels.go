package routing

import (
	"container/list"
	"time"
)

// maxChannels bounds the channels with shared messages. The least recently used
// channel is forgotten: its messages go to each connection separately.
const maxChannels = 1024

// A generation is at least this many bodies of a channel over at least this time. The
// current and the previous generation predict a body's receivers.
const (
	generationBodies = 64
	generationTime   = time.Second
)

// A channel is a host-agent's knowledge about the receivers of one AHP channel. It
// learns from the host's messages, not from subscriptions, and so needs to understand
// neither methods nor schemes.
type channel struct {
	uri    string
	token  string
	number uint64 // in watch records
	links  []*channelLink
	bodies int       // in this generation
	since  time.Time // start of this generation
	place  *list.Element

	forgotten bool // a body may still name the channel, but no relay is asked to watch it
}

// A channelLink is a channel's state on one link.
type channelLink struct {
	link    *agentLink
	watched bool   // the relay was asked to listen
	ready   bool   // the relay has confirmed
	named   bool   // the relay knows the channel's number in fed records
	most    [2]int // the most connections that received one body, in this generation and the previous
}

func (c *channel) on(link *agentLink) *channelLink {
	for _, l := range c.links {
		if l.link == link {
			return l
		}
	}
	l := &channelLink{link: link}
	c.links = append(c.links, l)
	return l
}

// expected returns the number of the link's connections that the next body will
// probably reach.
func (on *channelLink) expected() int { return max(on.most[0], on.most[1]) }

// receivers returns the expected connections of all relays that listen.
func (c *channel) receivers() (n int) {
	for _, on := range c.links {
		if on.ready {
			n += on.expected()
		}
	}
	return n
}

// watch makes relays listen if a connection of theirs has received a body, and if they
// take references.
func (c *channel) watch(heard []*arrival) {
	for _, a := range heard {
		if on := a.on; !on.watched && on.link.shares() && !on.link.ended && !c.forgotten {
			on.watched = true
			on.link.watch(c, on)
		}
	}
}

// age counts a body. When a generation ends, relays without a receiver in two
// generations stop listening.
func (c *channel) age(now time.Time) {
	c.bodies++
	if c.bodies < generationBodies || now.Sub(c.since) < generationTime {
		return
	}
	c.bodies, c.since = 0, now
	for _, on := range c.links {
		on.most[0], on.most[1] = 0, on.most[0]
		if on.ready && on.expected() == 0 {
			on.unwatch(c)
		}
	}
}

// forget ends the watch of all relays.
func (c *channel) forget() {
	c.forgotten = true
	for _, on := range c.links {
		if on.watched {
			on.unwatch(c)
		}
	}
}

func (on *channelLink) unwatch(c *channel) {
	on.watched, on.ready = false, false
	on.link.unwatch(c)
}

// A channelTable holds the channels in use, by URI.
type channelTable struct {
	byURI map[string]*channel
	used  *list.List // most recent first
	last  uint64
}

func newChannelTable() channelTable {
	return channelTable{byURI: map[string]*channel{}, used: list.New()}
}

// channel returns the channel with a URI, and creates it if necessary. It also returns
// the channel that was forgotten to make room, if any.
func (t *channelTable) channel(uri []byte) (ch, forgotten *channel) {
	if ch := t.byURI[string(uri)]; ch != nil {
		t.used.MoveToFront(ch.place)
		return ch, nil
	}
	if len(t.byURI) >= maxChannels {
		forgotten = t.used.Back().Value.(*channel)
		t.used.Remove(forgotten.place)
		delete(t.byURI, forgotten.uri)
	}
	t.last++
	ch = &channel{uri: string(uri), token: ChannelToken(string(uri)), number: t.last}
	ch.place = t.used.PushFront(ch)
	t.byURI[ch.uri] = ch
	return ch, forgotten
}
