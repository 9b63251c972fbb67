package gateway

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/clock"
)

// keysEvery is how often the data directory is checked for changed keys.
const keysEvery = 5 * time.Second

// A keyRoll loads changed keys from a relay's data directory.
type keyRoll struct {
	keys    *auth.Keys
	changed func() error
	log     *slog.Logger
	task

	mu        sync.Mutex // held during a check
	pending   bool       // the last call of changed has failed
	lastError string     // last error logged
}

// rollKeys checks for changed keys until close. It calls changed after each change, and
// repeats the call until it succeeds.
func rollKeys(keys *auth.Keys, changed func() error, log *slog.Logger) *keyRoll {
	k := &keyRoll{keys: keys, changed: changed, log: log}
	k.start(func(ctx context.Context) {
		for clock.Sleep(ctx, keysEvery) {
			k.reload()
		}
	})
	return k
}

func (k *keyRoll) reload() {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed, err := k.keys.Reload()
	if changed {
		k.log.Info("keys reloaded", "keys", k.keys.SetIDs())
	}
	if err == nil && (changed || k.pending) {
		err = k.changed()
		k.pending = err != nil
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != k.lastError {
		k.log.Error("keys not applied", "error", err)
	}
	k.lastError = text
}

// keysChanged returns the callback for changed keys: it updates the keys that NATS
// servers trust, and closes the connections of clients with tokens of retired keys.
func (r *Relay) keysChanged(cfg *RelayConfig) func() error {
	trust := filepath.Join(cfg.DataDir, TrustFile)
	return func() error {
		var own error
		if r.nats != nil {
			own = r.nats.KeysChanged()
		} else {
			own = r.keys.Authority().WriteTrustConfig(trust)
		}
		r.tenants.KeysChanged()
		r.server.Load().revokedNow()
		return own
	}
}
