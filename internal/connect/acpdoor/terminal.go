package acpdoor

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// Bounds of a terminal's output as text.
const (
	maxOutput   = 32 << 10               // bytes; only the end of a longer output is shown
	outputPause = 500 * time.Millisecond // between two updates
)

// A terminal is a terminal of a tool call.
type terminal struct {
	session *session
	tool    *tool
	uri     string
	ready   bool            // its state has been read
	early   []client.Action // actions before that
	member  string          // member of _meta for the output; "": show it as text
	output  []byte          // end of the output so far
	shown   int             // bytes of the output so far
	timer   *time.Timer     // sends the next update, for text
	left    bool            // leave was called before its state was read
	gone    bool
}

func (t *tool) showTerminal(u *acp.ToolCallUpdate) {
	for _, item := range ahp.ElementsOf(t.call.Content) {
		if ahp.TextOf(item.Raw, "type") != "terminal" {
			continue
		}
		if uri := ahp.TextOf(item.Raw, "resource"); t.terminal == nil && uri != "" {
			t.turn.session.openTerminal(t, uri)
		}
		if v := t.terminal; v.member != "" {
			u.Content = append(u.Content, acp.ToolCallContent{Type: acp.ToolCallContentTerminal, TerminalID: v.uri})
			u.Meta = v.meta("terminal_info", map[string]any{})
		} else if len(v.output) > 0 {
			u.Content = append(u.Content, textContent("```console\n"+strings.TrimRight(printable(v.output), "\n")+"\n```"))
		}
		return
	}
}

// openTerminal starts to follow a terminal.
func (s *session) openTerminal(t *tool, uri string) {
	d := s.door
	d.mu.Lock()
	v := &terminal{session: s, tool: t, uri: uri, member: d.shows.member()}
	d.mu.Unlock()
	t.terminal = v
	if s.terminals[uri] != nil {
		v.gone = true
		return
	}
	s.terminals[uri] = v
	d.follow(uri, s)
	t.turn.read(v.load)
}

// continueTerminals reads the terminals of the running tool calls again, on a new connection.
func continueTerminals(s *session) {
	for _, v := range s.terminals {
		if v.ready {
			v.ready = false
			v.tool.turn.read(v.load)
		}
	}
}

// load reads the terminal's state, and shows it also if the tool call has ended meanwhile.
func (v *terminal) load() {
	raw, seq, err := v.subscribe()
	v.session.mu.Lock()
	defer v.session.mu.Unlock()
	v.ready = true
	if err == nil { // otherwise the host has closed it
		v.show(raw, seq)
	}
	if v.early = nil; v.left {
		v.leave()
	}
}

var errNoHost = errors.New("there is no connection to the host")

func (v *terminal) subscribe() (state json.RawMessage, seq int64, err error) {
	s := v.session
	c := s.client()
	if c == nil {
		return nil, 0, errNoHost
	}
	ctx, cancel := context.WithTimeout(s.door.life, callTime)
	defer cancel()
	return c.SubscribeAt(ctx, v.uri)
}

// show shows the terminal's state at seq, and the later actions.
func (v *terminal) show(raw json.RawMessage, seq int64) {
	var text strings.Builder
	for _, part := range ahp.ElementsOf(ahp.RawOf(raw, "content")) {
		text.WriteString(ahp.TextOf(part.Raw, "value") + ahp.TextOf(part.Raw, "output"))
	}
	more := text.String()
	switch i := strings.LastIndex(more, string(v.output)); { // after an interruption, the editor has the beginning
	case v.shown <= len(more) && strings.HasSuffix(more[:v.shown], string(v.output)):
		more = more[v.shown:]
	case i >= 0: // the host has dropped the beginning
		more = more[i+len(v.output):]
	}
	v.write(more)
	if ahp.TextOf(raw, "lifecycle", "status") == "exited" {
		v.exited(ahp.RawOf(raw, "lifecycle", "exitCode"))
	}
	for _, a := range v.early {
		if a.Seq > seq {
			v.take(a)
		}
	}
}

func (v *terminal) take(a client.Action) {
	if !v.ready {
		if len(v.early) < maxEarly {
			a.Raw = append([]byte{}, a.Raw...)
			v.early = append(v.early, a)
		}
		return
	}
	if v.gone || a.Rejected != "" {
		return
	}
	switch ahp.TextOf(a.Raw, "type") {
	case "terminal/data":
		v.write(ahp.TextOf(a.Raw, "data"))
	case "terminal/exited":
		v.exited(ahp.RawOf(a.Raw, "exitCode"))
	}
}

func (v *terminal) meta(member string, more map[string]any) json.RawMessage {
	more["terminal_id"] = v.uri
	text, _ := json.Marshal(map[string]any{member: more}) // strings and numbers always marshal
	return text
}

// write shows new output.
func (v *terminal) write(data string) {
	if data == "" {
		return
	}
	v.shown += len(data)
	v.output = append(v.output, data...)
	v.output = v.output[max(0, len(v.output)-maxOutput):]
	if v.member != "" {
		v.session.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{ToolCallID: v.tool.call.ID, Meta: v.meta(v.member, map[string]any{"data": data})})
		return
	}
	if v.timer == nil {
		v.timer = time.AfterFunc(outputPause, func() {
			v.session.mu.Lock()
			defer v.session.mu.Unlock()
			if v.timer = nil; !v.gone {
				v.tool.show()
			}
		})
	}
}

// exited shows that the program has ended, if the editor shows terminals.
func (v *terminal) exited(code []byte) {
	if v.member != "" {
		said := map[string]any{"exit_code": nil, "signal": nil}
		if n, err := ahp.Integer(code); err == nil && code != nil { // a host may write 1.0 for 1
			said["exit_code"] = n
		}
		v.session.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{ToolCallID: v.tool.call.ID, Meta: v.meta("terminal_exit", said)})
	}
}

// leave shows the terminal's remaining output, and then stops following it.
func (v *terminal) leave() {
	if v.gone {
		return
	}
	if !v.ready {
		v.left = true // load calls leave again
		return
	}
	if v.timer != nil && v.timer.Stop() {
		v.timer = nil
		v.tool.show()
	}
	v.gone = true
	s := v.session
	delete(s.terminals, v.uri)
	s.door.follow(v.uri, nil)
	if c := s.client(); c != nil {
		s.door.spawn(func() {
			ctx, cancel := context.WithTimeout(s.door.life, callTime)
			defer cancel()
			_ = c.Unsubscribe(ctx, v.uri) // an ended connection has no subscriptions
		})
	}
}

// escapes matches control sequences of terminals, and control characters.
var escapes = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)|[@-_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

func printable(output []byte) string {
	text := strings.ToValidUTF8(string(output), "\uFFFD")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return strings.ReplaceAll(escapes.ReplaceAllString(text, ""), "```", "'''")
}
