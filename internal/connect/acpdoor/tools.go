package acpdoor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"ahprelay/ahp"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// A tool is a tool call as the editor has it.
type tool struct {
	turn     *turn
	call     client.ToolCall
	sent     []byte // the latest update or plan, as JSON
	terminal *terminal
}

func (v *turn) tool(id string) *tool {
	if v.tools[id] == nil {
		v.tools[id] = &tool{turn: v, call: client.ToolCall{ID: id}}
	}
	return v.tools[id]
}

// applyTool applies an action to a tool call, and shows it.
func (v *turn) applyTool(act action, raw []byte) {
	t := v.tool(act.ToolCallID)
	call := &t.call
	var m struct {
		client.ToolCall
		Confirmed string           `json:"confirmed"`
		Approved  bool             `json:"approved"`
		Result    *client.ToolCall `json:"result"`
	}
	if json.Unmarshal(raw, &m) != nil {
		return
	}
	switch act.Type {
	case "chat/toolCallStart":
		call.Status, call.Name, call.Display, call.Meta = "streaming", m.Name, m.Display, m.Meta
	case "chat/toolCallReady":
		call.Invocation, call.Title, call.Status, call.Content = m.Invocation, m.Title, "pending-confirmation", nil
		if m.Input != nil {
			call.Input = m.Input
		}
		if m.Edits != nil {
			call.Edits = m.Edits
		}
		if m.Confirmed != "" {
			call.Status, call.Edits = "running", nil
		}
	case "chat/toolCallConfirmed":
		if call.Status != "pending-confirmation" {
			return
		}
		if call.Status = "running"; !m.Approved {
			call.Status = "cancelled"
		}
	case "chat/toolCallContentChanged":
		call.Content = m.Content
	case "chat/toolCallComplete":
		if m.Result == nil {
			return
		}
		call.Status, call.Past, call.Content, call.Success, call.Error = "completed", m.Result.Past, m.Result.Content, m.Result.Success, m.Result.Error
	default:
		return
	}
	t.show()
}

func (v *turn) end() {
	for _, t := range v.tools {
		if t.call.Status != "completed" && t.call.Status != "cancelled" {
			t.call.Status = "cancelled"
			t.show()
		}
		if t.terminal != nil {
			t.terminal.leave()
		}
	}
}

// show sends the changes of the tool call to the editor.
func (t *tool) show() {
	s := t.turn.session
	if entries := t.plan(); entries != nil {
		if text, err := json.Marshal(entries); err == nil && !bytes.Equal(text, t.sent) {
			t.sent = text
			s.update(acp.UpdatePlan, acp.Plan{Entries: entries})
		}
		return
	}
	if t.isPlan() && t.call.Status != "completed" {
		return // the plan is in its content, which follows
	}
	update := s.toolUpdate(&t.call)
	t.showTerminal(&update)
	text, err := json.Marshal(update)
	if err != nil || bytes.Equal(text, t.sent) {
		return
	}
	kind := acp.UpdateToolCallUpdate
	if t.sent == nil {
		kind = acp.UpdateToolCall
	}
	t.sent = text
	s.update(kind, update)
}

func (s *session) toolUpdate(call *client.ToolCall) acp.ToolCallUpdate {
	u := acp.ToolCallUpdate{ToolCallID: call.ID, Name: call.Name, Kind: kindOf(call), Status: acp.ToolCallStatusPending}
	u.Title = cmp.Or(ahp.WordsOf(call.Invocation), call.Display, call.Name, "Tool")
	switch call.Status {
	case "running", "pending-result-confirmation", "auth-required":
		u.Status = acp.ToolCallStatusInProgress
	case "completed":
		u.Status = acp.ToolCallStatusCompleted
		if call.Success != nil && !*call.Success {
			u.Status = acp.ToolCallStatusFailed
		}
		u.Title = cmp.Or(ahp.WordsOf(call.Past), u.Title)
	case "cancelled":
		u.Status = acp.ToolCallStatusFailed
	}
	if input, ok := ahp.Text(call.Input); ok && input != "" {
		u.RawInput = call.Input
		if ahp.IsObject([]byte(input)) && json.Valid([]byte(input)) {
			u.RawInput = json.RawMessage(input)
		}
	}
	addContent(s, call, &u)
	return u
}

// addContent adds a tool call's content or, without content, its planned edits, and
// the files of both. If there is neither, it adds the error.
func addContent(s *session, call *client.ToolCall, u *acp.ToolCallUpdate) {
	for _, item := range ahp.ElementsOf(call.Content) {
		if c, ok := s.content(item.Raw); ok {
			u.Content = append(u.Content, c)
		}
	}
	for _, item := range ahp.ElementsOf(ahp.RawOf(call.Edits, "items")) {
		if c, ok := s.diff(item.Raw); ok && call.Content == nil {
			u.Content = append(u.Content, c)
		}
	}
	for _, c := range u.Content {
		if c.Type == acp.ToolCallContentDiff {
			u.Locations = append(u.Locations, acp.ToolCallLocation{Path: c.Path})
		}
	}
	if message := ahp.TextOf(call.Error, "message"); message != "" && len(u.Content) == 0 {
		u.Content = []acp.ToolCallContent{textContent(message)}
	}
}

func textContent(text string) acp.ToolCallContent {
	return acp.ToolCallContent{Type: acp.ToolCallContentContent, Content: acp.ContentBlock{Type: acp.ContentBlockText, Text: text}}
}

// kinds are tool kinds by words in the tool's name. The first match counts.
var kinds = []struct {
	words *regexp.Regexp
	kind  string
}{
	{regexp.MustCompile(`(?i)bash|shell|terminal|execute|command|^run`), acp.ToolKindExecute},
	{regexp.MustCompile(`(?i)edit|write|patch|create_?file|replace|insert`), acp.ToolKindEdit},
	{regexp.MustCompile(`(?i)delete|remove`), acp.ToolKindDelete},
	{regexp.MustCompile(`(?i)move|rename`), acp.ToolKindMove},
	{regexp.MustCompile(`(?i)fetch|web|http`), acp.ToolKindFetch},
	{regexp.MustCompile(`(?i)grep|search|glob|find`), acp.ToolKindSearch},
	{regexp.MustCompile(`(?i)read|view|list|^ls$|^cat$`), acp.ToolKindRead},
	{regexp.MustCompile(`(?i)think|todo|plan`), acp.ToolKindThink},
}

// kindOf returns a tool's kind, from the host or guessed from the name. Editors select an
// icon by it.
func kindOf(call *client.ToolCall) string {
	if kind := ahp.TextOf(call.Meta, "toolKind"); kind != "" {
		return kind
	}
	for _, k := range kinds {
		if k.words.MatchString(call.Name) {
			return k.kind
		}
	}
	return acp.ToolKindOther
}

// content translates an item of a tool call's content, except terminals.
func (s *session) content(raw []byte) (acp.ToolCallContent, bool) {
	var item struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		Title       string `json:"title"`
		URI         string `json:"uri"`
		ContentType string `json:"contentType"`
		Data        string `json:"data"`
	}
	if json.Unmarshal(raw, &item) != nil {
		return acp.ToolCallContent{}, false
	}
	block := acp.ContentBlock{}
	switch kind, _, _ := strings.Cut(item.ContentType, "/"); item.Type {
	case "text":
		return textContent(item.Text), true
	case "fileEdit":
		return s.diff(raw)
	case "subagent":
		return textContent("Subagent: " + item.Title), true
	case "resource":
		block = acp.ContentBlock{Type: acp.ContentBlockResourceLink, Name: cmp.Or(item.Title, lastName(item.URI), item.URI), URI: item.URI, MimeType: item.ContentType}
	case "embeddedResource":
		if block = (acp.ContentBlock{Type: acp.ContentBlockImage, MimeType: item.ContentType, Data: item.Data}); kind == "audio" {
			block.Type = acp.ContentBlockAudio
		} else if kind != "image" {
			block = acp.ContentBlock{Type: acp.ContentBlockResource, Resource: acp.EmbeddedResourceResource{URI: "attachment:///" + item.Title, MimeType: item.ContentType, Blob: item.Data}}
		}
	default:
		return acp.ToolCallContent{}, false
	}
	return acp.ToolCallContent{Type: acp.ToolCallContentContent, Content: block}, true
}

// A side is a file before or after an edit.
type side struct {
	URI     string `json:"uri"`
	Content struct {
		URI string `json:"uri"`
	} `json:"content"`
}

func sides(raw []byte) (before, after *side) {
	var edit struct {
		Before *side `json:"before"`
		After  *side `json:"after"`
	}
	_ = json.Unmarshal(raw, &edit) // an unreadable edit has no sides
	return edit.Before, edit.After
}

// diff translates an edit. It returns false while the files are not read yet.
func (s *session) diff(raw []byte) (acp.ToolCallContent, bool) {
	before, after := sides(raw)
	c := acp.ToolCallContent{Type: acp.ToolCallContentDiff}
	for _, one := range []struct {
		side *side
		text *string
	}{{before, &c.OldText}, {after, &c.NewText}} {
		if one.side == nil {
			continue
		}
		c.Path = cmp.Or(filePath(one.side.URI), one.side.URI)
		text, ok := s.file(one.side.Content.URI)
		if !ok {
			return c, false
		}
		*one.text = text
	}
	return c, c.Path != ""
}

// Bounds for texts from the host or the editor, in bytes.
const (
	maxFile  = 1 << 20  // one text
	maxFiles = 16 << 20 // the files of edits that a session keeps
)

// file returns the text of a file. If it was not read yet, it starts to read it and
// returns false.
func (s *session) file(uri string) (string, bool) {
	if text, ok := dataText(uri); ok || uri == "" {
		return text, true
	}
	text, ok := s.files[uri]
	if !ok && !s.fetching[uri] && len(s.fetching) < maxSessions {
		s.fetching[uri] = true
		v := s.turn
		read := s.door.spawn
		if v != nil {
			read = v.read
		}
		read(func() { s.fetch(uri, v) })
	}
	return text, ok
}

// fetch reads an edited file from the host, and then shows the turn's tool calls again. The
// turn may be nil.
func (s *session) fetch(uri string, v *turn) {
	ctx, cancel := context.WithTimeout(s.door.life, callTime)
	defer cancel()
	text, err := s.read(ctx, uri)
	if err != nil {
		text = fmt.Sprintf("(This text cannot be shown: %v)\n", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(uri, text)
	if v != nil {
		for _, t := range v.tools {
			t.show()
		}
	}
}

// keep stores the text of a file, within the bound.
func (s *session) keep(uri, text string) {
	delete(s.fetching, uri)
	size := len(text)
	for _, other := range s.files {
		size += len(other)
	}
	if size > maxFiles {
		clear(s.files)
	}
	s.files[uri] = text
}

// read reads a text from the host.
func (s *session) read(ctx context.Context, uri string) (string, error) {
	c := s.client()
	if c == nil {
		return "", context.Canceled
	}
	result, err := c.Call(ctx, "resourceRead", map[string]any{"channel": client.RootChannel, "uri": uri})
	if err != nil {
		return "", err
	}
	var content struct{ Data, Encoding string }
	if err := json.Unmarshal(result, &content); err != nil {
		return "", err
	}
	if content.Encoding == "base64" {
		data, err := base64.StdEncoding.DecodeString(content.Data)
		if err != nil {
			return "", err
		}
		content.Data = string(data)
	}
	if len(content.Data) > maxFile {
		return "", fmt.Errorf("%d bytes are too many", len(content.Data))
	}
	return strings.ToValidUTF8(content.Data, "\uFFFD"), nil
}

func dataText(uri string) (string, bool) {
	rest, ok := strings.CutPrefix(uri, "data:")
	head, body, both := strings.Cut(rest, ",")
	if !ok || !both {
		return "", false
	}
	text, err := url.PathUnescape(body)
	if strings.HasSuffix(head, ";base64") {
		var data []byte
		data, err = base64.StdEncoding.DecodeString(body)
		text = string(data)
	}
	return strings.ToValidUTF8(text, "\uFFFD"), err == nil
}

// step matches a line of a to-do list in Markdown.
var step = regexp.MustCompile(`^- \[([ x>])\] (.+)$`)

func (t *tool) isPlan() bool { return t.call.Name == "todo" }

// plan returns the steps of a plan, nil for other tool calls.
func (t *tool) plan() (entries []acp.PlanEntry) {
	input, _ := ahp.Text(t.call.Input)
	if entries = listed(input); entries != nil || !t.isPlan() {
		return entries
	}
	for _, item := range ahp.ElementsOf(t.call.Content) {
		for line := range strings.Lines(ahp.TextOf(item.Raw, "text")) {
			m := step.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if m == nil {
				return nil
			}
			status := map[string]string{" ": acp.PlanEntryStatusPending, "x": acp.PlanEntryStatusCompleted, ">": acp.PlanEntryStatusInProgress}[m[1]]
			entries = append(entries, acp.PlanEntry{Content: m[2], Priority: acp.PlanEntryPriorityMedium, Status: status})
		}
	}
	return entries
}

// listed decodes the input of an agent's own to-do tool.
func listed(input string) (entries []acp.PlanEntry) {
	type entry struct{ Content, Title, Status string }
	var in struct{ Todos, TodoList []entry }
	if !strings.Contains(input, `"todo`) || json.Unmarshal([]byte(input), &in) != nil {
		return nil
	}
	for _, e := range append(in.Todos, in.TodoList...) {
		status := acp.PlanEntryStatusPending
		switch e.Status {
		case "completed":
			status = acp.PlanEntryStatusCompleted
		case "in_progress", "in-progress":
			status = acp.PlanEntryStatusInProgress
		}
		if text := cmp.Or(e.Content, e.Title); text != "" {
			entries = append(entries, acp.PlanEntry{Content: text, Priority: acp.PlanEntryPriorityMedium, Status: status})
		}
	}
	return entries
}

func filePath(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" {
		return ""
	}
	return u.Path
}

// fileURI is the inverse of filePath.
func fileURI(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

func lastName(path string) string {
	path = strings.TrimRight(path, "/")
	return path[strings.LastIndexByte(path, '/')+1:]
}
