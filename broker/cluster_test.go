package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
)

// node starts a server of a cluster, with routes to the others.
func node(t *testing.T, keys *auth.Keys, log *slog.Logger, listen string, routes ...string) *site {
	t.Helper()
	server, err := broker.StartServer(broker.ServerConfig{
		Keys: keys, Listen: "127.0.0.1:0", Cluster: cluster(listen, routes...), Tenants: acme, Log: log,
	})
	if err != nil {
		t.Fatalf("StartServer: %v", err)
	}
	t.Cleanup(server.Close)
	return &site{keys: keys, server: server}
}

func newKeys(t *testing.T) *auth.Keys {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func awaitRoute(t *testing.T, s *site) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.server.AwaitRoute(ctx); err != nil {
		t.Fatalf("AwaitRoute: %v", err)
	}
}

// TestClusterWithoutQuorum has two nodes, each of which starts alone, goes on
// alone and comes back, in either order, and hosts that do not flap meanwhile.
func TestClusterWithoutQuorum(t *testing.T) {
	t.Parallel()
	keys := newKeys(t)
	dir := t.TempDir()
	one := node(t, keys, nil, "127.0.0.1:0")
	const lease = 25 * time.Second // more than a node is away, on a busy machine too
	config := func(name string) broker.RegistryConfig {
		return broker.RegistryConfig{Instance: name, Cluster: true, File: filepath.Join(dir, name), LeaseTTL: lease}
	}
	first := one.registryWith(t, config("a"))
	if why := first.Degraded(); !strings.Contains(why, "no other relay") {
		t.Errorf("alone: Degraded = %q", why)
	}
	if err := first.Enrol("acme", "spare"); err != nil {
		t.Fatal(err)
	}
	holder, _ := one.holder(t, named("first"))
	acquire(t, holder)
	run(t, holder)
	wantHost(t, first, broker.Online, "")

	two := node(t, keys, nil, "127.0.0.1:0", one.server.ClusterAddr(), one.server.ClusterAddr())
	awaitRoute(t, two)
	linked := config("b")
	linked.Linked = true
	second := two.registryWith(t, linked)
	if h, ok := second.Lookup("acme", "laptop"); !ok || h.AgentInstance != "first" {
		t.Errorf("the second node starts with %+v; want what the first knows", h)
	}
	if _, ok := second.Lookup("acme", "spare"); !ok {
		t.Error("the second node does not know spare")
	}
	eventually(t, "the nodes hear each other", func() bool { return first.Degraded()+second.Degraded() == "" })

	// The one that has decided so far ends; the other has never done so.
	flaps := make(chan broker.Host, 100)
	second.Subscribe(func(h broker.Host) { flaps <- h })
	other, _ := two.holder(t, func(cfg *broker.LeaseConfig) { cfg.Host, cfg.Instance = "laptop", "late" })
	listen := one.server.ClusterAddr()
	first.Close()
	one.server.Close()
	eventually(t, "the second node is alone", func() bool { return second.Degraded() != "" })
	late := make(chan error, 1)
	go func() { late <- other.Acquire(t.Context()) }() // waits for the end of the lease of first
	if err := second.Enrol("acme", "later"); err != nil {
		t.Fatal(err)
	}

	one = node(t, keys, nil, listen)
	awaitRoute(t, one)
	linked = config("a")
	linked.Linked = true
	first = one.registryWith(t, linked)
	if _, ok := first.Lookup("acme", "later"); !ok {
		t.Error("the first node does not know what happened while it was away")
	}
	h := wantHost(t, first, broker.Online, "")
	if h.AgentInstance != "first" {
		t.Errorf("laptop is held by %q; want first", h.AgentInstance)
	}
	for len(flaps) > 0 {
		if h := <-flaps; h.Name != "later" {
			t.Errorf("told of a change: %+v", h)
		}
	}
	select {
	case err := <-late:
		if err != nil {
			t.Fatalf("Acquire by another once the lease ran out: %v", err)
		}
	case <-time.After(lease + patience):
		t.Fatal("the lease does not end")
	}
	for _, r := range []*broker.Registry{first, second} {
		eventually(t, "both know the new holder", func() bool {
			h, _ := r.Lookup("acme", "laptop")
			return h.AgentInstance == "late"
		})
	}
}

// TestClusterRefusesOtherKeys has nodes with different keys, and says why they
// do not come together.
func TestClusterRefusesOtherKeys(t *testing.T) {
	t.Parallel()
	lines := logLines{lines: make(chan string, 1000)}
	one := node(t, newKeys(t), slog.New(lines), "127.0.0.1:0")
	two := node(t, newKeys(t), nil, "127.0.0.1:0", one.server.ClusterAddr())
	deadline := time.After(patience)
	for found := false; !found; {
		select {
		case line := <-lines.lines:
			found = strings.Contains(line, "same keys") && strings.HasPrefix(line, "ERROR")
		case <-deadline:
			t.Fatal("the log does not say that the keys differ")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := two.server.AwaitRoute(ctx); err == nil {
		t.Error("servers with different keys are connected")
	}
}

// TestSplitCluster has two nodes that do not see each other give the same host
// to different host-agents. When they meet, they agree on one.
func TestSplitCluster(t *testing.T) {
	t.Parallel()
	keys := newKeys(t)
	one, two := node(t, keys, nil, "127.0.0.1:0"), node(t, keys, nil, "127.0.0.1:0")
	config := broker.RegistryConfig{Cluster: true, LeaseTTL: 3 * time.Second}
	first, second := one.registryWith(t, config), two.registryWith(t, config)
	x, _ := one.holder(t, named("x"))
	y, _ := two.holder(t, named("y"))
	acquire(t, x)
	acquire(t, y)
	ends := make(chan error, 2)
	for _, h := range []*broker.LeaseHolder{x, y} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { ends <- h.Run(ctx) }()
	}
	node(t, keys, nil, "127.0.0.1:0", one.server.ClusterAddr(), two.server.ClusterAddr()) // joins the two
	err := next(t, "host-agent that gives up", ends)
	if err == nil || !strings.Contains(err.Error(), "another host-agent") {
		t.Errorf("Run = %v; want that another one holds the host", err)
	}
	var winners [2]string
	eventually(t, "both agree", func() bool {
		for i, r := range []*broker.Registry{first, second} {
			h, _ := r.Lookup("acme", "laptop")
			winners[i] = h.AgentInstance
		}
		return winners[0] == winners[1] && winners[0] != ""
	})
	if len(ends) > 0 {
		t.Errorf("both gave up: %v", <-ends)
	}
}

// TestGoneRelays has host-agents told of relays that ended without a word: at a
// cluster, because nothing is heard of them, elsewhere, because their
// successor has started.
func TestGoneRelays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cluster bool
		former  []string
		want    string
	}{
		{true, nil, "[crashed]"},
		{false, []string{"crashed", "one", "two"}, "[crashed]"}, // the others are there
		{false, nil, "[]"},
	} {
		t.Run(fmt.Sprintf("cluster %v, former %v", test.cluster, test.former), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			gone := make(chan []string, 1000)
			holder, _ := s.holder(t, func(cfg *broker.LeaseConfig) { cfg.Gone = func(relays []string) { gone <- relays } })
			conn := s.relays(t)
			crashed, err := broker.StartRegistry(t.Context(), broker.RegistryConfig{Conn: conn, Tenants: s.tenants(t), Instance: "crashed", Cluster: test.cluster})
			if err != nil {
				t.Fatal(err)
			}
			s.registryWith(t, broker.RegistryConfig{Instance: "one", Cluster: test.cluster})
			acquire(t, holder)
			run(t, holder)
			conn.Close() // before it could say anything
			crashed.Close()
			s.registryWith(t, broker.RegistryConfig{Instance: "two", Cluster: test.cluster, Former: test.former})
			if test.want == "[]" {
				select {
				case relays := <-gone:
					t.Errorf("host-agent was told that %v are gone", relays)
				case <-time.After(6 * time.Second): // as long as it takes elsewhere
				}
				return
			}
			start := time.Now()
			relays := next(t, "word of a relay that is gone", gone)
			if got := fmt.Sprint(relays); got != test.want {
				t.Errorf("host-agent was told that %v are gone; want %v", got, test.want)
			}
			t.Logf("told after %v", time.Since(start))
		})
	}
}
