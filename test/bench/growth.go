package bench

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// oneByOne is a pace with bursts of 20. Each burst waits until the burst before has
// arrived, so the work for a delivery does not depend on the number of clients.
var oneByOne = loadgen.Pace{Burst: 20, Window: 20}

// growth measures how the relay's cost for a delivery changes with more clients and
// with more hosts.
func growth(b *testbed) []Figure {
	return append(b.moreClients(b.sizes(10, 100, 1000, 5000)), b.moreHosts(b.sizes(1, 10, 100, 1000))...)
}

// moreClients measures a host with each number of clients.
func (b *testbed) moreClients(numbers []int) []Figure {
	s, relay := b.oneHost(siteConfig{name: "clients"})
	defer s.end()
	writer := b.together()
	defer writer.stop()
	var crowds, least []*crowd
	for _, n := range numbers {
		c := b.join(relay, fmt.Sprintf("clients-%d", n), b.many(n), 0, actionSize)
		w := b.join(writer, fmt.Sprintf("written-%d", n), b.many(n), 0, actionSize)
		crowds, least = append(crowds, c), append(least, w)
	}
	cost := b.growing(append(slices.Clone(crowds), least...))
	const work, base = "%d clients of one host, bursts of 20", 1 // the figures are compared with that for 100 clients
	cost, leastCost := cost[:len(numbers)], cost[len(numbers):]
	var figures []Figure
	for i, n := range numbers {
		f := newFigure(fmt.Sprintf(work, n), "µs of the relay per delivery", cost[i]).means("The thousandth viewer costs no more than the hundredth.")
		if i != base {
			f = f.beside(fmt.Sprintf("%d clients", numbers[base]), cost[i], cost[base])
		}
		figures = append(figures, f)
		if i > base {
			figures = append(figures, grown(fmt.Sprintf("%d clients, a delivery", n), fmt.Sprintf("times that of %d", numbers[base]), cost[i].over(cost[base]), leastCost[i].over(leastCost[base]), writer))
		}
	}
	return figures
}

// clientsOfHost is the number of clients of each host in moreHosts.
const clientsOfHost = 20

// moreHosts measures a relay with each number of hosts. For the largest number it
// starts another relay, so that this number of idle hosts does not add to the cost of
// smaller numbers.
func (b *testbed) moreHosts(numbers []int) []Figure {
	last := len(numbers) - 1
	beside := 0 // connections to the server that only writes, which take the place of hosts
	for _, n := range numbers[:last] {
		beside += n
	}
	room := b.roomForHosts(numbers[last], numbers[last-1]+beside)
	numbers = append(slices.Clone(numbers[:last]), room)
	var crowds []*crowd
	for i, some := range [][]int{numbers[:last], numbers[last:]} {
		more, end := b.hostsAt(fmt.Sprintf("hosts-%d", i), some)
		defer end()
		crowds = append(crowds, more...)
	}
	writer := b.together()
	defer writer.stop()
	var least []*crowd
	for _, n := range numbers[:last] {
		least = append(least, b.spread(fmt.Sprint("written-", n), b.many(n), func(int) *system { return writer }))
	}
	cost := b.growing(append(crowds, least...))
	cost, leastCost := cost[:len(numbers)], cost[len(numbers):]
	var figures []Figure
	for i, n := range numbers {
		f := newFigure(fmt.Sprintf("%d hosts of one relay, %d clients each, bursts of 20", n, clientsOfHost), "µs of the relay per delivery", cost[i]).means("One relay serves many hosts as cheaply as one.")
		if i > 0 {
			f = f.beside("1 host", cost[i], cost[0])
		}
		if i == last {
			f = f.want(ratioAtMost(1.25)) // the limit for open files leaves no room for a comparison with as many
		}
		figures = append(figures, f)
		if i > 0 && i < last {
			figures = append(figures, grown(fmt.Sprintf("%d hosts, a delivery", n), "times that of one", cost[i].over(cost[0]), leastCost[i].over(leastCost[0]), writer))
		}
	}
	return figures
}

// grown compares how much the relay's cost for a delivery grows with how much it grows
// for a server that only writes. More connections cost the operating system more, too,
// and the relay is not charged for that.
func grown(work, unit string, relay, least series, writer *system) Figure {
	return newFigure(work, unit, relay).beside(writer.name, relay, least).want(ratioAtMost(1.25)).means("The thousandth viewer, and the hundredth host, cost no more than the first.")
}

// roomForHosts returns how many hosts the limit for open files permits, at most most.
// others counts connections that exist already, in hosts.
func (b *testbed) roomForHosts(most, others int) int {
	var files unix.Rlimit
	must.Do(unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	// One process holds the host's connections to all clients and host-agents, and another
	// holds the connections of the host-agents.
	const each = clientsOfHost + 2
	room := (int(files.Cur)-1000)/each - others
	if room < most {
		b.say("%d files may be open, so there are %d hosts and not %d", files.Cur, room, most)
	}
	return min(room, most)
}

// hostsAt starts a relay with as many hosts as the last number, each with its clients.
// For each number, it returns a crowd that uses as many of these hosts. end stops the
// relay.
func (b *testbed) hostsAt(name string, numbers []int) (crowds []*crowd, end func()) {
	most := b.many(numbers[len(numbers)-1])
	began := time.Now()
	s := b.site(siteConfig{name: name, hosts: most, together: true, relayFlags: audienceLimits})
	b.say("%d hosts are online after %.1f s", most, time.Since(began).Seconds())
	all := b.spread(name, most, s.system)
	b.say("%d clients are there after %.1f s", most*all.readers, time.Since(began).Seconds())
	for _, n := range numbers {
		some := *all // the smaller crowd uses the first of the same hosts
		some.groups, some.channels = all.groups[:b.many(n)], all.channels[:b.many(n)]
		crowds = append(crowds, &some)
	}
	return crowds, s.end
}

// spread connects clients to n hosts, to each by its own way.
func (b *testbed) spread(name string, n int, way func(host int) *system) *crowd {
	c := b.newCrowd(way(0), b.many(clientsOfHost), actionSize)
	for i := range n {
		c.add(way(i), fmt.Sprintf("%s-%d", name, i), c.readers, 0)
	}
	return c
}

// growing returns the relay's cost for a delivery, in µs, for each crowd.
func (b *testbed) growing(crowds []*crowd) []series {
	for _, c := range crowds {
		c.hear(oneByOne, b.long(100*time.Millisecond), false) // warms up
	}
	cost := make([]series, len(crowds))
	b.rounds(func(int) {
		for i := range 2 * len(crowds) { // twice and in turns, so that a disturbance of the machine affects all crowds
			i %= len(crowds)
			got := crowds[i].hear(oneByOne, b.long(300*time.Millisecond), false)
			cost[i] = append(cost[i], micros(got.CPU)/float64(got.Delivered))
		}
	})
	return cost
}
