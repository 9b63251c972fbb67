package gateway

import (
	"encoding/json"
	"time"

	"ahprelay/gateway/authn"
)

// proofSubject is the subject in the relays' own account where relays publish used
// proofs.
const proofSubject = "ahp.relays.v1.proof"

// proofRoom bounds the queue of other relays' proofs. Above it, the relay drops
// proofs, and then rejects all earlier nonces: see missedProofs.
const proofRoom = 4096

// shareProofs publishes the proofs that this relay accepts to other relays, and
// subscribes to theirs.
func (r *Relay) shareProofs(server *Server) (err error) {
	proofs := server.caller.Proofs
	proofs.Others = func(used authn.UsedProof) {
		if body, err := json.Marshal(used); err == nil {
			_ = r.conn.Publish(proofSubject, body) // the Conn reports errors itself
		}
	}
	r.endProofs, err = r.conn.Hear(proofSubject, proofRoom, func(body []byte) {
		var used authn.UsedProof
		if json.Unmarshal(body, &used) == nil && used.ID != "" {
			_ = proofs.Note(used, time.Now()) // already known, or no room
		}
	})
	proofs.HearsSince(time.Now())
	return err
}

// missedProofs records that proofs of other relays may have been lost before now.
func (r *Relay) missedProofs() {
	if server := r.server.Load(); server != nil {
		server.caller.Proofs.HearsSince(time.Now())
	}
}
