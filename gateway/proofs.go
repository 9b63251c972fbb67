package gateway

import (
	"encoding/json"
	"time"

	"ahprelay/auth"
)

// proofSubject is where relays tell each other of proofs that were shown, in their own
// account.
const proofSubject = "ahp.relays.v1.proof"

// proofRoom is how many may wait that other relays tell of. What is more is lost: it may be
// good once more here.
const proofRoom = 4096

// hearProofs has the relay tell others of proofs, and hear of theirs, its own too.
func (r *Relay) hearProofs(server *Server) (err error) {
	proofs := server.caller.Proofs
	proofs.Others = func(proof auth.Proof) {
		if body, err := json.Marshal(proof); err == nil {
			_ = r.conn.Publish(proofSubject, body) // the Conn's own events tell
		}
	}
	r.deaf, err = r.conn.Hear(proofSubject, proofRoom, func(body []byte) {
		var proof auth.Proof
		if json.Unmarshal(body, &proof) == nil && proof.ID != "" {
			_ = proofs.Note(proof, time.Now()) // it is known here, or there is no room
		}
	})
	return err
}
