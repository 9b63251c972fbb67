package routing

import (
	"container/list"
)

// maxChannels bounds the channels whose frames are shared. Those least
// recently used are forgotten: their frames are sent to each connection.
const maxChannels = 1024

// recentBodies is over how many bodies of a channel the expected number of
// receivers is learnt.
const recentBodies = 4

// idleBodies is how many bodies of a channel in a row a link must have had no
// connection for until its relay need not listen any more.
const idleBodies = 64

// A channel is what a host-agent knows of one AHP channel: who is sent its
// notifications. It learns that from what the host sends, not from
// subscriptions, and so needs to understand neither methods nor schemes.
type channel struct {
	uri    string
	token  string
	number uint64 // in watch records
	links  []*channelLink
	recent [recentBodies]*body
	next   int // place in recent of the next body
	place  *list.Element
}

// A channelLink is what a channel means to the relay at the end of one link.
type channelLink struct {
	link  *agentLink
	asked bool // the relay was told to listen
	ready bool // and has said that it does
	idle  int  // bodies in a row that no connection of the link was sent
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

// expected is on how many connections of a link the next body will be sent,
// as far as the bodies before it tell.
func (c *channel) expected(link *agentLink) (n int) {
	for _, b := range c.recent {
		if b == nil {
			continue
		}
		for _, a := range b.heard {
			if a.link == link {
				n = max(n, a.count)
			}
		}
	}
	return n
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
