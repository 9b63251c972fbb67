package gate

import (
	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A Verdict tells how a message continues.
type Verdict int

// The verdicts.
const (
	Pass    Verdict = iota // the message goes on
	Answer                 // the message stops; its sender gets Decision.Message, if any
	Settle                 // like Answer, for an action that the answer does not reject
	Replace                // Decision.Message goes on in its place
	Expel                  // like Answer, and then the client's connection ends with CloseForbidden
)

// A Decision is a gate's verdict about a message. The zero Decision lets it pass.
type Decision struct {
	Verdict Verdict
	Message []byte // the answer, nil for none; or the replacement
}

// A Gate stands between a client and the host on one connection. Its methods are
// called one at a time, and must neither keep nor change their arguments.
type Gate interface {
	// FromClient judges a client's message.
	FromClient(message []byte, env *ahp.Envelope) Decision

	// FromHost judges a host's message. Env is nil if the message is unreadable. Reading
	// has the view's facts, or is nil if the message has none. A gate may edit the
	// message through reading.Edit and let it pass.
	FromHost(message []byte, env *ahp.Envelope, reading *view.Reading) Decision
}

// A Chain is the gates of one connection, from the client to the host, and the view on
// which they rely. A message goes on if all gates let it pass. A message a gate
// answers does not reach the gates behind it. If a gate replaces a message, the gates
// behind it see the replacement.
type Chain struct {
	View  *view.Conn
	Gates []Gate
}

// FromClient judges a client's message, and records it in the view if it goes on.
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

// FromHost records a host's message in the view, and judges it. It also returns the
// message's reading.
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

// A passage is a message on its way through the gates.
type passage struct {
	message  []byte
	env      *ahp.Envelope
	reading  *view.Reading // nil if the message has been replaced
	replaced bool
}

// goesOn reports whether a gate lets the message, or its replacement, go on.
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

// end returns the decision about a message that passed all gates.
func (p *passage) end() Decision {
	if p.reading != nil && p.reading.Edit.Changes() {
		return Decision{Replace, p.reading.Edit.Apply(p.message)}
	}
	if p.replaced {
		return Decision{Replace, p.message}
	}
	return Decision{}
}
