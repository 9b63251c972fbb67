package registry

import (
	"context"
	"encoding/json"
	"errors"

	"ahprelay/auth"

	"github.com/nats-io/nats.go"
)

// revokedSubject is the subject on which relays send each other new revocations,
// whether or not the store is available.
const revokedSubject = relayRoot + "revoked"

// Subjects of relays. Host-agents have no permissions there.
//
//	ahp.relays.v1.revoked                  auth.Revocation, for all
//	ahp.relays.v1.to.<instance>.lease      a request about a lease that another relay keeps
//	ahp.relays.v1.records.<key>            a record, see package store
//	ahp.relays.v1.looking                  announcements of attended sessions, see package notify
const relayRoot = "ahp.relays.v1."

func relaySubject(instance, what string) string { return relayRoot + "to." + instance + "." + what }

// publishRevoked sends a revocation to all relays.
func (r *Registry) publishRevoked(rev auth.Revocation) {
	body, err := json.Marshal(rev)
	if err == nil {
		err = r.cfg.Conn.Publish(revokedSubject, body)
	}
	if err != nil && r.cfg.Conn.Connected() { // otherwise the broker.Conn reports the error
		r.cfg.Log.Warn("revocation not sent to other relays", "error", err)
	}
}

// receiveRevoked handles a revocation from another relay.
func (r *Registry) receiveRevoked(msg *nats.Msg) {
	var rev auth.Revocation
	if err := json.Unmarshal(msg.Data, &rev); err != nil {
		r.cfg.Log.Warn("message from another relay invalid", "subject", msg.Subject, "error", err)
		return
	}
	r.cfg.Revocations.receive([]auth.Revocation{rev})
}

// writeRevocations writes the revocations that the store lacks.
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
