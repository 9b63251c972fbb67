package bench

import (
	"cmp"
	"fmt"
	"sync"
	"syscall"
	"time"

	"ahprelay/link"
	"ahprelay/test/bench/loadgen"

	"github.com/nats-io/nkeys"
)

// neighbour is what a host that says as much as it can does to clients of
// another tenant's host at the same relay. The busy host, its host-agent and its
// clients are elsewhere in life: here they have what processor time others leave.
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
	var alone, beside, flooded [2]series
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
		alone[0], alone[1] = append(alone[0], ms(before.P50)), append(alone[1], ms(before.P99))
		beside[0], beside[1] = append(beside[0], ms(during.P50)), append(beside[1], ms(during.P99))
		rate = append(rate, float64(heard.Delivered)/heard.Took.Seconds()/1e6)
		if err != nil || !natsTCP {
			return err
		}
		var messages uint64
		wg.Go(func() { failed = viewer.Call("Clients.Flood", flood, &messages) })
		during, err = b.exchange(name + "-quiet")
		wg.Wait()
		flooded[0], flooded[1] = append(flooded[0], ms(during.P50)), append(flooded[1], ms(during.P99))
		sent = append(sent, float64(messages)/flood.For.Seconds()/1e6)
		return cmp.Or(err, failed)
	})
	if err != nil {
		return nil, err
	}
	figures := []Figure{newFigure("frames of a busy host to one client"+way, "M/s", rate)}
	for i, of := range []string{"p50", "p99"} {
		work := fmt.Sprintf("request and answer of 512 B beside another tenant's busy host%s, %s", way, of)
		figures = append(figures, newFigure(work, "ms", beside[i]).beside("without it", beside[i], alone[i]).means("Who hosts a lot does not make others wait."))
	}
	if !natsTCP {
		return figures, nil
	}
	figures = append(figures, newFigure(fmt.Sprintf("messages of 64 B that nobody wants, on %d connections%s", floodConns, way), "M/s", sent))
	for i, of := range []string{"p50", "p99"} {
		work := fmt.Sprintf("request and answer of 512 B beside such a flood of another tenant's, %s", of)
		figures = append(figures, newFigure(work, "ms", flooded[i]).beside("without it", flooded[i], alone[i]).means("Nor does who means harm."))
	}
	return figures, nil
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
