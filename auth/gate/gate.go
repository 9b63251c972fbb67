package gate

import (
	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

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

// A Gate stands between a client and the host on one connection. Its methods
// are not called at once. They must not keep or change what they are given.
type Gate interface {
	// FromClient judges a message of the client's.
	FromClient(message []byte, env *ahp.Envelope) Decision

	// FromHost judges a message of the host's. Env is nil for one that cannot
	// be read. Said is what it says; nil: nothing that decides about anything. A
	// gate may change the message by said.Edit, and let it pass.
	FromHost(message []byte, env *ahp.Envelope, said *view.Reading) Decision
}

// A Chain are the gates of one connection, from the client to the host, and the
// view by which they decide. A message goes on if all of them let it. One that
// a gate has answered is not shown to those behind it; one that a gate has
// replaced is, as it is now.
type Chain struct {
	View  *view.Conn
	Gates []Gate
}

// FromClient judges a message of the client's, and takes note of it if it goes
// on.
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

// FromHost takes note of a message of the host's, and judges it. It returns what
// the message says, too.
func (c *Chain) FromHost(message []byte, env *ahp.Envelope) (Decision, *view.Reading) {
	p := passage{message: message, env: env}
	if env != nil {
		p.said = c.View.FromHost(message, env)
	}
	said := p.said
	for i := len(c.Gates) - 1; i >= 0; i-- {
		d := c.Gates[i].FromHost(p.message, p.env, p.said)
		if !p.goesOn(&d) {
			return d, said
		}
	}
	if env != nil && env.Kind == ahp.Request {
		c.View.Asked(env)
	}
	return p.end(), said
}

// A passage is a message on its way through gates.
type passage struct {
	message  []byte
	env      *ahp.Envelope
	said     *view.Reading // nil for one that has been replaced
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
		*p = passage{message: d.Message, env: &env, replaced: true}
		return true
	}
	return false
}

// end is what becomes of a message that all gates let pass.
func (p *passage) end() Decision {
	if p.said != nil && p.said.Edit.Changes() {
		return Decision{Replace, p.said.Edit.Apply(p.message)}
	}
	if p.replaced {
		return Decision{Replace, p.message}
	}
	return Decision{}
}
