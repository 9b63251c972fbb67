package gate

import (
	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Verdict is the result of a gate's judgement.
type Verdict int

const (
	Pass    Verdict = iota // the message continues unchanged
	Answer                 // the message is dropped; its sender gets Decision.Message, if any
	Settle                 // like Answer, but the answer does not reject the action
	Serve                  // like Answer, but the message is not refused: it was for the gate itself
	Replace                // Decision.Message continues instead
	Expel                  // like Answer, and then the client's connection ends with CloseForbidden
)

// A Decision is a gate's verdict about a message. The zero Decision lets it pass.
type Decision struct {
	Verdict Verdict
	Message []byte // the answer or the replacement; nil for no answer
}

// A Gate judges the messages on a connection between a client and the host. The caller
// calls its methods one at a time. The methods must neither keep nor change their
// arguments.
type Gate interface {
	// FromClient judges a client's message.
	FromClient(message []byte, env *ahp.Envelope) Decision

	// FromHost judges a host's message. env is nil if the message is unreadable. reading
	// has the facts that the view learned from the message, or is nil. A gate may edit
	// the message through reading.Edit and let it pass.
	FromHost(message []byte, env *ahp.Envelope, reading *view.Reading) Decision
}

// A Chain is the list of gates on a connection, from the client to the host, with the
// view that they use. A message continues if all gates let it pass. If a gate answers a
// message, later gates do not see the message. If a gate replaces it, later gates see the
// replacement.
type Chain struct {
	View  *view.Conn
	Gates []Gate
}

// FromClient judges a client's message. If the message continues, it is recorded in the
// view.
func (c *Chain) FromClient(message []byte, env *ahp.Envelope) Decision {
	p := passage{message: message, env: env}
	for _, g := range c.Gates {
		d := g.FromClient(p.message, p.env)
		if !p.goesOn(&d) {
			return d
		}
	}
	c.View.Sent(p.env)
	return p.end()
}

// FromHost records a host's message in the view, and then judges it. It also returns the
// facts in the message.
func (c *Chain) FromHost(message []byte, env *ahp.Envelope) (Decision, *view.Reading) {
	p := passage{message: message, env: env}
	if env != nil {
		p.reading = c.View.FromHost(message, env)
	}
	reading := p.reading
	for i := len(c.Gates) - 1; i >= 0; i-- {
		d := c.Gates[i].FromHost(p.message, p.env, p.reading)
		if !p.goesOn(&d) {
			return d, reading
		}
	}
	if env != nil && env.Kind == ahp.Request {
		c.View.Asked(env)
	}
	return p.end(), reading
}

type passage struct {
	message  []byte
	env      *ahp.Envelope
	reading  *view.Reading // nil if the message has been replaced
	replaced bool
}

// goesOn reports whether the message, or its replacement, continues after a gate's
// decision.
func (p *passage) goesOn(d *Decision) bool {
	switch d.Verdict {
	case Pass:
		return true
	case Replace:
		env, err := ahp.Peek(d.Message)
		if err != nil {
			*d = Decision{Verdict: Answer} // only a faulty gate does that
			return false
		}
		*p = passage{message: d.Message, env: &env, replaced: true}
		return true
	}
	return false
}

// end returns the decision about a message that all gates let pass.
func (p *passage) end() Decision {
	if p.reading != nil && p.reading.Edit.Changes() {
		return Decision{Replace, p.reading.Edit.Apply(p.message)}
	}
	if p.replaced {
		return Decision{Replace, p.message}
	}
	return Decision{}
}
