package gate

import (
	"strings"

	"ahprelay/ahp"
)

// What belongs to a channel in reach is learnt from what the host says on it:
// the chats of a session, its changesets, canvases and MCP servers, the
// terminals of a chat's tools. Only the places below count, where hosts put
// what is theirs. Actions with an origin are a client's words, which hosts
// repeat, and teach nothing.

// Members of states and of actions that name channels.
const (
	inChats = iota
	inDefaultChat
	inChat
	inSummary
	inChangesets
	inCanvases
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
	inInstance
	inChannel
)

func names() [inChannel + 1]ahp.Member {
	return [...]ahp.Member{
		inChats: {Name: "chats"}, inDefaultChat: {Name: "defaultChat"}, inChat: {Name: "chat"}, inSummary: {Name: "summary"},
		inChangesets: {Name: "changesets"}, inCanvases: {Name: "openCanvases"},
		inCustomizations: {Name: "customizations"}, inCustomization: {Name: "customization"},
		inAnnotations: {Name: "annotations"}, inWaiting: {Name: "inputNeeded"}, inWaitingOne: {Name: "request"},
		inTurns: {Name: "turns"}, inActiveTurn: {Name: "activeTurn"}, inPart: {Name: "part"},
		inContent: {Name: "content"}, inResult: {Name: "result"}, inInstance: {Name: "instanceId"}, inChannel: {Name: "channel"},
	}
}

// teaches is a cheap look at an action: whether learnFrom may learn anything
// from it. Most actions are a few words of a text.
func teaches(action []byte) (may bool) {
	ahp.Values(action, func(key, value []byte) bool {
		switch string(key) {
		case "defaultChat", "chat", "channel", "instanceId":
			may = true
		case "chats", "summary", "changesets", "openCanvases", "customizations", "customization", "annotations",
			"inputNeeded", "request", "turns", "activeTurn", "part", "content", "result":
			may = value[0] == '{' || value[0] == '['
		}
		return !may
	})
	return may
}

// learnFrom learns from the state of a channel in reach, or from an action of
// the host's own on it.
func (r *reach) learnFrom(channel string, raw []byte) {
	m := names()
	if raw == nil || ahp.Members(raw, m[:]) != nil {
		return
	}
	t := teacher{r, channel}
	for _, e := range elements(m[inChats].Raw) {
		t.named(e.Raw, "resource")
	}
	t.uri(m[inDefaultChat].Raw)
	t.uri(m[inChat].Raw)
	t.named(m[inChat].Raw, "resource")
	t.named(m[inSummary].Raw, "resource")
	for _, e := range elements(m[inChangesets].Raw) {
		r.learnTemplate(text(e.Raw, "uriTemplate"), channel)
	}
	for _, e := range elements(m[inCanvases].Raw) {
		t.named(e.Raw, "channel")
	}
	for _, e := range elements(m[inCustomizations].Raw) {
		t.customization(e.Raw)
	}
	t.customization(m[inCustomization].Raw)
	t.named(m[inAnnotations].Raw, "resource")
	for _, e := range elements(m[inWaiting].Raw) {
		t.named(e.Raw, "chat")
	}
	t.named(m[inWaitingOne].Raw, "chat")
	t.mcp(m[inChannel].Raw)
	t.turns(&m)
	if instance, ok := ahp.Text(m[inInstance].Raw); ok && strings.HasPrefix(channel, "ahp-canvas:") {
		r.learn("ahp-canvas-content:/"+instance, channel)
	}
}

// turns learns from a chat: the terminals of tools.
func (t teacher) turns(m *[inChannel + 1]ahp.Member) {
	for _, e := range elements(m[inTurns].Raw) {
		t.turn(e.Raw)
	}
	t.turn(m[inActiveTurn].Raw)
	t.part(m[inPart].Raw)
	t.content(m[inContent].Raw)
	if content, ok := member(m[inResult].Raw, "content"); ok {
		t.content(content.Raw)
	}
}

// A teacher is a channel whose state is read.
type teacher struct {
	*reach
	channel string
}

// uri learns a URI that stands for itself.
func (t teacher) uri(raw []byte) {
	if uri, ok := ahp.Text(raw); ok {
		t.learn(uri, t.channel)
	}
}

// named learns a member of an object.
func (t teacher) named(object []byte, name string) { t.learn(text(object, name), t.channel) }

// customization learns the channel of an MCP server, and of those in a
// container.
func (t teacher) customization(raw []byte) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "children"}}
	if raw == nil || ahp.Members(raw, m[:]) != nil {
		return
	}
	t.mcp(m[0].Raw)
	for _, e := range elements(m[1].Raw) {
		if channel, ok := member(e.Raw, "channel"); ok {
			t.mcp(channel.Raw)
		}
	}
}

// mcp learns a channel if it is one of MCP.
func (t teacher) mcp(raw []byte) {
	if uri, ok := ahp.Text(raw); ok && strings.HasPrefix(uri, mcpScheme) {
		t.learn(uri, t.channel)
	}
}

func (t teacher) turn(raw []byte) {
	parts, ok := member(raw, "responseParts")
	if !ok {
		return
	}
	for _, e := range elements(parts.Raw) {
		t.part(e.Raw)
	}
}

func (t teacher) part(raw []byte) {
	call, ok := member(raw, "toolCall")
	if !ok {
		return
	}
	if content, ok := member(call.Raw, "content"); ok {
		t.content(content.Raw)
	}
}

// content takes the terminals among what a tool has made for a hint: a tool
// may be a client's, so its state must say the same.
func (t teacher) content(raw []byte) {
	for _, e := range elements(raw) {
		if text(e.Raw, "type") == "terminal" {
			t.hint(text(e.Raw, "resource"))
		}
	}
}

// learnTerminals learns from the root's list of terminals those that are for
// what is in reach.
func (r *reach) learnTerminals(list []byte) {
	for _, e := range elements(list) {
		r.learnTerminal(text(e.Raw, "resource"), e.Raw)
	}
}

// learnTerminal learns a terminal, if its state or its entry in a list says
// that it is for what is in reach, and reports whether it does.
func (r *reach) learnTerminal(uri string, state []byte) bool {
	claim, ok := member(state, "claim")
	if !ok || text(claim.Raw, "kind") != "session" {
		return false
	}
	for _, owner := range []string{text(claim.Raw, "session"), text(claim.Raw, "chat")} {
		if r.allows(owner) {
			r.learn(uri, owner)
			return true
		}
	}
	return false
}

// learnEnvelope learns from {channel, action, origin?}, if it is in reach.
func (r *reach) learnEnvelope(raw []byte) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "action"}, {Name: "origin"}}
	if ahp.Members(raw, m[:]) != nil || m[1].Raw == nil || !ahp.IsNone(m[2].Raw) {
		return
	}
	if channel, ok := ahp.Text(m[0].Raw); ok && channel != rootChannel && r.allows(channel) {
		r.learnFrom(channel, m[1].Raw)
	}
}

// learnSnapshot learns from {resource, state}, if it is in reach.
func (r *reach) learnSnapshot(raw []byte) {
	m := [...]ahp.Member{{Name: "resource"}, {Name: "state"}}
	if ahp.Members(raw, m[:]) != nil {
		return
	}
	if channel, ok := ahp.Text(m[0].Raw); ok && channel != rootChannel && r.allows(channel) {
		r.learnFrom(channel, m[1].Raw)
	}
}
