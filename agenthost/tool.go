package agenthost

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// An agentTool is a tool call of an agent. The agent may report its parts in any
// order; the host publishes them in the order start, ready, content, complete.
type agentTool struct {
	ToolUpdate
	id      string // id that clients see
	ready   bool   // it runs, or waits for a permission
	done    bool
	shown   json.RawMessage // content as last published
	said    ToolReadyAction // ready action as last published
	refused bool
	since   time.Time // when it began to run; the wait for a permission does not count
}

// Bounds of a tool call, in bytes.
const (
	maxToolText  = 256 << 10 // of a text; of a longer text, the last bytes are shown
	maxToolInput = 1 << 20
	maxDiff      = 512 << 10 // each side
)

var toolNames = map[ToolKind]string{
	ToolRead: "Read", ToolEdit: "Edit", ToolDelete: "Delete", ToolMove: "Move", ToolSearch: "Search",
	ToolExecute: "Run", ToolThink: "Think", ToolFetch: "Fetch", ToolSwitch: "Mode",
}

// Tool begins or changes a tool call.
func (t *Turn) Tool(update ToolUpdate) { t.update(func() { t.toolLocked(update) }) }

func (t *Turn) toolLocked(update ToolUpdate) *agentTool {
	tool := t.mergeLocked(update, false)
	if tool == nil || tool.done {
		return tool
	}
	switch {
	case tool.Status == ToolCompleted || tool.Status == ToolFailed:
		t.finishToolLocked(tool, tool.Status, tool.Error)
	case t.waiting[tool.id] != nil: // decided by the user's answer
	case tool.Status == ToolRunning || tool.Content != nil:
		t.readyToolLocked(tool)
		t.showToolLocked(tool)
	}
	return tool
}

// mergeLocked applies an update, and publishes a new tool call. It returns nil if the
// turn has reached its bound, unless the tool call asks for permission: a person answers each of those.
func (t *Turn) mergeLocked(update ToolUpdate, asks bool) *agentTool {
	tool := t.tools[update.ID]
	again := tool != nil && tool.refused && update.Status != ToolCompleted && update.Status != ToolFailed
	if tool == nil || again {
		if !asks && (!t.allowToolLocked() || !t.allowLocked(len(update.Input))) {
			return nil
		}
		next := &agentTool{id: t.toolIDLocked(update.ID)}
		if tool != nil {
			next.ToolUpdate = tool.ToolUpdate
			next.Status, next.Content = "", nil
		}
		tool = next
		tool.ID = update.ID
		tool.merge(update)
		t.tools[update.ID] = tool
		t.order = append(t.order, tool)
		t.closeTextLocked()
		t.emitLocked(ToolStartAction{Type: "chat/toolCallStart", TurnID: t.turn.ID, ToolCallID: tool.id,
			ToolName: tool.name(), DisplayName: tool.display(), Meta: tool.meta()})
		return tool
	}
	tool.merge(update)
	return tool
}

// toolIDLocked returns an id for clients that is unique in the turn.
func (t *Turn) toolIDLocked(id string) string {
	const maxID = 128
	if len(id) == 0 || len(id) > maxID {
		id = fmt.Sprintf("tool-%d", len(t.order)+1)
	}
	wanted := id
	for n := 2; slices.ContainsFunc(t.order, func(other *agentTool) bool { return other.id == id }); n++ {
		id = fmt.Sprintf("%s#%d", wanted, n)
	}
	return id
}

func (tool *agentTool) merge(u ToolUpdate) {
	tool.Name = cmp.Or(u.Name, tool.Name)
	tool.Title = cmp.Or(u.Title, tool.Title)
	tool.Kind = cmp.Or(u.Kind, tool.Kind)
	tool.Status = cmp.Or(u.Status, tool.Status)
	tool.Error = cmp.Or(u.Error, tool.Error)
	if len(u.Input) > 0 {
		tool.Input = u.Input
	}
	if u.Locations != nil {
		tool.Locations = u.Locations
	}
	if u.Content != nil {
		tool.Content = u.Content
	}
	if len(u.Output) > 0 {
		tool.Output = u.Output
	}
}

func (tool *agentTool) name() string {
	return cmp.Or(tool.Name, string(tool.Kind), "tool")
}

func (tool *agentTool) display() string {
	return cmp.Or(toolNames[tool.Kind], tool.Name, "Tool")
}

func (tool *agentTool) meta() json.RawMessage {
	if tool.Kind == "" {
		return nil
	}
	return encode(map[string]any{"toolKind": tool.Kind})
}

// A toolRun is the time that a tool has run.
type toolRun struct {
	StartedAt  time.Time `json:"startedAt"`
	DurationMS int64     `json:"durationMs"`
}

// endMeta returns _meta with the time that the tool has run, or nil if that is
// unknown.
func (tool *agentTool) endMeta(now time.Time) json.RawMessage {
	if tool.since.IsZero() {
		return nil
	}
	more := map[string]any{"agenthost.ran": toolRun{tool.since.UTC(), now.Sub(tool.since).Milliseconds()}}
	if tool.Kind != "" {
		more["toolKind"] = tool.Kind
	}
	return encode(more)
}

// invocation returns a description of the call for people.
func (tool *agentTool) invocation() string {
	title := cmp.Or(tool.Title, tool.display())
	if tool.Kind != ToolExecute && len(tool.Locations) > 0 && !strings.Contains(title, lastName(tool.Locations[0].Path)) {
		title += " " + tool.Locations[0].Path
	}
	return title
}

func lastName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// input returns the tool's input as a text. It is omitted for a file change that is
// shown as a diff, because the input would repeat the diff.
func (tool *agentTool) input() json.RawMessage {
	if tool.Kind == ToolEdit && slices.ContainsFunc(tool.Content, func(c ToolContent) bool { return c.Diff != nil }) {
		return nil
	}
	if len(tool.Input) == 0 || bytes.Equal(tool.Input, []byte("{}")) || bytes.Equal(tool.Input, []byte("null")) {
		return nil
	}
	var compact bytes.Buffer
	if json.Compact(&compact, tool.Input) != nil {
		return nil
	}
	return encode(strings.ToValidUTF8(compact.String(), "\uFFFD"))
}

// readyToolLocked publishes that a tool runs, and later changes of its title and
// input.
func (t *Turn) readyToolLocked(tool *agentTool) {
	if tool.since.IsZero() && !t.past {
		tool.since = t.host.cfg.Now()
	}
	ready := ToolReadyAction{Type: "chat/toolCallReady", TurnID: t.turn.ID, ToolCallID: tool.id,
		InvocationMessage: tool.invocation(), ToolInput: tool.input(), Confirmed: "not-needed"}
	if tc := t.turn.tool(t.turn.ID, tool.id); tc != nil && tc.Confirmed != "" {
		ready.Confirmed = tc.Confirmed // a person has answered
	}
	if len(ready.ToolInput) > maxToolInput {
		ready.ToolInput = encode("(The input is too large to show.)")
	}
	same := tool.said.InvocationMessage == ready.InvocationMessage && bytes.Equal(tool.said.ToolInput, ready.ToolInput)
	if tool.ready && same || !t.allowLocked(len(ready.ToolInput)-len(tool.said.ToolInput)) && tool.ready {
		return
	}
	t.bytes -= len(tool.shown)
	tool.ready, tool.said, tool.shown = true, ready, nil // a ready action makes clients forget the content
	t.emitLocked(ready)
}

// showToolLocked publishes the content of a running tool, if it has changed.
func (t *Turn) showToolLocked(tool *agentTool) {
	content := tool.contents()
	encoded := encode(content)
	if bytes.Equal(encoded, tool.shown) || tool.shown == nil && len(content) == 0 || !t.allowLocked(len(encoded)-len(tool.shown)) {
		return
	}
	tool.shown = encoded
	t.emitLocked(ToolContentAction{"chat/toolCallContentChanged", t.turn.ID, tool.id, content})
}

// finishToolLocked publishes a tool's end.
func (t *Turn) finishToolLocked(tool *agentTool, status ToolStatus, message string) {
	if t.waiting[tool.id] == nil {
		t.readyToolLocked(tool)
	}
	delete(t.waiting, tool.id) // the agent continued without an answer
	tool.done = true
	result := ToolResult{PastTenseMessage: tool.invocation(), Content: tool.contents(), Success: status == ToolCompleted}
	if status == ToolFailed {
		result.Error = &ToolError{cmp.Or(message, "The tool failed.")}
	}
	if encoded := encode(result.Content); !t.allowLocked(len(encoded) - len(tool.shown)) {
		result.Content = []any{TextContent{"text", "(The output is too large to show.)"}}
	}
	t.emitLocked(ToolCompleteAction{"chat/toolCallComplete", t.turn.ID, tool.id, result, tool.endMeta(t.host.cfg.Now())})
	for _, c := range tool.Content {
		if c.Diff != nil && status == ToolCompleted {
			t.chat.session.agentChangedLocked(*c.Diff)
		}
	}
}

// contents returns the tool's content in the form for clients.
func (tool *agentTool) contents() []any {
	list := []any{}
	for _, c := range tool.Content {
		switch {
		case c.Diff != nil:
			list = append(list, fileEditContent{"fileEdit", c.Diff.edit()})
		case c.Terminal != nil && tool.done && c.Terminal.terminal.exitCode != nil: // show the text instead, because the terminal ends with the host
			text, _ := c.Terminal.outputLocked()
			list = append(list, TextContent{"text", tailOf(text)})
		case c.Terminal != nil:
			list = append(list, TerminalContent{"terminal", c.Terminal.ID(), c.Terminal.title()})
		case c.Embedded != nil:
			list = append(list, c.Embedded.content())
		default:
			list = append(list, TextContent{"text", tailOf(strings.ToValidUTF8(c.Text, "\uFFFD"))})
		}
	}
	if len(list) == 0 && len(tool.Output) > 0 && tool.done {
		list = append(list, TextContent{"text", tailOf(strings.ToValidUTF8(string(tool.Output), "\uFFFD"))})
	}
	return list
}

// tailOf shortens a text to its last maxToolText bytes behind an ellipsis, without a
// partial character.
func tailOf(text string) string {
	if len(text) <= maxToolText {
		return text
	}
	text = text[len(text)-maxToolText:]
	return "…" + strings.ToValidUTF8(text, "")
}

// content returns the embedded content in the form for clients.
func (e *Embedded) content() any {
	switch {
	case len(e.Data) > 0 && len(e.Data) <= maxToolText*4:
		return struct {
			Type        string `json:"type"`
			ContentType string `json:"contentType"`
			Data        []byte `json:"data"`
		}{"embeddedResource", e.MIMEType, e.Data}
	case len(e.Data) > 0:
		return TextContent{"text", fmt.Sprintf("(%d bytes of %s, too large to show)", len(e.Data), e.MIMEType)}
	case e.Text != "":
		return TextContent{"text", tailOf(strings.ToValidUTF8(e.Text, "\uFFFD"))}
	}
	return struct {
		Type        string `json:"type"`
		URI         string `json:"uri"`
		ContentType string `json:"contentType,omitempty"`
	}{"resource", e.URI, e.MIMEType}
}

// A fileEdit is a file change in the form for clients.
type fileEdit struct {
	Before *fileSide `json:"before,omitempty"`
	After  *fileSide `json:"after,omitempty"`
	Diff   lineCount `json:"diff"`
}

type fileEditContent struct {
	Type string `json:"type"`
	fileEdit
}

// A fileSide is a file before or after a change, with its text in the URI.
type fileSide struct {
	URI     string `json:"uri"`
	Content struct {
		URI string `json:"uri"`
	} `json:"content"`
}

type lineCount struct {
	Added   int `json:"added"`
	Removed int `json:"removed"`
}

func dataURI(text string) string {
	return "data:text/plain;base64," + base64.StdEncoding.EncodeToString([]byte(text))
}

func fileURI(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

func newSide(path string, text *string) *fileSide {
	if text == nil {
		return nil
	}
	side := &fileSide{URI: fileURI(path)}
	content := strings.ToValidUTF8(*text, "\uFFFD")
	if len(content) > maxDiff {
		content = fmt.Sprintf("(The host does not show this file: it has %d bytes.)\n", len(content))
	}
	side.Content.URI = dataURI(content)
	return side
}

// edit returns a diff in the form for clients.
func (d Diff) edit() fileEdit {
	old, now := "", ""
	if d.Old != nil {
		old = *d.Old
	}
	if d.New != nil {
		now = *d.New
	}
	added, removed := countLines(old, now)
	return fileEdit{Before: newSide(d.Path, d.Old), After: newSide(d.Path, d.New), Diff: lineCount{added, removed}}
}

// countLines counts the lines that differ between two texts, not counting the equal
// lines at beginning and end.
func countLines(old, now string) (added, removed int) {
	a, b := splitLines(old), splitLines(now)
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(b), len(a)
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// ErrRefused reports that the agent offers no option that agrees with a person's answer,
// such as a refusal.
var ErrRefused = fmt.Errorf("the user has refused: %w", ErrEnded)

// Ask asks for permission for a tool call, waits for the first answer of any client,
// and returns the id of the chosen option. If no option agrees with the answer, it
// returns [ErrRefused].
func (t *Turn) Ask(ctx context.Context, update ToolUpdate, options []PermissionOption) (string, error) {
	answer := make(chan toolConfirmedAction, 1)
	var tool *agentTool
	t.update(func() {
		if ctx.Err() == nil { // otherwise, it is withdrawn already
			tool = t.askLocked(update, options, answer)
		}
	})
	if tool == nil {
		return "", ErrEnded
	}
	select {
	case a := <-answer:
		t.update(func() { tool.since = t.host.cfg.Now() })
		return chosenOption(a, options)
	case <-t.ctx.Done():
		return "", ErrEnded
	case <-ctx.Done():
		t.update(func() {
			if t.waiting[tool.id] == answer { // the agent goes on without an answer, and reports the tool's end
				delete(t.waiting, tool.id)
				tool.ready = false
				t.readyToolLocked(tool)
			}
		})
		if t.ctx.Err() != nil {
			return "", ErrEnded
		}
		return "", ctx.Err()
	}
}

// askLocked publishes a permission request. It returns nil if the tool call has ended,
// or a request for it is open already.
func (t *Turn) askLocked(update ToolUpdate, options []PermissionOption, answer chan toolConfirmedAction) *agentTool {
	if update.Status == ToolCompleted || update.Status == ToolFailed {
		update.Status = ""
	}
	tool := t.mergeLocked(update, true)
	if tool.done || t.waiting[tool.id] != nil || t.past {
		return nil
	}
	ready := ToolReadyAction{Type: "chat/toolCallReady", TurnID: t.turn.ID, ToolCallID: tool.id,
		InvocationMessage: tool.invocation(), ToolInput: tool.input(), ConfirmationTitle: tool.invocation(), Options: wireOptions(options)}
	var edits []fileEdit
	for _, c := range tool.Content {
		if c.Diff != nil {
			edits = append(edits, c.Diff.edit())
		}
	}
	if len(edits) > 0 {
		ready.Edits = encode(map[string]any{"items": edits})
	}
	tool.ready, tool.said, tool.shown = true, ready, nil
	t.waiting[tool.id] = answer
	t.emitLocked(ready)
	return tool
}

// wireOptions returns options in the form for clients. Those that allow once come
// first.
func wireOptions(options []PermissionOption) []ConfirmOption {
	order := map[PermissionKind]int{AllowOnce: 0, AllowAlways: 1, RejectOnce: 2, RejectAlways: 2}
	wire := []ConfirmOption{}
	for _, o := range options {
		kind := "deny"
		if o.allows() {
			kind = "approve"
		}
		wire = append(wire, ConfirmOption{o.ID, o.Label, kind, order[o.Kind]})
	}
	slices.SortStableFunc(wire, func(a, b ConfirmOption) int { return cmp.Compare(a.Group, b.Group) })
	return wire
}

func (o PermissionOption) allows() bool { return o.Kind == AllowOnce || o.Kind == AllowAlways }

// chosenOption returns the option for an answer: the selected option if its meaning
// agrees with the answer, or else the most limited option that agrees.
func chosenOption(a toolConfirmedAction, options []PermissionOption) (string, error) {
	kinds := []PermissionKind{RejectOnce, RejectAlways}
	if *a.Approved {
		kinds = []PermissionKind{AllowOnce, AllowAlways}
	}
	for _, o := range options {
		if o.ID == a.SelectedOptionID && slices.Contains(kinds, o.Kind) {
			return o.ID, nil
		}
	}
	for _, kind := range kinds {
		if i := slices.IndexFunc(options, func(o PermissionOption) bool { return o.Kind == kind }); i >= 0 {
			return options[i].ID, nil
		}
	}
	return "", ErrRefused
}

// confirmLocked passes a client's answer to the waiting agent.
func (t *Turn) confirmLocked(a toolConfirmedAction) {
	answer := t.waiting[a.ToolCallID]
	if answer == nil {
		return
	}
	delete(t.waiting, a.ToolCallID)
	for _, tool := range t.order {
		if tool.id == a.ToolCallID && !*a.Approved {
			tool.done, tool.refused = true, true
		}
	}
	answer <- a // the capacity is 1, and there is one answer
}

// Plan replaces the agent's plan.
func (t *Turn) Plan(entries []PlanEntry) { t.update(func() { t.planLocked(entries) }) }

// planLocked shows a plan as a tool call, since AHP has no plans.
func (t *Turn) planLocked(entries []PlanEntry) {
	if t.plan == nil || t.plan.done {
		if len(entries) == 0 {
			return
		}
		t.plans++
		t.plan = nil
	}
	update := ToolUpdate{ID: fmt.Sprintf("agenthost-plan-%d", t.plans), Name: "todo", Title: "Plan", Kind: ToolThink, Status: ToolRunning}
	var text strings.Builder
	open := 0
	for _, e := range entries {
		mark := " "
		switch e.Status {
		case "completed":
			mark = "x"
		case "in_progress":
			mark = ">"
			open++
		default:
			open++
		}
		fmt.Fprintf(&text, "- [%s] %s\n", mark, e.Text)
	}
	update.Content = []ToolContent{{Text: text.String()}}
	if open == 0 {
		update.Status = ToolCompleted
	}
	t.plan = t.toolLocked(update)
}
