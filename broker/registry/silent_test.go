package registry_test

import (
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/faultproxy"
	"ahprelay/test/natssite"
)

// TestSilentStoreIsNotRestarted freezes the connection to the store. The relay must not restart the
// store, since a store that does not answer at all may be far away.
func TestSilentStoreIsNotRestarted(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	way, err := faultproxy.New("", s.Server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(way.Close)
	var restarts atomic.Int64
	cfg := registry.Config{
		Conn:    natssite.DialRelay(t, broker.RelayDialConfig{Keys: s.Keys, Instance: "relay", URL: "nats://" + way.Addr()}),
		Tenants: s.Tenants(t), LeaseTTL: time.Second,
		Revive: func() error { restarts.Add(1); return nil },
	}
	var r *registry.Registry
	natssite.Eventually(t, "the registry starts", func() bool { // a busy machine's store may answer too late
		r, err = registry.Start(t.Context(), cfg)
		return err == nil
	})
	t.Cleanup(r.Close)
	way.Freeze()
	natssite.Eventually(t, "the store is away", func() bool { return r.Degraded() != "" })
	time.Sleep(6 * time.Second)
	if n := restarts.Load(); n > 0 {
		t.Errorf("the store was restarted %d times; want 0", n)
	}
	if err := way.Heal(); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the store is back", func() bool { return r.Degraded() == "" })
}
