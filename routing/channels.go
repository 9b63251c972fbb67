package routing

import (
	"container/list"
	"time"
)

// maxChannels bounds the channels that a host-agent remembers, and so those that a relay
// watches. Beyond it, the least recently used channel is forgotten.
const maxChannels = 1024

// A channel's generation ends after generationBodies bodies and generationTime,
// whichever is later. The most receivers of one body in this generation and the
// previous predict the next body's receivers.
const (
	generationBodies = 64
	generationTime   = time.Second
)

// A channel records which relays receive the messages of one AHP channel. It learns
// that from the host's messages. It does not read subscriptions, and so needs to
// understand neither methods nor URI schemes.
type channel struct {
	uri    string
	token  string
	number uint64 // in watch records
	links  []*channelLink
	bodies int       // in this generation
	since  time.Time // the first body of this generation
	place  *list.Element

	forgotten bool // the channel was removed from the table: bodies may still refer to it, but no relay is asked to subscribe
}

type channelLink struct {
	link    *agentLink
	watched bool   // the relay was asked to subscribe
	ready   bool   // the relay has confirmed the subscription
	named   bool   // the relay has received the channel's name for fed records
	most    [2]int // the highest number of connections that received one body, in this generation and in the previous
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

// receivers returns the expected number of receiving connections at all subscribed
// relays.
func (c *channel) receivers() (n int) {
	for _, on := range c.links {
		if on.ready {
			n += on.expected()
		}
	}
	return n
}

// watch asks the relays that a body has reached (heard) to subscribe, if they were not asked
// before.
func (c *channel) watch(heard []*arrival) {
	for _, a := range heard {
		if on := a.on; !on.watched && !on.link.ended && !c.forgotten {
			on.watched = true
			on.link.watch(c, on)
		}
	}
}

// age counts a body. When a generation ends, age unsubscribes the relays that had no
// receiver in it.
func (c *channel) age(now time.Time) {
	if c.bodies == 0 {
		c.since = now
	}
	c.bodies++
	if c.bodies < generationBodies || now.Sub(c.since) < generationTime {
		return
	}
	c.bodies = 0
	for _, on := range c.links {
		on.most[0], on.most[1] = 0, on.most[0]
		if on.ready && on.expected() == 0 {
			on.unwatch(c)
		}
	}
}

// forget unsubscribes all relays.
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
