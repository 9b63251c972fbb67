package bench

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"ahprelay/broker/link"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"

	"github.com/nats-io/nkeys"
	"golang.org/x/sys/unix"
)

// neighbour measures how a tenant that sends as fast as it can delays clients of
// another tenant's host at the same relay. For comparison, the first tenant makes the
// same noise at another relay in the same rounds: this shows what only the shared
// processors cause. In production, the busy host, its host-agent and its clients run on
// other machines. Therefore they get only processor time that no other process wants,
// except in a tiny run: on a busy machine, they would get none, and lose their
// connections.
func neighbour(b *testbed) []Figure {
	var through []Figure
	if !b.o.Tiny {
		through = neighbourOver(b, false)
	}
	return append(through, neighbourOver(b, true)...)
}

// busyClients is the number of the busy tenant's clients, which send requests without a
// pause.
const busyClients = 64

// floodConns is the number of connections that a malicious host-agent opens.
const floodConns = 8

// stalledReaders is the number of a tenant's clients that read nothing while their host streams.
const stalledReaders = 2000

// noiseTime is how long a noise lasts.
const noiseTime = 1300 * time.Millisecond

// neighbourOver measures neighbours whose host-agents connect over TCP or through the
// relay's port. Over TCP, the busy tenant also floods the relay.
func neighbourOver(b *testbed, natsTCP bool) []Figure {
	name, way := "port", ""
	if natsTCP {
		name, way = "tcp", ", NATS over TCP"
	}
	other, busyURL := b.noisy(name)
	shared := b.site(siteConfig{name: name, natsTCP: natsTCP, hosts: 2, tenants: []string{"quiet", "busy"}, upstreams: []string{b.hostURL, busyURL}, relayFlags: audienceLimits})
	apart := b.site(siteConfig{name: name + "-apart", natsTCP: natsTCP, tenants: []string{"busy"}, upstreams: []string{busyURL}, relayFlags: audienceLimits})
	other.onlyIdle(shared.agents[1].Pid(), apart.agents[0].Pid())
	shared.system(0).callers(b.clients, name+"-quiet", b.many(4))
	here := other.noises(shared, 1)
	there := other.noises(apart, 0)
	measure := func() loadgen.Delays { return b.exchange(name + "-quiet") }
	var alone [2]series
	b.rounds(func(int) {
		note(&alone, measure())
		for i := range here {
			for _, n := range []*noise{here[i], there[i]} {
				n.beside(measure)
			}
		}
	})
	var figures []Figure
	for i, n := range here {
		figures = append(figures, newFigure(n.work+way, n.unit, n.rate), newFigure(n.work+", at another relay"+way, n.unit, there[i].rate))
		figures = append(figures, n.figures(way, alone, there[i].during)...)
	}
	return figures
}

// noisy returns a testbed with a host and clients of its own, for a tenant that makes noise, and
// the host's URL.
func (b *testbed) noisy(name string) (other *testbed, url string) {
	bed := *b
	bed.host, bed.clients = b.start(name+"-busy-host", loadgen.HostRole), b.start(name+"-viewer", loadgen.ClientsRole)
	must.Do(bed.host.Call("Host.URL", loadgen.None{}, &url))
	bed.onlyIdle(bed.host.Pid(), bed.clients.Pid())
	return &bed, url
}

// onlyIdle makes processes run only while no other process wants their processor, except in a
// tiny run.
func (b *testbed) onlyIdle(pids ...int) {
	if b.o.Tiny {
		return
	}
	for _, pid := range pids {
		must.Do(onlyIdle(pid))
	}
}

// A noise is something that a tenant does as fast as it can. It has the delays, p50 and
// p99, of another tenant's requests meanwhile.
type noise struct {
	work, unit  string // describes the noise itself
	what, means string // describes the requests beside it
	make        func() (rate float64)
	after       func() // restores silence, and returns when the relay has read all messages

	rate   series
	during [2]series
}

// noises returns the noises that the tenant of host i can make at a site.
func (b *testbed) noises(s *site, i int) []*noise {
	busy := s.system(i)
	crowd := b.join(busy, s.cfg.name+"-busy", 1, 0, 256)
	asking := s.cfg.name + "-asking"
	busy.callers(b.clients, asking, b.many(busyClients))
	viewer, long := b.clients, b.long(noiseTime)
	list := []*noise{{
		work: "frames of a busy host to one client", unit: "M/s", what: "another tenant's busy host", means: "Who hosts a lot does not make others wait.",
		make: func() float64 {
			// The window is below a connection's credit, because beyond it messages are sent in
			// pieces.
			heard := crowd.hear(loadgen.Pace{Burst: 64, Window: 2048}, long, false)
			return float64(heard.Delivered) / heard.Took.Seconds() / 1e6
		},
	}, {
		work: fmt.Sprintf("requests that %d clients of a tenant ask without a pause", busyClients), unit: "k/s",
		what: "so many of another tenant's", means: "Nor do clients that ask a lot.",
		make: func() float64 {
			reply := calls(viewer, loadgen.CallArgs{Group: asking, Answer: 512, For: long})
			return float64(reply.Delays.Count) / reply.Took.Seconds() / 1e3
		},
	}, b.stallers(busy, s.cfg.name+"-stalled")}
	if !s.cfg.natsTCP {
		return list
	}
	for _, f := range s.floods(i, long) {
		list = append(list, &noise{
			work: fmt.Sprintf("%s, on %d connections", f.name, f.args.Conns), unit: "M/s",
			what: f.name + " of another tenant's", means: "Nor does a host-agent that floods the relay.",
			make: func() float64 {
				var messages uint64
				must.Do(viewer.Call("Clients.Flood", f.args, &messages))
				return float64(messages) / f.args.For.Seconds() / 1e6
			},
			after: func() { time.Sleep(b.long(time.Second)) },
		})
	}
	return list
}

// stallers returns the noise of clients that read nothing while their host streams to
// them. Afterwards, they read everything.
func (b *testbed) stallers(s *system, name string) *noise {
	readers := b.many(stalledReaders)
	crowd := b.join(s, name, readers+1, readers, 2048)
	return &noise{
		work: fmt.Sprintf("actions of a host whose %d clients read nothing", readers), unit: "k/s",
		what: fmt.Sprintf("%d stalled readers of another tenant", readers), means: "Nor do phones in a tunnel.",
		make: func() float64 {
			crowd.pause(true)
			heard := crowd.hear(half, b.long(noiseTime), false)
			return float64(heard.Actions) / heard.Took.Seconds() / 1e3
		},
		after: func() {
			crowd.pause(false)
			crowd.await()
		},
	}
}

// beside makes the noise, and calls measure meanwhile.
func (n *noise) beside(measure func() loadgen.Delays) {
	must.Both(func() { note(&n.during, measure()) }, func() { n.rate = append(n.rate, n.make()) })
	if n.after != nil {
		n.after()
	}
}

// figures compares the delays beside the noise with the delays without it, and with
// those beside the same noise at another relay.
func (n *noise) figures(way string, alone, apart [2]series) (figures []Figure) {
	for i, of := range []string{"p50", "p99"} {
		work := fmt.Sprintf("request and answer of 512 B beside %s%s, %s", n.what, way, of)
		figures = append(figures,
			newFigure(work, "ms", n.during[i]).beside("without it", n.during[i], alone[i]).want(ratioAtMost(1.5)).means(n.means),
			newFigure(work+", against another relay", "ms", n.during[i]).beside("the same noise at another relay", n.during[i], apart[i]).orient(ratioAtMost(1)),
		)
	}
	return figures
}

// note adds the delays of a round to a series each.
func note(to *[2]series, d loadgen.Delays) {
	to[0], to[1] = append(to[0], ms(d.P50)), append(to[1], ms(d.P99))
}

// A flood is a way for a host-agent to flood the relay.
type flood struct {
	name string
	args loadgen.FloodArgs
}

// floods returns the ways in which the host-agent of host i can flood the relay.
func (s *site) floods(i int, d time.Duration) []flood {
	key := must.Get(nkeys.CreateUser())
	user, _, err := s.keys.Authority().AgentUser(s.tenant(i), hostName(i), must.Get(key.PublicKey()), 0)
	must.Do(err)
	args := loadgen.FloodArgs{URL: "nats://" + s.at(natsPort), JWT: user, Seed: must.Get(key.Seed()), Conns: floodConns, Size: 64, For: d}
	unwanted, requests := args, args
	unwanted.Subject = link.ChannelSubject(s.tenant(i), hostName(i), "nobody")
	requests.Subject = link.HostPrefix(s.tenant(i), hostName(i)) + "ctl.lease"
	requests.Reply = link.HostPrefix(s.tenant(i), hostName(i)) + "inbox.flood"
	return []flood{{name: "messages of 64 B that nobody wants", args: unwanted}, {name: "requests that the relay refuses", args: requests}}
}

const exchangeTime = 1200 * time.Millisecond

// exchange lets a group of callers send a request every 20 ms, and returns their
// delays.
func (b *testbed) exchange(group string) loadgen.Delays {
	return calls(b.clients, loadgen.CallArgs{Group: group, Answer: 512, For: b.long(exchangeTime), Every: 20 * time.Millisecond}).Delays
}

// onlyIdle makes all threads of a process, and later ones, run only while no other
// process wants their processor. The lowest priority is not enough: such a thread keeps
// its processor for some milliseconds when a thread with a higher priority wakes.
func onlyIdle(pid int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range threads {
		id, _ := strconv.Atoi(t.Name())
		if failed := unix.SchedSetAttr(id, &unix.SchedAttr{Policy: unix.SCHED_IDLE}, 0); failed != nil && !errors.Is(failed, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("thread %d of process %d: %w", id, pid, failed))
		}
	}
	return err
}
