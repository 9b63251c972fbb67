package bench

import (
	"cmp"
	"fmt"
	"sync"
	"syscall"
	"time"

	"ahprelay/broker/link"
	"ahprelay/test/bench/loadgen"

	"github.com/nats-io/nkeys"
)

// neighbour is what a host that says as much as it can, and clients that ask as much as
// they can, do to clients of another tenant's host at the same relay. The busy host, its
// host-agent and its clients are elsewhere in life: here they have what processor time
// others leave.
func neighbour(b *testbed) ([]Figure, error) {
	var through []Figure
	if !b.o.Tiny {
		var err error
		if through, err = neighbourOver(b, false); err != nil {
			return nil, err
		}
	}
	tcp, err := neighbourOver(b, true)
	return append(through, tcp...), err
}

// busyClients is how many clients of the busy tenant ask without a pause.
const busyClients = 64

// floodConns is how many connections a host-agent that means harm makes.
const floodConns = 8

// neighbourOver is neighbour with host-agents that come one of both ways. Over TCP, the
// busy tenant also floods the relay.
func neighbourOver(b *testbed, natsTCP bool) ([]Figure, error) {
	name, way := "port", ""
	if natsTCP {
		name, way = "tcp", ", NATS over TCP"
	}
	busyHost, err := b.start(name+"-busy-host", loadgen.HostRole)
	if err != nil {
		return nil, err
	}
	var busyURL string
	if err := busyHost.Call("Host.URL", loadgen.None{}, &busyURL); err != nil {
		return nil, err
	}
	viewer, err := b.start(name+"-viewer", loadgen.ClientsRole)
	if err != nil {
		return nil, err
	}
	s, err := b.site(siteConfig{name: name, natsTCP: natsTCP, hosts: 2, tenants: []string{"quiet", "busy"}, upstreams: []string{b.hostURL, busyURL}})
	if err != nil {
		return nil, err
	}
	for _, pid := range []int{busyHost.Pid(), viewer.Pid(), s.agents[1].Pid()} {
		if err := niceAll(pid); err != nil {
			return nil, err
		}
	}
	quiet, err := s.system(0)
	if err != nil {
		return nil, err
	}
	busy, err := s.system(1)
	if err != nil {
		return nil, err
	}
	args := loadgen.DialArgs{Group: name + "-quiet", URL: quiet.url, Tokens: quiet.tokens, Callers: b.many(4)}
	if err := b.clients.Call("Clients.Dial", args, &loadgen.None{}); err != nil {
		return nil, err
	}
	other := *b
	other.host, other.clients = busyHost, viewer
	crowd, err := other.join(busy, name+"-busy", 1, 0, 256)
	if err != nil {
		return nil, err
	}
	flood, err := s.flood(1, b.long(1300*time.Millisecond))
	if err != nil {
		return nil, err
	}
	asking := loadgen.DialArgs{Group: name + "-asking", URL: busy.url, Tokens: busy.tokens, Callers: b.many(busyClients)}
	if err := viewer.Call("Clients.Dial", asking, &loadgen.None{}); err != nil {
		return nil, err
	}
	var alone, beside, asked, flooded [2]series
	var answers series
	var rate, sent series
	err = b.rounds(func(int) error {
		before, err := b.exchange(name + "-quiet")
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		var heard sample
		var failed error
		wg.Go(func() {
			// Below a connection's credit: beyond it, messages go in pieces.
			heard, failed = crowd.hear(loadgen.Pace{Burst: 64, Window: 2048}, b.long(1300*time.Millisecond), false)
		})
		during, err := b.exchange(name + "-quiet")
		wg.Wait()
		if err == nil {
			err = failed
		}
		note(&alone, before)
		note(&beside, during)
		rate = append(rate, float64(heard.Delivered)/heard.Took.Seconds()/1e6)
		if err != nil {
			return err
		}
		var reply loadgen.CallReply
		wg.Go(func() {
			failed = viewer.Call("Clients.Call", loadgen.CallArgs{Group: asking.Group, Request: 512, Answer: 512, For: b.long(1300 * time.Millisecond)}, &reply)
		})
		during, err = b.exchange(name + "-quiet")
		wg.Wait()
		note(&asked, during)
		answers = append(answers, float64(reply.Delays.Count)/reply.Took.Seconds()/1e3)
		if err = cmp.Or(err, failed); err != nil || !natsTCP {
			return err
		}
		var messages uint64
		wg.Go(func() { failed = viewer.Call("Clients.Flood", flood, &messages) })
		during, err = b.exchange(name + "-quiet")
		wg.Wait()
		note(&flooded, during)
		sent = append(sent, float64(messages)/flood.For.Seconds()/1e6)
		return cmp.Or(err, failed)
	})
	if err != nil {
		return nil, err
	}
	figures := []Figure{newFigure("frames of a busy host to one client"+way, "M/s", rate)}
	figures = append(figures, besideIt("another tenant's busy host"+way, beside, alone, "Who hosts a lot does not make others wait.")...)
	figures = append(figures, newFigure(fmt.Sprintf("requests that %d clients of a tenant ask without a pause%s", busyClients, way), "k/s", answers))
	figures = append(figures, besideIt("so many of another tenant's"+way, asked, alone, "Nor do clients that ask a lot.")...)
	if !natsTCP {
		return figures, nil
	}
	figures = append(figures, newFigure(fmt.Sprintf("messages of 64 B that nobody wants, on %d connections%s", floodConns, way), "M/s", sent))
	return append(figures, besideIt("such a flood of another tenant's", flooded, alone, "Nor does who means harm.")...), nil
}

// note adds the delays of a round.
func note(to *[2]series, d loadgen.Delays) {
	to[0], to[1] = append(to[0], ms(d.P50)), append(to[1], ms(d.P99))
}

// besideIt are the figures of requests beside something, p50 and p99.
func besideIt(what string, during, alone [2]series, means string) (figures []Figure) {
	for i, of := range []string{"p50", "p99"} {
		work := fmt.Sprintf("request and answer of 512 B beside %s, %s", what, of)
		figures = append(figures, newFigure(work, "ms", during[i]).beside("without it", during[i], alone[i]).means(means))
	}
	return figures
}

// flood returns how to flood the relay as the host-agent of host i may.
func (s *site) flood(i int, d time.Duration) (loadgen.FloodArgs, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return loadgen.FloodArgs{}, err
	}
	public, err := key.PublicKey()
	if err != nil {
		return loadgen.FloodArgs{}, err
	}
	seed, err := key.Seed()
	if err != nil {
		return loadgen.FloodArgs{}, err
	}
	user, _, err := s.keys.AgentUser(s.tenant(i), hostName(i), public, 0)
	subject := link.ChannelSubject(s.tenant(i), hostName(i), "nobody")
	return loadgen.FloodArgs{URL: "nats://" + s.at(natsPort), JWT: user, Seed: seed, Subject: subject, Conns: floodConns, Size: 64, For: d}, err
}

// exchange has callers ask something every 20 ms.
func (b *testbed) exchange(group string) (loadgen.Delays, error) {
	var reply loadgen.CallReply
	err := b.clients.Call("Clients.Call", loadgen.CallArgs{
		Group: group, Request: 512, Answer: 512, For: b.long(1200 * time.Millisecond), Every: 20 * time.Millisecond,
	}, &reply)
	return reply.Delays, err
}

// niceAll has a process run when others do not want to.
func niceAll(pid int) error { return syscall.Setpriority(syscall.PRIO_PGRP, pid, 19) }
