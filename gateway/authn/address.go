package authn

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxProxies is the largest number of addresses read from X-Forwarded-For.
const maxProxies = 32

// Address returns the IP address of the request's client. If a trusted proxy forwarded
// the request, the client's address is the last one in X-Forwarded-For that is not a
// trusted proxy's: the addresses before it may be forged.
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

// ManyOf reports whether many clients share an address, because it belongs to a trusted
// proxy.
func (c *Checker) ManyOf(address string) bool {
	at, err := netip.ParseAddr(address)
	return err == nil && c.trusts(at.Unmap().WithZone(""))
}

// parseHop parses an address in X-Forwarded-For, with or without a port.
func parseHop(hop string) (netip.Addr, error) {
	hop = strings.TrimSpace(hop)
	if withPort, err := netip.ParseAddrPort(hop); err == nil {
		return withPort.Addr().Unmap().WithZone(""), nil
	}
	addr, err := netip.ParseAddr(strings.Trim(hop, "[]"))
	return addr.Unmap().WithZone(""), err
}

// trusts reports whether an address belongs to a trusted proxy.
func (c *Checker) trusts(at netip.Addr) bool {
	return slices.ContainsFunc(c.TrustProxy, func(p netip.Prefix) bool { return p.Contains(at) })
}

// URL returns the relay's base URL without a final slash.
func (c *Checker) URL(r *http.Request) string {
	if c.PublicURL != "" {
		return strings.TrimSuffix(c.PublicURL, "/")
	}
	return c.cameTo(r)
}

// urls returns the URLs, without query, that a client may have used for the request: at
// the relay's public URL, and at the address where the request arrived.
func (c *Checker) urls(r *http.Request) []string {
	path := r.URL.EscapedPath()
	list := []string{c.URL(r) + path}
	if came := c.cameTo(r) + path; came != list[0] {
		list = append(list, came)
	}
	return list
}

// cameTo returns the scheme and host to which the request was sent. It accepts
// X-Forwarded-Proto from trusted proxies and from this machine.
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

// peerOf returns the address of the connection's peer, which may be a proxy.
func peerOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}
