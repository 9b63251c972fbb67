package gate

import (
	"fmt"

	"ahprelay/ahp"
)

// An Authority is the gate of a client that may not do everything: see the
// package documentation. [Policy.Gate] makes it.
type Authority struct {
	policy Policy
	seq    sequence
	reach  *reach    // nil: all channels
	asked  *requests // of the host, without an answer; nil: all answers may pass
	calls  requests  // of the client, without an answer
}

func newAuthority(p Policy, families *Families) *Authority {
	a := &Authority{policy: p}
	if len(p.Channels) > 0 {
		a.reach = newReach(p.Channels, families, p.SharedFiles)
	}
	if !p.Writes() {
		a.asked = new(requests)
	}
	return a
}

// FromClient implements [Gate].
func (a *Authority) FromClient(_ []byte, env *ahp.Envelope) Decision {
	if env.Kind == ahp.Response {
		return a.answered(env)
	}
	if no := a.judge(env); no != nil {
		return a.refuse(env, no)
	}
	if env.Kind == ahp.Request && (a.reach != nil || opens[string(env.Method)]) {
		if no := a.calls.add(env); no != nil {
			return a.refuse(env, no)
		}
	}
	a.seq.fromClient(env)
	return Decision{}
}

// opens are the requests whose answers say how far the host is.
var opens = map[string]bool{"initialize": true, "reconnect": true, "subscribe": true}

// A refusal is why a request may not pass.
type refusal struct {
	code   int
	reason string
}

func no(format string, args ...any) *refusal {
	return &refusal{ahp.CodePermissionDenied, fmt.Sprintf(format, args...)}
}

// Reasons of refusals.
var (
	noAccess = no("this token may look and not change anything")
	noMethod = no("this token does not allow this method")
	noCase   = no("a key that is read stands here in another case too")
	noWord   = no("unknown method: a token that may not do everything allows only what is known")
)

// judge says why a message of the client's may not pass, nil if it may.
func (a *Authority) judge(env *ahp.Envelope) *refusal {
	m, known := methodOf(env)
	switch {
	case env.Misspelt:
		return noCase
	case !a.policy.Writes() && known && !m.reads, !a.policy.allowsSome():
		return noAccess
	case !known && (!a.policy.Writes() || a.reach != nil):
		return noWord
	case !m.basic && !a.policy.allowsMethod(string(env.Method)):
		return noMethod
	case a.reach == nil:
		return nil
	}
	return a.reach.judge(m.where, env)
}

// refuse answers a request; of notifications, dispatchAction has an answer of
// its own.
func (a *Authority) refuse(env *ahp.Envelope, no *refusal) Decision {
	switch {
	case env.Kind == ahp.Request:
		return Decision{Answer, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
	case string(env.Method) == "dispatchAction":
		return Decision{Answer, a.seq.takeBack(env, no.reason)}
	}
	return Decision{Verdict: Answer}
}

// FromHost implements [Gate].
func (a *Authority) FromHost(message []byte, env *ahp.Envelope) Decision {
	if env == nil {
		if a.reach != nil {
			return Decision{Verdict: Answer}
		}
		return Decision{}
	}
	switch env.Kind {
	case ahp.Response:
		return a.response(message, env)
	case ahp.Request:
		return a.asks(env)
	}
	a.seq.notification(env)
	if a.reach == nil {
		return Decision{}
	}
	return a.reach.notification(message, env)
}

// response decides about an answer of the host's.
func (a *Authority) response(message []byte, env *ahp.Envelope) Decision {
	call, known := a.calls.take(env.ID)
	if opens[call.method] && env.Result != nil {
		a.seq.result(env.Result)
	}
	switch {
	case a.reach == nil:
		return Decision{}
	case !known && env.Error == nil: // what it answers decides about it
		return Decision{Verdict: Answer}
	}
	return a.reach.response(message, env, call)
}

// Answered takes note that the host does not get a request which has passed
// here: a gate behind this one has answered it.
func (a *Authority) Answered(id []byte) { a.calls.take(id) }

// asks decides about a request of the host's.
func (a *Authority) asks(env *ahp.Envelope) Decision {
	if a.reach != nil {
		if no := a.reach.request(env); no != nil {
			return Decision{Answer, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
		}
	}
	if a.asked != nil {
		a.asked.remember(env) // an answer to what is not noted grants nothing
	}
	return Decision{}
}

// answers are the requests of hosts that a client which only reads may answer:
// true if only where its policy says that it may be asked for its files.
var answers = map[string]bool{
	"ping": false, "resourceRead": true, "resourceList": true, "resourceResolve": true,
}

// answered decides about an answer of the client's: one that may grant
// something is replaced by a refusal.
func (a *Authority) answered(env *ahp.Envelope) Decision {
	if env.Misspelt { // it may be a request
		return Decision{Replace, ahp.AppendError(nil, env.ID, noCase.code, noCase.reason, nil)}
	}
	if a.asked == nil {
		return Decision{}
	}
	call, known := a.asked.take(env.ID)
	if env.Error != nil {
		return Decision{}
	}
	if files, ok := answers[call.method]; known && ok && (!files || a.policy.Reverse) {
		return Decision{}
	}
	return Decision{Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "the client may only read", nil)}
}
