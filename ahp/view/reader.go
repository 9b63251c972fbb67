package view

import (
	"strings"

	"ahprelay/ahp"
)

// These trees list the paths to the URIs of facts, in a channel's state or in an action of
// the host itself. A path consists of member names; [] stands for all elements of an array,
// and [type] for the elements with this type.
var (
	says = tree(append([]rule{
		{Chat, "chats[] chats[].resource defaultChat defaultChat.resource chat chat.resource summary.resource inputNeeded[].chat request.chat"},
		{Changeset, "changesets[].uriTemplate"},
		{Channel, "annotations.resource"},
		{Server, "channel customizations[].channel customizations[].children[].channel customization.channel customization.children[].channel"},
		{Hint, "backgroundWork[].terminal work.terminal"},
		{FileText, sidesOf("files[].edit.", "file.edit.")},
	}, ofTools(callPaths...)...)).calls(callPaths...)

	// Further paths in a state: the session's working directories.
	saysState = tree([]rule{{Folder, "workingDirectories[] workingDirectory summary.workingDirectories[] summary.workingDirectory"}})

	// Paths in a session's entry in a list.
	saysSummary = tree([]rule{{Chat, "chats[].resource defaultChat"}, {Folder, "workingDirectories[] workingDirectory"}})

	saysTurns = tree(ofTools("turns[].responseParts[].toolCall."))

	// Before AHP 0.10, a session's member canvases lists the available canvases, which have
	// no resource.
	saysCanvases = tree([]rule{{CanvasRef, "canvases[].resource canvas.resource"}})
)

// A rule assigns a kind to the URIs at some paths.
type rule struct {
	thing Thing
	paths string
}

// callPaths are the paths to tool calls, or to their members.
var callPaths = []string{"turns[].responseParts[].toolCall.", "activeTurn.responseParts[].toolCall.", "inputNeeded[].toolCall.", "request.toolCall.", "part.toolCall.", "", "result."}

// ofTools returns the rules for tool calls. Tools, possibly those of a client, produce
// the content of tool calls. So a terminal there is only a hint, and the terminal's own
// claim shows its owner. Readable content counts only for tools of the host.
func ofTools(calls ...string) (list []rule) {
	for _, call := range calls {
		list = append(list, rule{Hint, call + "content[terminal].resource"}, rule{Content, call + "content[terminal].result.fullOutput.uri " + call + "toolInput.uri"},
			rule{FileText, sidesOf(call+"content[fileEdit].", call+"edits.items[].")})
	}
	return list
}

// sidesOf returns the paths of the contents before and after the edits at some paths.
func sidesOf(edits ...string) (paths string) {
	for _, edit := range edits {
		paths += edit + "before.content.uri " + edit + "after.content.uri "
	}
	return paths
}

// A node is a place in a state or action, with the places below it.
type node struct {
	says    []Thing
	names   []string // names of an object's members
	members []*node  // the node of each member
	kind    string   // the type that an object must have; "": any
	call    bool     // it may be a tool call
	each    []*node  // nodes for an array's elements, one for each type
}

func tree(rules []rule) *node {
	root := new(node)
	for _, r := range rules {
		for path := range strings.FieldsSeq(r.paths) {
			n := root.at(path)
			n.says = append(n.says, r.thing)
		}
	}
	return root
}

func (n *node) at(path string) *node {
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' }) {
		name, kind, array := strings.Cut(name, "[")
		if n = n.member(name); array {
			n = n.element(strings.TrimSuffix(kind, "]"))
		}
	}
	return n
}

func (n *node) member(name string) *node {
	for i, known := range n.names {
		if known == name {
			return n.members[i]
		}
	}
	n.names, n.members = append(n.names, name), append(n.members, new(node))
	return n.members[len(n.members)-1]
}

// element returns the node for an array's elements with a type.
func (n *node) element(kind string) *node {
	for _, known := range n.each {
		if known.kind == kind {
			return known
		}
	}
	n.each = append(n.each, &node{kind: kind})
	return n.each[len(n.each)-1]
}

// calls marks the nodes that may be tool calls.
func (n *node) calls(paths ...string) *node {
	for _, path := range paths {
		n.at(strings.TrimSuffix(path, ".")).call = true
	}
	return n
}

// A reader reads a channel's state, or an action.
type reader struct {
	*walk
	of    string // the channel
	seq   int64
	own   bool
	their bool // inside the call of a client's tool
}

// follow walks through a value along the paths below a node. It adds a fact for each URI
// at the end of a path, and for the options of each tool call. An unreadable object sets
// Lost. Each type of JSON has its branch.
func (r *reader) follow(n *node, raw []byte) {
	if raw == nil {
		return
	}
	switch {
	case raw[0] == '[' && n.each != nil:
		for _, e := range ahp.ElementsOf(raw) {
			for _, of := range n.each {
				r.follow(of, e.Raw)
			}
		}
	case raw[0] == '{' && n.names != nil && (n.kind == "" || ahp.TextOf(raw, "type") == n.kind):
		if n.call {
			r.offers(raw)
		}
		var list [24]ahp.Member
		m := list[:len(n.names)]
		for i, name := range n.names {
			m[i].Name = name
		}
		if ahp.Members(raw, m) != nil {
			r.Lost = true
			return
		}
		for i := range m {
			their := r.their
			r.their = their || n.names[i] == "toolCall" && !isHosts(m[i].Raw)
			r.follow(n.members[i], m[i].Raw)
			r.their = their
		}
	case raw[0] == '"' && n.says != nil:
		uri, _ := ahp.Text(raw)
		for _, thing := range n.says {
			if thing != Content && thing != FileText || !r.their {
				r.has(thing, uri)
			}
		}
	}
}

func (r *reader) offers(call []byte) {
	m := [...]ahp.Member{{Name: "toolCallId"}, {Name: "options"}}
	if ahp.Members(call, m[:]) != nil {
		r.Lost = true
		return
	}
	id, _ := ahp.Text(m[0].Raw)
	options, ok := ahp.Elements(m[1].Raw)
	if id == "" || len(id) > maxURI || !ok {
		return
	}
	f := Fact{Kind: Offers, URI: id, At: -1}
	for _, option := range options {
		f.List = append(f.List, ahp.TextOf(option.Raw, "id"))
	}
	r.say(f)
}

// isHosts reports whether a tool call uses a tool of the host itself.
func isHosts(call []byte) bool {
	m := [...]ahp.Member{{Name: "contributor"}}
	return ahp.IsObject(call) && ahp.Members(call, m[:]) == nil && ahp.IsNone(m[0].Raw)
}

func (r *reader) say(f Fact) {
	f.Of, f.Own, f.when.seq = r.of, r.own, r.seq
	r.fact(f)
}

// has adds a URI that belongs to the channel, if it is valid.
func (r *reader) has(thing Thing, uri string) {
	if isURI(uri) && (thing != Server || strings.EqualFold(uri[:min(len(uri), len(ahp.MCPScheme))], ahp.MCPScheme)) {
		r.say(Fact{Kind: Has, Thing: thing, URI: uri, At: -1})
	}
}

// part adds a fact that a part of the message describes.
func (r *reader) part(kind Kind, m ahp.Member) {
	at := m.Offset()
	if r.pieces {
		at = -1
	}
	r.say(Fact{Kind: kind, Raw: m.Raw, At: at})
}

// about adds a fact about a customization.
func (r *reader) about(kind Kind, id string, raw []byte) {
	if id != "" {
		r.say(Fact{Kind: kind, URI: id, Raw: raw, At: -1})
	}
}

// Indexes of members with rules of their own.
const (
	inType = iota
	inID
	inChats
	inChat
	inOpenCanvases
	inCanvases
	inCanvas
	inCustomizations
	inCustomization
	inTurns
	inClaim
	inTerminals
	inInstance
	inCount
)

// members returns the members with these indexes from a state or an action; ok is false if
// whole is unreadable.
func (r *reader) members(whole ahp.Member) (m [inCount]ahp.Member, ok bool) {
	for i, name := range [inCount]string{
		"type", "id", "chats", "chat", "openCanvases", "canvases", "canvas", "customizations", "customization", "turns", "claim", "terminals", "instanceId",
	} {
		m[i].Name = name
	}
	if ahp.Members(whole.Raw, m[:]) != nil {
		r.Lost = true
		return m, false
	}
	for i := range m {
		m[i] = m[i].In(whole)
	}
	return m, true
}

func (r *reader) state(whole ahp.Member) {
	m, ok := r.members(whole)
	if !ok || r.root(&m) {
		return
	}
	if r.isCanvas() {
		r.canvas(whole)
		return
	}
	r.part(Customizations, m[inCustomizations])
	if m[inChats].Raw != nil {
		r.list(Chat, m[inChats].Raw, "resource")
	}
	r.common(whole.Raw, &m, m[inTurns].Raw != nil)
	r.follow(saysState, whole.Raw)
}

// action reads an action of the host itself. Each type of action with facts has its
// branch.
func (r *reader) action(whole ahp.Member) {
	m, ok := r.members(whole)
	kind, _ := ahp.Text(m[inType].Raw)
	if !ok || quiet([]byte(kind)) || r.root(&m) {
		return
	}
	id, _ := ahp.Text(m[inID].Raw)
	switch kind {
	case "session/chatRemoved":
		uri := uriOf(m[inChat].Raw, "resource")
		if isURI(uri) {
			r.say(Fact{Kind: HasNot, Thing: Chat, URI: uri, At: -1})
		}
		return
	case "session/customizationsChanged":
		r.part(Customizations, m[inCustomizations])
	case "session/customizationUpdated":
		r.part(Customization, m[inCustomization])
	case "session/customizationRemoved":
		r.about(CustomizationGone, id, nil)
	case "session/mcpServerStateChanged":
		r.about(ServerIs, id, whole.Raw)
	case "canvas/stateChanged":
		if r.isCanvas() && ahp.IsObject(m[inCanvas].Raw) {
			r.canvas(m[inCanvas])
		}
	case "canvas/updated":
		if r.isCanvas() {
			r.part(CanvasChanges, whole)
		}
	default:
		r.moved(kind, id, whole.Raw)
	}
	if r.isCanvas() {
		r.instance(m[inInstance].Raw)
	}
	r.common(whole.Raw, &m, kind == "chat/canvasesChanged")
}

// root reads the claims of the terminals in the root's state. It returns true if the
// channel is the root, to which no URI belongs.
func (r *reader) root(m *[inCount]ahp.Member) bool {
	for _, e := range ahp.ElementsOf(m[inTerminals].Raw) {
		if claim, ok := ahp.MemberOf(e.Raw, "claim"); ok {
			r.claimed(Claims, ahp.TextOf(e.Raw, "resource"), claim.Raw)
		}
	}
	return r.of == ahp.RootChannel
}

// moves reads a client's action that the host has accepted. No URI gets an owner by it: such
// an action can only enable or disable customizations, and start or stop servers, which
// the host has described before, and take a terminal from its owners.
func (r *reader) moves(whole ahp.Member) {
	if m, ok := r.members(whole); ok {
		kind, _ := ahp.Text(m[inType].Raw)
		id, _ := ahp.Text(m[inID].Raw)
		r.moved(kind, id, whole.Raw)
		if kind == "terminal/claimed" && ahp.IsObject(m[inClaim].Raw) {
			r.claimed(Keeps, r.of, m[inClaim].Raw)
		}
	}
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

func (r *reader) isCanvas() bool { return strings.HasPrefix(r.of, canvasScheme) }

func (r *reader) canvas(state ahp.Member) {
	r.part(CanvasIs, state)
	r.instance(ahp.RawOf(state.Raw, "instanceId"))
}

func (r *reader) instance(raw []byte) {
	if instance, _ := ahp.Text(raw); instance != "" {
		r.has(Content, contentScheme+"/"+instance)
	}
}

// common reads the members with the same meaning in states and actions. With ofChat set,
// the member canvases is a complete list.
func (r *reader) common(raw []byte, m *[inCount]ahp.Member, ofChat bool) {
	if m[inOpenCanvases].Raw != nil {
		r.list(CanvasRef, m[inOpenCanvases].Raw, "channel")
	}
	if ofChat {
		r.list(CanvasRef, m[inCanvases].Raw, "resource")
	} else {
		r.follow(saysCanvases, raw)
	}
	r.follow(says, raw)
	if m[inClaim].Raw != nil {
		r.claimed(Claims, r.of, m[inClaim].Raw)
	}
}

func (r *reader) list(thing Thing, raw []byte, name string) {
	if !ahp.IsNone(raw) && raw[0] != '[' {
		return
	}
	f := Fact{Kind: Lists, Thing: thing, At: -1}
	for _, e := range ahp.ElementsOf(raw) {
		if uri := uriOf(e.Raw, name); isURI(uri) {
			f.List = append(f.List, uri)
		}
	}
	r.say(f)
}

// uriOf reads a URI that is a string, or an object's member.
func uriOf(raw []byte, name string) string {
	if uri, ok := ahp.Text(raw); ok {
		return uri
	}
	return ahp.TextOf(raw, name)
}

// claimed reads a terminal's owner. The fact has the kind Claims or Keeps.
func (r *reader) claimed(kind Kind, uri string, claim []byte) {
	f := Fact{Kind: kind, Thing: Terminal, URI: uri, At: -1}
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
