package agenthost

import (
	"cmp"
	"encoding/json"
	"strings"

	"ahprelay/ahp"
)

// terminalScheme begins terminal URIs.
const terminalScheme = "agenthost-terminal:"

// A terminal is a screen shared by all its subscribers. The host's lock guards its
// state.
type terminal struct {
	host     *Host
	uri      string
	title    string
	cwd      string
	cols     int
	rows     int
	claim    json.RawMessage
	exitCode *int // nil while it runs
	content  []*terminalPart
	backend  backend
	trimmed  bool          // the oldest content was dropped
	ofAgent  bool          // an agent has opened it
	ended    chan struct{} // closed when the process has ended; never for an echo terminal
}

// A backend is the process behind a terminal, or its simulation. Its methods are
// called with the host's lock held and do not block.
type backend interface {
	input(data string)
	resize(cols, rows int)

	// kill ends the process. No more actions are published.
	kill()

	// interrupt ends the process. The terminal still publishes its last output and
	// its end.
	interrupt()
}

type terminalInfo struct {
	Resource string          `json:"resource"`
	Title    string          `json:"title"`
	Claim    json.RawMessage `json:"claim"`
	ending
}

// An ending describes whether a terminal's process still runs: by an exit code in
// AHP 0.8, by a lifecycle since 0.9.
type ending struct {
	Lifecycle *lifecycle `json:"lifecycle,omitempty"`
	ExitCode  *int       `json:"exitCode,omitempty"`
}

type lifecycle struct {
	Status   string `json:"status"`
	ExitCode *int   `json:"exitCode,omitempty"`
}

type terminalState struct {
	Title   string          `json:"title"`
	Cwd     string          `json:"cwd,omitempty"`
	Cols    int             `json:"cols"`
	Rows    int             `json:"rows"`
	Content []*terminalPart `json:"content"`
	ending
	Claim                    json.RawMessage `json:"claim"`
	SupportsCommandDetection bool            `json:"supportsCommandDetection"`
	IsPty                    bool            `json:"isPty"`
}

// A terminalPart is a piece of terminal content: a command with its output, or
// unclassified output.
type terminalPart struct {
	Type       string  `json:"type"` // unclassified or command
	Value      *string `json:"value,omitempty"`
	CommandID  string  `json:"commandId,omitempty"`
	Line       string  `json:"commandLine,omitempty"`
	Output     *string `json:"output,omitempty"`
	Timestamp  int64   `json:"timestamp,omitempty"`
	IsComplete *bool   `json:"isComplete,omitempty"`
	ExitCode   *int    `json:"exitCode,omitempty"`
	DurationMs *int64  `json:"durationMs,omitempty"`
}

func (t *terminal) ending() ending {
	switch {
	case t.host.dialect.own[0].compare(lifecycleSince) < 0:
		return ending{ExitCode: t.exitCode}
	case t.exitCode != nil:
		return ending{Lifecycle: &lifecycle{"exited", t.exitCode}}
	}
	return ending{Lifecycle: &lifecycle{Status: "running"}}
}

func (t *terminal) state() terminalState {
	state := terminalState{
		Title: t.title, Cwd: t.cwd, Cols: t.cols, Rows: t.rows, Content: t.content, Claim: t.claim, ending: t.ending(),
		SupportsCommandDetection: !t.ofAgent && t.host.cfg.Terminals == EchoTerminals,
		IsPty:                    t.ofAgent || t.host.cfg.Terminals == ShellTerminals,
	}
	if state.Content == nil {
		state.Content = []*terminalPart{}
	}
	return state
}

func (ts *terminalTable) terminalInfosLocked() []terminalInfo {
	infos := []terminalInfo{}
	for _, t := range ts.all() {
		infos = append(infos, terminalInfo{t.uri, t.title, t.claim, t.ending()})
	}
	return infos
}

// terminalsChangedLocked publishes the list of terminals.
func (ts *terminalTable) terminalsChangedLocked() {
	ts.host.emitLocked(rootChannel, struct {
		Type      string         `json:"type"`
		Terminals []terminalInfo `json:"terminals"`
	}{"root/terminalsChanged", ts.terminalInfosLocked()})
}

// claim returns the owner of a terminal: the chat, and a tool call if it is known.
func (ch *chat) claim(turnID, toolCallID string) json.RawMessage {
	return encode(struct {
		Kind       string `json:"kind"`
		Session    string `json:"session"`
		Chat       string `json:"chat"`
		TurnID     string `json:"turnId,omitempty"`
		ToolCallID string `json:"toolCallId,omitempty"`
	}{"session", ch.session.uri, ch.uri, turnID, toolCallID})
}

type terminalParams struct {
	Channel string          `json:"channel"`
	Claim   json.RawMessage `json:"claim"`
	Name    string          `json:"name"`
	Cwd     string          `json:"cwd"`
	Cols    int             `json:"cols"`
	Rows    int             `json:"rows"`
}

func (ts *terminalTable) createTerminalLocked(_ *conn, params terminalParams) (any, error) {
	_, err := ts.addTerminalLocked(params, ts.openBackendLocked)
	return nil, err
}

func (ts *terminalTable) addTerminalLocked(params terminalParams, open func(*terminal) (backend, error)) (_ *terminal, err error) {
	h := ts.host
	if _, ok := ts.get(params.Channel); ok {
		return nil, fail(ahp.CodeInternalError, "Terminal already exists: %s", params.Channel)
	}
	if !strings.HasPrefix(params.Channel, terminalScheme) {
		return nil, fail(ahp.CodeInvalidParams, "Not a terminal URI: %s", params.Channel)
	}
	if len(ts.keys) >= maxTerminals {
		return nil, fail(ahp.CodeInternalError, "More than %d terminals", maxTerminals)
	}
	t := &terminal{
		host:  h,
		uri:   params.Channel,
		title: cmp.Or(params.Name, string(h.cfg.Terminals)),
		cwd:   strings.TrimPrefix(params.Cwd, "file://"),
		cols:  orDefault(params.Cols, 80),
		rows:  orDefault(params.Rows, 24),
		claim: params.Claim,
		ended: make(chan struct{}),
	}
	if !ahp.IsObject(t.claim) {
		t.claim = json.RawMessage(`{"kind":"client","clientId":""}`)
	}
	if t.backend, err = open(t); err != nil {
		return nil, err
	}
	ts.add(t.uri, t)
	ts.terminalsChangedLocked()
	return t, nil
}

func (ts *terminalTable) openBackendLocked(t *terminal) (backend, error) {
	if ts.host.cfg.Terminals == EchoTerminals {
		return &echoBackend{terminal: t}, nil
	}
	return ts.startShellLocked(t)
}

// maxScreen bounds a terminal's columns and rows.
const maxScreen = 10_000

func orDefault(n, fallback int) int {
	if n <= 0 || n > maxScreen {
		return fallback
	}
	return n
}

// disposeTerminalLocked answers disposeTerminal. A missing terminal is no error.
func (ts *terminalTable) disposeTerminalLocked(_ *conn, params channelParams) (any, error) {
	if t, ok := ts.get(params.Channel); ok {
		ts.remove(t.uri)
		t.backend.kill()
		ts.terminalsChangedLocked()
	}
	return nil, nil
}

// terminalActionLocked echoes an action on a terminal, then applies it.
func (ts *terminalTable) terminalActionLocked(env envelope) {
	var a struct {
		Data  string          `json:"data"`
		Cols  int             `json:"cols"`
		Rows  int             `json:"rows"`
		Title string          `json:"title"`
		Claim json.RawMessage `json:"claim"`
	}
	if json.Unmarshal(env.action, &a) != nil {
		return
	}
	ts.host.publishLocked(env, nil)
	t, ok := ts.get(env.channel)
	if !ok {
		return
	}
	switch env.kind {
	case "terminal/input":
		if t.exitCode == nil {
			t.backend.input(a.Data)
		}
	case "terminal/resized":
		t.cols, t.rows = orDefault(a.Cols, t.cols), orDefault(a.Rows, t.rows)
		t.backend.resize(t.cols, t.rows)
	case "terminal/titleChanged":
		t.title = a.Title
		ts.terminalsChangedLocked()
	case "terminal/cleared":
		t.content = nil
	case "terminal/claimed":
		if ahp.IsObject(a.Claim) {
			t.claim = a.Claim
			ts.terminalsChangedLocked()
		}
	}
}

// dataLocked publishes output.
func (t *terminal) dataLocked(data string) {
	t.appendOutput(data)
	t.host.emitLocked(t.uri, struct {
		Type string `json:"type"`
		Data string `json:"data"`
	}{"terminal/data", data})
}

// maxOutputPart bounds the bytes of a part to which output is added, because that copies the part.
const maxOutputPart = 64 << 10

func (t *terminal) appendOutput(data string) {
	t.trim(len(data))
	if len(t.content) > 0 {
		tail := t.content[len(t.content)-1]
		if tail.Type == "command" && !*tail.IsComplete {
			*tail.Output += data
			return
		}
		if tail.Type == "unclassified" && len(*tail.Value) < maxOutputPart {
			*tail.Value += data
			return
		}
	}
	t.content = append(t.content, &terminalPart{Type: "unclassified", Value: &data})
}

// trim drops the oldest content to make room for n bytes. Clients keep their copies.
func (t *terminal) trim(n int) {
	for len(t.content) > 0 && t.contentLen()+n > maxTerminalBytes {
		t.trimmed = true
		if len(t.content) > 1 {
			t.content = t.content[1:]
			continue
		}
		text := t.content[0].Value
		if text == nil {
			text = t.content[0].Output
		}
		kept := max(0, min(len(*text), maxTerminalBytes/2-n)) // half, because dropping copies the rest
		*text = strings.ToValidUTF8((*text)[len(*text)-kept:], "")
		return
	}
}

func (t *terminal) contentLen() int {
	n := 0
	for _, part := range t.content {
		if part.Value != nil {
			n += len(*part.Value)
		} else {
			n += len(*part.Output)
		}
	}
	return n
}

// executedLocked publishes the start of a command.
func (t *terminal) executedLocked(id, line string, timestamp int64) {
	t.content = append(t.content, &terminalPart{
		Type: "command", CommandID: id, Line: line, Output: new(string), Timestamp: timestamp, IsComplete: new(bool),
	})
	t.host.emitLocked(t.uri, struct {
		Type        string `json:"type"`
		CommandID   string `json:"commandId"`
		CommandLine string `json:"commandLine"`
		Timestamp   int64  `json:"timestamp"`
	}{"terminal/commandExecuted", id, line, timestamp})
}

// finishedLocked publishes the end of a command, with exit code and duration 0.
func (t *terminal) finishedLocked(id string) {
	for _, part := range t.content {
		if part.CommandID == id {
			part.IsComplete, part.ExitCode, part.DurationMs = new(true), new(int), new(int64)
		}
	}
	t.host.emitLocked(t.uri, struct {
		Type       string `json:"type"`
		CommandID  string `json:"commandId"`
		ExitCode   int    `json:"exitCode"`
		DurationMs int64  `json:"durationMs"`
	}{"terminal/commandFinished", id, 0, 0})
}

// exitedLocked publishes the terminal's end.
func (t *terminal) exitedLocked(code int) {
	t.exitCode = &code
	t.host.emitLocked(t.uri, struct {
		Type     string `json:"type"`
		ExitCode int    `json:"exitCode"`
	}{"terminal/exited", code})
	t.host.terminals.terminalsChangedLocked()
}
