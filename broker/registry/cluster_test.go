package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/embedded"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// node starts a server of a cluster, which listens for other servers at listen and connects to
// routes.
func node(t *testing.T, keys *auth.Keys, log *slog.Logger, listen string, routes ...string) *natssite.Site {
	t.Helper()
	server, err := embedded.Start(embedded.Config{
		Keys: keys, Listen: "127.0.0.1:0", Cluster: natssite.Cluster(listen, routes...), Tenants: natssite.Acme, Log: log, Store: t.TempDir(),
	})
	if err != nil {
		t.Fatalf("StartServer: %v; want no error", err)
	}
	t.Cleanup(server.Close)
	return &natssite.Site{Keys: keys, Server: server}
}

// TestClusterRefusesOtherKeys starts two servers with different keys in one cluster. They must not
// connect, and the log must say that they need the same keys.
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
			t.Fatal("the log has no error about different keys; want same keys in an ERROR")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := two.Server.AwaitRoute(ctx); err == nil {
		t.Error("servers with different keys are connected; want no route")
	}
}

// TestHostAgentsLearnOfCrashedRelays lets a relay crash. If a new relay was started as its
// successor (Previous), host-agents must learn that the crashed relay is gone. Without a successor,
// they must not, since the relay could be only silent.
func TestHostAgentsLearnOfCrashedRelays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cluster bool
		former  []string
		want    string
	}{
		{false, []string{"crashed", "one", "two"}, "[crashed]"}, // one and two run
		{true, nil, "[]"},
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
			conn.Close() // so that the registry cannot send its last message
			crashed.Close()
			registryWith(t, s, registry.Config{Instance: "two", Cluster: test.cluster, Previous: test.former})
			if test.want == "[]" {
				select {
				case relays := <-gone:
					t.Errorf("the host-agent was told that the relays %v have crashed; want no report", relays)
				case <-time.After(6 * time.Second): // much longer than the news takes
				}
				return
			}
			start := time.Now()
			relays := natssite.Next(t, "word of a relay that is gone", gone)
			if got := fmt.Sprint(relays); got != test.want {
				t.Errorf("the host-agent was told that the relays %v have crashed; want %v", got, test.want)
			}
			t.Logf("told after %v", time.Since(start))
		})
	}
}
