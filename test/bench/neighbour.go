package bench

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"ahprelay/test/bench/loadgen"
)

// neighbour is what a host that says as much as it can does to clients of
// another tenant's host at the same relay. The busy host, its host-agent and its
// clients are elsewhere in life: here they have what processor time others leave.
func neighbour(b *testbed) ([]Figure, error) {
	busyHost, err := b.start("busy-host", loadgen.HostRole)
	if err != nil {
		return nil, err
	}
	var busyURL string
	if err := busyHost.Call("Host.URL", loadgen.None{}, &busyURL); err != nil {
		return nil, err
	}
	viewer, err := b.start("viewer", loadgen.ClientsRole)
	if err != nil {
		return nil, err
	}
	s, err := b.site(siteConfig{hosts: 2, tenants: []string{"quiet", "busy"}, upstreams: []string{b.hostURL, busyURL}})
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
	args := loadgen.DialArgs{Group: "quiet", URL: quiet.url, Tokens: quiet.tokens, Callers: b.many(4)}
	if err := b.clients.Call("Clients.Dial", args, &loadgen.None{}); err != nil {
		return nil, err
	}
	other := *b
	other.host, other.clients = busyHost, viewer
	crowd, err := other.join(busy, "busy", 1, 0, 256)
	if err != nil {
		return nil, err
	}
	var alone, beside [2]series
	var rate series
	err = b.rounds(func(int) error {
		before, err := b.exchange("quiet")
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
		during, err := b.exchange("quiet")
		wg.Wait()
		if err == nil {
			err = failed
		}
		alone[0], alone[1] = append(alone[0], ms(before.P50)), append(alone[1], ms(before.P99))
		beside[0], beside[1] = append(beside[0], ms(during.P50)), append(beside[1], ms(during.P99))
		rate = append(rate, float64(heard.Delivered)/heard.Took.Seconds()/1e6)
		return err
	})
	if err != nil {
		return nil, err
	}
	figures := []Figure{newFigure("frames of a busy host to one client", "M/s", rate)}
	for i, name := range []string{"p50", "p99"} {
		work := fmt.Sprintf("request and answer of 512 B beside another tenant's busy host, %s", name)
		figures = append(figures, newFigure(work, "ms", beside[i]).beside("without it", beside[i], alone[i]).means("Who hosts a lot does not make others wait."))
	}
	return figures, nil
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
