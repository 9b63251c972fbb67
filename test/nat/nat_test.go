package nat

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ahprelay/auth"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/load"
	"ahprelay/test/procs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience limits each step, on a slow machine too.
const patience = 60 * time.Second

// A site is a network with the programs that run in it.
type site struct {
	*network
	bench  procs.Bench
	keys   *auth.Keys
	record string
	http   *http.Client // client that connects from the client's namespace
}

// newSite builds a network and starts a relay there. It starts a host and its
// host-agent in the namespace home.
func newSite(ctx context.Context, t *testing.T) *site {
	t.Helper()
	s := &site{network: newNetwork(t)}
	s.http = &http.Client{Transport: &http.Transport{DialContext: dialer(s.client), DisableKeepAlives: true}}
	dir := t.TempDir()
	programs, err := procs.Build(ctx)
	check(t, err)
	s.bench = procs.Bench{Programs: programs, Dir: dir}
	t.Cleanup(s.bench.Kill)
	s.keys, err = auth.LoadKeys(filepath.Join(dir, "relay"))
	check(t, err)
	enrolment, err := s.keys.Tokens().IssueHost(auth.Enrolment{Tenant: procs.Tenant, Host: procs.Host, Expires: time.Now().Add(time.Hour)})
	check(t, err)
	tokenFile := filepath.Join(dir, "token")
	check(t, os.WriteFile(tokenFile, []byte(enrolment), 0o600))
	s.record = filepath.Join(dir, "record")
	host := s.bench.Process(s.home, "host", procs.HostProgram, "--listen", "127.0.0.1:18990", "--record", s.record)
	relay := s.bench.Process(s.relay, "relay", procs.RelayProgram, "serve", "--data-dir", filepath.Join(dir, "relay"),
		"--listen", "0.0.0.0:8484", "--listen-plain", "--admin-listen", "none")
	agent := s.bench.Process(s.home, "host-agent", procs.AgentProgram, "run", "--relay", "http://"+relayForRouters+":8484", "--relay-plain",
		"--token-file", tokenFile, "--upstream", "ws://127.0.0.1:18990")
	check(t, host.Launch(ctx, func() error { return s.reach(ctx, s.home, "127.0.0.1:18990") }))
	check(t, relay.Launch(ctx, func() error { return s.reach(ctx, s.client, relayForClients+":8484") }))
	check(t, agent.Launch(ctx, func() error { return s.online(ctx) }))
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reach tries to connect to an address from a namespace. It returns nil if the address
// accepts.
func (s *site) reach(ctx context.Context, ns, address string) error {
	conn, err := dialer(ns)(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// online returns nil if the relay reports the host as online to the client.
func (s *site) online(ctx context.Context) error {
	info, err := procs.GetJSONBy[hostsapi.Info](ctx, s.http, "http://"+relayForClients+":8484/api/hosts/"+procs.Host, s.token())
	if err == nil && info.State != "online" {
		err = errors.New("host is " + string(info.State) + ": " + info.Reason)
	}
	return err
}

func (s *site) token() string {
	s.t.Helper()
	token, err := s.keys.Tokens().IssueClient(auth.Client{
		Tenant: procs.Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	check(s.t, err)
	return token
}

// agentConns returns the host-agent's connections at the relay. The key is the port
// that the router has given to the connection.
func (s *site) agentConns() map[string]bool {
	conns := map[string]bool{}
	for line := range strings.Lines(s.in(s.network.relay, "ss -Htn state established sport = :8484 dst "+routerAddress)) {
		fields := strings.Fields(line)
		conns[fields[len(fields)-1]] = true
	}
	return conns
}

// awaitNewConn waits until the relay has a connection from home that is not in before.
func (s *site) awaitNewConn(before map[string]bool, when string) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for port := range s.agentConns() {
			if !before[port] {
				return
			}
		}
	}
	s.t.Fatalf("%s, and the host-agent has not reconnected; want a new connection", when)
}

// The host is behind a router that admits no incoming connections. Then the router
// forgets the open connections, home gets a new address, and the uplink goes down and
// up. Each time, clients keep their connections and receive everything after a pause.
func TestHostBehindARouterIsServed(t *testing.T) {
	ctx := t.Context()
	s := newSite(ctx, t)
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if s.reach(short, s.network.relay, homeAddress+":18990") == nil || s.reach(ctx, s.network.relay, routerAddress+":18990") == nil {
		t.Fatal("the home network is reachable from outside; want it unreachable")
	}
	home := load.Target{URL: "ws://127.0.0.1:18990", HTTP: &http.Client{Transport: &http.Transport{DialContext: dialer(s.home)}}}
	clients := load.Target{URL: "ws://" + relayForClients + ":8484/ahp/" + procs.Host, Token: s.token(), HTTP: s.http}
	crowd := load.Gather(home, clients, 3)
	defer crowd.Close()
	s.whole(ctx, crowd, "at the beginning")
	for _, fault := range []struct {
		name string
		do   func()
	}{
		{"the router forgot all connections", func() { s.in(s.router, "conntrack -F") }},
		{"home got another address", func() {
			s.in(s.home, "ip addr del "+homeAddress+"/24 dev lan0")
			s.in(s.home, "ip addr add "+otherAddress+"/24 dev lan0")
			s.in(s.home, "ip route add default via "+gatewayAddress)
		}},
	} {
		before := s.agentConns()
		if len(before) == 0 {
			t.Fatal("the host-agent has no connection to the relay; want one")
		}
		began := time.Now()
		fault.do()
		s.awaitNewConn(before, fault.name)
		s.whole(ctx, crowd, fault.name)
		t.Logf("%s: clients were whole again after %v", fault.name, time.Since(began).Round(time.Millisecond))
	}
	for range 3 {
		s.in(s.home, "ip route del default")
		time.Sleep(time.Second) // the uplink is down for this time
		s.in(s.home, "ip route add default via "+gatewayAddress)
		s.whole(ctx, crowd, "the default route came and went")
	}
	ctx, cancel = context.WithTimeout(ctx, patience)
	defer cancel()
	report, err := crowd.Finish(ctx, []string{s.record})
	check(t, err)
	if report.Lost > 0 || report.Repeated > 0 || len(report.Faults) > 0 {
		t.Errorf("the crowd reports %d lost and %d repeated messages: %q; want none", report.Lost, report.Repeated, report.Faults)
	}
	t.Logf("%d frames sent, %d received", report.Sent, report.Received)
}

// whole waits until all clients have received everything, and fails the test if a
// client's connection has ended.
func (s *site) whole(ctx context.Context, crowd *load.Crowd, when string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := crowd.AwaitWhole(ctx); err != nil {
		s.t.Fatalf("%s: the clients have not received everything: %v", when, err)
	}
	for _, v := range crowd.Viewers {
		if ends := v.Ends(); len(ends) > 0 {
			s.t.Fatalf("%s: the clients' connections ended with %v; want them open", when, ends)
		}
	}
}
