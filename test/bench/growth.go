package bench

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ahprelay/test/bench/loadgen"
)

// oneByOne are bursts of 20, each when the one before has arrived: the same
// work for each delivery, however many there are.
var oneByOne = loadgen.Pace{Burst: 20, Window: 20}

// growth is what a delivery costs the relay as there are more clients, and
// more hosts.
func growth(b *testbed) ([]Figure, error) {
	figures, err := b.moreClients([]int{10, 100, 1000, 5000})
	if err != nil {
		return nil, err
	}
	more, err := b.moreHosts([]int{1, 10, 100, 1000})
	return append(figures, more...), err
}

// moreClients measures one host with more and more clients.
func (b *testbed) moreClients(numbers []int) ([]Figure, error) {
	s, relay, err := b.oneHost(siteConfig{name: "clients"})
	if err != nil {
		return nil, err
	}
	defer s.end()
	crowds := make([]*crowd, len(numbers))
	for i, n := range numbers {
		if crowds[i], err = b.join(relay, fmt.Sprintf("clients-%d", n), b.many(n), 0, actionSize); err != nil {
			return nil, err
		}
	}
	cost, err := b.growing(crowds)
	if err != nil {
		return nil, err
	}
	const work, base = "%d clients of one host, bursts of 20", 1 // compared with 100
	var figures []Figure
	for i, n := range numbers {
		f := newFigure(fmt.Sprintf(work, n), "µs of the relay per delivery", cost[i]).means("The thousandth viewer costs no more than the hundredth.")
		if i != base {
			f = f.beside(fmt.Sprintf("%d clients", numbers[base]), cost[i], cost[base])
		}
		if i > base {
			f = f.want(ratioAtMost(1.25))
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// clientsOfHost is how many clients each of many hosts has.
const clientsOfHost = 20

// moreHosts measures one relay with more and more hosts.
func (b *testbed) moreHosts(numbers []int) ([]Figure, error) {
	most := b.many(numbers[len(numbers)-1])
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	// Of host-agents: each has its clients' connections to the host, one of its own, and one to the relay.
	if room := (int(files.Cur) - 1000) / (clientsOfHost + 2); room < most {
		b.say("%d files may be open, so there are %d hosts and not %d", files.Cur, room, most)
		most = room
		numbers = append(slices.Clone(numbers[:len(numbers)-1]), room)
	}
	began := time.Now()
	s, err := b.site(siteConfig{name: "hosts", hosts: most, together: true, relayFlags: audienceLimits})
	if err != nil {
		return nil, err
	}
	defer s.end()
	b.say("%d hosts are online after %.1f s", most, time.Since(began).Seconds())
	all, err := b.acrossHosts(s, most)
	if err != nil {
		return nil, err
	}
	b.say("%d clients are there after %.1f s", most*all.readers, time.Since(began).Seconds())
	crowds := make([]*crowd, len(numbers))
	for i, n := range numbers {
		some := *all // of the same hosts, the first are spoken to
		some.groups, some.channels = all.groups[:b.many(n)], all.channels[:b.many(n)]
		crowds[i] = &some
	}
	cost, err := b.growing(crowds)
	if err != nil {
		return nil, err
	}
	var figures []Figure
	for i, n := range numbers {
		f := newFigure(fmt.Sprintf("%d hosts of one relay, %d clients each, bursts of 20", n, clientsOfHost), "µs of the relay per delivery", cost[i]).means("One relay serves many hosts as cheaply as one.")
		if i > 0 {
			f = f.beside("1 host", cost[i], cost[0]).want(ratioAtMost(1.25))
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// acrossHosts connects clients to n hosts.
func (b *testbed) acrossHosts(s *site, n int) (*crowd, error) {
	first, err := s.system(0)
	if err != nil {
		return nil, err
	}
	c, err := b.newCrowd(first, b.many(clientsOfHost), actionSize)
	if err != nil {
		return nil, err
	}
	for i := range n {
		way, err := s.system(i)
		if err != nil {
			return nil, err
		}
		if _, err := c.add(way, fmt.Sprintf("host-%d", i), c.readers, 0); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// growing returns what a delivery costs the relay, in µs, for each crowd.
func (b *testbed) growing(crowds []*crowd) ([]series, error) {
	for _, c := range crowds {
		if _, err := c.hear(oneByOne, b.long(100*time.Millisecond), false); err != nil { // warms up
			return nil, err
		}
	}
	cost := make([]series, len(crowds))
	err := b.rounds(func(int) error {
		for i := range 2 * len(crowds) { // twice, in turns: what others do to the machine is to hit all of them
			i %= len(crowds)
			got, err := crowds[i].hear(oneByOne, b.long(300*time.Millisecond), false)
			if err != nil {
				return err
			}
			cost[i] = append(cost[i], got.CPU.Seconds()*1e6/float64(got.Delivered))
		}
		return nil
	})
	return cost, err
}
