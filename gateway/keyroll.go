package gateway

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"ahprelay/auth"
)

// keysEvery is how often the data directory is looked at for other keys.
const keysEvery = 5 * time.Second

// A keyRoll has a relay go by the keys that are in its data directory.
type keyRoll struct {
	keys    *auth.Keys
	changed func() error
	log     *slog.Logger
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex // while it is looked
	undone  bool       // changed has failed
	trouble string     // last told
}

// rollKeys looks for other keys until close; changed is called when there are some, and
// again while it fails.
func rollKeys(keys *auth.Keys, changed func() error, log *slog.Logger) *keyRoll {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keyRoll{keys: keys, changed: changed, log: log, cancel: cancel}
	k.running.Go(func() {
		tick := time.NewTicker(keysEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				k.look()
			}
		}
	})
	return k
}

func (k *keyRoll) close() {
	k.cancel()
	k.running.Wait()
}

// look takes the keys of now.
func (k *keyRoll) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed, err := k.keys.Reload()
	if changed {
		k.log.Info("the relay has other keys", "keys", k.keys.SetIDs())
	}
	if err == nil && (changed || k.undone) {
		err = k.changed()
		k.undone = err != nil
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != k.trouble {
		k.log.Error("keys could not be put to use", "error", err)
	}
	k.trouble = text
}

// keysChanged returns what is to be done when the relay's keys are others: NATS servers
// must hear whose users are good.
func (r *Relay) keysChanged(cfg *RelayConfig) func() error {
	trust := filepath.Join(cfg.DataDir, TrustFile)
	return func() error {
		var own error
		if r.nats != nil {
			own = r.nats.KeysChanged()
		} else {
			own = r.keys.WriteTrustConfig(trust)
		}
		r.tenants.KeysChanged()
		return own
	}
}
