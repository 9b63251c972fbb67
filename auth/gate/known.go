package gate

import (
	"bytes"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// What a client with limited channels may see of each kind of message of a host.

// Parts of messages.
var (
	snapshot = about("resource",
		object{"resource": plain, "state": whole, "fromSeq": plain}.seen,
		object{"resource": plain, "state": rootState.seen, "fromSeq": plain}.seen)
	envelope = about("channel",
		object{"channel": plain, "action": whole, "serverSeq": plain, "origin": whole, "rejectionReason": plain}.seen,
		object{"channel": plain, "action": oneOf("type", rootActions), "serverSeq": plain, "origin": whole, "rejectionReason": plain}.seen)
	summary  = about("resource", sessionSummary.seen, never)
	terminal = about("resource", whole, never)

	// A list has of a session what AHP defines, and no member that a host adds some
	// day: that may be about other sessions.
	sessionSummary = object{
		"resource": plain, "provider": plain, "title": plain, "status": plain, "activity": plain, "createdAt": plain, "modifiedAt": plain,
		"origin": flat, "project": flat, "workingDirectories": each(plain), "workingDirectory": plain, "repositories": each(flat),
		"annotations": flat, "changes": flat, "model": flat, "agent": flat, "defaultChat": plain, "_meta": whole,
		"isRead": plain, "isArchived": plain, "isDone": plain,
		"chats": each(object{
			"resource": plain, "title": plain, "status": plain, "activity": plain, "modifiedAt": plain, "origin": flat, "parentChat": plain,
			"interactivity": plain, "workingDirectories": each(plain),
		}.seen),
	}

	// Of the root anybody may see which agents there are, since no client can do
	// without, and the terminals in reach.
	rootState   = object{"agents": whole, "activeSessions": zero, "terminals": each(terminal)}
	rootActions = map[string]object{
		"root/agentsChanged":    {"type": plain, "agents": whole},
		"root/terminalsChanged": {"type": plain, "terminals": each(terminal)},
	}

	// A channel of a reconnect.
	resumed = object{"kind": plain, "channel": known, "actions": each(envelope), "snapshot": snapshot}.seen

	limits  = object{"windowBytes": plain, "maximumFrameBytes": plain, "maximumMessageBytes": plain}.seen
	control = object{"clientReceive": limits, "hostReceive": limits}.seen
	windows = object{"items": each(object{"channel": known, "recovery": plain, "flowControl": control}.seen)}.seen

	failure = object{"code": plain, "message": plain, "data": orNull(object{
		"supportedVersions": each(plain),
		"bytes":             plain, "limit": plain, // of what is too long to pass
	}.seen)}.seen
)

// results are those of the requests that a client may ask. Of all others the
// results have nothing that may be seen. What may be about nothing but what was
// asked for is whole.
var results = map[string]object{
	"initialize": {
		"protocolVersion": plain, "serverSeq": plain, "snapshots": each(snapshot),
		"serverInfo":                  object{"name": plain, "title": plain, "version": plain}.seen,
		"completionTriggerCharacters": each(plain), "terminalCommandPrefix": plain,
	},
	"reconnect": {
		"protocolVersion": plain, "serverSeq": plain, "type": plain, "actions": each(envelope), "missing": each(known),
		"snapshots": each(snapshot), "channels": each(resumed), "windows": windows,
	},
	"subscribe":    {"snapshot": orNull(snapshot), "flowControl": control},
	"listSessions": {"items": each(summary), "nextCursor": plain},

	"fetchTurns":               {"turns": whole, "turnsNextCursor": plain, "nextCursor": plain, "hasMore": plain},
	"completions":              {"items": whole},
	"moveChat":                 {"session": plain},
	"invokeChangesetOperation": {"message": whole, "followUp": whole},
	"runAutomation":            {"resource": plain},

	"resourceRead":        {"data": whole, "encoding": plain, "contentType": plain},
	"resourceList":        {"entries": whole},
	"resourceResolve":     {"uri": plain, "type": plain, "size": plain, "mtime": plain, "ctime": plain, "contentType": plain, "etag": plain},
	"createResourceWatch": {"channel": plain},
	"canvasReadResource":  {"contents": whole},
}

// notes are the params of the notifications of hosts, which are on a channel in
// reach or, if rootNotes has them, on the root. Nobody has asked for channel/frame,
// which carries anything, but on raw connections.
var notes = map[string]shape{
	"action": envelope,

	"root/sessionAdded":          object{"channel": plain, "summary": summary}.seen,
	"root/sessionRemoved":        object{"channel": plain, "session": reached}.seen,
	"root/sessionSummaryChanged": object{"channel": plain, "session": reached, "changes": sessionSummary.seen}.seen,
	"root/progress": object{
		"channel": plain, "progressToken": plain, "progress": plain, "total": plain, "message": plain,
		"session": reached, "chat": reached, "resource": reached, "uri": reached, "source": reached, "automation": reached,
	}.seen,

	"channel/frame":    onTCP(object{"channel": plain, "data": plain, "final": plain}.seen),
	"channel/credit":   object{"channel": plain, "consumedBytes": plain}.seen,
	"channel/ready":    object{"channel": plain}.seen,
	"channel/reset":    object{"channel": plain, "reason": plain}.seen,
	"channel/snapshot": object{"channel": plain, "snapshot": snapshot}.seen,
	"tcp/data":         object{"channel": plain, "data": plain}.seen,
	"tcp/eof":          object{"channel": plain}.seen,

	"auth/required":      object{"channel": plain, "resource": plain, "reason": plain}.seen,
	"otlp/exportLogs":    object{"channel": plain, "resourceLogs": whole}.seen,
	"otlp/exportTraces":  object{"channel": plain, "resourceSpans": whole}.seen,
	"otlp/exportMetrics": object{"channel": plain, "resourceMetrics": whole}.seen,
}

// rootNotes are those that may be seen on the root.
var rootNotes = []string{"action", "root/progress", "root/sessionAdded", "root/sessionRemoved", "root/sessionSummaryChanged"}

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

// wire are the members of messages, beside the one that says something.
func wire(key string, of shape) object {
	o := object{"jsonrpc": plain, "id": plain, "method": plain, "channel": plain}
	o[key] = of
	return o
}

// plainAction begins actions as most hosts write them.
const plainAction = `{"jsonrpc":"2.0","method":"action","params":`

// usual is the cheap look at an action: whether it has no members but those
// that are known, as their lengths tell.
func usual(message []byte, env *ahp.Envelope) bool {
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

// answer leaves of an answer what may be seen, and reports whether that is
// anything. What an MCP server answers is its own.
func (s *sight) answer(message []byte, env *ahp.Envelope, call *view.Call) bool {
	key, of := "result", shape(results[call.Method].seen)
	if env.Result == nil {
		key, of = "error", failure
	}
	if strings.HasPrefix(call.Channel, mcpScheme) && !mcpMethods[call.Method].basic || string(env.Result) == "null" {
		of = whole
	}
	return wire(key, of).seen(s, ahp.Member{Raw: message})
}

// note leaves of a notification what may be seen, and reports whether that is
// anything.
func (s *sight) note(message []byte, env *ahp.Envelope) bool {
	params := notes[string(env.Method)]
	if params == nil {
		if !bytes.HasPrefix(env.Channel, []byte(mcpScheme)) || !slices.Contains(mcpNotes, string(env.Method)) {
			return false
		}
		params = whole
	}
	return wire("params", params).seen(s, ahp.Member{Raw: message})
}
