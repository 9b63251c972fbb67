package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/notice"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
	"ahprelay/test/pushsite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// size returns the number in an environment variable, or a default.
func size(name string, byDefault int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return byDefault
}

// Sessions of many hosts ask for permission, at a cluster with two relays and a
// witness, while one relay is killed. Each question must be pushed, and pushed again as
// withdrawn after an answer at the host, under the same id. A push may come twice only
// if the killed relay had not recorded it yet. The test logs the delays.
// AHP_NOTIFY_HOSTS and AHP_NOTIFY_SESSIONS (for each host) set the counts,
// AHP_NOTIFY_EVERY (such as 20ms) the interval between questions, and AHP_NOTIFY_LIMIT
// (such as 2s) the delay that 99 in 100 pushes must keep.
func TestEachOfManyEventsIsNotified(t *testing.T) {
	t.Parallel()
	hosts, sessions := size("AHP_NOTIFY_HOSTS", 3), size("AHP_NOTIFY_SESSIONS", 6)
	every, _ := time.ParseDuration(os.Getenv("AHP_NOTIFY_EVERY"))
	c := startNotifyingCluster(t)
	service := pushsite.New(t)
	subscribe(t, c.Stack, service, false, nil)

	ctx, cancel := context.WithCancel(t.Context())
	var agents sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		agents.Wait()
	})
	users := make([]*refclient.Client, hosts)
	for i := range users {
		_, server := newRefhost(t, nil)
		relays := []string{c.first.URL, c.Relay.URL()}
		if i%2 == 1 {
			slices.Reverse(relays)
		}
		startHostAgent(t, ctx, c.Stack, &agents, fmt.Sprintf("host-%d", i), server.URL(), relays)
		var err error
		if users[i], err = refclient.Dial(ctx, server.URL(), refclient.Options{}); err != nil {
			t.Fatal(err)
		}
		if _, err := users[i].Initialize(ctx, refclient.InitializeParams{ClientID: "user", ProtocolVersions: []string{"0.9.0"}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range users {
		awaitHost(t, c.Stack, fmt.Sprintf("host-%d", i))
	}
	m := &many{service: service, asked: map[string]time.Time{}, answered: map[string]time.Time{}, told: map[string]int{}, withdrawn: map[string]int{}, ids: map[string]map[string]bool{}}
	chats := map[string]string{}
	var killed time.Time
	for n := range sessions {
		for i, user := range users {
			if n == sessions/2 && i == hosts/2 {
				killed = time.Now()
				c.first.kill()
			}
			session := fmt.Sprintf("demo:/%d-%d", i, n)
			key := fmt.Sprintf("host-%d %s", i, session)
			m.asked[key] = time.Now()
			chats[key] = ask(t, user, session, "t")
			time.Sleep(every)
		}
	}
	m.hear(t, m.asked, m.told)
	for i, user := range users {
		for n := range sessions {
			key := fmt.Sprintf("host-%d demo:/%d-%d", i, i, n)
			m.answered[key] = time.Now()
			allow(t, user, chats[key], "t")
			time.Sleep(every)
		}
	}
	m.hear(t, m.answered, m.withdrawn)
	again := 0
	for key := range m.asked {
		if m.told[key] < 1 || m.withdrawn[key] < 1 || len(m.ids[key]) != 1 {
			t.Errorf("%s was told %d times, and withdrawn %d times, as %d events; want one, told and withdrawn", key, m.told[key], m.withdrawn[key], len(m.ids[key]))
		}
		if more := m.told[key] + m.withdrawn[key] - 2; more > 0 { // a device shows two messages with the same id as one
			again += more
			if asked := m.asked[key]; asked.After(killed) || killed.Sub(asked) > notedIn {
				t.Errorf("%s was repeated, though it was asked %v before the relay was killed; want it once", key, killed.Sub(asked))
			}
		}
	}
	t.Logf("%d were told again", again)
	limit, _ := time.ParseDuration(os.Getenv("AHP_NOTIFY_LIMIT"))
	for what, took := range map[string][]time.Duration{"pushed": m.tellingTook, "withdrawn": m.withdrawingTook} {
		slices.Sort(took)
		half, most := took[len(took)/2], took[len(took)*99/100]
		t.Logf("%d sessions on %d hosts, one relay of two killed: %s within %v (median), %v (99 of 100), %v (all)", len(took), hosts, what, half, most, took[len(took)-1])
		if limit > 0 && most > limit {
			t.Errorf("%s within %v; want %v", what, most, limit)
		}
	}
}

// notedIn is the longest time, on a slow machine, between a push and its record at the
// other relays.
const notedIn = 10 * time.Second

// many holds what a push service has received about a set of sessions.
type many struct {
	service                      *pushsite.Service
	asked, answered              map[string]time.Time
	told, withdrawn              map[string]int
	ids                          map[string]map[string]bool // ids of the received questions, by session
	tellingTook, withdrawingTook []time.Duration
}

// hear receives pushes until come has an entry for each session in want.
func (m *many) hear(t *testing.T, want map[string]time.Time, come map[string]int) {
	t.Helper()
	for len(come) < len(want) {
		var p pushsite.Pushed
		select {
		case p = <-m.service.Pushed:
		case <-time.After(stepTime):
			for key := range come {
				delete(want, key)
			}
			t.Fatalf("no further push arrives; told %v, withdrawn %v, missing %v", m.told, m.withdrawn, want)
		}
		key := p.Host + " " + p.Session
		if p.Kind != notice.Approval {
			continue
		}
		if m.ids[key] == nil {
			m.ids[key] = map[string]bool{}
		}
		m.ids[key][p.ID] = true
		switch {
		case p.Withdrawn:
			if m.withdrawn[key]++; m.withdrawn[key] == 1 {
				m.withdrawingTook = append(m.withdrawingTook, p.At.Sub(m.answered[key]))
			}
		default:
			if m.told[key]++; m.told[key] == 1 {
				m.tellingTook = append(m.tellingTook, p.At.Sub(m.asked[key]))
			}
		}
	}
}

// startNotifyingCluster starts two relays and a witness. The first relay is a separate
// process.
func startNotifyingCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{config: onLoopback(), both: true}
	c.config.DataDir, c.config.Listen, c.config.NATSListen = t.TempDir(), natssite.FreePort(t), natssite.FreePort(t)
	routes := []string{natssite.FreePort(t), natssite.FreePort(t), natssite.FreePort(t)}
	member := func(i int) gateway.RelayConfig {
		cfg := onLoopback()
		cfg.Listen, cfg.NATSListen, cfg.AdminListen = natssite.FreePort(t), "127.0.0.1:0", gateway.NoListener
		cfg.ClusterListen, cfg.ClusterRoutes = routes[i], routes
		return cfg
	}
	c.config.ClusterListen, c.config.ClusterRoutes = routes[0], routes
	c.first = startRelayProcess(t, c.config)
	witness := member(1)
	witness.DataDir = copyKeys(t, c.config.DataDir)
	w, err := gateway.StartWitness(t.Context(), witness)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	_, server := newRefhost(t, nil)
	c.Stack = startStackWith(t, stack.Config{DataDir: copyKeys(t, c.config.DataDir), Upstream: server.URL(), Relay: member(2)}, func(s *stack.Stack, cfg *hostagent.Config) error {
		cfg.NATSURLs, cfg.Notify = nil, hostagent.NotifyNeeds
		return nil
	})
	c.first.await(t, "online")
	awaitCopies(t, c.first, len(routes))
	return c
}

// awaitCopies waits until each record that relays share has the given number of copies.
// Otherwise, a record could be missing while the first relay is down.
func awaitCopies(t *testing.T, relay *relayProcess, copies int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*stepTime)
	defer cancel()
	conn, err := broker.DialRelay(ctx, broker.RelayDialConfig{Keys: relay.keys, Instance: "test", URL: "nats://" + relay.NATS})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	whole := func() (streams int, err error) {
		list := js.ListStreams(ctx)
		for info := range list.Info() {
			streams++
			if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas)+1 < copies ||
				slices.ContainsFunc(info.Cluster.Replicas, func(p *jetstream.PeerInfo) bool { return !p.Current || p.Offline }) {
				err = errors.Join(err, fmt.Errorf("%s: %+v", info.Config.Name, info.Cluster))
			}
		}
		return streams, errors.Join(err, list.Err())
	}
	for {
		n, err := whole()
		if n >= 2 && err == nil { // streams of the registry and of the other records
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("of %d streams, not all have %d copies: %v", n, copies, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startHostAgent starts a host-agent for a second host in a stack. The host-agent stops
// when ctx ends.
func startHostAgent(t *testing.T, ctx context.Context, s *stack.Stack, agents *sync.WaitGroup, name, upstream string, relays []string) {
	t.Helper()
	token, err := s.HostToken(name)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: relays, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: upstream}, Notify: hostagent.NotifyNeeds,
	})
	if err != nil {
		t.Fatal(err)
	}
	agents.Go(func() {
		if err := agent.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the host-agent of %s ended with %v; want no error", name, err)
		}
	})
}

// awaitHost waits until the relay reports a host as online.
func awaitHost(t *testing.T, s *stack.Stack, name string) {
	t.Helper()
	for end := time.Now().Add(stepTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		info, status := api[struct{ State string }](t, s, "GET", "/api/hosts/"+name, nil, func(*auth.Client) {})
		if status == 200 && info.State == "online" {
			return
		}
	}
	t.Fatalf("the host %s is not online in time; want it online", name)
}
