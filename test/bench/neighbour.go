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

// neighbour measures how a host that streams as fast as it can, and clients that send
// requests as fast as they can, affect clients of a different tenant's host at the
// same relay. In production, the busy host, its host-agent and its clients run
// elsewhere, so here they get only spare processor time.
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

// floodConns is the number of connections that a malicious host-agent makes.
const floodConns = 8

// neighbourOver is neighbour with host-agents that connect over TCP or through the
// relay's port. Over TCP, the busy tenant also floods the relay.
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
	floods, err := s.floods(1, b.long(1300*time.Millisecond))
	if err != nil {
		return nil, err
	}
	asking := loadgen.DialArgs{Group: name + "-asking", URL: busy.url, Tokens: busy.tokens, Callers: b.many(busyClients)}
	if err := viewer.Call("Clients.Dial", asking, &loadgen.None{}); err != nil {
		return nil, err
	}
	var alone, beside, asked [2]series
	var rate, answers series
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
		for _, f := range floods {
			if err := f.beside(viewer, func() (loadgen.Delays, error) { return b.exchange(name + "-quiet") }); err != nil {
				return err
			}
		}
		time.Sleep(b.long(time.Second)) // for the messages that the relay has not read yet
		return nil
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
	for _, f := range floods {
		figures = append(figures, newFigure(fmt.Sprintf("%s, on %d connections%s", f.name, f.args.Conns, way), "M/s", f.sent))
		figures = append(figures, besideIt(f.name+" of another tenant's", f.during, alone, "Nor does a host-agent that floods the relay.")...)
	}
	return figures, nil
}

// note adds the delays of a round.
func note(to *[2]series, d loadgen.Delays) {
	to[0], to[1] = append(to[0], ms(d.P50)), append(to[1], ms(d.P99))
}

// besideIt are the figures of requests beside something, p50 and p99.
func besideIt(what string, during, alone [2]series, means string) (figures []Figure) {
	for i, of := range []string{"p50", "p99"} {
		work := fmt.Sprintf("request and answer of 512 B beside %s, %s", what, of)
		figures = append(figures, newFigure(work, "ms", during[i]).beside("without it", during[i], alone[i]).want(ratioAtMost(2)).means(means))
	}
	return figures
}

// A flood is a way in which a host-agent floods the relay, and the figures beside it.
type flood struct {
	name   string
	args   loadgen.FloodArgs
	sent   series
	during [2]series
}

// beside floods the relay from a process while something is measured.
func (f *flood) beside(from *loadgen.Process, measure func() (loadgen.Delays, error)) error {
	var wg sync.WaitGroup
	var messages uint64
	var failed error
	wg.Go(func() { failed = from.Call("Clients.Flood", f.args, &messages) })
	during, err := measure()
	wg.Wait()
	note(&f.during, during)
	f.sent = append(f.sent, float64(messages)/f.args.For.Seconds()/1e6)
	return cmp.Or(err, failed)
}

// floods returns the ways in which the host-agent of host i can flood the relay.
func (s *site) floods(i int, d time.Duration) ([]*flood, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	seed, err := key.Seed()
	if err != nil {
		return nil, err
	}
	user, _, err := s.keys.Authority().AgentUser(s.tenant(i), hostName(i), public, 0)
	if err != nil {
		return nil, err
	}
	args := loadgen.FloodArgs{URL: "nats://" + s.at(natsPort), JWT: user, Seed: seed, Conns: floodConns, Size: 64, For: d}
	unwanted, requests := args, args
	unwanted.Subject = link.ChannelSubject(s.tenant(i), hostName(i), "nobody")
	requests.Subject = link.HostPrefix(s.tenant(i), hostName(i)) + "ctl.lease"
	requests.Reply = link.HostPrefix(s.tenant(i), hostName(i)) + "inbox.flood"
	return []*flood{{name: "messages of 64 B that nobody wants", args: unwanted}, {name: "requests that the relay refuses", args: requests}}, nil
}

// exchange makes callers send a request every 20 ms.
func (b *testbed) exchange(group string) (loadgen.Delays, error) {
	var reply loadgen.CallReply
	err := b.clients.Call("Clients.Call", loadgen.CallArgs{
		Group: group, Request: 512, Answer: 512, For: b.long(1200 * time.Millisecond), Every: 20 * time.Millisecond,
	}, &reply)
	return reply.Delays, err
}

// niceAll gives a process the lowest priority.
func niceAll(pid int) error { return syscall.Setpriority(syscall.PRIO_PGRP, pid, 19) }
