package gate

import (
	"bytes"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/view"
)

// What a client with limited reach may get of a host, as far as it is known: what
// a host adds some day may be about anything, and does not pass.

// wire are the members of messages.
var wire = []string{"jsonrpc", "id", "method", "params", "channel", "result", "error"}

// results are the members of answers that may be about nothing but the
// connection, what was asked for, or what is in reach. Of all others that a
// client may ask, the answers have none.
var results = map[string][]string{
	"initialize":   {"protocolVersion", "serverSeq", "serverInfo", "snapshots", "completionTriggerCharacters", "terminalCommandPrefix"},
	"reconnect":    {"protocolVersion", "serverSeq", "type", "actions", "missing", "snapshots", "channels", "windows"},
	"subscribe":    {"snapshot", "flowControl"},
	"listSessions": {"items", "nextCursor"},

	"fetchTurns":               {"turns", "turnsNextCursor", "nextCursor", "hasMore"},
	"completions":              {"items"},
	"moveChat":                 {"session"},
	"invokeChangesetOperation": {"message", "followUp"},
	"runAutomation":            {"resource"},

	"resourceRead":        {"data", "encoding", "contentType"},
	"resourceList":        {"entries"},
	"resourceResolve":     {"uri", "type", "size", "mtime", "ctime", "contentType", "etag"},
	"createResourceWatch": {"channel"},
	"canvasReadResource":  {"contents"},
}

// notes are the notifications of hosts, by the members of their params.
var notes = map[string][]string{
	"action": {"channel", "action", "serverSeq", "origin", "rejectionReason"},

	"root/sessionAdded":          {"channel", "summary"},
	"root/sessionRemoved":        {"channel", "session"},
	"root/sessionSummaryChanged": {"channel", "session", "changes"},
	"root/progress":              {"channel", "progressToken", "progress", "total", "message", "session", "chat"},

	"channel/frame":    {"channel", "data", "final", "frame", "actions"},
	"channel/credit":   {"channel", "consumedBytes"},
	"channel/ready":    {"channel"},
	"channel/reset":    {"channel", "reason"},
	"channel/snapshot": {"channel", "snapshot"},
	"tcp/data":         {"channel", "data"},
	"tcp/eof":          {"channel"},

	"auth/required":      {"channel", "resource", "reason"},
	"otlp/exportLogs":    {"channel", "resourceLogs"},
	"otlp/exportTraces":  {"channel", "resourceSpans"},
	"otlp/exportMetrics": {"channel", "resourceMetrics"},
}

// mcpNotes are those of MCP servers, on mcp:// channels: a server's own words,
// and not the host's.
var mcpNotes = []string{
	"notifications/tools/list_changed", "notifications/resources/list_changed", "notifications/prompts/list_changed",
	"notifications/resources/updated", "notifications/message", "notifications/progress", "notifications/cancelled",
}

// asks are the requests of hosts, and of MCP servers.
var asks = []string{
	"ping", "resourceRead", "resourceList", "resourceResolve", "resourceWrite", "resourceCopy", "resourceMove", "resourceDelete",
	"resourceMkdir", "resourceRequest", "createResourceWatch", "canvasOpen", "canvasInvokeAction", "canvasInvokeOperation",
	"canvasClose", "sampling/createMessage", "vscode/requestWorkspaceTrust",
}

// plainAction begins actions as most hosts write them.
const plainAction = `{"jsonrpc":"2.0","method":"action","params":`

// plain is the cheap look at an action: whether it has no members but those
// that are known, as their lengths tell.
func plain(message []byte, env *ahp.Envelope) bool {
	said := &env.Said
	if said.Action == nil {
		return false
	}
	length := len(`{"channel":"","action":}`) + len(env.Channel) + len(said.Action)
	if said.ServerSeq != nil {
		length += len(`,"serverSeq":`) + len(said.ServerSeq)
	}
	if said.Origin != nil {
		length += len(`,"origin":`) + len(said.Origin)
	}
	return len(env.Params) == length && len(message) == len(plainAction)+length+len(`}`) && bytes.HasPrefix(message, []byte(plainAction))
}

// knownNote leaves of a notification what is known, and says whether it is
// known at all.
func knownNote(e *view.Editor, message []byte, env *ahp.Envelope) bool {
	if plain(message, env) {
		return true
	}
	if names, ok := notes[string(env.Method)]; ok {
		return onlyKnown(e, message, "params", names)
	}
	return bytes.HasPrefix(env.Channel, []byte(mcpScheme)) && slices.Contains(mcpNotes, string(env.Method)) &&
		keepMembers(e, ahp.Member{Raw: message}, wire)
}

// knownResult leaves of the answer to a request what is known. What an MCP
// server answers is its own.
func knownResult(e *view.Editor, message []byte, call *view.Call) bool {
	if strings.HasPrefix(call.Channel, mcpScheme) && !mcpMethods[call.Method].basic {
		return keepMembers(e, ahp.Member{Raw: message}, wire)
	}
	return onlyKnown(e, message, "result", results[call.Method])
}

// onlyKnown leaves in a message, and in one member of it, which is an object or
// null, what is known. It reports whether they can be read.
func onlyKnown(e *view.Editor, message []byte, key string, names []string) bool {
	m, ok := ahp.MemberOf(message, key)
	if !ok || !keepMembers(e, ahp.Member{Raw: message}, wire) {
		return false
	}
	return string(m.Raw) == "null" || keepMembers(e, m, names)
}

// keepMembers leaves the members of an object that have a name among those, and
// reports whether it is one that can be read.
func keepMembers(e *view.Editor, object ahp.Member, names []string) bool {
	list, err := ahp.AllMembers(object.Raw)
	if err != nil {
		return false
	}
	e.Keep(places(list, object), func(i int) bool { return slices.Contains(names, list[i].Name) })
	return true
}
