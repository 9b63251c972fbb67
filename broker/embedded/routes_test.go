package embedded

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ahprelay/auth"
	"ahprelay/test/faultproxy"
)

// TestOwnRouteIsFoundHoweverSpelled removes a server's own address from a list of routes. Each
// spelling of the address must be removed, and no other route.
func TestOwnRouteIsFoundHoweverSpelled(t *testing.T) {
	t.Parallel()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		listen string
		routes string
		others string
	}{
		{"127.0.0.5", "127.0.0.5:6222 127.0.0.6:6222 127.0.0.5:6223", "127.0.0.6:6222 127.0.0.5:6223"},
		{"127.0.0.1", "localhost:6222 127.0.0.1:6222 [::ffff:127.0.0.1]:6222", ""},
		{"", "localhost:6222 127.0.0.1:6222 [::1]:6222 127.0.0.1:6223 192.0.2.1:6222", "127.0.0.1:6223 192.0.2.1:6222"},
		{"0.0.0.0", "LOCALHOST:6222 " + name + ":6222 192.0.2.1:6222", "192.0.2.1:6222"},
		{"::", name + ".relays.invalid:6222 other.relays.invalid:6222 " + name + ".relays.invalid:6223", "other.relays.invalid:6222 " + name + ".relays.invalid:6223"},
		{"localhost", "127.0.0.1:6222 192.0.2.1:6222", "192.0.2.1:6222"},
	} {
		var routes []*url.URL
		for _, r := range strings.Fields(test.routes) {
			u, err := routeURL(r)
			if err != nil {
				t.Fatal(err)
			}
			routes = append(routes, u)
		}
		o := &server.ClusterOpts{Host: test.listen, Port: 6222}
		var got []string
		_, others := splitRoutes(routes, o)
		for _, r := range others {
			got = append(got, r.Host)
		}
		if strings.Join(got, " ") != test.others {
			t.Errorf("a server at %q with the routes %s has the other routes %q; want %q", net.JoinHostPort(test.listen, "6222"), test.routes, got, test.others)
		}
	}
}

// TestPlaceNamesServer asks for the name of a server by its place in the list of routes. Each
// server in the list must get a different name. A server that is not in the list must get none.
func TestPlaceNamesServer(t *testing.T) {
	t.Parallel()
	routes := []string{"127.0.0.5:6222", "nats://127.0.0.6:6222", "127.0.0.7:6222"}
	names := map[string]bool{}
	for _, listen := range []string{"127.0.0.5:6222", "127.0.0.6:6222", "127.0.0.7:6222"} {
		c := Cluster{Listen: listen, Routes: routes}
		if c.Place() == "" || names[c.Place()] {
			t.Errorf("the server at %s has the name %q; want a name that no other server has", listen, c.Place())
		}
		names[c.Place()] = true
	}
	for _, c := range []Cluster{{}, {Listen: "127.0.0.5:6222"}, {Listen: "127.0.0.5:6222", Routes: routes[:1]}, {Listen: "127.0.0.8:6222", Routes: routes}} {
		if name := c.Place(); name != "" {
			t.Errorf("a server with the configuration %+v has the name %q; want none", c, name)
		}
	}
}

// TestCutOffNeedsPossibleMajority asks servers in a cluster whether they are cut off. A server must
// be cut off if the other servers could be running as a majority without it. A server whose address
// accepted a connection before and refuses it now does not run. A server in a cluster with two
// servers is never cut off.
func TestCutOffNeedsPossibleMajority(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	silent := make([]net.Listener, 2) // like servers behind a cut, they accept and say nothing
	var routes []string
	for i := range silent {
		if silent[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent[i].Close() }()
		routes = append(routes, silent[i].Addr().String())
	}
	start := func(routes ...string) *Server {
		s, err := Start(Config{Keys: keys, Cluster: Cluster{Listen: "127.0.0.1:0", Routes: routes}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	three, two := start(routes...), start(routes[0])
	if !three.CutOff(t.Context()) {
		t.Error("CutOff of one server of three = false while two may run; want true")
	}
	if two.CutOff(t.Context()) {
		t.Error("CutOff of one server of two = true; want false")
	}
	if err := silent[1].Close(); err != nil {
		t.Fatal(err)
	}
	if three.CutOff(t.Context()) {
		t.Error("CutOff of one server of three = true although a second has ended; want false")
	}
	if behind := start(routes...); !behind.CutOff(t.Context()) {
		t.Error("CutOff = false after a refusal at an address that never accepted a connection; want true")
	}
}

// TestAddressesAreKnownBeforeACut starts a server in a cluster. It must connect to each other
// server until all have accepted a connection, and then no longer.
func TestAddressesAreKnownBeforeACut(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(Config{Keys: keys, Cluster: Cluster{Listen: "127.0.0.1:0", Routes: []string{other.Addr().String()}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.CutOff(t.Context()) || !s.accepts.has(other.Addr().String()) {
		t.Error("the server has not connected to the address of a server that accepts; want one connection")
	}
	if s.accepts.due(time.Now().Add(time.Hour), 1) {
		t.Error("due(1) = true an hour later, though all servers have accepted; want false")
	}
	if s.accepts.due(time.Now(), 2) || !s.accepts.due(time.Now().Add(acceptEvery), 2) {
		t.Error("due(2) must become true after acceptEvery, because one of two servers has not accepted yet")
	}
}

// TestMajorityStartsACluster starts the servers in a cluster of a given size one after the other,
// whether each lists all servers or two. There must be a leader with a majority, and none with a
// server less.
func TestMajorityStartsACluster(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ size, named, majority int }{
		{size: 3, named: 2, majority: 2},
		{size: 4, named: 4, majority: 3}, // two of four are no majority
		{size: 5, named: 2, majority: 3},
		{size: 5, named: 5, majority: 3},
	} {
		t.Run(fmt.Sprintf("%d of %d named", test.named, test.size), func(t *testing.T) {
			t.Parallel()
			var routes []string
			for range test.size {
				address, err := faultproxy.FreeAddress()
				if err != nil {
					t.Fatal(err)
				}
				routes = append(routes, address)
			}
			start := func(i int) *Server {
				t.Helper()
				known := routes
				if test.named < test.size {
					known = []string{routes[0], routes[i]}
				}
				s, err := Start(Config{Keys: keys, Name: fmt.Sprint("relay-", i), Store: t.TempDir(), Cluster: Cluster{Listen: routes[i], Routes: known, Size: test.size}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
				return s
			}
			var servers []*Server
			for i := range test.majority - 1 {
				servers = append(servers, start(i))
			}
			for _, s := range servers {
				if err := awaitRoutes(t, s, test.majority-2); err != nil {
					t.Fatal(err)
				}
				if _, all := s.Members(); all != test.size {
					t.Errorf("cluster of %d; want %d", all, test.size)
				}
				if info, err := s.nats.Jsz(nil); err != nil || info.Meta == nil || info.Meta.Size != test.majority {
					t.Errorf("Jsz = %+v, %v; want %d servers for the first leader", info, err, test.majority)
				}
			}
			if led(servers) {
				t.Errorf("JetStream has a leader while only %d of %d servers run; want none", len(servers), test.size)
			}
			servers = append(servers, start(test.majority-1))
			for until := time.Now().Add(time.Minute); !led(servers); time.Sleep(routePoll) {
				if time.Now().After(until) {
					t.Fatalf("JetStream has no leader while %d of %d servers run; want one", len(servers), test.size)
				}
			}
		})
	}
}

// TestServersMeetThroughAThird starts three servers, of which two know only the first. These two must
// connect to each other too, although their connections do not come from the addresses at which
// they listen.
func TestServersMeetThroughAThird(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	var servers []*Server
	for i := range 3 {
		s, err := Start(Config{Keys: keys, Name: fmt.Sprint("relay-", i), Cluster: Cluster{Listen: faultproxy.OwnAddress(), Routes: routes}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		servers = append(servers, s)
		routes = []string{servers[0].ClusterAddr()}
	}
	for _, s := range servers {
		if err := awaitRoutes(t, s, 2); err != nil {
			t.Error(err)
		}
	}
}

// awaitRoutes waits until a server is connected to the given number of other servers.
func awaitRoutes(t *testing.T, s *Server, others int) error {
	t.Helper()
	for until := time.Now().Add(waitTime); len(s.Routes()) < others; time.Sleep(routePoll) {
		if time.Now().After(until) {
			return fmt.Errorf("%s is connected to %d servers; want %d", s.Name(), len(s.Routes()), others)
		}
	}
	return nil
}

// led reports whether at least one of the servers knows the leader of JetStream.
func led(servers []*Server) bool {
	for _, s := range servers {
		if info, err := s.nats.Jsz(nil); err == nil && info.Meta != nil && info.Meta.Leader != "" {
			return true
		}
	}
	return false
}

// startThree starts three servers with empty directories, and waits until they agree about JetStream's
// log. Replace starts one of them again, with an empty directory.
func startThree(t *testing.T) (servers []*Server, replace func(i int)) {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for range 3 {
		address, err := faultproxy.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		routes = append(routes, address)
	}
	servers = make([]*Server, len(routes))
	replace = func(i int) {
		t.Helper()
		s, err := Start(Config{Keys: keys, Name: fmt.Sprint("relay-", i), Store: t.TempDir(), Cluster: Cluster{Listen: routes[i], Routes: routes}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		servers[i] = s
	}
	for i := range servers {
		replace(i)
	}
	await(t, "the servers agree about JetStream's log", func() bool { return settled(servers) })
	return servers, replace
}

// await polls until happens returns true.
func await(t *testing.T, what string, happens func() bool) {
	t.Helper()
	for until := time.Now().Add(waitTime); !happens(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s: not within %v; want it sooner", what, waitTime)
		}
	}
}

// TestReplacedMajorityElectsNoEmptyLeader loses two servers of three at once, JetStream's leader among
// them, and starts both again with empty directories. The third must become the leader: the two
// would begin without any stream.
func TestReplacedMajorityElectsNoEmptyLeader(t *testing.T) {
	t.Parallel()
	servers, replace := startThree(t)
	leader := func(s *Server) string {
		t.Helper()
		for until := time.Now().Add(time.Minute); !led([]*Server{s}); time.Sleep(routePoll) {
			if time.Now().After(until) {
				t.Fatalf("%s knows no leader; want one", s.Name())
			}
		}
		info, err := s.nats.Jsz(nil)
		if err != nil {
			t.Fatal(err)
		}
		return info.Meta.Leader
	}
	left := 0
	for i, s := range servers {
		if leader(s) != s.Name() {
			left = i
		}
	}
	for i, s := range servers {
		if i != left {
			s.store = "" // as in a crash, without a handover
			s.Close()
		}
	}
	for i := range servers {
		if i != left {
			replace(i)
		}
	}
	for _, s := range servers {
		if got := leader(s); s != servers[left] && got != servers[left].Name() {
			t.Errorf("%s follows %s; want %s, which alone has data", s.Name(), got, servers[left].Name())
		}
	}
}

// settled reports whether all servers are members of JetStream's cluster, and have applied its whole
// log.
func settled(servers []*Server) bool {
	last := map[uint64]bool{}
	for _, s := range servers {
		for _, groups := range *s.nats.Raftz(&server.RaftzOptions{GroupFilter: metaLog}) {
			g := groups[metaLog]
			if g.Size != len(servers) || g.Leader == "" || g.Committed != g.PIndex || g.Applied != g.PIndex {
				return false
			}
			last[g.PIndex] = true
		}
	}
	return len(last) == 1
}

// TestOwnRoutesPort starts a server whose cluster listener has no port, with a route to itself. Its
// port must be below those that the system gives outgoing connections: between the choice of the
// port and the start of the listener, one of them could take it.
func TestOwnRoutesPort(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(Config{Keys: keys, Store: t.TempDir(), Cluster: Cluster{Listen: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	address, err := netip.ParseAddrPort(s.ClusterAddr())
	if err != nil || address.Port() >= 32768 {
		t.Errorf("the server listens for routes on %q (%v); want a port below 32768", s.ClusterAddr(), err)
	}
}
