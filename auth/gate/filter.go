package gate

import (
	"slices"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Filters for a client with limited channels, see [shape]. A client that may see the
// root gets everything, except response and snapshot parts on unreachable channels.

// response filters a response to a client's request. A response that matches no
// request is dropped, except the id-null error that reports an unreadable request.
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
		if no := r.judgeURI(channel); no != nil { // it was only hinted at, and belongs to a different session
			return Decision{Replace, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
		}
	}
	s := sight{r, &said.Edit, said.Call.Resumed, r.root}
	if r.root && !opens || s.answer(message, env, &said.Call) {
		return changed(own, message)
	}
	return Decision{Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "the host's response is unreadable, so its visible parts are unknown", nil)}
}

// changed returns the decision about a message with a reading of its own, which a
// filter may have edited.
func changed(own *view.Reading, message []byte) Decision {
	if own.Edit.Changes() {
		return Decision{Replace, own.Edit.Apply(message)}
	}
	return Decision{}
}

// notification decides about a host's notification.
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

// request returns why a host's request may not pass. A known request about the
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
