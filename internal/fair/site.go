package fair

import (
	"net/netip"
	"slices"
)

// Site returns the network which counts as one user: an IPv4 address, or the /64 of an
// IPv6 address, because a /64 belongs to one site.
func Site(at netip.Addr) string {
	if at = at.Unmap().WithZone(""); at.Is6() {
		return netip.PrefixFrom(at, 64).Masked().String()
	}
	return at.String()
}

// Networks returns the networks of an address, the widest first: /48 and /64 for IPv6,
// /24 and the address itself for IPv4. The last is its [Site]. The wide network
// matters because one customer often has a /48, with 65,536 sites.
func Networks(at netip.Addr) [2]netip.Prefix {
	at = at.Unmap().WithZone("")
	bits := [2]int{24, 32}
	if at.Is6() {
		bits = [2]int{48, 64}
	}
	return [2]netip.Prefix{netip.PrefixFrom(at, bits[0]).Masked(), netip.PrefixFrom(at, bits[1]).Masked()}
}

// A Room limits unauthenticated connections, which can be distinguished only by
// address.
type Room struct {
	Places   int    // in total
	Networks [2]int // for each network of an address, as returned by [Networks]
}

// GivesWay returns the index of the connection to close so a new connection can be
// admitted, or -1 if there is room. there holds the addresses of the admitted
// connections, the oldest first; comes is the new connection's address.
//
// If a network of comes is full, the oldest connection in that network's busiest part
// is closed; if the room is full, the oldest connection of the busiest network. A
// flood thus evicts itself. Addresses of this machine have no limit per network,
// because a proxy may use them.
func (r Room) GivesWay(there []netip.Addr, comes netip.Addr) int {
	all := make([]int, len(there))
	for i := range there {
		all[i] = i
	}
	if comes.IsValid() && !comes.Unmap().IsLoopback() {
		for level := len(r.Networks) - 1; level >= 0; level-- {
			mates := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return Networks(there[i])[level] != Networks(comes)[level] })
			if len(mates) >= r.Networks[level] {
				return oldestOfBusiest(there, mates)
			}
		}
	}
	if len(there) < r.Places {
		return -1
	}
	return oldestOfBusiest(there, all)
}

// oldestOfBusiest returns the first of some connections in the busiest wide network,
// and there in the busiest narrow network. If two networks are equally busy, the
// network with the oldest connection counts.
func oldestOfBusiest(there []netip.Addr, some []int) int {
	for level := range len(Room{}.Networks) {
		of := map[netip.Prefix][]int{}
		var busiest []int
		for _, i := range some {
			network := Networks(there[i])[level]
			of[network] = append(of[network], i)
		}
		for _, mates := range of {
			if len(mates) > len(busiest) || len(mates) == len(busiest) && mates[0] < busiest[0] {
				busiest = mates
			}
		}
		some = busiest
	}
	return some[0]
}
