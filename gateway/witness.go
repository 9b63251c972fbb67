package gateway

import (
	"context"
	"errors"
	"log/slog"

	"ahprelay/auth"
	"ahprelay/broker/embedded"
	"ahprelay/broker/registry"
)

// A Witness is a cluster member without clients. It holds a copy of the shared stores, so
// that a majority remains when one relay fails.
type Witness struct {
	log     *slog.Logger
	dir     *dataDir
	nats    *embedded.Server
	rolling *keyRoll
}

// StartWitness starts a witness. It uses the data directory and cluster settings in cfg.
// The directory needs the same keys as the relays.
func StartWitness(ctx context.Context, cfg RelayConfig) (*Witness, error) {
	if err := cfg.CheckWitness(); err != nil {
		return nil, err
	}
	cfg.Gateway = cfg.Gateway.withDefaults()
	keys, err := auth.ExistingKeys(cfg.DataDir) // other members would reject new keys
	if err != nil {
		return nil, err
	}
	r := &Relay{log: cfg.Gateway.Log, keys: keys}
	if r.dir, err = openDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	cfg.NATSListen = ""
	if r.revoked, err = registry.LoadRevocations("", nil); err != nil {
		return nil, errors.Join(err, r.dir.close())
	}
	if err := r.startServer(ctx, &cfg); err != nil {
		return nil, errors.Join(err, r.dir.close())
	}
	r.nats.Resolve(func(string) (string, error) { return "", errServesNobody })
	return &Witness{r.log, r.dir, r.nats, rollKeys(keys, r.nats.KeysChanged, r.log)}, nil
}

var errServesNobody = errors.New("a witness serves no host-agents")

// ClusterAddr returns the address for the cluster's relays.
func (w *Witness) ClusterAddr() string { return w.nats.ClusterAddr() }

// Close ends the witness.
func (w *Witness) Close() {
	w.rolling.close()
	w.nats.Close()
	if err := w.dir.close(); err != nil {
		w.log.Warn("data directory not closed", "error", err)
	}
}
