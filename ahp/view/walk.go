package view

import (
	"bytes"
	"strings"

	"ahprelay/ahp"
)

// Channels and schemes with special meanings.
const (
	canvasScheme  = "ahp-canvas:"
	contentScheme = "ahp-canvas-content:"
)

// A Reading holds a host message's facts.
type Reading struct {
	Call     Call     // answered by this response
	Answers  bool     // Call is known
	Accepted bool     // the response has a result, not an error
	Greets   bool     // this response is the first that accepts the client
	Granted  []string // granted subscriptions
	Anew     bool     // the message has a list of snapshots, so facts about other channels are no longer valid
	Stated   []string // channels whose complete state is in the message
	Facts    []Fact

	// Lost is true if a part was not read, because it is ambiguous or there was no
	// room.
	Lost bool

	// Edit collects changes to the message.
	Edit Editor

	// Asks are requests the host-agent sends on this connection besides the client's:
	// see [Reading.Ask].
	Asks []Ask
}

// A walk reads one message into a Reading.
type walk struct {
	*Reading
	conn   *Conn
	seq    int64 // the message's highest serverSeq
	pieces bool  // the message came in frames, and cannot be edited
}

// quiet reports whether actions of a type never have facts. Hosts send such actions
// most often.
func quiet(kind []byte) bool {
	switch string(kind) {
	case "chat/delta", "chat/reasoning", "chat/toolCallDelta", "chat/usage", "chat/activityChanged",
		"terminal/data", "canvas/message", "session/titleChanged", "session/activityChanged":
		return true
	}
	return false
}

// concerns reports whether an action may have facts, without parsing it.
func concerns(said *ahp.Said) (may bool) {
	switch {
	case said.Action == nil: // ambiguous
		return true
	case quiet(said.Type):
		return false
	}
	session := said.MayBeOf("session/")
	ahp.Values(said.Action, func(key, value []byte) bool {
		switch string(key) {
		case "defaultChat", "chat", "channel", "claim", "instanceId", "contentUri", "url":
			may = true
		case "id", "enabled", "enablement":
			may = session
		case "chats", "summary", "changesets", "openCanvases", "canvases", "canvas", "customizations", "customization",
			"annotations", "inputNeeded", "request", "turns", "activeTurn", "part", "content", "result", "terminals",
			"backgroundWork", "work", "toolInput", "edits", "options", "file", "files":
			may = value[0] == '{' || value[0] == '[' || value[0] == 'n'
		case "type":
			may = bytes.IndexByte(value, '\\') >= 0 || bytes.HasPrefix(value, []byte(`"chat/canvasesC`))
		}
		return !may
	})
	return may
}

func (w *walk) message(message []byte, env *ahp.Envelope) {
	params, _ := ahp.MemberOf(message, "params")
	switch string(env.Method) {
	case "action":
		w.action(params)
	case "channel/snapshot":
		w.carriers(params)
	case "channel/frame":
		w.carriers(params)
		w.frame(env)
	case "channel/reset":
		w.conn.frames.drop(string(env.Channel))
		delete(w.conn.subscribed, string(env.Channel))
	case "root/sessionAdded":
		w.summary(ahp.TextOf(params.Raw, "summary", "resource"), ahp.RawOf(params.Raw, "summary"))
	case "root/sessionSummaryChanged":
		session, changes := ahp.TextOf(params.Raw, "session"), ahp.RawOf(params.Raw, "changes")
		w.summary(session, changes)
		w.catalogue(session, changes)
	case "root/sessionRemoved":
		w.fact(Fact{Kind: SessionGone, Of: ahp.TextOf(params.Raw, "session"), At: -1})
	}
}

// frame joins a message that comes in frames.
func (w *walk) frame(env *ahp.Envelope) {
	whole, lost := w.conn.frames.add(env.Params)
	w.Lost = w.Lost || lost
	if whole == nil {
		return
	}
	inner, err := ahp.Peek(whole)
	if err != nil || !bytes.Equal(inner.Channel, env.Channel) || strings.HasPrefix(string(inner.Method), "channel/f") {
		w.Lost = true
		return
	}
	w.pieces = true
	w.message(whole, &inner)
}

// members reads an object's members, with their places in the message; ok is false if
// it is unreadable.
func (w *walk) members(object ahp.Member, want []ahp.Member) (ok bool) {
	if !ahp.IsObject(object.Raw) || ahp.Members(object.Raw, want) != nil {
		w.Lost = w.Lost || !ahp.IsNone(object.Raw)
		return false
	}
	for i := range want {
		want[i] = want[i].In(object)
	}
	return true
}

// carriers reads the members that contain states: in a result, in a notification's
// params, or in an entry of reconnect's channels.
func (w *walk) carriers(object ahp.Member) {
	m := [...]ahp.Member{{Name: "snapshot"}, {Name: "snapshots"}, {Name: "actions"}, {Name: "channels"}, {Name: "serverSeq"}}
	if !w.members(object, m[:]) {
		return
	}
	w.reaches(m[4].Raw)
	w.snapshot(m[0])
	w.Anew = w.Anew || !ahp.IsNone(m[1].Raw)
	each(m[1], w.snapshot)
	each(m[2], w.action)
	each(m[3], w.carriers)
}

// each calls f with each element of an array and its place in the message.
func each(array ahp.Member, f func(ahp.Member)) {
	for _, e := range ahp.ElementsOf(array.Raw) {
		f(e.In(array))
	}
}

func (w *walk) snapshot(snapshot ahp.Member) {
	m := [...]ahp.Member{{Name: "resource"}, {Name: "state"}, {Name: "fromSeq"}}
	if !w.members(snapshot, m[:]) {
		return
	}
	w.reaches(m[2].Raw)
	channel, _ := ahp.Text(m[0].Raw)
	w.Stated = append(w.Stated, channel)
	if ahp.IsObject(m[1].Raw) && channel != "" {
		r := reader{walk: w, of: channel, seq: ahp.IntegerOf(m[2].Raw)}
		r.state(m[1])
	}
}

// action reads {channel, action, serverSeq, origin?, rejectionReason?}. A rejected
// action has no facts, and a client's action has few.
func (w *walk) action(envelope ahp.Member) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "action"}, {Name: "origin"}, {Name: "rejectionReason"}}
	if !w.members(envelope, m[:]) {
		return
	}
	channel, _ := ahp.Text(m[0].Raw)
	r := reader{walk: w, of: channel}
	if seq, ok := ahp.MemberOf(envelope.Raw, "serverSeq"); ok {
		w.reaches(seq.Raw)
		r.seq = ahp.IntegerOf(seq.Raw)
	}
	switch {
	case !ahp.IsObject(m[1].Raw), channel == "", !ahp.IsNone(m[3].Raw):
	case !ahp.IsNone(m[2].Raw):
		r.moves(m[1])
	default:
		r.own = true
		r.action(m[1])
	}
}

// reaches takes over a serverSeq if it is the highest so far.
func (w *walk) reaches(raw []byte) { w.seq = max(w.seq, ahp.IntegerOf(raw)) }

func (w *walk) summary(session string, raw []byte) {
	if session != "" {
		r := reader{walk: w, of: session}
		r.follow(saysSummary, raw)
	}
}

// catalogue reads the member chats in the changes of a session's summary. It lists all
// chats of the session.
func (w *walk) catalogue(session string, changes []byte) {
	if chats, ok := ahp.MemberOf(changes, "chats"); ok && session != "" {
		r := reader{walk: w, of: session}
		r.list(Chat, chats.Raw, "resource")
	}
}

func (w *walk) fact(f Fact) { w.Facts = append(w.Facts, f) }

// maxURI bounds the URIs in facts, in bytes.
const maxURI = 4096

// isURI reports whether a text can be the URI of a thing that belongs to a channel.
// The root's URI cannot.
func isURI(text string) bool {
	return len(text) <= maxURI && text != ahp.RootChannel && strings.Contains(text, ":")
}
