package bench

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/faultproxy"
)

// flapClients is the number of clients that receive the stream during the cut.
const flapClients = 50

// cutTime is how long the connection is cut.
const cutTime = 3 * time.Second

// flap cuts the connection between host-agent and relay, and measures the effect on
// clients. It compares this with clients whose own connections are cut, as those
// through a tunnel would be.
func flap(b *testbed) ([]Figure, error) {
	var link *faultproxy.Proxy
	_, relay, err := b.oneHost(siteConfig{between: func(target string) (_ string, err error) {
		if link, err = b.proxy(target); err != nil {
			return "", err
		}
		return link.Addr(), nil
	}})
	if err != nil {
		return nil, err
	}
	tunnel, err := b.proxy(strings.TrimPrefix(b.hostURL, "ws://"))
	if err != nil {
		return nil, err
	}
	through := &system{name: "a tunnel", kind: loadgen.AHP, url: "ws://" + tunnel.Addr()}
	var closed, lost, closedInTunnel, whole series
	err = b.rounds(func(round int) error {
		c, err := b.join(relay, fmt.Sprintf("flap-%d", round), b.many(flapClients), 0, actionSize)
		if err != nil {
			return err
		}
		other, err := b.join(through, fmt.Sprintf("tunnel-%d", round), b.many(flapClients), 0, actionSize)
		if err != nil {
			return err
		}
		seen, err := c.flapOnce(link, tunnel)
		if err != nil {
			return err
		}
		closed, lost, whole = append(closed, seen.closed), append(lost, seen.lost), append(whole, seen.whole.Seconds())
		gone, err := other.ended()
		if err != nil {
			return err
		}
		closedInTunnel = append(closedInTunnel, float64(gone))
		return errors.Join(c.leave(), other.leave())
	})
	if err != nil {
		return nil, err
	}
	work := fmt.Sprintf("link cut for 3 s while %d clients hear 500 actions/s: ", flapClients)
	return []Figure{
		newFigure(work+"closed", "clients", closed).beside("a tunnel", closed, closedInTunnel).want(atMost(0)).means("The host's WLAN drops, and nobody is thrown out."),
		newFigure(work+"lost", "frames", lost).want(atMost(0)).means("And nothing is missing."),
		newFigure(work+"whole again after it is back", "s", whole).orient(atMost(1)).means("The screens are up to date at once."),
	}, nil
}

// proxy starts a fault proxy in front of an address. The testbed's end closes it.
func (b *testbed) proxy(target string) (*faultproxy.Proxy, error) {
	p, err := faultproxy.New("", target)
	if err == nil {
		b.ends = append(b.ends, p.Close)
	}
	return p, err
}

// A flapResult is the effect of a cut on clients.
type flapResult struct {
	closed, lost float64
	whole        time.Duration // from the cut's end until all clients have received what was sent during the cut
}

// flapOnce cuts links for cutTime while the host streams to a crowd.
func (c *crowd) flapOnce(links ...*faultproxy.Proxy) (r flapResult, err error) {
	if _, err := c.hear(spoken, c.bed.long(300*time.Millisecond), false); err != nil {
		return r, err
	}
	c.mayLose = true
	var wg sync.WaitGroup
	var said loadgen.StreamReply
	var failed error
	wg.Go(func() { said, failed = c.stream(spoken, c.bed.long(cutTime+1200*time.Millisecond)) })
	time.Sleep(c.bed.long(200 * time.Millisecond))
	for _, link := range links {
		link.Cut()
	}
	time.Sleep(c.bed.long(cutTime))
	for _, link := range links {
		err = errors.Join(err, link.Heal())
	}
	if err == nil {
		r.whole, err = c.catchUp()
	}
	wg.Wait()
	if err := errors.Join(err, failed); err != nil {
		return r, err
	}
	gone, err := c.ended()
	r.closed, r.lost = float64(gone), float64(said.Lost)
	return r, err
}

// giveUp limits the time in which clients must receive everything.
const giveUp = 10 * time.Second

// catchUp waits until all readers have received all actions so far, or until giveUp is
// over. It returns the time that this took.
func (c *crowd) catchUp() (took time.Duration, err error) {
	var said int64
	if err := c.bed.host.Call("Host.Said", c.channels[0], &said); err != nil {
		return 0, err
	}
	args := loadgen.AwaitArgs{Group: c.groups[0], Action: said, Within: giveUp}
	if c.bed.clients.Call("Clients.Await", args, &took) != nil {
		took = giveUp
	}
	return took, nil
}

// ended returns how many connections of a crowd have ended.
func (c *crowd) ended() (n int, err error) {
	var state loadgen.State
	err = c.bed.clients.Call("Clients.State", c.groups[0], &state)
	return len(state.Ended), err
}
