package gate

import (
	"bytes"
	"slices"

	"ahprelay/ahp"
)

// What a client with limited reach gets to see of what is not on a channel of
// its own.

// A rewriter replaces parts of a message, in their order, and leaves all other
// bytes alone.
type rewriter struct {
	message []byte
	out     []byte
	done    int
}

func (w *rewriter) replace(at, length int, with []byte) {
	w.out = append(append(w.out, w.message[w.done:at]...), with...)
	w.done = at + length
}

// decision is what comes of it.
func (w *rewriter) decision() Decision {
	if w.done == 0 {
		return Decision{}
	}
	return Decision{Replace, append(w.out, w.message[w.done:]...)}
}

// keep returns the elements of an array that are wanted, and whether that is
// all of them.
func keep(array []byte, wanted func(raw []byte) bool) (kept []byte, all bool) {
	list, ok := ahp.Elements(array)
	if !ok {
		return []byte("[]"), false
	}
	all = true
	kept = []byte{'['}
	for _, e := range list {
		if !wanted(e.Raw) {
			all = false
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, e.Raw...)
	}
	return append(kept, ']'), all
}

// pruned returns an array without the elements that are not wanted, nil if
// nothing is to be changed.
func pruned(array []byte, wanted func(raw []byte) bool) []byte {
	kept, all := keep(array, wanted)
	if all {
		return nil
	}
	return kept
}

// response makes the answer to a request of the client's fit.
func (r *reach) response(message []byte, env *ahp.Envelope, to request) Decision {
	if env.Result == nil {
		return Decision{}
	}
	whole, _ := member(message, "result")
	at := whole.Offset()
	w := rewriter{message: message}
	switch to.method {
	case "initialize", "reconnect":
		r.openings(&w, env.Result, at)
	case "subscribe":
		return r.subscribed(&w, env, at, to.channel)
	case "listSessions":
		r.sessions(&w, env.Result, at)
	case "createResourceWatch":
		r.learn(text(env.Result, "channel"), to.uri)
	}
	return w.decision()
}

// openings are the snapshots and actions with which a connection begins.
func (r *reach) openings(w *rewriter, result []byte, at int) {
	m := [...]ahp.Member{{Name: "snapshots"}, {Name: "actions"}}
	if ahp.Members(result, m[:]) != nil {
		w.replace(at, len(result), []byte("null"))
		return
	}
	edits := [...]func(raw []byte) []byte{r.snapshots, r.actions}
	order := [...]int{0, 1}
	if m[1].Offset() < m[0].Offset() {
		order = [...]int{1, 0}
	}
	for _, i := range order {
		if m[i].Raw == nil {
			continue
		}
		if with := edits[i](m[i].Raw); with != nil {
			w.replace(at+m[i].Offset(), len(m[i].Raw), with)
		}
	}
}

// snapshots returns the snapshots that are in reach, and the root's as far as
// it may be seen; nil if those are all.
func (r *reach) snapshots(array []byte) []byte {
	return mapped(array, func(raw []byte) []byte {
		channel := text(raw, "resource")
		switch {
		case r.allows(channel):
			r.learnSnapshot(raw)
			return raw
		case channel == rootChannel:
			return r.rootSnapshot(raw)
		}
		return nil
	})
}

// actions does the same for envelopes of actions.
func (r *reach) actions(array []byte) []byte {
	return mapped(array, func(raw []byte) []byte {
		channel := text(raw, "channel")
		switch {
		case r.allows(channel):
			r.learnEnvelope(raw)
			return raw
		case channel == rootChannel:
			return r.rootEnvelope(raw)
		}
		return nil
	})
}

// mapped returns an array with what f makes of its elements, without those of
// which it makes nil; nil if nothing is to be changed.
func mapped(array []byte, f func(raw []byte) []byte) []byte {
	list, ok := ahp.Elements(array)
	if !ok {
		return []byte("[]")
	}
	changed := false
	out := []byte{'['}
	for _, e := range list {
		with := f(e.Raw)
		changed = changed || !bytes.Equal(with, e.Raw)
		if with == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, with...)
	}
	if !changed {
		return nil
	}
	return append(out, ']')
}

// subscribed is the answer to subscribe.
func (r *reach) subscribed(w *rewriter, env *ahp.Envelope, at int, channel string) Decision {
	snapshot, ok := member(env.Result, "snapshot")
	switch {
	case channel == rootChannel && !r.allows(rootChannel):
		if ok {
			w.replace(at+snapshot.Offset(), len(snapshot.Raw), r.rootSnapshot(snapshot.Raw))
		}
		return w.decision()
	case !r.allows(channel):
		state, _ := member(snapshot.Raw, "state")
		if text(snapshot.Raw, "resource") != channel || !r.learnTerminal(channel, state.Raw) {
			no := r.judgeURI(channel)
			return Decision{Replace, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
		}
	case ok:
		r.learnSnapshot(snapshot.Raw)
	}
	return Decision{}
}

// sessions leaves in a list of sessions those in reach.
func (r *reach) sessions(w *rewriter, result []byte, at int) {
	if r.allows(rootChannel) {
		return
	}
	items, ok := member(result, "items")
	if !ok {
		w.replace(at, len(result), []byte(`{"items":[]}`))
		return
	}
	if with := pruned(items.Raw, func(raw []byte) bool { return r.allows(text(raw, "resource")) }); with != nil {
		w.replace(at+items.Offset(), len(items.Raw), with)
	}
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
	r.learnTerminals(list)
	kept, _ := keep(list, func(raw []byte) bool { return r.allows(text(raw, "resource")) })
	return kept
}

// rootEnvelope is what anybody may see of {channel, action, serverSeq} of the
// root, nil for nothing.
func (r *reach) rootEnvelope(raw []byte) []byte {
	action, _ := member(raw, "action")
	switch text(action.Raw, "type") {
	case "root/agentsChanged":
		return raw
	case "root/terminalsChanged":
		list, ok := member(action.Raw, "terminals")
		if !ok {
			return nil
		}
		w := rewriter{message: raw}
		w.replace(action.Offset()+list.Offset(), len(list.Raw), r.terminals(list.Raw))
		return w.decision().Message
	}
	return nil
}

// notification decides about a notification of the host's.
func (r *reach) notification(message []byte, env *ahp.Envelope) Decision {
	allowed := r.allowsNext(env.Channel)
	switch {
	case string(env.Channel) == rootChannel && !allowed:
		return r.rootNotification(message, env)
	case !allowed:
		return Decision{Verdict: Answer}
	case string(env.Channel) != rootChannel:
		r.learnNotification(env)
	}
	return Decision{}
}

// learnNotification learns from a notification on a channel in reach.
func (r *reach) learnNotification(env *ahp.Envelope) {
	switch string(env.Method) {
	case "action":
		if said := &env.Said; said.Action != nil && ahp.IsNone(said.Origin) && teaches(said.Action) {
			r.learnFrom(string(env.Channel), said.Action)
		}
	case "channel/frame":
		actions, _ := member(env.Params, "actions")
		for _, e := range elements(actions.Raw) {
			r.learnEnvelope(e.Raw)
		}
	case "channel/snapshot":
		snapshot, ok := member(env.Params, "snapshot")
		if ok {
			r.learnSnapshot(snapshot.Raw)
		}
	}
}

// rootNotification lets pass of the root's notifications what is about
// sessions in reach.
func (r *reach) rootNotification(message []byte, env *ahp.Envelope) Decision {
	drop := Decision{Verdict: Answer}
	session := ""
	switch string(env.Method) {
	case "action":
		params, ok := member(message, "params")
		if !ok {
			return drop
		}
		with := r.rootEnvelope(params.Raw)
		if with == nil {
			return drop
		}
		w := rewriter{message: message}
		if !bytes.Equal(with, params.Raw) {
			w.replace(params.Offset(), len(params.Raw), with)
		}
		return w.decision()
	case "root/progress": // which answers a token of the client's
		return Decision{}
	case "root/sessionAdded":
		summary, _ := member(env.Params, "summary")
		session = text(summary.Raw, "resource")
	case "root/sessionRemoved", "root/sessionSummaryChanged":
		session = text(env.Params, "session")
	}
	if r.allows(session) {
		return Decision{}
	}
	return drop
}

// request says why a request of the host's may not pass: one about the
// connection or the client itself may.
func (r *reach) request(env *ahp.Envelope) *refusal {
	if env.Channel == nil || string(env.Channel) == rootChannel {
		return nil
	}
	return r.judgeURI(string(env.Channel))
}
