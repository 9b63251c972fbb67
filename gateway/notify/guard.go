package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// People choose the addresses of notification targets. So the relay connects only to
// public addresses. It checks the IP address of each connection, so that a changed DNS
// answer cannot lead it elsewhere. It follows no redirects, uses no proxy, and never
// shows a response's body.

// sendTimeout limits a delivery attempt.
const sendTimeout = 10 * time.Second

// errPrivate reports an address that is not public, or a name that does not resolve. The
// error does not reveal which.
var errPrivate = errors.New("no public address; the operator can permit private addresses with --notify-private")

// publicIPv6 is the only IPv6 block from which public addresses are assigned (RFC 4291, section
// 2.4). Other addresses can contain an IPv4 address to which a router or the kernel would connect:
// ::/96, 64:ff9b::/96, ::ffff:0:0:0/96.
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// notPublic lists special-purpose blocks that netip treats as public. The IPv6 blocks are
// exceptions inside publicIPv6: 2001::/23 contains Teredo, and 2002::/16 is 6to4, which
// contains IPv4 addresses.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
}

// allowed reports whether the relay may connect to an address: it is public, or the
// operator has permitted it.
func allowed(ip netip.Addr, private []netip.Prefix) bool {
	ip = ip.Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(ip) }
	switch {
	case slices.ContainsFunc(private, in):
		return true
	case ip.Is6() && !publicIPv6.Contains(ip):
		return false
	}
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(notPublic, in)
}

// newClient returns an HTTP client that connects only to permitted addresses.
func newClient(private []netip.Prefix) *http.Client {
	dialer := &net.Dialer{Timeout: sendTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !allowed(at.Addr(), private) {
			return errPrivate
		}
		return nil
	}}
	return &http.Client{
		Timeout: sendTimeout,
		Transport: &http.Transport{
			DialContext:         dialer.DialContext,
			TLSHandshakeTimeout: sendTimeout, ResponseHeaderTimeout: sendTimeout, MaxResponseHeaderBytes: 16 << 10,
			MaxIdleConns: 64, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// checkURL returns an error unless the URL begins with https and resolves to permitted
// addresses. http is permitted if none of these addresses is public. Each branch refuses a
// kind of invalid URL.
func checkURL(ctx context.Context, text string, private []netip.Prefix) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxURL || u.Host == "" || u.Hostname() == "":
		return errors.New("malformed URL; want https://…")
	case u.User != nil || u.Fragment != "" || strings.ContainsAny(text, " \r\n\t"):
		return errors.New("the URL must not contain a user, a fragment or white space")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("scheme %.20q; want https:// or, for a private address, http://", u.Scheme)
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil || len(addrs) == 0 {
		return errPrivate
	}
	for _, ip := range addrs {
		if !allowed(ip, private) {
			return errPrivate
		}
		if u.Scheme == "http" && allowed(ip, nil) {
			return errors.New("no TLS; want https://…")
		}
	}
	return nil
}

// maxURL is the longest URL in bytes.
const maxURL = 2048
