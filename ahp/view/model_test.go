package view_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/test/carriers"
)

// The model decodes a part fully, and lists the facts in it.

type object = map[string]any

// at follows a path of names into a value, in which "*" stands for all elements of an array. It
// returns the values at the path's end.
func at(v any, names ...string) (found []any) {
	if len(names) == 0 {
		if v == nil {
			return nil
		}
		return []any{v}
	}
	if names[0] == "*" {
		list, _ := v.([]any)
		for _, e := range list {
			found = append(found, at(e, names[1:]...)...)
		}
		return found
	}
	o, _ := v.(object)
	return at(o[names[0]], names[1:]...)
}

// uris returns those values that can be URIs.
func uris(found ...any) (list []string) {
	for _, v := range found {
		if s, _ := v.(string); strings.Contains(s, ":") && s != root {
			list = append(list, s)
		}
	}
	return list
}

func one(v any, names ...string) string {
	for _, v := range at(v, names...) {
		s, _ := v.(string)
		return s
	}
	return ""
}

// facts returns the facts that a state or an action on this channel has.
func facts(channel string, v any, state bool) (list []string) {
	kind := one(v, "type")
	say := func(what string, uris ...string) {
		for _, uri := range uris {
			list = append(list, what+" "+channel+" "+uri)
		}
	}
	if state {
		kind = ""
	} else if slices.Contains(quiet, kind) {
		return nil
	}
	for _, t := range at(v, "terminals", "*") {
		list = append(list, claims(channel, one(t, "resource"), t)...)
	}
	if channel == root {
		return list
	}
	if state && strings.HasPrefix(channel, "ahp-canvas:") {
		say("canvas is", encoded(v))
		if i := one(v, "instanceId"); i != "" {
			say("has content", "ahp-canvas-content:/"+i)
		}
		return list
	}
	if kind == "session/chatRemoved" {
		say("has not chat", slices.Concat(uris(at(v, "chat")...), uris(at(v, "chat", "resource")...))...)
		return list
	}
	if kind == "canvas/stateChanged" && strings.HasPrefix(channel, "ahp-canvas:") && at(v, "canvas") != nil {
		if _, ok := v.(object)["canvas"].(object); ok {
			say("canvas is", encoded(v.(object)["canvas"]))
			if i := one(v, "canvas", "instanceId"); i != "" {
				say("has content", "ahp-canvas-content:/"+i)
			}
		}
	}
	list = append(list, canvases(channel, v, kind, state)...)
	if i := one(v, "instanceId"); i != "" && strings.HasPrefix(channel, "ahp-canvas:") {
		say("has content", "ahp-canvas-content:/"+i)
	}
	if chats, ok := v.(object)["chats"]; ok && state && isList(chats) {
		list = append(list, strings.TrimSpace("lists chat "+channel+" "+strings.Join(inOrder(chats, "resource"), " ")))
	}
	for _, path := range [][]string{{"chats", "*"}, {"chats", "*", "resource"}, {"defaultChat"}, {"defaultChat", "resource"}, {"chat"}, {"chat", "resource"},
		{"summary", "resource"}, {"inputNeeded", "*", "chat"}, {"request", "chat"}} {
		say("has chat", uris(at(v, path...)...)...)
	}
	say("has changeset", uris(at(v, "changesets", "*", "uriTemplate")...)...)
	say("has", uris(at(v, "annotations", "resource")...)...)
	for _, path := range [][]string{{"customizations", "*"}, {"customization"}, {}} {
		for _, c := range at(v, path...) {
			say("has server", mcp(at(c, "channel"))...)
			if len(path) > 0 {
				say("has server", mcp(at(c, "children", "*", "channel"))...)
			}
		}
	}
	if state {
		for _, path := range [][]string{{"workingDirectories", "*"}, {"workingDirectory"}, {"summary", "workingDirectories", "*"}, {"summary", "workingDirectory"}} {
			say("has folder", uris(at(v, path...)...)...)
		}
	}
	if at(v, "claim") != nil || hasNull(v, "claim") {
		list = append(list, claims(channel, channel, v)...)
	}
	return append(list, tools(channel, v)...)
}

// quiet lists the types of actions that never have facts.
var quiet = []string{"chat/delta", "chat/reasoning", "chat/toolCallDelta", "chat/usage", "chat/activityChanged",
	"terminal/data", "canvas/message", "session/titleChanged", "session/activityChanged"}

func hasNull(v any, name string) bool { _, ok := v.(object)[name]; return ok }

func isList(v any) bool { _, ok := v.([]any); return ok || v == nil }

func inOrder(v any, name string) (list []string) {
	for _, e := range at(v, "*") {
		if s, ok := e.(string); ok {
			list = append(list, uris(s)...)
		} else {
			list = append(list, uris(at(e, name)...)...)
		}
	}
	return list
}

func canvases(channel string, v any, kind string, state bool) (list []string) {
	if open, ok := v.(object)["openCanvases"]; ok && isList(open) {
		list = append(list, strings.TrimSpace("lists canvas "+channel+" "+strings.Join(inOrder(open, "channel"), " ")))
	}
	if kind == "chat/canvasesChanged" || state && hasNull(v, "turns") {
		if !isList(v.(object)["canvases"]) {
			return list
		}
		return append(list, strings.TrimSpace("lists canvas "+channel+" "+strings.Join(inOrder(v.(object)["canvases"], "resource"), " ")))
	}
	for _, uri := range uris(append(at(v, "canvases", "*", "resource"), at(v, "canvas", "resource")...)...) {
		list = append(list, "has canvas "+channel+" "+uri)
	}
	return list
}

func mcp(found []any) []string {
	return slices.DeleteFunc(uris(found...), func(s string) bool { return !strings.HasPrefix(strings.ToLower(s), "mcp:") })
}

func claims(channel, uri string, v any) []string {
	if len(uris(uri)) == 0 || at(v, "claim") == nil && !hasNull(v, "claim") {
		return nil
	}
	s := "claims terminal " + channel + " " + uri
	if one(v, "claim", "kind") == "session" {
		for _, owner := range append(uris(at(v, "claim", "session")...), uris(at(v, "claim", "chat")...)...) {
			s += " " + owner
		}
	}
	return []string{s}
}

func tools(channel string, v any) (list []string) {
	content := func(c any, own bool) {
		if one(c, "type") != "terminal" {
			return
		}
		for _, uri := range uris(at(c, "resource")...) {
			list = append(list, "has hint "+channel+" "+uri)
		}
		for _, uri := range uris(at(c, "result", "fullOutput", "uri")...) {
			if own {
				list = append(list, "has content "+channel+" "+uri)
			}
		}
	}
	edits := func(found []any) {
		for _, e := range found {
			for _, uri := range uris(append(at(e, "before", "content", "uri"), at(e, "after", "content", "uri")...)...) {
				list = append(list, "has file text "+channel+" "+uri)
			}
		}
	}
	edits(append(at(v, "files", "*", "edit"), at(v, "file", "edit")...))
	calls := slices.Concat(at(v, "turns", "*", "responseParts", "*", "toolCall"), at(v, "activeTurn", "responseParts", "*", "toolCall"),
		at(v, "inputNeeded", "*", "toolCall"), at(v, "request", "toolCall"), at(v, "part", "toolCall"))
	for _, c := range append(calls, callOf(v), callOf(first(at(v, "result")))) {
		own := at(c, "contributor") == nil
		if options, ok := first(at(c, "options")).([]any); ok && one(c, "toolCallId") != "" {
			s := "offers " + channel + " " + one(c, "toolCallId")
			for _, o := range options {
				if id := one(o, "id"); id != "" {
					s += " " + id
				}
			}
			list = append(list, s)
		}
		if own {
			edits(at(c, "edits", "items", "*"))
			edits(slices.DeleteFunc(at(c, "content", "*"), func(e any) bool { return one(e, "type") != "fileEdit" }))
		}
		for _, e := range at(c, "content", "*") {
			content(e, own)
		}
		if own {
			for _, uri := range uris(at(c, "toolInput", "uri")...) {
				list = append(list, "has content "+channel+" "+uri)
			}
		}
	}
	for _, uri := range uris(append(at(v, "backgroundWork", "*", "terminal"), at(v, "work", "terminal")...)...) {
		list = append(list, "has hint "+channel+" "+uri)
	}
	return list
}

// callOf returns a tool call with those members of the value that a call may have.
func callOf(v any) object {
	call := object{}
	for _, name := range []string{"content", "toolInput", "edits", "options", "toolCallId"} {
		call[name] = first(at(v, name))
	}
	return call
}

func first(list []any) any {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

func encoded(v any) string { data, _ := json.Marshal(v); return string(data) }

// anything draws a random value with few levels. Its members have names that the view knows, in
// right and wrong places.
func anything(t *rapid.T, depth int) any {
	kind := rapid.IntRange(0, 9).Draw(t, "value")
	switch {
	case kind < 4 || depth == 0:
		return rapid.SampledFrom([]string{"x:/1", "mcp://h/1", "mock:/s", "terminal", "fileEdit", "session", root, "plain", "é:/\"2"}).Draw(t, "text")
	case kind < 5:
		return rapid.SampledFrom([]any{nil, 1.0, true}).Draw(t, "scalar")
	case kind < 7:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, anything(t, depth-1))
		}
		return list
	}
	o := object{}
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		o[rapid.SampledFrom(members).Draw(t, "name")] = anything(t, depth-1)
	}
	return o
}

var members = []string{"chats", "defaultChat", "chat", "summary", "resource", "channel", "changesets", "uriTemplate", "openCanvases", "canvases", "canvas",
	"customizations", "customization", "children", "annotations", "inputNeeded", "request", "turns", "activeTurn", "responseParts", "part", "toolCall", "content",
	"result", "fullOutput", "uri", "toolInput", "contributor", "instanceId", "claim", "kind", "session", "terminals", "backgroundWork", "work", "terminal", "type", "id", "workingDirectories", "workingDirectory",
	"edits", "items", "files", "file", "edit", "before", "after", "options", "toolCallId"}

// typical draws a random part that mostly has known members in their places.
func typical(t *rapid.T) object {
	o, _ := anything(t, 4).(object)
	if o == nil {
		o = object{}
	}
	for range rapid.IntRange(0, 3).Draw(t, "statements") {
		l := rapid.SampledFrom(statements).Draw(t, "statement")
		part := l.part(rapid.Bool().Draw(t, "of action"))
		var add object
		if part != "" && json.Unmarshal([]byte(part), &add) == nil {
			for name, v := range add {
				o[name] = v
			}
		}
	}
	return o
}

// spelled encodes a part as JSON, sometimes with unnecessary escapes.
func spelled(t *rapid.T, v any) string {
	text := encoded(v)
	switch rapid.IntRange(0, 3).Draw(t, "spelling") {
	case 0:
		text = strings.ReplaceAll(text, "/", `\/`)
	case 1:
		text = strings.NewReplacer(`"c`, `"\u0063`, `"t`, `"\u0074`).Replace(text)
	case 2:
		var b bytes.Buffer
		_ = json.Indent(&b, []byte(text), "\r", "\t")
		return b.String()
	}
	return text
}

// TestFactsFollowTheModel draws parts, and the carriers that bring them. The view must find the
// same facts as the model.
func TestFactsFollowTheModel(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		carrier := rapid.SampledFrom(carriers.All).Draw(t, "carrier")
		channel := rapid.SampledFrom([]string{session, chat, canvas, root, "term:/1"}).Draw(t, "channel")
		part := typical(t)
		if carrier.Action && rapid.Bool().Draw(t, "typed") {
			part["type"] = rapid.OneOf(rapid.Map(rapid.SampledFrom(statements), func(l statement) string { return l.kind }), rapid.SampledFrom(quiet)).Draw(t, "type")
		}
		w := newWire(tb, view.NewHost(nil))
		r, message := w.shows(carrier.Wrap(carriers.Part{Channel: channel, JSON: spelled(t, part), Seq: 3, ID: 1}))
		want := facts(channel, part, !carrier.Action)
		got := slices.DeleteFunc(texts(r), func(s string) bool {
			// Another test checks the facts about MCP servers and changed canvases.
			return strings.HasPrefix(s, "customization") || strings.HasPrefix(s, "toggled") || strings.HasPrefix(s, "server ") || strings.HasPrefix(s, "canvas changes")
		})
		for i, s := range got {
			if before, raw, ok := strings.Cut(s, " {"); ok && strings.HasPrefix(s, "canvas is") {
				var v any
				_ = json.Unmarshal([]byte("{"+raw), &v)
				got[i] = before + " " + encoded(v)
			}
		}
		if got, want := set(got), set(want); !slices.Equal(got, want) {
			t.Fatalf("%s has the facts\n%s\nwant\n%s", message, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func set(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// FuzzFromHost passes any message from a host. The view must not panic or change the message, its
// places must be right, and a replay of the message must have the same facts.
func FuzzFromHost(f *testing.F) {
	for _, carrier := range carriers.All {
		for i := range statements {
			if part := statements[i].part(carrier.Action); part != "" {
				list := carrier.Wrap(carriers.Part{Channel: statements[i].channel, JSON: part, Seq: 1, ID: 1})
				f.Add([]byte(list[len(list)-1].Text))
			}
		}
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		env, err := ahp.Peek(message)
		if err != nil {
			return
		}
		w := newWire(t, view.NewHost(nil))
		for _, method := range []string{"initialize", "reconnect", "subscribe", "listSessions", "resolveCanvasSource"} {
			if env.Kind == ahp.Response {
				w.client(`{"id":%s,"method":%q,"params":{"channel":"mock:/s"}}`, env.ID, method)
			}
			r, _ := w.shows([]carriers.Message{{FromHost: true, Text: string(message)}})
			if r != nil {
				checkPlaces(t, r, message, string(env.Method) == "channel/frame")
			}
			if env.Kind != ahp.Response {
				break
			}
		}
		if env.Kind != ahp.Notification || string(env.Method) != "action" || env.Said.Action == nil {
			return
		}
		// For a replay, the view reads each action fully. So its facts must equal those of the
		// action alone.
		r, _ := newWire(t, view.NewHost(nil)).shows([]carriers.Message{
			{Text: `{"id":1,"method":"reconnect"}`}, {FromHost: true, Text: fmt.Sprintf(`{"id":1,"result":{"actions":[%s]}}`, env.Params)}})
		alone, _ := newWire(t, view.NewHost(nil)).shows([]carriers.Message{{FromHost: true, Text: string(message)}})
		if got, want := texts(alone), texts(r); !slices.Equal(got, want) {
			t.Errorf("the action has the facts %q as a notification; want %q, its facts in a replay", got, want)
		}
	})
}
