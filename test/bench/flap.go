package bench

import (
	"fmt"
	"strings"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/faultproxy"
	"ahprelay/test/must"
)

// flapClients is the number of clients that receive the stream during the cut.
const flapClients = 50

// cutTime is how long the connection is cut.
const cutTime = 3 * time.Second

// flap cuts the connection between host-agent and relay, and measures the effect on
// clients. It compares this with clients whose own connections are cut, as those
// through a tunnel would be.
func flap(b *testbed) []Figure {
	var link *faultproxy.Proxy
	_, relay := b.oneHost(siteConfig{between: func(target string) string {
		link = b.proxy(target)
		return link.Addr()
	}})
	tunnel := b.proxy(strings.TrimPrefix(b.hostURL, "ws://"))
	through := &system{name: "a tunnel", kind: loadgen.AHP, url: "ws://" + tunnel.Addr()}
	var closed, lost, closedInTunnel, whole series
	b.rounds(func(round int) {
		c := b.join(relay, fmt.Sprintf("flap-%d", round), b.many(flapClients), 0, actionSize)
		other := b.join(through, fmt.Sprintf("tunnel-%d", round), b.many(flapClients), 0, actionSize)
		missing, took := c.flapOnce(link, tunnel)
		closed, lost, whole = append(closed, c.ended()), append(lost, missing), append(whole, took.Seconds())
		closedInTunnel = append(closedInTunnel, other.ended())
		c.leave()
		other.leave()
	})
	work := fmt.Sprintf("link cut for 3 s while %d clients hear 500 actions/s: ", flapClients)
	return []Figure{
		newFigure(work+"closed", "clients", closed).beside("a tunnel", closed, closedInTunnel).want(atMost(0)).means("The host's WLAN drops, and nobody is thrown out."),
		newFigure(work+"lost", "frames", lost).want(atMost(0)).means("And nothing is missing."),
		newFigure(work+"whole again after it is back", "s", whole).orient(atMost(1)).means("The screens are up to date at once."),
	}
}

// proxy starts a fault proxy in front of an address. The testbed's end closes it.
func (b *testbed) proxy(target string) *faultproxy.Proxy {
	p := must.Get(faultproxy.New("", target))
	b.ends = append(b.ends, p.Close)
	return p
}

// flapOnce cuts links for cutTime while the host streams to a crowd. It returns how many
// frames are lost, and the time from the cut's end until all clients have received what
// was sent during the cut.
func (c *crowd) flapOnce(links ...*faultproxy.Proxy) (lost float64, whole time.Duration) {
	c.hear(spoken, c.bed.long(300*time.Millisecond), false)
	c.mayLose = true
	cut := func() {
		time.Sleep(c.bed.long(200 * time.Millisecond))
		for _, link := range links {
			link.Cut()
		}
		time.Sleep(c.bed.long(cutTime))
		for _, link := range links {
			must.Do(link.Heal())
		}
		var err error
		if whole, err = c.catchUp(0, giveUp); err != nil {
			whole = giveUp
		}
	}
	must.Both(cut, func() { lost = float64(c.stream(spoken, c.bed.long(cutTime+1200*time.Millisecond)).Lost) })
	return lost, whole
}

// giveUp limits the time in which clients must receive everything.
const giveUp = 10 * time.Second

// catchUp waits until all readers of a channel have received all actions so far, or until
// a time is over. It returns how long this took.
func (c *crowd) catchUp(channel int, within time.Duration) (took time.Duration, err error) {
	var said int64
	must.Do(c.bed.host.Call("Host.Said", c.channels[channel], &said))
	args := loadgen.AwaitArgs{Group: c.groups[channel], Action: said, Within: within}
	return took, c.bed.clients.Call("Clients.Await", args, &took)
}

// ended returns how many connections of a crowd have ended.
func (c *crowd) ended() float64 {
	var state loadgen.State
	must.Do(c.bed.clients.Call("Clients.State", c.groups[0], &state))
	return float64(len(state.Ended))
}
