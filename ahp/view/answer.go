package view

import (
	"slices"

	"ahprelay/ahp"
)

// answer reads the response to a client's request. It returns false if the request is
// unknown.
func (w *walk) answer(message []byte, env *ahp.Envelope) bool {
	call, ok := w.conn.calls.pop(env.ID)
	if !ok {
		return false
	}
	w.Call, w.Answers, w.Accepted = call, true, env.Result != nil
	if !w.Accepted {
		return true
	}
	result, _ := ahp.MemberOf(message, "result")
	r := reader{walk: w, of: call.Channel}
	switch call.Method {
	case "initialize", "reconnect":
		w.greeted(&call, result.Raw)
		w.carriers(result)
		w.subscribed(&call, takenUp(result.Raw, call.Resumed))
	case "subscribe":
		w.carriers(result)
		w.subscribed(&call, []string{call.Channel})
	case "listSessions":
		items, _ := ahp.MemberOf(result.Raw, "items")
		each(items, func(item ahp.Member) { w.summary(ahp.TextOf(item.Raw, "resource"), item.Raw) })
	case "fetchTurns":
		r.follow(saysTurns, result.Raw)
	case "createResourceWatch":
		r.of = call.URI
		r.has(Watch, ahp.TextOf(result.Raw, "channel"))
	case "moveChat":
		r.movedTo(ahp.TextOf(result.Raw, "session"))
	case "openCanvas":
		r.follow(saysCanvases, result.Raw)
	case "resolveCanvasSource":
		if source, _ := ahp.MemberOf(message, "result", "source"); ahp.IsObject(source.Raw) {
			r.part(CanvasSource, source)
		}
	}
	return true
}

// movedTo reads the response to moveChat, whose channel is the chat. The chat belongs to
// this session alone.
func (r *reader) movedTo(session string) {
	chat := r.of
	if !isURI(session) {
		return
	}
	for _, owner := range r.conn.host.Owners(chat) {
		if r.of = owner; owner != r.conn.host.key(session) {
			r.say(Fact{Kind: HasNot, Thing: Chat, URI: chat, At: -1})
		}
	}
	r.of = session
	r.has(Chat, chat)
}

// greeted records that the host has accepted a client's initialize or reconnect. After a
// reconnect without capabilities, the client's earlier declaration stays valid.
func (w *walk) greeted(call *Call, result []byte) {
	c := w.conn
	w.Greets, c.greeted = !c.greeted, true
	c.hello.clientID = call.hello.clientID
	declared := (call.Method == "initialize" || call.hello.capabilities != nil) && !call.hello.unclear
	if call.Method == "initialize" {
		if seq := ahp.RawOf(result, "serverSeq"); seq != nil {
			c.host.begins(ahp.IntegerOf(seq), call.seq)
		}
		c.host.commandsBegin(ahp.TextOf(result, "terminalCommandPrefix"))
	}
	c.client = clientKey{c.subject, call.hello.clientID}
	before, known := c.host.greet(c.client, call.hello, declared)
	switch {
	case declared:
		c.hello, c.known, c.earlier = call.hello, true, false
	case known && call.Method == "reconnect":
		c.hello, c.known, c.earlier = before, true, true
	}
}

// takenUp returns the subscriptions of a reconnect that the host continues. If the result
// has a list of channels, that list names them. If the result has snapshots, takenUp
// returns only the windowed channels, because subscribed adds the channels with a
// snapshot. A replay names the missing channels instead.
func takenUp(result []byte, asked []string) []string {
	m := [...]ahp.Member{{Name: "missing"}, {Name: "channels"}, {Name: "snapshots"}, {Name: "windows"}}
	if !ahp.IsObject(result) || ahp.Members(result, m[:]) != nil {
		return nil
	}
	asked = slices.Clone(asked) // the reading of the request has the same list
	var named []string
	among := func(list []ahp.Member) {
		for i := range list {
			if ahp.TextOf(list[i].Raw, "kind") != "missing" {
				named = append(named, ahp.TextOf(list[i].Raw, "channel"))
			}
		}
	}
	switch {
	case !ahp.IsNone(m[1].Raw):
		among(ahp.ElementsOf(m[1].Raw))
	case !ahp.IsNone(m[2].Raw):
		among(ahp.ElementsOf(ahp.RawOf(m[3].Raw, "items")))
	default:
		missing, _ := ahp.Texts(m[0].Raw)
		return slices.DeleteFunc(asked, func(channel string) bool { return slices.Contains(missing, channel) })
	}
	return slices.DeleteFunc(asked, func(channel string) bool { return !slices.Contains(named, channel) })
}

// subscribed records subscriptions: the channels in granted, and the channels whose state
// is in the message. It leaves out channels from which the client has unsubscribed since
// the request.
func (w *walk) subscribed(call *Call, granted []string) {
	for _, channel := range append(granted, w.Stated...) {
		if channel != "" && !slices.Contains(call.left, channel) {
			w.conn.subscribe(channel)
			w.Granted = append(w.Granted, channel)
		}
	}
}
