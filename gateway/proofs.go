package gateway

import (
	"encoding/json"
	"time"

	"ahprelay/gateway/authn"
)

// proofSubject is where relays tell each other of proofs that were shown, in their own
// account.
const proofSubject = "ahp.relays.v1.proof"

// proofRoom is how many proofs of other relays may wait. The relay drops further ones, and
// then accepts no nonce from before: see missedProofs.
const proofRoom = 4096

// hearProofs has the relay tell other relays of the proofs that it accepts, and hear of theirs.
func (r *Relay) hearProofs(server *Server) (err error) {
	proofs := server.caller.Proofs
	proofs.Others = func(used authn.UsedProof) {
		if body, err := json.Marshal(used); err == nil {
			_ = r.conn.Publish(proofSubject, body) // the Conn's own events tell
		}
	}
	r.deaf, err = r.conn.Hear(proofSubject, proofRoom, func(body []byte) {
		var used authn.UsedProof
		if json.Unmarshal(body, &used) == nil && used.ID != "" {
			_ = proofs.Note(used, time.Now()) // it is known here, or there is no room
		}
	})
	proofs.HearsSince(time.Now())
	return err
}

// missedProofs notes that the relay may not have heard of some proofs until now.
func (r *Relay) missedProofs() {
	if server := r.server.Load(); server != nil {
		server.caller.Proofs.HearsSince(time.Now())
	}
}
