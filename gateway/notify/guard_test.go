package notify

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// TestAddressIsCheckedAtConnection: the client for targets checks the address at each
// connection. It refuses loopback addresses under any name before it sends a request.
// Where the operator permits them, it sends the request, and does not follow a
// redirect.
func TestAddressIsCheckedAtConnection(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	closed, open := newClient(nil), newClient([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")})
	defer closed.CloseIdleConnections()
	defer open.CloseIdleConnections()
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"} {
		response, err := closed.Post("http://"+host+":"+port, "text/plain", strings.NewReader("x"))
		if err == nil {
			_ = response.Body.Close()
		}
		if !errors.Is(err, errPrivate) || asked > 0 {
			t.Errorf("a request to %s = %v, and the server got %d requests; want %v and none", host, err, asked, errPrivate)
		}
	}
	response, err := open.Post("http://localhost:"+port, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusFound || asked != 1 {
		t.Errorf("a request that is redirected: HTTP %d, and the servers got %d requests; want the redirect as the answer, and no request after it", response.StatusCode, asked)
	}
}

// TestOnlyPublicAddressesAreDialed: allowed refuses addresses in each special block,
// and IPv6 addresses that embed IPv4 addresses. It permits public addresses, and
// private addresses in the operator's prefixes.
func TestOnlyPublicAddressesAreDialed(t *testing.T) {
	for _, text := range []string{
		"127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "192.88.99.1", "224.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::10.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b:1::1",
		"100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "4000::1", "5f00::1", "fc00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
	} {
		if allowed(netip.MustParseAddr(text), nil) {
			t.Errorf("the address %s is allowed; want it refused", text)
		}
	}
	if allowed(netip.Addr{}, nil) {
		t.Error("the zero address is allowed; want it refused")
	}
	for _, text := range []string{"8.8.8.8", "::ffff:8.8.8.8", "2001:4860:4860::8888", "2606:4700::1111", "2a00:1450::1"} {
		if !allowed(netip.MustParseAddr(text), nil) {
			t.Errorf("the address %s is refused; want it allowed", text)
		}
	}
	if !allowed(netip.MustParseAddr("fd00::1"), []netip.Prefix{netip.MustParsePrefix("fd00::/8")}) {
		t.Error("an address in a block of --notify-private is refused; want it allowed")
	}
}
