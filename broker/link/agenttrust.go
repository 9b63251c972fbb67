package link

import (
	"fmt"
	"time"

	"ahprelay/auth"
)

// untrustedEvery is the interval between log lines about the same untrusted relay.
const untrustedEvery = time.Minute

// proved reports whether a hello proves the relay's identity. If the hello has no
// proof, proved sends a challenge; if the proof is wrong, it refuses the relay.
func (a *AgentLinks) proved(relay string, offer Hello) (tags *linkSeal, ok bool) {
	if a.cfg.Trust == nil {
		return nil, true
	}
	t := a.trials[relay]
	if t == nil || t.epoch != offer.Epoch || t.relayShare != string(offer.Share) {
		makeRoom(a.trials)
		t = &trial{epoch: offer.Epoch, relayShare: string(offer.Share), share: newShare()}
		a.trials[relay] = t
	}
	share := t.share.PublicKey().Bytes()
	if string(offer.Peer) != string(share) {
		a.publish(relay, appendHello(helloChallenge, Hello{Epoch: offer.Epoch, Version: a.cfg.Hello.Version, Wire: [2]int{WireMin, WireMax}, Share: share}))
		return nil, false
	}
	id := auth.LinkID{
		Tenant: a.cfg.Tenant, Host: a.cfg.Host, Agent: a.cfg.Agent, Relay: relay, Epoch: offer.Epoch,
		RelayShare: offer.Share, AgentShare: share,
	}
	tags, err := a.checkProof(t, id, offer)
	if err != nil {
		a.refuseUntrusted(relay, offer, err)
		return nil, false
	}
	delete(a.trials, relay)
	return tags, true
}

func (a *AgentLinks) checkProof(t *trial, id auth.LinkID, offer Hello) (*linkSeal, error) {
	trusted, err := a.cfg.Trust()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrUntrusted, err)
	}
	if err := auth.CheckLink(trusted, id, offer.Key, offer.Proof); err != nil {
		return nil, err
	}
	return newLinkSeal(t.share, offer.Share, id, "up", "down")
}

// refuseUntrusted sends a relay the reason why it gets no link. It logs the refusal
// at most once per untrustedEvery.
func (a *AgentLinks) refuseUntrusted(relay string, offer Hello, err error) {
	if now := time.Now(); now.Sub(a.refused[relay]) >= untrustedEvery {
		makeRoom(a.refused)
		a.refused[relay] = now
		a.cfg.Log.Error("untrusted relay refused", "relay", relay, "version", offer.Version, "error", err)
	}
	answer := a.cfg.Hello
	answer.Epoch, answer.Wire = offer.Epoch, [2]int{WireMin, WireMax}
	answer.Untrusted, answer.Reason = true, err.Error()
	a.publish(relay, appendHello(helloRefuse, answer))
}

// makeRoom removes an arbitrary entry if the map has maxLinks entries. The map needs a bound
// because anybody can choose instance names. A relay whose entry was removed tries again.
func makeRoom[V any](known map[string]V) {
	for relay := range known {
		if len(known) < maxLinks {
			return
		}
		delete(known, relay)
	}
}
