package bench

import (
	"context"
	"encoding/base64"
	"fmt"

	"ahprelay/hostagent"
	"ahprelay/internal/sealed"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/stack"
)

// linkState is the size, in bytes, of the session's state that each viewer of a link
// gets when it joins.
const linkState = 64 << 10

// link makes a link for a number of people to a session of the sealed host.
func (s *site) link(session string, people int) *loadgen.Seal {
	ctx, cancel := context.WithTimeout(s.bed.ctx, pairTime)
	defer cancel()
	made := must.Get(s.control.Link(ctx, hostagent.DeviceOrder{Session: session, People: people}))
	device := must.Get(sealed.ReadLinkKeys(made.Keys))
	return &loadgen.Seal{Host: hostName(0), Key: must.Get(base64.RawURLEncoding.DecodeString(made.HostKey)), Device: must.Get(device.Private())}
}

// follow makes a link, and connects viewers by it.
func (b *testbed) follow(s *site, relay system, name string, state, viewers int) *crowd {
	session := loadgen.SessionChannel(state)
	relay.seal = s.link(session, viewers)
	c := b.newCrowd(&relay, viewers, actionSize)
	took := c.addTo(session, &relay, name, viewers, 0)
	b.say("%d viewers of a sealed link have joined in %.1f s", viewers, took.Seconds())
	return c
}

// sealedAudience measures what the viewers of a link cost a sealed host.
func sealedAudience(b *testbed) []Figure {
	var meter *stack.Meter
	s, relay := b.oneHost(siteConfig{name: "sealed-audience", sealed: true, relayFlags: audienceLimits, between: b.metered(&meter)})
	defer s.end()
	many := b.many(audienceViewers)
	ways := []*audienceWay{{name: "one viewer"}, {name: "all"}}
	var joined series
	for i, viewers := range []int{1, many} {
		before := meter.Bytes()
		ways[i].crowd = b.follow(s, *relay, fmt.Sprint("link-", i), linkState+i, viewers)
		ways[i].pays = []int{b.host.Pid(), s.agents[0].Pid()}
		joined = append(joined, float64(meter.Bytes()-before))
	}
	b.measureAudience(ways, meter)
	figures := audienceFigures(many, ways)
	for i := range figures {
		figures[i].Work = "a sealed link's " + figures[i].Work
	}
	each := (joined[1] - joined[0]) / float64(max(many-1, 1))
	return append(figures, newFigure(fmt.Sprintf("%d viewers join a sealed link with a state of %d KB: leave the host's machine for each", many, linkState>>10), "bytes", series{each}).
		want(atMost(400)).means("A viewer who joins costs its handshake, not the state."))
}
