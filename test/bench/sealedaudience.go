package bench

import (
	"context"
	"encoding/base64"
	"fmt"

	"ahprelay/hostagent"
	"ahprelay/internal/sealed"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/stack"
)

// linkState is the size, in bytes, of the session's state that each viewer of a link
// gets when it joins.
const linkState = 64 << 10

// link makes a link for a number of people to a session of the sealed host.
func (s *site) link(session string, people int) (*loadgen.Seal, error) {
	ctx, cancel := context.WithTimeout(s.bed.ctx, pairTime)
	defer cancel()
	made, err := s.control.Link(ctx, hostagent.DeviceOrder{Session: session, People: people})
	if err != nil {
		return nil, err
	}
	key, err := base64.RawURLEncoding.DecodeString(made.HostKey)
	if err != nil {
		return nil, err
	}
	device, err := sealed.ReadLinkKeys(made.Keys)
	if err != nil {
		return nil, err
	}
	private, err := device.Private()
	return &loadgen.Seal{Host: hostName(0), Key: key, Device: private}, err
}

// follow makes a link, and connects viewers by it.
func (b *testbed) follow(s *site, relay system, name string, state, viewers int) (*crowd, error) {
	session := loadgen.SessionChannel(state)
	var err error
	if relay.seal, err = s.link(session, viewers); err != nil {
		return nil, err
	}
	c, err := b.newCrowd(&relay, viewers, actionSize)
	if err != nil {
		return nil, err
	}
	took, err := c.addTo(session, &relay, name, viewers, 0)
	b.say("%d viewers of a sealed link have joined in %.1f s", viewers, took.Seconds())
	return c, err
}

// sealedAudience measures what the viewers of a link cost a sealed host.
func sealedAudience(b *testbed) ([]Figure, error) {
	var meter *stack.Meter
	s, relay, err := b.oneHost(siteConfig{
		name: "sealed-audience", sealed: true, relayFlags: audienceLimits,
		between: b.metered(&meter),
	})
	if err != nil {
		return nil, err
	}
	defer s.end()
	many := b.many(audienceViewers)
	ways := []*audienceWay{{name: "one viewer"}, {name: "all"}}
	var joined series
	for i, viewers := range []int{1, many} {
		before := meter.Bytes()
		if ways[i].crowd, err = b.follow(s, *relay, fmt.Sprint("link-", i), linkState+i, viewers); err != nil {
			return nil, err
		}
		ways[i].pays = []int{b.host.Pid(), s.agents[0].Pid()}
		joined = append(joined, float64(meter.Bytes()-before))
	}
	if err := b.measureAudience(ways, meter); err != nil {
		return nil, err
	}
	figures := audienceFigures(many, ways)
	for i := range figures {
		figures[i].Work = "a sealed link's " + figures[i].Work
	}
	each := (joined[1] - joined[0]) / float64(max(many-1, 1))
	return append(figures, newFigure(fmt.Sprintf("%d viewers join a sealed link with a state of %d KB: leave the host's machine for each", many, linkState>>10), "bytes", series{each}).
		want(atMost(400)).means("A viewer who joins costs its handshake, not the state.")), nil
}
