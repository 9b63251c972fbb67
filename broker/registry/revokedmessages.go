package registry

import (
	"context"
	"encoding/json"
	"errors"

	"ahprelay/auth"

	"github.com/nats-io/nats.go"
)

// revokedSubject is where relays tell each other of a revocation at once, in their
// own account: whether or not the store can be written.
const revokedSubject = relayRoot + "revoked"

// Subjects of relays among themselves. Host-agents have no rights there.
//
//	ahp.relays.v1.revoked                  auth.Revocation, for all
//	ahp.relays.v1.to.<instance>.lease      a request about a lease that another relay keeps
//	ahp.relays.v1.records.<key>            a record, see package store
//	ahp.relays.v1.looking                  who looks, see package notify
const relayRoot = "ahp.relays.v1."

func relaySubject(instance, what string) string { return relayRoot + "to." + instance + "." + what }

// tellRevoked tells all relays of a revocation.
func (r *Registry) tellRevoked(rev auth.Revocation) {
	body, err := json.Marshal(rev)
	if err == nil {
		err = r.cfg.Conn.Publish(revokedSubject, body)
	}
	if err != nil && r.cfg.Conn.Connected() { // else the Conn's own events tell
		r.cfg.Log.Warn("message to other relays", "error", err)
	}
}

// hearRevoked takes word of a revocation.
func (r *Registry) hearRevoked(msg *nats.Msg) {
	var rev auth.Revocation
	if err := json.Unmarshal(msg.Data, &rev); err != nil {
		r.cfg.Log.Warn("message of another relay", "subject", msg.Subject, "error", err)
		return
	}
	r.cfg.Revocations.hear([]auth.Revocation{rev})
}

// writeRevocations writes into the store what it does not have.
func (r *Registry) writeRevocations(ctx context.Context) error {
	list, revs := r.cfg.Revocations.toStore()
	for i, rev := range list {
		key := revokedKey(rev)
		at, err := r.store.write(ctx, key, rev, revs[i])
		if errors.Is(err, errConflict) {
			var there auth.Revocation
			if at, err = r.store.read(ctx, key, &there); err == nil && at != 0 {
				r.cfg.Revocations.stored(there, at)
				wakeUp(r.write) // if there is still something to write
				continue
			}
		}
		if err != nil {
			return err
		}
		r.cfg.Revocations.stored(rev, at)
	}
	return nil
}
