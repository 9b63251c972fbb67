package fair

import "net/netip"

// Site is what an address counts as where each is to have its share: an IPv4 address,
// however it is written, or the /64 of an IPv6 address, which one site has to itself.
func Site(at netip.Addr) string {
	if at = at.Unmap().WithZone(""); at.Is6() {
		return netip.PrefixFrom(at, 64).Masked().String()
	}
	return at.String()
}
