package gate

import (
	"slices"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// What a client with limited reach gets of what the host says: see [shape]. Who may
// see the root gets all of it, but for the parts of answers and snapshots that are
// on channels out of reach.

// response makes the answer to a request of the client's fit. Of what answers none
// that is known, only the error passes that is about what could not be read.
func (r *reach) response(message []byte, env *ahp.Envelope, said *view.Reading) Decision {
	own := new(view.Reading)
	if said == nil {
		if env.Error == nil || string(env.ID) != "null" {
			return Decision{Verdict: Answer}
		}
		said = own
	}
	opens := opens[said.Call.Method] && env.Result != nil
	if channel := said.Call.Channel; opens && said.Call.Method == "subscribe" && channel != rootChannel {
		if no := r.judgeURI(channel); no != nil { // it was only hinted at, and is somebody else's
			return Decision{Replace, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
		}
	}
	s := sight{r, &said.Edit, said.Call.Resumed, r.root}
	if r.root && !opens || s.answer(message, env, &said.Call) {
		return changed(own, message)
	}
	return Decision{Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "the host's answer cannot be read, so that it is not known what may be seen of it", nil)}
}

// changed is the decision about a message that a reading which nobody else has
// may change.
func changed(own *view.Reading, message []byte) Decision {
	if own.Edit.Changes() {
		return Decision{Replace, own.Edit.Apply(message)}
	}
	return Decision{}
}

// notification decides about a notification of the host's.
func (r *reach) notification(message []byte, env *ahp.Envelope, said *view.Reading) Decision {
	method, allowed := string(env.Method), r.allowsNext(env.Channel)
	carries := method == "channel/snapshot" || method == "channel/frame"
	switch {
	case method == "root/progress" && !r.root && !r.given(env.Params):
		return Decision{Verdict: Answer}
	case !allowed && (string(env.Channel) != rootChannel || !slices.Contains(rootNotes, method)):
		return Decision{Verdict: Answer}
	case allowed && (r.root && !carries || usual(message, env)):
		return Decision{}
	}
	own := new(view.Reading)
	if said == nil {
		said = own
	}
	s := sight{reach: r, edit: &said.Edit, all: r.root}
	if !s.note(message, env) {
		return Decision{Verdict: Answer}
	}
	return changed(own, message)
}

// request says why a request of the host's may not pass: a known one about the
// connection or the client itself may.
func (r *reach) request(env *ahp.Envelope) *refusal {
	switch {
	case !r.root && !slices.Contains(asks, string(env.Method)):
		return noAsk
	case env.Channel == nil || string(env.Channel) == rootChannel:
		return nil
	}
	return r.judgeURI(string(env.Channel))
}
