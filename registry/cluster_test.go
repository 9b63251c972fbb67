package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/embedded"
	"ahprelay/registry"
	"ahprelay/test/natssite"
)

// node starts a server of a cluster, with routes to the others.
func node(t *testing.T, keys *auth.Keys, log *slog.Logger, listen string, routes ...string) *natssite.Site {
	t.Helper()
	server, err := embedded.Start(embedded.Config{
		Keys: keys, Listen: "127.0.0.1:0", Cluster: natssite.Cluster(listen, routes...), Tenants: natssite.Acme, Log: log,
	})
	if err != nil {
		t.Fatalf("StartServer: %v", err)
	}
	t.Cleanup(server.Close)
	return &natssite.Site{Keys: keys, Server: server}
}

func awaitRoute(t *testing.T, s *natssite.Site) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if err := s.Server.AwaitRoute(ctx); err != nil {
		t.Fatalf("AwaitRoute: %v", err)
	}
}

// TestClusterWithoutQuorum has two nodes, each of which starts alone, goes on
// alone and comes back, in either order, and hosts that do not flap meanwhile.
func TestClusterWithoutQuorum(t *testing.T) {
	t.Parallel()
	keys := natssite.NewKeys(t)
	dir := t.TempDir()
	one := node(t, keys, nil, "127.0.0.1:0")
	const lease = 25 * time.Second // more than a node is away, on a busy machine too
	config := func(name string) registry.Config {
		return registry.Config{Instance: name, Cluster: true, File: filepath.Join(dir, name), LeaseTTL: lease}
	}
	first := registryWith(t, one, config("a"))
	if why := first.Degraded(); !strings.Contains(why, "no other relay") {
		t.Errorf("alone: Degraded = %q", why)
	}
	if err := first.Enrol("acme", "spare"); err != nil {
		t.Fatal(err)
	}
	held, _ := holder(t, one, named("first"))
	acquire(t, held)
	run(t, held)
	wantHost(t, first, registry.Online, "")

	two := node(t, keys, nil, "127.0.0.1:0", one.Server.ClusterAddr(), one.Server.ClusterAddr())
	awaitRoute(t, two)
	linked := config("b")
	linked.Linked = true
	second := registryWith(t, two, linked)
	if h, ok := second.Lookup("acme", "laptop"); !ok || h.AgentInstance != "first" {
		t.Errorf("the second node starts with %+v; want what the first knows", h)
	}
	if _, ok := second.Lookup("acme", "spare"); !ok {
		t.Error("the second node does not know spare")
	}
	natssite.Eventually(t, "the nodes hear each other", func() bool { return first.Degraded()+second.Degraded() == "" })

	// The one that has decided so far ends; the other has never done so.
	flaps := make(chan registry.Host, 100)
	second.Subscribe(func(h registry.Host) { flaps <- h })
	other, _ := holder(t, two, func(cfg *registry.LeaseConfig) { cfg.Host, cfg.Instance = "laptop", "late" })
	listen := one.Server.ClusterAddr()
	first.Close()
	one.Server.Close()
	natssite.Eventually(t, "the second node is alone", func() bool { return second.Degraded() != "" })
	late := make(chan error, 1)
	go func() { late <- other.Acquire(t.Context()) }() // waits for the end of the lease of first
	if err := second.Enrol("acme", "later"); err != nil {
		t.Fatal(err)
	}

	one = node(t, keys, nil, listen)
	awaitRoute(t, one)
	linked = config("a")
	linked.Linked = true
	first = registryWith(t, one, linked)
	if _, ok := first.Lookup("acme", "later"); !ok {
		t.Error("the first node does not know what happened while it was away")
	}
	h := wantHost(t, first, registry.Online, "")
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
	case <-time.After(lease + natssite.Patience):
		t.Fatal("the lease does not end")
	}
	for _, r := range []*registry.Registry{first, second} {
		natssite.Eventually(t, "both know the new holder", func() bool {
			h, _ := r.Lookup("acme", "laptop")
			return h.AgentInstance == "late"
		})
	}
}

// TestClusterRefusesOtherKeys has nodes with different keys, and says why they
// do not come together.
func TestClusterRefusesOtherKeys(t *testing.T) {
	t.Parallel()
	lines := natssite.LogLines{Lines: make(chan string, 1000)}
	one := node(t, natssite.NewKeys(t), slog.New(lines), "127.0.0.1:0")
	two := node(t, natssite.NewKeys(t), nil, "127.0.0.1:0", one.Server.ClusterAddr())
	deadline := time.After(natssite.Patience)
	for found := false; !found; {
		select {
		case line := <-lines.Lines:
			found = strings.Contains(line, "same keys") && strings.HasPrefix(line, "ERROR")
		case <-deadline:
			t.Fatal("the log does not say that the keys differ")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := two.Server.AwaitRoute(ctx); err == nil {
		t.Error("servers with different keys are connected")
	}
}

// TestSplitCluster has two nodes that do not see each other give the same host
// to different host-agents. When they meet, they agree on one.
func TestSplitCluster(t *testing.T) {
	t.Parallel()
	keys := natssite.NewKeys(t)
	one, two := node(t, keys, nil, "127.0.0.1:0"), node(t, keys, nil, "127.0.0.1:0")
	config := registry.Config{Cluster: true, LeaseTTL: 3 * time.Second}
	first, second := registryWith(t, one, config), registryWith(t, two, config)
	x, _ := holder(t, one, named("x"))
	y, _ := holder(t, two, named("y"))
	acquire(t, x)
	acquire(t, y)
	ends := make(chan error, 2)
	for _, h := range []*registry.LeaseHolder{x, y} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { ends <- h.Run(ctx) }()
	}
	node(t, keys, nil, "127.0.0.1:0", one.Server.ClusterAddr(), two.Server.ClusterAddr()) // joins the two
	err := natssite.Next(t, "host-agent that gives up", ends)
	if err == nil || !strings.Contains(err.Error(), "another host-agent") {
		t.Errorf("Run = %v; want that another one holds the host", err)
	}
	var winners [2]string
	natssite.Eventually(t, "both agree", func() bool {
		for i, r := range []*registry.Registry{first, second} {
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
			s := natssite.New(t)
			gone := make(chan []string, 1000)
			held, _ := holder(t, s, func(cfg *registry.LeaseConfig) { cfg.Gone = func(relays []string) { gone <- relays } })
			conn := s.Relays(t)
			crashed, err := registry.Start(t.Context(), registry.Config{Conn: conn, Tenants: s.Tenants(t), Instance: "crashed", Cluster: test.cluster})
			if err != nil {
				t.Fatal(err)
			}
			registryWith(t, s, registry.Config{Instance: "one", Cluster: test.cluster})
			acquire(t, held)
			run(t, held)
			conn.Close() // before it could say anything
			crashed.Close()
			registryWith(t, s, registry.Config{Instance: "two", Cluster: test.cluster, Former: test.former})
			if test.want == "[]" {
				select {
				case relays := <-gone:
					t.Errorf("host-agent was told that %v are gone", relays)
				case <-time.After(6 * time.Second): // as long as it takes elsewhere
				}
				return
			}
			start := time.Now()
			relays := natssite.Next(t, "word of a relay that is gone", gone)
			if got := fmt.Sprint(relays); got != test.want {
				t.Errorf("host-agent was told that %v are gone; want %v", got, test.want)
			}
			t.Logf("told after %v", time.Since(start))
		})
	}
}
