package routing

import (
	"container/list"
	"time"
)

// maxChannels bounds the channels whose frames are shared. Those least
// recently used are forgotten: their frames are sent to each connection.
const maxChannels = 1024

// A generation of a channel's bodies is at least so many in so much time. What
// the bodies of this one and the one before teach of their receivers holds.
const (
	generationBodies = 64
	generationTime   = time.Second
)

// A channel is what a host-agent knows of one AHP channel: who is sent its
// notifications. It learns that from what the host sends, not from
// subscriptions, and so needs to understand neither methods nor schemes.
type channel struct {
	uri    string
	token  string
	number uint64 // in watch records
	links  []*channelLink
	bodies int       // in this generation
	since  time.Time // it began
	place  *list.Element

	forgotten bool // some body may still name it, and nothing is to come of that
}

// A channelLink is what a channel means to the relay at the end of one link.
type channelLink struct {
	link  *agentLink
	asked bool   // the relay was told to listen
	ready bool   // and has said that it does
	most  [2]int // connections that were sent one body, in this generation and the one before
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

// expected is on how many connections of the link the next body will be sent,
// as far as those before it tell.
func (on *channelLink) expected() int { return max(on.most[0], on.most[1]) }

// receivers is the same for all relays that listen.
func (c *channel) receivers() (n int) {
	for _, on := range c.links {
		if on.ready {
			n += on.expected()
		}
	}
	return n
}

// ask has the relays listen to whose connections the host has sent a body.
func (c *channel) ask(heard []*arrival) {
	for _, a := range heard {
		if on := a.on; !on.asked && !on.link.ended && !c.forgotten {
			on.asked = true
			on.link.ask(c, on)
		}
	}
}

// age counts a body. At the end of a generation, relays stop listening that
// had no connection which was sent anything for as long.
func (c *channel) age(now time.Time) {
	c.bodies++
	if c.bodies < generationBodies || now.Sub(c.since) < generationTime {
		return
	}
	c.bodies, c.since = 0, now
	for _, on := range c.links {
		on.most[0], on.most[1] = 0, on.most[0]
		if on.ready && on.expected() == 0 {
			on.unask(c)
		}
	}
}

// forget has all relays stop listening.
func (c *channel) forget() {
	c.forgotten = true
	for _, on := range c.links {
		if on.asked {
			on.unask(c)
		}
	}
}

func (on *channelLink) unask(c *channel) {
	on.asked, on.ready = false, false
	on.link.unask(c)
}

// A channelTable holds the channels in use, by URI.
type channelTable struct {
	byURI map[string]*channel
	used  *list.List // of *channel, newest first
	last  uint64
}

func newChannelTable() channelTable {
	return channelTable{byURI: map[string]*channel{}, used: list.New()}
}

// channel returns the channel with a URI, which it may have to make, and then
// perhaps one that had to be forgotten for it.
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
