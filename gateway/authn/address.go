package authn

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxProxies is how many addresses of X-Forwarded-For are looked at.
const maxProxies = 32

// Address returns where a request comes from, as an IP address. Of a request
// that a trusted proxy has passed on, that is the last address in
// X-Forwarded-For that is no trusted proxy's: what stands before it, anybody
// can have written.
func (c *Checker) Address(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	at := peer.Addr().Unmap().WithZone("")
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	slices.Reverse(hops)
	for _, hop := range hops[:min(len(hops), maxProxies)] {
		if !c.trusts(at) {
			break
		}
		from, err := parseHop(hop)
		if err != nil {
			break
		}
		at = from
	}
	return at.String()
}

// ManyOf reports whether connections of an address are of many: it is a trusted
// proxy's.
func (c *Checker) ManyOf(address string) bool {
	at, err := netip.ParseAddr(address)
	return err == nil && c.trusts(at.Unmap().WithZone(""))
}

// parseHop reads an address, with a port or without.
func parseHop(hop string) (netip.Addr, error) {
	hop = strings.TrimSpace(hop)
	if withPort, err := netip.ParseAddrPort(hop); err == nil {
		return withPort.Addr().Unmap().WithZone(""), nil
	}
	addr, err := netip.ParseAddr(strings.Trim(hop, "[]"))
	return addr.Unmap().WithZone(""), err
}

// trusts reports whether an address is a trusted proxy's.
func (c *Checker) trusts(at netip.Addr) bool {
	return slices.ContainsFunc(c.TrustProxy, func(p netip.Prefix) bool { return p.Contains(at) })
}

// URL is the base URL of the relay, without a slash at its end.
func (c *Checker) URL(r *http.Request) string {
	if c.PublicURL != "" {
		return strings.TrimSuffix(c.PublicURL, "/")
	}
	return c.cameTo(r)
}

// urls returns the URLs by which a client may have sent a request, without query: at the
// relay's public URL, and at the address that the request came to.
func (c *Checker) urls(r *http.Request) []string {
	path := r.URL.EscapedPath()
	list := []string{c.URL(r) + path}
	if came := c.cameTo(r) + path; came != list[0] {
		list = append(list, came)
	}
	return list
}

// cameTo returns scheme and host that a request came to. A proxy that ends TLS says so in
// X-Forwarded-Proto; the relay believes a trusted proxy, and this machine.
func (c *Checker) cameTo(r *http.Request) string {
	peer := peerOf(r)
	at, err := netip.ParseAddr(peer)
	believed := c.ManyOf(peer) || err == nil && at.Unmap().IsLoopback()
	scheme := "http"
	if r.TLS != nil || believed && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// peerOf is the address that a request has come from, a proxy's too.
func peerOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}
