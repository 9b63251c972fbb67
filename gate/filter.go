package gate

import (
	"slices"

	"ahprelay/ahp"
	"ahprelay/view"
)

// What a client with limited reach gets to see of what is not on a channel of
// its own.

// fit leaves in a message what may be seen: the parts on channels in reach, and
// of the root's what anybody may see.
func (r *reach) fit(said *view.Reading) {
	shown := make([]bool, len(said.Items))
	for i := range said.Items {
		item := &said.Items[i]
		switch with := r.seen(item); {
		case with == nil && item.List < 0:
			said.Edit.Replace(item.Place, []byte("null"))
		case with != nil && &with[0] != &item.Raw[0]:
			said.Edit.Replace(item.Place, with)
			shown[i] = true
		default:
			shown[i] = with != nil
		}
	}
	for number := range said.Lists {
		var of []bool
		for i := range said.Items {
			if said.Items[i].List == number {
				of = append(of, shown[i])
			}
		}
		if slices.Contains(of, false) {
			said.Edit.Keep(said.Lists[number].Items, func(i int) bool { return of[i] })
		}
	}
}

// seen is what may be seen of a part of a message: all of it, something else in
// its place, or nothing.
func (r *reach) seen(item *view.Item) []byte {
	switch {
	case item.Kind == view.Unclear:
		return nil
	case r.allows(item.Channel):
		return item.Raw
	case item.Channel != rootChannel:
		return nil
	}
	switch item.Kind {
	case view.Snapshot:
		return r.rootSnapshot(item.Raw)
	case view.Action:
		return r.rootEnvelope(item.Raw)
	case view.Replay: // its parts follow
		return item.Raw
	}
	return nil
}

// keep returns the elements of an array that are wanted.
func keep(array []byte, wanted func(raw []byte) bool) (kept []byte) {
	kept = []byte{'['}
	for _, e := range ahp.ElementsOf(array) {
		if !wanted(e.Raw) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, e.Raw...)
	}
	return append(kept, ']')
}

// response makes the answer to a request of the client's fit.
func (r *reach) response(message []byte, env *ahp.Envelope, said *view.Reading) Decision {
	if env.Result == nil {
		return Decision{}
	}
	if !r.root && !knownResult(&said.Edit, message, &said.Call) {
		return Decision{Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "the host's answer cannot be read, so that it is not known what may be seen of it", nil)}
	}
	switch said.Call.Method {
	case "initialize", "reconnect":
		r.fit(said)
	case "subscribe":
		if channel := said.Call.Channel; channel != rootChannel {
			if no := r.judgeURI(channel); no != nil { // it was only hinted at, and is somebody else's
				return Decision{Replace, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
			}
		}
		r.fit(said)
	case "listSessions":
		if r.root {
			return Decision{}
		}
		if items, ok := ahp.MemberOf(env.Result, "items"); !ok || items.Raw[0] != '[' {
			return Decision{Replace, ahp.AppendResult(nil, env.ID, []byte(`{"items":[]}`))}
		}
		r.fit(said)
	}
	return Decision{}
}

// rootSnapshot is what anybody may see of the root's snapshot: which agents
// there are, and the terminals in reach.
func (r *reach) rootSnapshot(raw []byte) []byte {
	m := [...]ahp.Member{{Name: "state"}, {Name: "fromSeq"}}
	if ahp.Members(raw, m[:]) != nil {
		return []byte("null")
	}
	s := [...]ahp.Member{{Name: "agents"}, {Name: "terminals"}}
	agents := []byte("[]")
	var terminals []byte
	if m[0].Raw != nil && ahp.Members(m[0].Raw, s[:]) == nil {
		if s[0].Raw != nil {
			agents = s[0].Raw
		}
		if s[1].Raw != nil {
			terminals = slices.Concat([]byte(`,"terminals":`), r.terminals(s[1].Raw))
		}
	}
	seq := m[1].Raw
	if seq == nil {
		seq = []byte("0")
	}
	return slices.Concat([]byte(`{"resource":"`+rootChannel+`","state":{"agents":`), agents,
		[]byte(`,"activeSessions":0`), terminals, []byte(`},"fromSeq":`), seq, []byte("}"))
}

// terminals returns the terminals of a list that are in reach.
func (r *reach) terminals(list []byte) []byte {
	return keep(list, func(raw []byte) bool { return r.allows(ahp.TextOf(raw, "resource")) })
}

// rootActions are the actions of the root of which anybody may see something, by
// their members.
var rootActions = map[string][]string{
	"root/agentsChanged":    {"type", "agents"},
	"root/terminalsChanged": {"type", "terminals"},
}

// rootEnvelope is what anybody may see of {channel, action, serverSeq} of the
// root, nil for nothing.
func (r *reach) rootEnvelope(raw []byte) []byte {
	action, _ := ahp.MemberOf(raw, "action")
	names := rootActions[ahp.TextOf(action.Raw, "type")]
	var e view.Editor
	if names == nil || !keepMembers(&e, ahp.Member{Raw: raw}, notes["action"]) || !keepMembers(&e, action, names) {
		return nil
	}
	if list, ok := ahp.MemberOf(action.Raw, "terminals"); ok {
		at := action.Offset() + list.Offset()
		e.Replace(view.Place{At: at, End: at + len(list.Raw)}, r.terminals(list.Raw))
	}
	return e.Apply(raw)
}

// notification decides about a notification of the host's.
func (r *reach) notification(message []byte, env *ahp.Envelope, said *view.Reading) Decision {
	drop := Decision{Verdict: Answer}
	allowed := r.allowsNext(env.Channel)
	switch {
	case !allowed && string(env.Channel) != rootChannel:
		return drop
	case allowed && said != nil && slices.ContainsFunc(said.Items, r.elsewhere):
		return drop
	case allowed && r.root:
		return Decision{}
	}
	var own view.Editor
	e := &own
	if said != nil {
		e = &said.Edit
	}
	if !allowed && !r.rootNotification(e, message, env) || !knownNote(e, message, env) {
		return drop
	}
	if own.Changes() {
		return Decision{Replace, own.Apply(message)}
	}
	return Decision{}
}

// elsewhere reports whether a part of a message is on a channel out of reach,
// as no host puts it into a message that is on one in reach.
func (r *reach) elsewhere(item view.Item) bool {
	return item.Channel != "" && !r.allowsNext([]byte(item.Channel))
}

// rootNotification leaves of the root's notifications what is about sessions in
// reach, and says whether that is anything.
func (r *reach) rootNotification(e *view.Editor, message []byte, env *ahp.Envelope) bool {
	switch string(env.Method) {
	case "action":
		params, _ := ahp.MemberOf(message, "params")
		with := r.rootEnvelope(params.Raw)
		if with != nil && &with[0] != &params.Raw[0] {
			e.Replace(view.Place{At: params.Offset(), End: params.Offset() + len(params.Raw)}, with)
		}
		return with != nil
	case "root/progress": // which answers a token of the client's, or is about what it names
		_, no := judgeKeys(env.Params, progressKeys, maxNested, r.judgeURI)
		return no == nil
	case "root/sessionAdded":
		summary, _ := ahp.MemberOf(env.Params, "summary")
		return r.allows(ahp.TextOf(summary.Raw, "resource"))
	case "root/sessionRemoved", "root/sessionSummaryChanged":
		return r.allows(ahp.TextOf(env.Params, "session"))
	}
	return false
}

// progressKeys are where a progress may say what it is about.
var progressKeys = []string{"session", "chat", "resource", "uri", "source", "automation"}

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
