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

// TestWhereConnectionsGo: whatever was found out of a name before, where it leads is looked at when
// the connection is made, each time, and a redirect leads nowhere.
func TestWhereConnectionsGo(t *testing.T) {
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
			t.Errorf("%s: %v, asked %d times; want %v", host, err, asked, errPrivate)
		}
	}
	response, err := open.Post("http://localhost:"+port, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusFound || asked != 1 {
		t.Errorf("HTTP %d, asked %d times; want the redirect, and no more", response.StatusCode, asked)
	}
}
