package gate

import "ahprelay/ahp"

// A Verdict is what becomes of a message.
type Verdict int

// The verdicts.
const (
	Pass    Verdict = iota // it goes on
	Answer                 // it does not; its sender gets an answer, if there is one
	Replace                // another goes on in its place
	Expel                  // as Answer, and then the client's connection ends with CloseForbidden
)

// A Decision is what a gate says of a message. The zero Decision lets it pass.
type Decision struct {
	Verdict Verdict
	Message []byte // the answer, nil for none; or what goes on in its place
}

// A Gate stands between a client and the host on one connection. One goroutine
// may call FromClient while another calls FromHost. They must not keep or
// change what they are given.
type Gate interface {
	// FromClient judges a message of the client's.
	FromClient(message []byte, env *ahp.Envelope) Decision

	// FromHost judges a message of the host's. Env is nil for one that cannot
	// be read.
	FromHost(message []byte, env *ahp.Envelope) Decision
}

// A Chain are the gates of one connection, from the client to the host. A
// message goes on if all of them let it: one that a gate has answered or
// replaced is not shown to the others.
type Chain []Gate

// FromClient implements [Gate].
func (c Chain) FromClient(message []byte, env *ahp.Envelope) Decision {
	for _, g := range c {
		if d := g.FromClient(message, env); d.Verdict != Pass {
			return d
		}
	}
	return Decision{}
}

// FromHost implements [Gate].
func (c Chain) FromHost(message []byte, env *ahp.Envelope) Decision {
	for i := len(c) - 1; i >= 0; i-- {
		if d := c[i].FromHost(message, env); d.Verdict != Pass {
			return d
		}
	}
	return Decision{}
}
