package acp

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// Bounds of a tool call's content, in bytes.
const (
	maxText = 1 << 20 // of a text
	maxDiff = 1 << 20 // of each side of a diff
)

// A tool holds the state of a tool call.
type tool struct {
	title string
	ended bool
	diffs []agenthost.ToolContent  // changes that the tool call has shown
	shown *agenthost.AgentTerminal // for output that the agent sends as data
}

// keepDiffs adds the diffs that a tool call has shown before to content without diffs.
// Some agents show a diff only in the permission request, and replace it by the result's
// text.
func (t *tool) keepDiffs(content []agenthost.ToolContent) []agenthost.ToolContent {
	var diffs []agenthost.ToolContent
	for _, c := range content {
		if c.Diff != nil {
			diffs = append(diffs, c)
		}
	}
	if content == nil {
		return nil
	}
	if diffs != nil {
		t.diffs = diffs
		return content
	}
	return append(t.diffs[:len(t.diffs):len(t.diffs)], content...)
}

// toolMeta is the part of a tool call's _meta that this package uses.
type toolMeta struct {
	Claude struct {
		Tool string `json:"toolName"`
	} `json:"claudeCode"`
	Info   *terminalMeta `json:"terminal_info"`
	Output *terminalMeta `json:"terminal_output"`
	Delta  *terminalMeta `json:"terminal_output_delta"`
	Exit   *terminalMeta `json:"terminal_exit"`
}

type terminalMeta struct {
	ID   string `json:"terminal_id"`
	Data string `json:"data"`
	Code *int   `json:"exit_code"`
}

// noteTool records a tool call's title and end. It returns nil before the
// conversation's first turn.
func noteTool(c *conversation, u acp.ToolCallUpdate) *tool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.tools[u.ToolCallID]
	if known == nil && c.tools != nil {
		known = &tool{}
		c.tools[u.ToolCallID] = known
	}
	if known != nil {
		known.title = cmp.Or(u.Title, known.title)
		if u.Status != "" {
			known.ended = u.Status == acp.ToolCallStatusCompleted || u.Status == acp.ToolCallStatusFailed
		}
	}
	return known
}

// absolutePath returns the absolute form of a path that an agent reports relative to its folder.
func absolutePath(c *conversation, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(c.start.Folder, path)
}

// locations translates the places that a tool call touches.
func locations(c *conversation, list []acp.ToolCallLocation) (translated []agenthost.Location) {
	for _, l := range list {
		at := agenthost.Location{Path: absolutePath(c, l.Path)}
		if l.Line != nil {
			at.Line = int(*l.Line)
		}
		translated = append(translated, at)
	}
	return translated
}

// tool translates a tool call's beginning or change.
func (c *conversation) tool(u acp.ToolCallUpdate) agenthost.ToolUpdate {
	var meta toolMeta
	if u.Meta != nil {
		_ = acp.Decode(u.Meta, &meta) // most agents have other members
	}
	known := noteTool(c, u)
	update := agenthost.ToolUpdate{
		ID: u.ToolCallID, Name: cmp.Or(u.Name, meta.Claude.Tool), Title: u.Title, Kind: agenthost.ToolKind(u.Kind), Status: agenthost.ToolStatus(u.Status),
		Input: u.RawInput, Output: u.RawOutput,
	}
	update.Locations = locations(c, u.Locations)
	shown := false
	if known != nil {
		shown = c.feed(known, meta)
	}
	if u.Content != nil {
		update.Content = []agenthost.ToolContent{}
	}
	for _, content := range u.Content {
		if content.Type == acp.ToolCallContentTerminal && known != nil && known.shown != nil {
			shown = true
			continue
		}
		if translated, ok := c.content(content); ok {
			update.Content = append(update.Content, translated)
		}
	}
	if known != nil {
		update.Content = known.keepDiffs(update.Content)
	}
	if shown {
		update.Content = append(update.Content, agenthost.ToolContent{Terminal: known.shown})
	}
	return update
}

// feed passes output that the agent sends as data to a terminal that clients can see. It
// reports whether it has opened the terminal.
func (c *conversation) feed(t *tool, meta toolMeta) (opened bool) {
	output := meta.Delta
	if output == nil {
		output = meta.Output
	}
	if t.shown == nil && (meta.Info != nil || output != nil) {
		shown := c.chat.ShowOutput(cmp.Or(t.title, "Terminal"))
		c.mu.Lock()
		t.shown = shown // read by the end of the turn
		c.mu.Unlock()
		opened = shown != nil
	}
	if t.shown == nil {
		return false
	}
	if output != nil {
		t.shown.Write(output.Data)
	}
	if meta.Exit != nil {
		code := 0
		if meta.Exit.Code != nil {
			code = *meta.Exit.Code
		}
		t.shown.Exited(code)
	}
	return opened
}

// content translates an item of a tool call's content.
func (c *conversation) content(item acp.ToolCallContent) (agenthost.ToolContent, bool) {
	switch item.Type {
	case acp.ToolCallContentContent:
		if item.Content.Type == acp.ContentBlockText {
			return agenthost.ToolContent{Text: shortened(item.Content.Text)}, true
		}
		e := embedded(item.Content)
		return agenthost.ToolContent{Embedded: e}, e != nil
	case acp.ToolCallContentDiff:
		if len(item.OldText) > maxDiff || len(item.NewText) > maxDiff {
			return agenthost.ToolContent{Text: fmt.Sprintf("%s: the change is too long to show", item.Path)}, true
		}
		diff := &agenthost.Diff{Path: absolutePath(c, item.Path), New: &item.NewText}
		if item.OldText != "" {
			diff.Old = &item.OldText
		}
		return agenthost.ToolContent{Diff: diff}, true
	case acp.ToolCallContentTerminal:
		t := shownTerminal(c, item.TerminalID)
		return agenthost.ToolContent{Terminal: t}, t != nil
	}
	return agenthost.ToolContent{}, false
}

// embedded translates content other than text. It returns nil if there is none.
func embedded(b acp.ContentBlock) *agenthost.Embedded {
	e := &agenthost.Embedded{URI: b.URI, MIMEType: b.MimeType}
	blob := b.Data
	switch b.Type {
	case acp.ContentBlockImage, acp.ContentBlockAudio:
	case acp.ContentBlockResourceLink:
		blob = ""
	case acp.ContentBlockResource:
		e.URI, e.MIMEType, e.Text, blob = b.Resource.URI, b.Resource.MimeType, shortened(b.Resource.Text), b.Resource.Blob
	default:
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(blob)
	if err != nil {
		return nil
	}
	e.Data = data
	return e
}

// shortened removes the middle of a long text, because beginning and end matter most.
func shortened(text string) string {
	if len(text) <= maxText {
		return text
	}
	from, to := maxText/2, len(text)-maxText/2
	for !utf8.RuneStart(text[from]) {
		from--
	}
	for !utf8.RuneStart(text[to]) {
		to++
	}
	return text[:from] + fmt.Sprintf("\n… %d bytes left out …\n", to-from) + text[to:]
}

// command returns the name of the slash command at the beginning of a prompt, without
// the slash, or "".
func command(text string) string {
	word, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	name, ok := strings.CutPrefix(word, "/")
	if !ok {
		return ""
	}
	return name
}

// commands translates slash commands.
func (a *Agent) commands(available []acp.AvailableCommand) []agenthost.Command {
	list := []agenthost.Command{}
	for _, c := range available {
		bypass := isBypass(c.Name, "", "")
		if bypass && a.cfg.NoBypass {
			continue
		}
		command := agenthost.Command{Name: strings.TrimPrefix(c.Name, "/"), Description: c.Description, Bypass: bypass}
		if c.Input != nil {
			command.Hint = c.Input.Hint
		}
		list = append(list, command)
	}
	return list
}
