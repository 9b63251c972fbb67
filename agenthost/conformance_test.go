package agenthost_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"ahprelay/agenthost"
	"ahprelay/test/refclient"
)

// knownDifferences lists, for each kind of message, the fields in which this host
// differs from VS Code's host. "-": only VS Code's host has the field. "+": only this
// host has it.
var knownDifferences = map[string][]string{
	"result initialize": {
		"- ._meta object",
		"- .automations object",
		"- .snapshots[].state._meta object",
		"- .snapshots[].state.agents[].capabilities.multipleChats.fork bool",
		"- .snapshots[].state.agents[].capabilities.multipleChats.sideChat bool",
		"- .snapshots[].state.agents[].protectedResources array",
		"- .terminalCommandPrefix string",
		"+ .serverInfo object",
	},
	"result subscribe session": {"- .snapshot.state.changesets array"},
	"result subscribe chat": {
		"+ .snapshot.state.turns[].responseParts[].error object",
		"+ .snapshot.state.turns[].responseParts[].resumable bool",
		"+ .snapshot.state.turns[].usage object",
	},
	"result resolveSessionConfig": {
		"- .schema.properties.isolation.enumDescriptions array",
		"- .schema.properties.isolation.enumLabels array",
	},
	"result resourceResolve":           {"- .ctime string"},
	"action session/changesetsChanged": {"- it"},
	"action chat/usage":                {"+ it"},
	"action terminal/cwdChanged":       {"- it"},
	"action terminal/titleChanged":     {"- it"},

	// Here VS Code's scripted agent uses an older form of the action.
	"action chat/error": {"- .action.error object", "+ .action.part object"},

	// VS Code's host does not send logs in this script.
	"notification otlp/exportLogs": {"+ it"},
}

// differencesOf08 has entries that replace those above if VS Code's host has AHP 0.8.
// nil: there is no difference.
var differencesOf08 = map[string][]string{
	"result initialize": {
		"- .snapshots[].state._meta object",
		"- .snapshots[].state.agents[].capabilities.multipleChats.fork bool",
		"- .snapshots[].state.agents[].capabilities.multipleChats.sideChat bool",
		"- .snapshots[].state.agents[].protectedResources array",
		"- .terminalCommandPrefix string",
		"+ .serverInfo object",
	},
	"action chat/usage": nil,

	// VS Code's host tells its agents about tools in a different form.
	"action session/serverToolsChanged": {"+ it"},
	"result subscribe session": {
		"- .snapshot.state.changesets array",
		"+ .snapshot.state.serverTools array",
	},

	// In AHP 0.8, summaries do not list changed files.
	"notification root/sessionSummaryChanged": {"+ .changes.changes object"},
	"result listSessions":                     {"+ .items[].changes object"},

	"result subscribe chat": {
		"- .snapshot.state.turns[].error object",
		"+ .snapshot.state.turns[].responseParts[].error object",
		"+ .snapshot.state.turns[].responseParts[].resumable bool",
		"+ .snapshot.state.turns[].usage object",
	},
}

// opaque lists fields whose values every host defines for itself.
var opaque = []string{
	"._meta", ".automations", ".serverInfo", ".config", ".serverTools", ".usage", ".changesets", ".action.tools",
}

// hostVersion returns the AHP version of the host in AHP_UPSTREAM.
func hostVersion() string { return cmp.Or(os.Getenv("AHP_VERSION"), "0.9.0") }

// TestMessagesHaveTheFieldsOfTheRealHost runs a script with this host and with VS
// Code's host, and compares the fields of all messages. AHP_UPSTREAM is the URL of VS
// Code's host, which must have the scripted provider "mock".
func TestMessagesHaveTheFieldsOfTheRealHost(t *testing.T) {
	upstream := os.Getenv("AHP_UPSTREAM")
	if upstream == "" {
		t.Skip("AHP_UPSTREAM is not set")
	}
	root := t.TempDir()
	if err := os.WriteFile(root+"/a.txt", []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	protocol := agenthost.Protocol(strings.TrimSuffix(hostVersion(), ".0"))
	_, url := serve(t, agenthost.Config{Root: root, Writable: true, Protocol: protocol})
	ours := shapesOf(t, url, "demo", root)
	theirs := shapesOf(t, upstream, "mock", root)
	got := make(map[string][]string)
	for _, what := range slices.Sorted(maps.Keys(ours.union(theirs))) {
		if diff := difference(theirs[what], ours[what]); diff != nil {
			got[what] = diff
		}
	}
	known := maps.Clone(knownDifferences)
	if protocol == agenthost.Protocol08 {
		maps.Copy(known, differencesOf08)
	}
	maps.DeleteFunc(known, func(_ string, list []string) bool { return list == nil })
	if diff := gocmp.Diff(known, got); diff != "" {
		t.Errorf("the fields differ from the real host's (-known +found):\n%s", diff)
	}
}

// shapes holds the fields of each kind of message, with their types.
type shapes map[string]map[string]bool

func (s shapes) union(other shapes) shapes {
	all := maps.Clone(s)
	maps.Copy(all, other)
	return all
}

func difference(theirs, ours map[string]bool) []string {
	if theirs == nil {
		return []string{"+ it"}
	}
	if ours == nil {
		return []string{"- it"}
	}
	return append(missing("- ", theirs, ours), missing("+ ", ours, theirs)...)
}

// missing returns the fields that are in a and not in b. It leaves out fields inside a
// returned field.
func missing(sign string, a, b map[string]bool) []string {
	var fields, outer []string
	for _, field := range slices.Sorted(maps.Keys(a)) {
		path, _, _ := strings.Cut(field, " ")
		inside := slices.ContainsFunc(outer, func(o string) bool {
			return strings.HasPrefix(path, o+".") || strings.HasPrefix(path, o+"[")
		})
		if b[field] || inside {
			continue
		}
		fields, outer = append(fields, sign+field), append(outer, path)
	}
	return fields
}

// add records the fields of a value and their types.
func (s shapes) add(what string, raw json.RawMessage) {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return
	}
	if s[what] == nil {
		s[what] = make(map[string]bool)
	}
	s.walk(what, "", v)
}

func (s shapes) walk(what, path string, v any) {
	if strings.HasSuffix(path, ".terminals") {
		return // the list also contains sessions from before
	}
	kind := map[bool]string{true: "null", false: fmt.Sprintf("%T", v)}[v == nil]
	kind = strings.NewReplacer("map[string]interface {}", "object", "[]interface {}", "array", "float64", "number").Replace(kind)
	s[what][path+" "+kind] = true
	if slices.ContainsFunc(opaque, func(suffix string) bool { return strings.HasSuffix(path, suffix) }) {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			s.walk(what, path+"."+name, field)
		}
	case []any:
		for _, element := range v {
			s.walk(what, path+"[]", element)
		}
	}
}

// A probe runs the script with a host, and records all messages.
type probe struct {
	t      *testing.T
	c      *refclient.Client
	shapes shapes
	seen   int // number of frames that were recorded
}

func (p *probe) call(what, method string, params any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	result, err := p.c.Call(ctx, method, params)
	if err != nil {
		p.t.Errorf("%s: %v; want no error", what, err)
		return
	}
	p.shapes.add("result "+what, result)
}

// until waits for an action of a type, and records all messages up to it.
func (p *probe) until(actionType string) {
	p.t.Helper()
	if _, _, err := p.c.WaitAfter(testContext(p.t), p.seen, refclient.IsAction("", actionType)); err != nil {
		p.t.Errorf("no action %s arrives: %v", actionType, err)
	}
	p.take()
}

func (p *probe) take() {
	frames := p.c.Frames()
	for ; p.seen < len(frames); p.seen++ {
		var msg struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if json.Unmarshal(frames[p.seen], &msg) != nil || msg.ID != nil {
			continue
		}
		if a, ok := refclient.ReadAction(frames[p.seen]); ok {
			p.shapes.add("action "+a.Type(), msg.Params)
		} else {
			p.shapes.add("notification "+msg.Method, msg.Params)
		}
	}
}

// shapesOf runs the script with a host, and returns the fields of all messages.
func shapesOf(t *testing.T, url, provider, root string) shapes {
	t.Helper()
	p := &probe{t: t, c: dial(t, url, refclient.Options{}), shapes: make(shapes)}
	id := fmt.Sprint(time.Now().UnixNano())
	session := provider + ":/" + id
	chat := chatOf(session)
	terminal := "agenthost-terminal:/" + id
	const channel = "ahp-root://"
	p.call("initialize", "initialize", params{"channel": channel, "clientId": "conformance-" + id, "protocolVersions": []string{hostVersion()},
		"initialSubscriptions": []string{channel}})
	p.call("createSession", "createSession", params{"channel": session, "provider": provider, "workingDirectories": []string{"file://" + root}})
	p.call("subscribe session", "subscribe", params{"channel": session})
	p.call("createSession", "createSession", params{"channel": session, "provider": provider})
	p.call("subscribe chat", "subscribe", params{"channel": chat})
	for i, prompt := range []string{"hello", "stream 3 5", "tool", "echo this", "permission", "error"} {
		turnID := fmt.Sprint("t", i)
		p.dispatch(chat, params{"type": "chat/turnStarted", "turnId": turnID, "startedAt": "2026-01-01T00:00:00.000Z",
			"message": params{"text": prompt, "origin": params{"kind": "user"}}})
		switch prompt {
		case "permission":
			p.until("session/inputNeededSet")
			p.call("subscribe session", "subscribe", params{"channel": session})
			p.call("subscribe chat", "subscribe", params{"channel": chat})
			p.dispatch(chat, params{"type": "chat/toolCallConfirmed", "turnId": turnID, "toolCallId": "tc-perm", "approved": true, "confirmed": "user-action"})
			p.until("chat/turnComplete")
		case "error":
			p.until("chat/error")
		default:
			p.until("chat/turnComplete")
		}
	}
	p.call("subscribe chat", "subscribe", params{"channel": chat})
	p.call("fetchTurns", "fetchTurns", params{"channel": chat})
	p.call("listSessions", "listSessions", params{"channel": channel})
	p.call("resolveSessionConfig", "resolveSessionConfig", params{"channel": channel, "provider": provider})
	p.call("resourceRead", "resourceRead", params{"channel": channel, "uri": "file://" + root + "/a.txt"})
	p.call("resourceList", "resourceList", params{"channel": channel, "uri": "file://" + root})
	p.call("resourceResolve", "resourceResolve", params{"channel": channel, "uri": "file://" + root + "/a.txt"})
	p.call("resourceWrite", "resourceWrite", params{"channel": channel, "uri": "file://" + root + "/b.txt", "data": "x", "encoding": "utf-8"})
	p.call("resourceDelete", "resourceDelete", params{"channel": channel, "uri": "file://" + root + "/b.txt"})
	p.call("subscribe logs", "subscribe", params{"channel": "ahp-otlp://logs/trace"})
	p.call("ping", "ping", params{"channel": channel})
	p.c.Unsubscribe("ahp-otlp://logs/trace")
	p.call("createTerminal", "createTerminal", params{"channel": terminal, "claim": params{"kind": "client", "clientId": "x"}, "name": "t", "cwd": "file://" + root})
	p.call("subscribe terminal", "subscribe", params{"channel": terminal})
	time.Sleep(time.Second) // a real shell needs this time to start
	p.dispatch(terminal, params{"type": "terminal/input", "data": "echo hi\r"})
	p.until("terminal/commandFinished")
	p.call("subscribe terminal", "subscribe", params{"channel": terminal})
	p.call("disposeTerminal", "disposeTerminal", params{"channel": terminal})
	p.call("disposeSession", "disposeSession", params{"channel": session})
	p.take()
	return p.shapes
}

func (p *probe) dispatch(channel string, action any) {
	if _, err := p.c.Dispatch(channel, action); err != nil {
		p.t.Error(err)
	}
}
