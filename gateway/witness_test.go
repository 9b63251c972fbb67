package gateway

import (
	"errors"
	"path/filepath"
	"testing"

	"ahprelay/auth"
)

// A witness does not start without the relays' keys, or without their addresses. It
// joins the cluster, locks its directory, and has the same name after a restart.
func TestWitnessJoinsTheCluster(t *testing.T) {
	t.Parallel()
	cfg := RelayConfig{DataDir: t.TempDir(), ClusterListen: "127.0.0.1:0", ClusterRoutes: []string{"127.0.0.1:1"}}
	if _, err := StartWitness(t.Context(), cfg); !errors.Is(err, auth.ErrNoKeys) {
		t.Errorf("a witness without keys starts: %v; want ErrNoKeys", err)
	}
	if _, err := auth.LoadKeys(cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	if _, err := StartWitness(t.Context(), RelayConfig{DataDir: cfg.DataDir}); err == nil {
		t.Error("a witness without a cluster starts; want an error")
	}
	var names [2]string
	for i := range names {
		w, err := StartWitness(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if names[i] = w.nats.Name(); w.ClusterAddr() == "" {
			t.Error("the witness has no cluster address for other servers; want one")
		}
		if _, err := openDataDir(cfg.DataDir); err == nil {
			t.Error("openDataDir of the running witness's directory succeeds; want an error, because it is locked")
		}
		w.Close()
	}
	if names[0] != names[1] {
		t.Errorf("the witness's names at its two starts are %v; want the same", names)
	}
	if stores, err := filepath.Glob(filepath.Join(cfg.DataDir, storeName, "*")); err != nil || len(stores) == 0 {
		t.Errorf("the witness keeps no stores: %v, %v; want at least one", stores, err)
	}
}
