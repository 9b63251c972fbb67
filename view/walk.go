package view

import (
	"bytes"
	"strings"

	"ahprelay/ahp"
)

// Channels and schemes that have a meaning of their own.
const (
	rootChannel   = "ahp-root://"
	canvasScheme  = "ahp-canvas:"
	contentScheme = "ahp-canvas-content:"
	mcpScheme     = "mcp:"
)

// An Item is a part of a message that carries state.
type Item struct {
	Kind    ItemKind
	Channel string
	Raw     []byte // the whole of it
	Body    []byte // the state, or the action
	Place   Place  // of Raw
	List    int    // the array that it stands in, an index of [Reading.Lists]; -1: none
}

// An ItemKind tells what an [Item] is.
type ItemKind uint8

// The kinds of items.
const (
	Snapshot ItemKind = iota + 1 // {resource, state, fromSeq}
	Action                       // {channel, action, serverSeq, origin?, rejectionReason?}
	Replay                       // {kind, channel, actions | snapshot}: a channel of a reconnect; its items follow
	Summary                      // {resource, …}: a session of a list
	Unclear                      // one that may hold any of these, and can be read in more than one way
)

// A List is an array of items in a message.
type List struct {
	Place Place
	Items []Place
}

// A Reading is what a message of the host's says.
type Reading struct {
	Call     Call     // that a response answers
	Answers  bool     // it answers one that is known
	Accepted bool     // and grants it
	Greets   bool     // it is the first that lets the client in
	Granted  []string // subscriptions that it grants
	Anew     bool     // it has a list of states: of channels that are not in it, what was said before does not hold
	Items    []Item
	Lists    []List
	Facts    []Fact

	// Lost says that not all could be read: there was no room, or it can be read
	// in more than one way.
	Lost bool

	// Edit changes the message.
	Edit Editor
}

// A walk reads one message into a Reading.
type walk struct {
	*Reading
	conn *Conn
	seq  int64 // how far the host is, as the message says
	at   int   // where the text that is read stands in the message; in pieces: far below
}

// inPieces is where the text of a message stands that came in pieces: it
// cannot be changed there.
const inPieces = -1 << 40

func (w *walk) place(at, length int) Place { return Place{w.at + at, w.at + at + length} }

// quiet reports whether actions of a type say nothing of what is a fact,
// whatever stands in them: those that hosts send most, a few words of a text.
func quiet(kind []byte) bool {
	switch string(kind) {
	case "chat/delta", "chat/reasoning", "chat/toolCallDelta", "chat/usage", "chat/activityChanged",
		"terminal/data", "canvas/message", "session/titleChanged", "session/activityChanged":
		return true
	}
	return false
}

// concerns is the cheap look at an action: whether it may say anything that is
// a fact.
func concerns(said *ahp.Said) (may bool) {
	switch {
	case said.Action == nil: // it is not clear which it is
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
			"backgroundWork", "work", "toolInput":
			may = value[0] == '{' || value[0] == '[' || value[0] == 'n'
		case "type":
			may = bytes.IndexByte(value, '\\') >= 0 || bytes.HasPrefix(value, []byte(`"chat/canvasesC`))
		}
		return !may
	})
	return may
}

// message reads a message of the host's. Offset is where it stands.
func (w *walk) message(message []byte, env *ahp.Envelope) {
	params := func() (raw []byte, at int) {
		m, _ := ahp.MemberOf(message, "params")
		return m.Raw, m.Offset()
	}
	switch string(env.Method) {
	case "action":
		raw, at := params()
		w.action(raw, at, -1)
	case "channel/snapshot":
		raw, at := params()
		w.carriers(raw, at)
	case "channel/frame":
		raw, at := params()
		w.carriers(raw, at)
		w.frame(env)
	case "channel/reset":
		w.conn.frames.drop(string(env.Channel))
		delete(w.conn.subscribed, string(env.Channel))
	case "root/sessionAdded":
		if m, ok := ahp.MemberOf(env.Params, "summary"); ok {
			w.summary(m.Raw, ahp.TextOf(m.Raw, "resource"))
		}
	case "root/sessionSummaryChanged":
		if m, ok := ahp.MemberOf(env.Params, "changes"); ok {
			w.summary(m.Raw, ahp.TextOf(env.Params, "session"))
		}
	case "root/sessionRemoved":
		w.fact(Fact{Kind: SessionGone, Of: ahp.TextOf(env.Params, "session"), At: -1})
	}
}

// frame puts a message together that comes in pieces.
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
	at := w.at
	w.at = inPieces
	w.message(whole, &inner)
	w.at = at
}

// carriers reads the members that carry state: of a result, of the params of a
// notification, or of one channel of a reconnect.
func (w *walk) carriers(raw []byte, at int) {
	m := [...]ahp.Member{{Name: "snapshot"}, {Name: "snapshots"}, {Name: "actions"}, {Name: "channels"}, {Name: "serverSeq"}}
	if !ahp.IsObject(raw) {
		return
	}
	if ahp.Members(raw, m[:]) != nil {
		w.Lost = true
		w.item(Unclear, "", raw, nil, at, -1)
		return
	}
	w.reaches(m[4].Raw)
	if !ahp.IsNone(m[0].Raw) {
		w.snapshot(m[0].Raw, at+m[0].Offset(), -1)
	}
	w.Anew = w.Anew || m[1].Raw != nil
	w.each(&m[1], at, w.snapshot)
	w.each(&m[2], at, w.action)
	w.each(&m[3], at, w.replay)
}

// each calls f with each element of an array, where it stands, and which list
// it is one of.
func (w *walk) each(array *ahp.Member, at int, f func(raw []byte, at, list int)) {
	list := ahp.ElementsOf(array.Raw)
	if len(list) == 0 {
		return
	}
	start := at + array.Offset()
	l := List{Place: w.place(start, len(array.Raw))}
	for i := range list {
		l.Items = append(l.Items, w.place(start+list[i].Offset(), len(list[i].Raw)))
	}
	number := len(w.Lists)
	w.Lists = append(w.Lists, l)
	for i := range list {
		f(list[i].Raw, start+list[i].Offset(), number)
	}
}

// replay reads {kind, channel, actions | snapshot} of a reconnect.
func (w *walk) replay(raw []byte, at, list int) {
	w.item(Replay, ahp.TextOf(raw, "channel"), raw, nil, at, list)
	w.carriers(raw, at)
}

// item notes a part of the message.
func (w *walk) item(kind ItemKind, channel string, raw, body []byte, at, list int) {
	w.Items = append(w.Items, Item{kind, channel, raw, body, w.place(at, len(raw)), list})
}

// snapshot reads {resource, state, fromSeq}.
func (w *walk) snapshot(raw []byte, at, list int) {
	m := [...]ahp.Member{{Name: "resource"}, {Name: "state"}, {Name: "fromSeq"}}
	if !ahp.IsObject(raw) || ahp.Members(raw, m[:]) != nil {
		w.Lost = w.Lost || !ahp.IsNone(raw)
		w.item(Snapshot, "", raw, nil, at, list)
		return
	}
	channel, _ := ahp.Text(m[0].Raw)
	w.item(Snapshot, channel, raw, m[1].Raw, at, list)
	w.reaches(m[2].Raw)
	if ahp.IsObject(m[1].Raw) && channel != "" {
		r := reader{walk: w, of: channel, seq: seqOf(m[2].Raw)}
		r.state(m[1].Raw, at+m[1].Offset())
	}
}

// action reads {channel, action, serverSeq, origin?, rejectionReason?}. What the
// host has rejected says nothing, and a client's words little.
func (w *walk) action(raw []byte, at, list int) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "action"}, {Name: "origin"}, {Name: "rejectionReason"}}
	if !ahp.IsObject(raw) || ahp.Members(raw, m[:]) != nil {
		w.Lost = true
		w.item(Action, "", raw, nil, at, list)
		return
	}
	channel, _ := ahp.Text(m[0].Raw)
	w.item(Action, channel, raw, m[1].Raw, at, list)
	var seq int64
	if s, ok := ahp.MemberOf(raw, "serverSeq"); ok {
		w.reaches(s.Raw)
		seq = seqOf(s.Raw)
	}
	if !ahp.IsObject(m[1].Raw) || channel == "" || !ahp.IsNone(m[3].Raw) {
		return
	}
	r := reader{walk: w, of: channel, seq: seq}
	if !ahp.IsNone(m[2].Raw) {
		r.moves(m[1].Raw)
		return
	}
	r.own = true
	r.action(m[1].Raw, at+m[1].Offset())
}

// seqOf reads a serverSeq; 0 for what is none.
func seqOf(raw []byte) int64 {
	said := ahp.Said{ServerSeq: raw}
	seq, _ := said.Seq()
	return seq
}

// reaches takes note of how far the host is.
func (w *walk) reaches(raw []byte) { w.seq = max(w.seq, seqOf(raw)) }

// summary reads what a list says of a session.
func (w *walk) summary(raw []byte, session string) {
	if session == "" {
		return
	}
	m, _ := ahp.MemberOf(raw, "chats")
	for _, e := range ahp.ElementsOf(m.Raw) {
		w.has(Chat, session, ahp.TextOf(e.Raw, "resource"))
	}
	if m, ok := ahp.MemberOf(raw, "defaultChat"); ok {
		uri, _ := ahp.Text(m.Raw)
		w.has(Chat, session, uri)
	}
}

func (w *walk) fact(f Fact) { w.Facts = append(w.Facts, f) }

// has notes what belongs to a channel, if that can be a URI.
func (w *walk) has(what What, of, uri string) {
	if isURI(uri) {
		w.fact(Fact{Kind: Has, What: what, Of: of, URI: uri, At: -1})
	}
}

// maxURI bounds the URIs that are known, in bytes.
const maxURI = 4096

// isURI reports whether a text can be a URI of something that belongs to a
// channel: the root does to none.
func isURI(text string) bool {
	return len(text) <= maxURI && text != rootChannel && strings.Contains(text, ":")
}
