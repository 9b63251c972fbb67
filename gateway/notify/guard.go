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

// What people set leads the relay to addresses of their choice. It goes to public
// ones only, whatever name leads there and however often that changes: the address
// is looked at when the connection is made. It follows no redirect, asks no proxy,
// and shows nobody what was answered.

// sendTimeout is for one attempt.
const sendTimeout = 10 * time.Second

// errPrivate reports an address that is not public, or a name that leads nowhere:
// which of them is nobody's business.
var errPrivate = errors.New("the relay finds no public address there; others its operator must allow (--notify-private)")

// publicIPv6 is the only block of IPv6 from which public addresses are assigned (RFC 4291, section 2.4). Addresses
// outside it can embed an IPv4 address that a router or the kernel connects to instead: ::/96, 64:ff9b::/96, ::ffff:0:0:0/96.
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// notPublic lists the special-purpose blocks that netip does not tell from public addresses. Those of IPv6 are
// the exceptions inside publicIPv6: 2001::/23 contains Teredo, and 2002::/16 is 6to4, which embeds IPv4 addresses.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
}

// allowed reports whether the relay may connect to an address: one that the operator allows, or a public one.
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

// newClient returns an HTTP client that goes where it may.
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

// checkTarget reports what is wrong with a URL that can be seen without asking
// anybody but DNS: https, or http to addresses that the operator allows.
func checkTarget(ctx context.Context, text string, private []netip.Prefix) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxTarget || u.Host == "" || u.Hostname() == "":
		return errors.New("that is no URL; want https://…")
	case u.User != nil || u.Fragment != "" || strings.ContainsAny(text, " \r\n\t"):
		return errors.New("the URL has parts that it may not have")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("a URL with %.20q; want https://…", u.Scheme)
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
			return errors.New("a URL without TLS; want https://…")
		}
	}
	return nil
}

// maxTarget is how long a URL may be, in bytes.
const maxTarget = 2048
