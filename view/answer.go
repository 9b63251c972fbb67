package view

import (
	"slices"

	"ahprelay/ahp"
)

// answer reads the answer to a request of the client's. It reports false for
// one to a request that is not known.
func (w *walk) answer(message []byte, env *ahp.Envelope) bool {
	call, ok := w.conn.calls.take(env.ID)
	if !ok {
		return false
	}
	w.Call, w.Answers, w.Accepted = call, true, env.Result != nil
	if !w.Accepted {
		return true
	}
	m, _ := ahp.MemberOf(message, "result")
	raw, at := m.Raw, m.Offset()
	switch call.Method {
	case "initialize", "reconnect":
		w.greeted(&call, raw)
		w.carriers(raw, at)
		w.subscribed(&call, takenUp(raw, call.Resumed))
	case "subscribe":
		w.carriers(raw, at)
		w.subscribed(&call, []string{call.Channel})
	case "listSessions":
		if items, ok := ahp.MemberOf(raw, "items"); ok {
			w.each(&items, at, func(raw []byte, at, list int) {
				session := ahp.TextOf(raw, "resource")
				w.item(Summary, session, raw, nil, at, list)
				w.summary(raw, session)
			})
		}
	case "fetchTurns":
		if turns, ok := ahp.MemberOf(raw, "turns"); ok {
			r := reader{walk: w, of: call.Channel}
			for _, e := range ahp.ElementsOf(turns.Raw) {
				r.turn(e.Raw)
			}
		}
	case "createResourceWatch":
		w.has(Watch, call.URI, ahp.TextOf(raw, "channel"))
	case "openCanvas":
		if c, ok := ahp.MemberOf(raw, "canvas"); ok {
			w.has(CanvasRef, call.Channel, ahp.TextOf(c.Raw, "resource"))
		}
	case "resolveCanvasSource":
		if source, ok := ahp.MemberOf(raw, "source"); ok && ahp.IsObject(source.Raw) {
			r := reader{walk: w, of: call.Channel}
			r.raw(CanvasSource, source.Raw, at+source.Offset())
		}
	}
	return true
}

// greeted takes what a client has said of itself that the host has let in. With
// reconnect, what it declared before holds.
func (w *walk) greeted(call *Call, result []byte) {
	c := w.conn
	w.Greets, c.greeted = !c.greeted, true
	declared := (call.Method == "initialize" || call.hello.capabilities != nil) && !call.hello.unclear
	if call.Method == "initialize" {
		if m, ok := ahp.MemberOf(result, "serverSeq"); ok {
			c.host.begins(seqOf(m.Raw), call.seq)
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

// takenUp returns the subscriptions that the host goes on with, of those that the
// client resumes. A list of all channels says which; a list of snapshots too, but
// for those that come in windows; replayed actions come with what is missing.
func takenUp(result []byte, asked []string) []string {
	m := [...]ahp.Member{{Name: "missing"}, {Name: "channels"}, {Name: "snapshots"}, {Name: "windows"}}
	if !ahp.IsObject(result) || ahp.Members(result, m[:]) != nil {
		return nil
	}
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
		windows, _ := ahp.MemberOf(m[3].Raw, "items")
		among(ahp.ElementsOf(windows.Raw))
	default:
		missing, _ := ahp.Texts(m[0].Raw)
		return slices.DeleteFunc(asked, func(channel string) bool { return slices.Contains(missing, channel) })
	}
	return slices.DeleteFunc(asked, func(channel string) bool { return !slices.Contains(named, channel) })
}

// subscribed takes note of the subscriptions that the host has granted: some that
// the client has asked for, and those of which it has sent the state. The client
// may have left some since.
func (w *walk) subscribed(call *Call, granted []string) {
	for _, item := range w.Items {
		if item.Kind == Snapshot {
			granted = append(granted, item.Channel)
		}
	}
	for _, channel := range granted {
		if channel != "" && !slices.Contains(call.left, channel) {
			w.conn.subscribe(channel)
			w.Granted = append(w.Granted, channel)
		}
	}
}
