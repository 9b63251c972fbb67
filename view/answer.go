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
	m, _ := member(message, "result")
	raw, at := m.Raw, m.Offset()
	switch call.Method {
	case "initialize", "reconnect":
		w.greeted(&call, raw)
		w.carriers(raw, at)
		w.subscribed(&call, missing(raw))
	case "subscribe":
		w.carriers(raw, at)
		call.resumed = []string{call.Channel}
		w.subscribed(&call, nil)
	case "listSessions":
		if items, ok := member(raw, "items"); ok {
			w.each(&items, at, func(raw []byte, at, list int) {
				session := text(raw, "resource")
				w.item(Summary, session, raw, nil, at, list)
				w.summary(raw, session)
			})
		}
	case "fetchTurns":
		if turns, ok := member(raw, "turns"); ok {
			r := reader{walk: w, of: call.Channel}
			for _, e := range elements(turns.Raw) {
				r.turn(e.Raw)
			}
		}
	case "createResourceWatch":
		w.has(Watch, call.URI, text(raw, "channel"))
	case "openCanvas":
		if c, ok := member(raw, "canvas"); ok {
			w.has(CanvasRef, call.Channel, text(c.Raw, "resource"))
		}
	case "resolveCanvasSource":
		if source, ok := member(raw, "source"); ok && isObject(source.Raw) {
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
		if m, ok := member(result, "serverSeq"); ok {
			c.host.begins(seqOf(m.Raw), call.seq)
		}
	}
	if declared {
		c.hello, c.known, c.earlier = call.hello, true, false
		c.host.remember(c.subject, call.hello)
	} else if before, ok := c.host.recall(c.subject, call.hello.clientID); ok && call.Method == "reconnect" {
		c.hello, c.known, c.earlier = before, true, true
	}
}

// missing returns the channels that a client cannot resume.
func missing(result []byte) (list []string) {
	m := [...]ahp.Member{{Name: "missing"}, {Name: "channels"}}
	if !isObject(result) || ahp.Members(result, m[:]) != nil {
		return nil
	}
	list, _ = ahp.Texts(m[0].Raw)
	for _, e := range elements(m[1].Raw) {
		if text(e.Raw, "kind") == "missing" {
			list = append(list, text(e.Raw, "channel"))
		}
	}
	return list
}

// subscribed takes note of the subscriptions that the host has granted: those
// that the client has asked for and are not missing, and those of which it
// has sent the state. The client may have left some since.
func (w *walk) subscribed(call *Call, missing []string) {
	granted := slices.DeleteFunc(call.resumed, func(channel string) bool { return slices.Contains(missing, channel) })
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
