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
// message goes on if all of them let it. One that a gate has answered is not
// shown to those behind it; one that a gate has replaced is, as it is now.
type Chain []Gate

// A listener is a gate that remembers requests of the client's. It is told if
// a gate behind it has answered one: then the host does not.
type listener interface {
	// Answered is called by who calls FromClient.
	Answered(id []byte)
}

// FromClient implements [Gate].
func (c Chain) FromClient(message []byte, env *ahp.Envelope) Decision {
	p := passage{message, env, false}
	for i, g := range c {
		d := g.FromClient(p.message, p.env)
		if p.goesOn(&d) {
			continue
		}
		for _, before := range c[:i] {
			if l, ok := before.(listener); ok && env.Kind == ahp.Request {
				l.Answered(env.ID)
			}
		}
		return d
	}
	return p.end()
}

// FromHost implements [Gate].
func (c Chain) FromHost(message []byte, env *ahp.Envelope) Decision {
	p := passage{message, env, false}
	for i := len(c) - 1; i >= 0; i-- {
		if d := c[i].FromHost(p.message, p.env); !p.goesOn(&d) {
			return d
		}
	}
	return p.end()
}

// A passage is a message on its way through gates.
type passage struct {
	message  []byte
	env      *ahp.Envelope
	replaced bool
}

// goesOn reports whether a gate lets the message go on, or another in its
// place.
func (p *passage) goesOn(d *Decision) bool {
	switch d.Verdict {
	case Pass:
		return true
	case Replace:
		env, err := ahp.Peek(d.Message)
		if err != nil {
			*d = Decision{Verdict: Answer} // no gate that is in order does that
			return false
		}
		p.message, p.env, p.replaced = d.Message, &env, true
		return true
	}
	return false
}

// end is what becomes of a message that all gates let pass.
func (p *passage) end() Decision {
	if p.replaced {
		return Decision{Replace, p.message}
	}
	return Decision{}
}
