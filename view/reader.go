package view

import (
	"strings"

	"ahprelay/ahp"
)

// A reader reads the state of a channel, or an action on it.
type reader struct {
	*walk
	of  string // the channel
	seq int64
	own bool
}

func (r *reader) say(f Fact) {
	f.Of, f.Own, f.when.seq = r.of, r.own, r.seq
	r.fact(f)
}

// raw says something that a part of the message describes.
func (r *reader) raw(kind Kind, raw []byte, at int) {
	if r.at < 0 {
		at = -1
	} else {
		at += r.at
	}
	r.say(Fact{Kind: kind, Raw: raw, At: at})
}

// about says something of a customization.
func (r *reader) about(kind Kind, id string, raw []byte) {
	if id != "" {
		r.say(Fact{Kind: kind, URI: id, Raw: raw, At: -1})
	}
}

func (r *reader) has(what What, uri string) {
	if isURI(uri) {
		r.say(Fact{Kind: Has, What: what, URI: uri, At: -1})
	}
}

func (r *reader) hints(what What, uri string) {
	if isURI(uri) {
		r.say(Fact{Kind: Hints, What: what, URI: uri, At: -1})
	}
}

// Members of states and of actions that say something.
const (
	inType = iota
	inID
	inChats
	inDefaultChat
	inChat
	inSummary
	inChangesets
	inOpenCanvases
	inCanvases
	inCanvas
	inCustomizations
	inCustomization
	inAnnotations
	inWaiting
	inWaitingOne
	inTurns
	inActiveTurn
	inPart
	inContent
	inResult
	inToolInput
	inInstance
	inChannel
	inClaim
	inTerminals
	inBackground
	inWork
	inCount
)

func names() [inCount]ahp.Member {
	return [...]ahp.Member{
		inType: {Name: "type"}, inID: {Name: "id"},
		inChats: {Name: "chats"}, inDefaultChat: {Name: "defaultChat"}, inChat: {Name: "chat"}, inSummary: {Name: "summary"},
		inChangesets: {Name: "changesets"}, inOpenCanvases: {Name: "openCanvases"}, inCanvases: {Name: "canvases"}, inCanvas: {Name: "canvas"},
		inCustomizations: {Name: "customizations"}, inCustomization: {Name: "customization"},
		inAnnotations: {Name: "annotations"}, inWaiting: {Name: "inputNeeded"}, inWaitingOne: {Name: "request"},
		inTurns: {Name: "turns"}, inActiveTurn: {Name: "activeTurn"}, inPart: {Name: "part"},
		inContent: {Name: "content"}, inResult: {Name: "result"}, inToolInput: {Name: "toolInput"},
		inInstance: {Name: "instanceId"}, inChannel: {Name: "channel"},
		inClaim: {Name: "claim"}, inTerminals: {Name: "terminals"}, inBackground: {Name: "backgroundWork"}, inWork: {Name: "work"},
	}
}

// state reads the whole state of a channel.
func (r *reader) state(raw []byte, at int) {
	m := names()
	if ahp.Members(raw, m[:]) != nil {
		r.Lost = true
		return
	}
	switch {
	case r.root(&m):
		return
	case strings.HasPrefix(r.of, canvasScheme):
		r.canvas(CanvasIs, raw, at)
		return
	}
	r.raw(Customizations, m[inCustomizations].Raw, at+m[inCustomizations].Offset())
	if m[inChats].Raw != nil {
		r.list(Chat, m[inChats].Raw, "resource")
	}
	r.canvases(&m, m[inTurns].Raw != nil)
	r.common(&m)
}

// action reads an action of the host's own.
func (r *reader) action(raw []byte, at int) {
	m := names()
	if ahp.Members(raw, m[:]) != nil {
		r.Lost = true
		return
	}
	if kind, _ := ahp.Text(m[inType].Raw); quiet([]byte(kind)) || r.root(&m) {
		return
	}
	id, _ := ahp.Text(m[inID].Raw)
	kind, _ := ahp.Text(m[inType].Raw)
	canvas := strings.HasPrefix(r.of, canvasScheme)
	switch kind {
	case "session/chatRemoved":
		uri := m[inChat].Raw
		if c, ok := ahp.MemberOf(uri, "resource"); ok {
			uri = c.Raw
		}
		if chat, _ := ahp.Text(uri); isURI(chat) {
			r.say(Fact{Kind: HasNot, What: Chat, URI: chat, At: -1})
		}
		return
	case "session/customizationsChanged":
		r.raw(Customizations, m[inCustomizations].Raw, at+m[inCustomizations].Offset())
	case "session/customizationUpdated":
		r.raw(Customization, m[inCustomization].Raw, at+m[inCustomization].Offset())
	case "session/customizationRemoved":
		r.about(CustomizationGone, id, nil)
	case "session/mcpServerStateChanged":
		r.about(ServerIs, id, raw)
	case "canvas/stateChanged":
		if canvas && ahp.IsObject(m[inCanvas].Raw) {
			r.canvas(CanvasIs, m[inCanvas].Raw, at+m[inCanvas].Offset())
		}
	case "canvas/updated":
		if canvas {
			r.canvas(CanvasChanges, raw, at)
		}
	default:
		r.moved(kind, id, raw)
	}
	r.canvases(&m, kind == "chat/canvasesChanged")
	if instance, _ := ahp.Text(m[inInstance].Raw); instance != "" && canvas {
		r.has(Content, contentScheme+"/"+instance)
	}
	r.common(&m)
}

// root reads what is known of the terminals of all, and reports whether that is
// all there is: nothing belongs to the root.
func (r *reader) root(m *[inCount]ahp.Member) bool {
	for _, e := range ahp.ElementsOf(m[inTerminals].Raw) {
		r.claim(ahp.TextOf(e.Raw, "resource"), e.Raw)
	}
	return r.of == rootChannel
}

// moves reads an action of a client's that the host has accepted. It names
// nothing that is believed: all that a client can do is to turn on and off
// what the host has described.
func (r *reader) moves(raw []byte) {
	m := [...]ahp.Member{{Name: "type"}, {Name: "id"}}
	if ahp.Members(raw, m[:]) != nil {
		r.Lost = true
		return
	}
	kind, _ := ahp.Text(m[0].Raw)
	id, _ := ahp.Text(m[1].Raw)
	r.moved(kind, id, raw)
}

func (r *reader) moved(kind, id string, raw []byte) {
	switch kind {
	case "session/customizationToggled":
		r.about(CustomizationToggled, id, raw)
	case "session/mcpServerStartRequested":
		r.about(ServerStarts, id, nil)
	case "session/mcpServerStopRequested":
		r.about(ServerStops, id, nil)
	}
}

// canvas reads the state of a canvas, or a change of it.
func (r *reader) canvas(kind Kind, raw []byte, at int) {
	r.raw(kind, raw, at)
	if instance := ahp.TextOf(raw, "instanceId"); instance != "" {
		r.has(Content, contentScheme+"/"+instance)
	}
}

// canvases reads which canvases a session or a chat has open. A seed's session
// lists in canvases what could be opened: that has no resource.
func (r *reader) canvases(m *[inCount]ahp.Member, ofChat bool) {
	if m[inOpenCanvases].Raw != nil {
		r.list(CanvasRef, m[inOpenCanvases].Raw, "channel")
	}
	if ofChat {
		r.list(CanvasRef, m[inCanvases].Raw, "resource")
		return
	}
	for _, e := range ahp.ElementsOf(m[inCanvases].Raw) {
		r.has(CanvasRef, ahp.TextOf(e.Raw, "resource"))
	}
	r.has(CanvasRef, ahp.TextOf(m[inCanvas].Raw, "resource"))
}

// list reads a list of all of a kind that belong to the channel; none: there
// are none.
func (r *reader) list(what What, raw []byte, name string) {
	if !ahp.IsNone(raw) && raw[0] != '[' {
		return
	}
	f := Fact{Kind: Lists, What: what, At: -1}
	for _, e := range ahp.ElementsOf(raw) {
		uri, ok := ahp.Text(e.Raw)
		if !ok {
			uri = ahp.TextOf(e.Raw, name)
		}
		if isURI(uri) {
			f.List = append(f.List, uri)
		}
	}
	r.say(f)
}

// common reads the members that say the same wherever they stand.
func (r *reader) common(m *[inCount]ahp.Member) {
	r.chats(m)
	for _, e := range ahp.ElementsOf(m[inChangesets].Raw) {
		r.has(Changeset, ahp.TextOf(e.Raw, "uriTemplate"))
	}
	for _, e := range ahp.ElementsOf(m[inCustomizations].Raw) {
		r.servers(e.Raw)
	}
	r.servers(m[inCustomization].Raw)
	r.server(m[inChannel].Raw)
	r.has(Channel, ahp.TextOf(m[inAnnotations].Raw, "resource"))
	if m[inClaim].Raw != nil {
		r.claimed(r.of, m[inClaim].Raw)
	}
	r.turns(m)
}

// chats reads where the chats of a session are named.
func (r *reader) chats(m *[inCount]ahp.Member) {
	for _, e := range ahp.ElementsOf(m[inChats].Raw) {
		r.uriOr(Chat, &e, "resource")
	}
	r.uriOr(Chat, &m[inDefaultChat], "resource")
	r.uriOr(Chat, &m[inChat], "resource")
	r.has(Chat, ahp.TextOf(m[inSummary].Raw, "resource"))
	for _, e := range ahp.ElementsOf(m[inWaiting].Raw) {
		r.has(Chat, ahp.TextOf(e.Raw, "chat"))
	}
	r.has(Chat, ahp.TextOf(m[inWaitingOne].Raw, "chat"))
}

// uriOr reads a URI that stands for itself, or that a member of an object is.
func (r *reader) uriOr(what What, m *ahp.Member, name string) {
	uri, ok := ahp.Text(m.Raw)
	if !ok {
		uri = ahp.TextOf(m.Raw, name)
	}
	r.has(what, uri)
}

// servers reads the channel of an MCP server, and of those in a container.
func (r *reader) servers(raw []byte) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "children"}}
	if !ahp.IsObject(raw) || ahp.Members(raw, m[:]) != nil {
		return
	}
	r.server(m[0].Raw)
	for _, e := range ahp.ElementsOf(m[1].Raw) {
		if channel, ok := ahp.MemberOf(e.Raw, "channel"); ok {
			r.server(channel.Raw)
		}
	}
}

func (r *reader) server(raw []byte) {
	if uri, ok := ahp.Text(raw); ok && strings.HasPrefix(strings.ToLower(uri[:min(len(uri), len(mcpScheme))]), mcpScheme) {
		r.has(Server, uri)
	}
}

// claim reads whose a terminal is, of an object with a claim.
func (r *reader) claim(uri string, raw []byte) {
	if claim, ok := ahp.MemberOf(raw, "claim"); ok && uri != "" {
		r.claimed(uri, claim.Raw)
	}
}

func (r *reader) claimed(uri string, claim []byte) {
	f := Fact{Kind: Claims, What: Terminal, URI: uri, At: -1}
	if ahp.TextOf(claim, "kind") == "session" {
		for _, name := range []string{"session", "chat"} {
			if owner := ahp.TextOf(claim, name); isURI(owner) {
				f.List = append(f.List, owner)
			}
		}
	}
	if isURI(uri) {
		r.say(f)
	}
}

// turns reads a chat: what its tools and its background work name.
func (r *reader) turns(m *[inCount]ahp.Member) {
	for _, e := range ahp.ElementsOf(m[inTurns].Raw) {
		r.turn(e.Raw)
	}
	r.turn(m[inActiveTurn].Raw)
	r.part(m[inPart].Raw)
	r.content(m[inContent].Raw, true)
	if content, ok := ahp.MemberOf(m[inResult].Raw, "content"); ok {
		r.content(content.Raw, true)
	}
	r.has(Content, ahp.TextOf(m[inToolInput].Raw, "uri"))
	for _, e := range ahp.ElementsOf(m[inBackground].Raw) {
		r.hints(Terminal, ahp.TextOf(e.Raw, "terminal"))
	}
	r.hints(Terminal, ahp.TextOf(m[inWork].Raw, "terminal"))
}

func (r *reader) turn(raw []byte) {
	parts, ok := ahp.MemberOf(raw, "responseParts")
	if !ok {
		return
	}
	for _, e := range ahp.ElementsOf(parts.Raw) {
		r.part(e.Raw)
	}
}

func (r *reader) part(raw []byte) {
	call, ok := ahp.MemberOf(raw, "toolCall")
	if !ok {
		return
	}
	m := [...]ahp.Member{{Name: "content"}, {Name: "toolInput"}, {Name: "contributor"}}
	if !ahp.IsObject(call.Raw) || ahp.Members(call.Raw, m[:]) != nil {
		return
	}
	own := ahp.IsNone(m[2].Raw) // a tool of the host's
	r.content(m[0].Raw, own)
	if own {
		r.has(Content, ahp.TextOf(m[1].Raw, "uri"))
	}
}

// content reads what a tool has made. It may be a client's tool: terminals are
// hints, whose own state must say the same, and where the whole output is to
// be read counts only if the tool is the host's.
func (r *reader) content(raw []byte, own bool) {
	for _, e := range ahp.ElementsOf(raw) {
		if ahp.TextOf(e.Raw, "type") != "terminal" {
			continue
		}
		r.hints(Terminal, ahp.TextOf(e.Raw, "resource"))
		if result, ok := ahp.MemberOf(e.Raw, "result"); ok && own {
			if output, ok := ahp.MemberOf(result.Raw, "fullOutput"); ok {
				r.has(Content, ahp.TextOf(output.Raw, "uri"))
			}
		}
	}
}
