package registry

import (
	"context"
	"errors"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
)

// newTestServer starts an embedded server, and returns the configuration with which relays dial it.
func newTestServer(t testing.TB) broker.RelayDialConfig {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Keys: keys, Store: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return broker.RelayDialConfig{Keys: keys, Server: server}
}

func dialTest(t testing.TB, cfg broker.RelayDialConfig, instance string) *broker.Conn {
	t.Helper()
	cfg.Instance = instance
	conn, err := broker.DialRelay(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// startTest starts a registry with its own connections to server. Without an instance in cfg, it is
// called me.
func startTest(t testing.TB, server broker.RelayDialConfig, cfg Config) *Registry {
	t.Helper()
	if cfg.Instance == "" {
		cfg.Instance = "me"
	}
	cfg.Conn = dialTest(t, server, cfg.Instance)
	server.Instance = cfg.Instance
	tenants, err := broker.StartTenants(context.Background(), broker.TenantsConfig{Relay: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tenants.Close)
	cfg.Tenants = tenants
	r, err := Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// put writes a value to a store, and returns its revision. On a busy machine, it tries again for a
// minute.
func put(t testing.TB, s *store, key string, value any) uint64 {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; {
		rev, err := s.put(t.Context(), key, value)
		if err == nil {
			return rev
		}
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(until) {
			t.Fatal(err)
		}
	}
}
