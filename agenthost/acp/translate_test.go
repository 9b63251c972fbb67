package acp

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// TestModesThatSkipPermissions checks that the modes and commands of real agents that
// skip permissions are recognized.
func TestModesThatSkipPermissions(t *testing.T) {
	for _, c := range []struct {
		id, name, description string
		want                  bool
	}{
		{"bypassPermissions", "Bypass Permissions", "Bypass all permission checks", true},
		{"yolo", "YOLO", "Auto-approves all tools", true},
		{"full-access", "Full Access", "", true},
		{"agent-full-access", "Agent (full access)", "", true},
		{"allow-all", "", "", true},
		{"default", "Default", "Standard behavior, prompts for dangerous operations", false},
		{"acceptEdits", "Accept Edits", "Auto-accept file edit operations", false},
		{"autoEdit", "Auto Edit", "Auto-approves edit tools", false},
		{"dontAsk", "Don't Ask", "Don't prompt for permissions, deny if not pre-approved", false},
		{"plan", "Plan Mode", "Planning mode, no actual tool execution", false},
		{"build", "build", "The default agent. Executes tools based on configured permissions.", false},
		{"read-only", "Read Only", "", false},
	} {
		if got := isBypass(c.id, c.name, c.description); got != c.want {
			t.Errorf("isBypass(%s) = %v; want %v", c.id, got, c.want)
		}
	}
}

func TestOptionsOfAllForms(t *testing.T) {
	var r opened
	if err := acp.Decode(json.RawMessage(`{
		"modes":{"currentModeId":"ask","availableModes":[{"id":"ask","name":"Ask"},{"id":"yolo","name":"YOLO"}]},
		"models":{"currentModelId":"m1","availableModels":[{"modelId":"m1","name":"One"},{"modelId":"m2","name":"Two"}]},
		"configOptions":[
			{"id":"effort","name":"Effort","category":"thought_level","type":"select","currentValue":"low","options":[{"group":"g","name":"All","options":[{"value":"low","name":"Low"},{"value":"high","name":"High"}]}]},
			{"id":"fast","name":"Fast","type":"boolean","currentValue":true}]}`), &r); err != nil {
		t.Fatal(err)
	}
	var o options
	o.set(r)
	want := []agenthost.Option{
		{ID: "model", Name: "Model", Category: "model", Value: "m1", Choices: []agenthost.Choice{{ID: "m1", Label: "One"}, {ID: "m2", Label: "Two"}}},
		{ID: "mode", Name: "Mode", Category: "mode", Value: "ask", Choices: []agenthost.Choice{{ID: "ask", Label: "Ask"}, {ID: "yolo", Label: "YOLO", Bypass: true}}},
		{ID: "effort", Name: "Effort", Category: "thought_level", Value: "low", Choices: []agenthost.Choice{{ID: "low", Label: "Low"}, {ID: "high", Label: "High"}}},
		{ID: "fast", Name: "Fast", Value: true},
	}
	if got := o.list(false); !reflect.DeepEqual(got, want) {
		t.Errorf("list = %+v; want %+v", got, want)
	}
	if got := o.list(true)[1].Choices; len(got) != 1 {
		t.Errorf("the choices with --no-bypass are %+v; want 1", got)
	}
	if o.bypass() != nil {
		t.Error("bypass = an option in the mode ask; want nil")
	}
	if o.choose("mode", "yolo"); o.bypass() == nil {
		t.Error("bypass = nil in the mode yolo; want the option")
	}
}

// TestSwitchesThatSkipPermissions reads the options of agents with a switch that skips
// permissions. The switch is not offered to clients. If it is on, the agent counts as
// skipping permissions.
func TestSwitchesThatSkipPermissions(t *testing.T) {
	var o options
	var r opened
	if err := acp.Decode(json.RawMessage(`{"configOptions":[{"id":"yolo","name":"YOLO","type":"boolean","currentValue":false},{"id":"fast","name":"Fast","type":"boolean","currentValue":true}]}`), &r); err != nil {
		t.Fatal(err)
	}
	o.set(r)
	if got := o.list(true); len(got) != 1 || got[0].ID != "fast" || o.bypass() != nil {
		t.Errorf("the options with --no-bypass are %+v, and bypass is %+v; want only fast, and nil", got, o.bypass())
	}
	if got := o.list(false); len(got) != 2 {
		t.Errorf("the options without --no-bypass are %+v; want 2", got)
	}
	c := &conversation{agent: New(Config{NoBypass: true}), options: o}
	for _, value := range []any{true, "true", 1.0} {
		if err := c.SetOption(t.Context(), "yolo", value); !errors.Is(err, errBypass) {
			t.Errorf("yolo = %v: %v; want %v", value, err, errBypass)
		}
	}
	o.config[0].CurrentValue = json.RawMessage("true")
	if got := o.bypass(); got == nil || got.ID != "yolo" {
		t.Errorf("%+v skips permissions; want yolo", got)
	}
}

// TestNewFormReplacesOldForms reads the options of an agent that declares its modes in
// two forms. Clients get one option.
func TestNewFormReplacesOldForms(t *testing.T) {
	o := options{
		modes:  &acp.SessionModeState{CurrentModeID: "a", AvailableModes: []acp.SessionMode{{ID: "a", Name: "A"}}},
		config: []acp.SessionConfigOption{{ID: "mode", Name: "Mode", Category: "mode", CurrentValue: json.RawMessage(`"a"`), Options: []acp.SessionConfigSelectOptionsItem{{Value: "a", Name: "A"}}}},
	}
	if list := o.list(false); len(list) != 1 {
		t.Errorf("list = %+v; want one option", list)
	}
	if o.choose("mode", "b"); o.list(false)[0].Value != "b" {
		t.Errorf("after a mode change in the old form, the options are %+v; want the mode b", o.list(false))
	}
}

// TestPathsAreAbsolute translates a tool call with paths relative to the conversation's folder, and with absolute
// paths.
func TestPathsAreAbsolute(t *testing.T) {
	c := &conversation{agent: New(Config{}), start: agenthost.Start{Folder: "/work/shop"}}
	for path, want := range map[string]string{"src/a.go": "/work/shop/src/a.go", "/work/shop/b.go": "/work/shop/b.go", "../c.go": "/work/c.go", "": ""} {
		u := c.tool(acp.ToolCallUpdate{ToolCallID: "t", Locations: []acp.ToolCallLocation{{Path: path}}, Content: []acp.ToolCallContent{{Type: acp.ToolCallContentDiff, Path: path, NewText: "x"}}})
		if got := []string{u.Locations[0].Path, u.Content[0].Diff.Path}; got[0] != want || got[1] != want {
			t.Errorf("the path %q becomes %q; want %q", path, got, want)
		}
	}
}

// TestPicturesInAnAnswerAreMentioned translates content of an answer that AHP's texts cannot carry.
func TestPicturesInAnAnswerAreMentioned(t *testing.T) {
	for kind, want := range map[string]string{acp.ContentBlockImage: "image/png, 3 bytes", acp.ContentBlockAudio: "audio/wav, 3 bytes"} {
		mime, _, _ := strings.Cut(want, ",")
		if got := placeholder(acp.ContentBlock{Type: kind, MimeType: mime, Data: "AAAA"}); !strings.Contains(got, want) {
			t.Errorf("content of the type %s becomes %q; want a text with %s", kind, got, want)
		}
	}
}

func TestReadReturnsTheRequestedLines(t *testing.T) {
	n := func(i int64) *int64 { return &i }
	const text = "a\nb\nc\nd"
	for _, c := range []struct {
		line, limit *int64
		want        string
	}{{nil, nil, text}, {n(2), nil, "b\nc\nd"}, {n(2), n(2), "b\nc\n"}, {nil, n(1), "a\n"}, {n(9), n(1), ""}, {n(0), n(0), ""}} {
		if got := lines(text, c.line, c.limit); got != c.want {
			t.Errorf("lines = %q; want %q", got, c.want)
		}
	}
}

func TestLongTextsAreCutAtACharacter(t *testing.T) {
	if text := strings.Repeat("x", maxText); shortened(text) != text {
		t.Error("shortened changes a text at the limit; want it unchanged")
	}
	got := shortened(strings.Repeat("€", maxText))
	if len(got) > maxText+100 || !utf8.ValidString(got) || !strings.Contains(got, "left out") {
		t.Errorf("shortened returns %d bytes, valid UTF-8: %v; want at most maxText and the note, valid", len(got), utf8.ValidString(got))
	}
}

func TestQuestionKeepsTheAgentsOrder(t *testing.T) {
	params := json.RawMessage(`{"mode":"form","message":"Which?","requestedSchema":{"type":"object","required":["z"],"properties":{
		"z":{"type":"string","title":"Z","enum":["1","2"]},
		"a":{"type":"array","items":{"type":"string","enum":["x"]}},
		"m":{"type":"integer","minimum":1,"default":3},
		"later":{"type":"hologram"}}}}`)
	var p acp.CreateElicitationRequest
	if err := acp.Decode(params, &p); err != nil {
		t.Fatal(err)
	}
	q := questionOf(p, params)
	one := 1.0
	want := agenthost.Question{Message: "Which?", Fields: []agenthost.Field{
		{ID: "z", Kind: agenthost.FieldOne, Title: "Z", Required: true, Choices: []agenthost.Choice{{ID: "1", Label: "1"}, {ID: "2", Label: "2"}}},
		{ID: "a", Kind: agenthost.FieldMany, Title: "a", Choices: []agenthost.Choice{{ID: "x", Label: "x"}}},
		{ID: "m", Kind: agenthost.FieldInteger, Title: "m", Default: 3.0, Min: &one},
		{ID: "later", Kind: agenthost.FieldText, Title: "later"},
	}}
	if !reflect.DeepEqual(q, want) {
		t.Errorf("question = %+v; want %+v", q, want)
	}
}

func TestCommandOfAPrompt(t *testing.T) {
	for text, want := range map[string]string{"/yolo now": "yolo", " /plan": "plan", "a /b": "", "": ""} {
		if got := command(text); got != want {
			t.Errorf("command(%q) = %q; want %q", text, got, want)
		}
	}
}
