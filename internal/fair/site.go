package fair

import (
	"net/netip"
	"slices"
)

// Site is what an address counts as where each is to have its share: an IPv4 address,
// however it is written, or the /64 of an IPv6 address, which one site has to itself.
func Site(at netip.Addr) string {
	if at = at.Unmap().WithZone(""); at.Is6() {
		return netip.PrefixFrom(at, 64).Masked().String()
	}
	return at.String()
}

// Networks returns the networks that an address counts in, the widest first: the /48 and the
// /64 of an IPv6 address, the /24 and the address itself of an IPv4 address. The last is
// its [Site]. A customer often has a /48, with 65,536 sites.
func Networks(at netip.Addr) [2]netip.Prefix {
	at = at.Unmap().WithZone("")
	bits := [2]int{24, 32}
	if at.Is6() {
		bits = [2]int{48, 64}
	}
	return [2]netip.Prefix{netip.PrefixFrom(at, bits[0]).Masked(), netip.PrefixFrom(at, bits[1]).Masked()}
}

// A Room has places for strangers, who are told apart by their addresses only.
type Room struct {
	Places   int    // in all
	Networks [2]int // for each network of an address, as [Networks] has them
}

// GivesWay returns which of those in the room makes place for one more from an address, by its
// index; -1: there is a place. There are the addresses of those in the room, the oldest
// first.
//
// The oldest of the busiest network goes: in a network that is full, or else in the room.
// So a flood evicts itself. This machine's own addresses may be a proxy's, and the
// networks of those are not limited.
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

// oldestOfBusiest returns the first of some in the network that has most of them: of the wide
// networks, and in that of the narrow ones. Of two that have as many, the one with the
// oldest counts.
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
