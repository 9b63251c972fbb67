package bench

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"ahprelay/broker"
	"ahprelay/test/bench/loadgen"
)

// hostsIdle is how long host-agents are idle before they are measured, and how long the
// measurement takes. The messages at a connection's beginning are compressed, and this
// compression ends 10 s after the last message. The relay then returns the memory for
// it at its second garbage collection.
const hostsIdle = 30 * time.Second

// hosts measures the memory that each further host-agent takes at a relay, and the
// processor time for a thousand idle host-agents. Meanwhile their connections are
// pinged and their leases are renewed.
func hosts(b *testbed) ([]Figure, error) {
	few, more := b.many(50), b.many(1000)
	var memory, cost, second series
	err := b.rounds(func(round int) error {
		s, err := b.site(siteConfig{name: fmt.Sprintf("hosts-%d", round), hosts: few, together: true})
		if err != nil {
			return err
		}
		defer s.end()
		waitIdle(b)
		before, err := resident(s.relay.Pid())
		if err != nil {
			return err
		}
		s.cfg.hosts += more
		if err := s.comeTogether(few); err != nil {
			return err
		}
		waitIdle(b)
		used, err := loadgen.CPU(s.relay.Pid())
		if err != nil {
			return err
		}
		began := time.Now()
		waitIdle(b)
		now, err := loadgen.CPU(s.relay.Pid())
		if err != nil {
			return err
		}
		after, err := resident(s.relay.Pid())
		memory = append(memory, (after-before)/float64(more)/1024)
		cost = append(cost, 100*float64(now-used)/float64(time.Since(began)))
		if err != nil {
			return err
		}
		each, err := seconds(b, round, few, more)
		second = append(second, each)
		return err
	})
	if err != nil {
		return nil, err
	}
	return []Figure{
		newFigure("one more connected host-agent, at the relay", "KiB", memory).want(atMost(120)).means("A relay has room for as many hosts as there are."),
		newFigure("one more second connection, idle, at the relay", "KiB", second).want(atMost(40)).means("Each host-agent keeps one to another relay."),
		newFigure("1000 host-agents on whose hosts nothing happens, at the relay", "% of a core", cost).orient(atMost(1)).means("They cost it nothing while nothing happens."),
	}, nil
}

// seconds measures the memory that each idle second connection takes at a relay, in
// KiB.
func seconds(b *testbed, round, few, more int) (each float64, err error) {
	s, err := b.site(siteConfig{name: fmt.Sprintf("seconds-%d", round), hosts: few, together: true})
	if err != nil {
		return 0, err
	}
	defer s.end()
	waitIdle(b)
	before, err := resident(s.relay.Pid())
	if err != nil {
		return 0, err
	}
	end, err := s.openSecond(b, more)
	defer end()
	if err != nil {
		return 0, err
	}
	waitIdle(b)
	after, err := resident(s.relay.Pid())
	return (after - before) / float64(more) / 1024, err
}

// openSecond opens an idle second connection for each of the first n hosts. end closes
// them.
func (s *site) openSecond(b *testbed, n int) (end func(), err error) {
	var open []*websocket.Conn
	end = func() {
		for _, ws := range open {
			_ = ws.CloseNow()
		}
	}
	for i := range n {
		token, err := s.hostToken(i)
		if err != nil {
			return end, err
		}
		ws, response, err := websocket.Dial(b.ctx, "ws"+strings.TrimPrefix(s.url(), "http")+"/nats", &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + token}, broker.StandbyHeader: {"1"}},
		})
		if err != nil {
			return end, err
		}
		open = append(open, ws)
		if response.Header.Get(broker.StandbyHeader) == "" {
			return end, errors.New("the relay has no unused second connections of host-agents")
		}
	}
	return end, nil
}

// waitIdle waits for hostsIdle, or until the part ends.
func waitIdle(b *testbed) {
	select {
	case <-b.ctx.Done():
	case <-time.After(b.long(hostsIdle)):
	}
}
