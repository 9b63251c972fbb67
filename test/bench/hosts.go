package bench

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"ahprelay/broker"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/load"
	"ahprelay/test/must"
)

// hostsIdle is how long host-agents are idle before they are measured, and how long the
// measurement takes. The messages at a connection's beginning are compressed, and this
// compression ends 10 s after the last message. The relay then returns the memory for
// it at its second garbage collection.
const hostsIdle = 30 * time.Second

// hosts measures the memory that each further host-agent takes at a relay, and the
// processor time for a thousand further idle host-agents: without the time of a relay that
// has only a few. Meanwhile their connections are pinged and their leases are renewed.
func hosts(b *testbed) []Figure {
	few, more := b.many(50), b.many(1000)
	var memory, cost, second series
	b.rounds(func(round int) {
		s := b.site(siteConfig{name: fmt.Sprintf("hosts-%d", round), hosts: few, together: true})
		defer s.end()
		waitIdle(b)
		alone := s.costAtRest()
		before := resident(s.relay.Pid())
		s.cfg.hosts += more
		s.comeTogether(few)
		waitIdle(b)
		cost = append(cost, s.costAtRest()-alone)
		memory = append(memory, (resident(s.relay.Pid())-before)/float64(more)/1024)
		second = append(second, seconds(b, round, few, more))
	})
	return []Figure{
		newFigure("one more connected host-agent, at the relay", "KiB", memory).want(atMost(120)).means("A relay has room for as many hosts as there are."),
		newFigure("one more second connection, idle, at the relay", "KiB", second).want(atMost(40)).means("Each host-agent keeps one to another relay."),
		newFigure("1000 more host-agents on whose hosts nothing happens, at the relay", "% of a core", cost).orient(atMost(1)).means("They cost it nothing while nothing happens."),
	}
}

// costAtRest returns the processor time that the relay uses during hostsIdle, in percent of
// a core.
func (s *site) costAtRest() float64 {
	used, began := must.Get(loadgen.CPU(s.relay.Pid())), time.Now()
	waitIdle(s.bed)
	return 100 * float64(must.Get(loadgen.CPU(s.relay.Pid()))-used) / float64(time.Since(began))
}

// seconds measures the memory that each idle second connection takes at a relay, in
// KiB.
func seconds(b *testbed, round, few, more int) float64 {
	s := b.site(siteConfig{name: fmt.Sprintf("seconds-%d", round), hosts: few, together: true})
	defer s.end()
	waitIdle(b)
	before := resident(s.relay.Pid())
	defer s.openSecond(b, more)()
	waitIdle(b)
	return (resident(s.relay.Pid()) - before) / float64(more) / 1024
}

// openSecond opens an idle second connection for each of the first n hosts. end closes
// them.
func (s *site) openSecond(b *testbed, n int) (end func()) {
	var open []*websocket.Conn
	end = func() {
		for _, ws := range open {
			_ = ws.CloseNow()
		}
	}
	defer must.Undo(end)
	for i := range n {
		ws, response, err := websocket.Dial(b.ctx, "ws"+strings.TrimPrefix(s.url(), "http")+"/nats", &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + s.hostToken(i)}, broker.StandbyHeader: {"1"}},
		})
		must.Do(err)
		open = append(open, ws)
		if response.Header.Get(broker.StandbyHeader) == "" {
			must.Fail("the relay has no unused second connections of host-agents")
		}
	}
	return end
}

// waitIdle waits for hostsIdle, or until the part ends.
func waitIdle(b *testbed) { load.Pause(b.ctx, b.long(hostsIdle)) }
