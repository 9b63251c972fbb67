package gateway

import (
	"encoding/json"
	"time"

	"ahprelay/gateway/authn"
)

// proofSubject is the NATS subject on which relays publish the device proofs that they
// have accepted, so that other relays refuse a second use.
const proofSubject = "ahp.relays.v1.proof"

// proofRoom limits the queue of proofs from other relays. If it overflows, proofs are
// lost, and this relay then refuses all earlier nonces: see missedProofs.
const proofRoom = 4096

// shareProofs publishes the proofs that this relay accepts, and subscribes to those from
// other relays.
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
			proofs.Note(used, time.Now())
		}
	})
	proofs.HearsSince(time.Now())
	return err
}

// missedProofs records that proofs from other relays may have been lost until now.
func (r *Relay) missedProofs() {
	if server := r.server.Load(); server != nil {
		server.caller.Proofs.HearsSince(time.Now())
	}
}
