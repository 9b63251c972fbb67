package gate

import (
	"bytes"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Shapes for a host's messages: the parts that a client with limited channels may see.

// Message parts.
var (
	snapshot = about("resource",
		object{"resource": plain, "state": whole, "fromSeq": plain}.seen,
		object{"resource": plain, "state": rootState.seen, "fromSeq": plain}.seen)
	envelope = about("channel",
		object{"channel": plain, "action": whole, "serverSeq": plain, "origin": whole, "rejectionReason": plain}.seen,
		object{"channel": plain, "action": oneOf("type", rootActions), "serverSeq": plain, "origin": whole, "rejectionReason": plain}.seen)
	summary  = about("resource", sessionSummary.seen, never)
	terminal = about("resource", whole, never)

	// A session in a list has only the members that AHP defines. A later version's
	// member could be about different sessions.
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

	// Every client needs the root's agents. It also sees the terminals in reach.
	rootState   = object{"agents": whole, "activeSessions": zero, "terminals": each(terminal)}
	rootActions = map[string]object{
		"root/agentsChanged":    {"type": plain, "agents": whole},
		"root/terminalsChanged": {"type": plain, "terminals": each(terminal)},
	}

	// a reconnect's channel.
	resumed = object{"kind": plain, "channel": known, "actions": each(envelope), "snapshot": snapshot}.seen

	limits  = object{"windowBytes": plain, "maximumFrameBytes": plain, "maximumMessageBytes": plain}.seen
	control = object{"clientReceive": limits, "hostReceive": limits}.seen
	windows = object{"items": each(object{"channel": known, "recovery": plain, "flowControl": control}.seen)}.seen

	failure = object{"code": plain, "message": plain, "data": orNull(object{
		"supportedVersions": each(plain),
		"bytes":             plain, "limit": plain, // of a message above the size limit
	}.seen)}.seen
)

// results are the result shapes that a client may see. Any other request's result has
// no visible members. A part is whole if it can only be about the requested channel.
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

// notes are the params of a host's notifications on a channel in reach or, if
// rootNotes has the method, on the root. channel/frame, which carries anything, is
// used only on raw connections.
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

// rootNotes are the notifications that a client may see on the root.
var rootNotes = []string{"action", "root/progress", "root/sessionAdded", "root/sessionRemoved", "root/sessionSummaryChanged"}

// mcpNotes are the notifications on mcp:// channels. They are an MCP server's
// messages, not the host's.
var mcpNotes = []string{
	"notifications/tools/list_changed", "notifications/resources/list_changed", "notifications/prompts/list_changed",
	"notifications/resources/updated", "notifications/message", "notifications/progress", "notifications/cancelled",
}

// asks are hosts' and MCP servers' requests.
var asks = []string{
	"ping", "resourceRead", "resourceList", "resourceResolve", "resourceWrite", "resourceCopy", "resourceMove", "resourceDelete",
	"resourceMkdir", "resourceRequest", "createResourceWatch", "canvasOpen", "canvasInvokeAction", "canvasInvokeOperation",
	"canvasClose", "sampling/createMessage", "vscode/requestWorkspaceTrust",
}

// wire returns a message's shape with the given payload member.
func wire(key string, of shape) object {
	o := object{"jsonrpc": plain, "id": plain, "method": plain, "channel": plain}
	o[key] = of
	return o
}

// plainAction begins an action in the form that most hosts write.
const plainAction = `{"jsonrpc":"2.0","method":"action","params":`

// usual reports whether an action has only known members. It compares lengths, which
// is cheap.
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

// answer reduces a response to its visible parts, and reports whether anything is
// left. An MCP server's result is visible as it is.
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

// note reduces a notification to its visible parts, and reports whether anything is
// left.
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
